// Copies a block's weights to shared memory, from where its threads take theirs to registers.
#pragma once

#include "../../ptx/cp_async.cuh"
#include "../../ptx/global.cuh"
#include "../../ptx/shared.cuh"
#include "recurrence.h"

#include <bit>
#include <cstdint>

namespace lltm::cuda {

/// A block's part of the weights of some gates.
template <typename Element>
struct WeightsOfBlock {
  const Element* data;  // the first row and column of the first gate
  int64_t strides[2];   // of rows and columns
  int64_t gate_stride;
  int gates;
  int rows, columns;  // of each gate, that exist: none if negative

  /// Whether `count` neighbors of a row can be read at once, all of which exist or none.
  LLTM_DEVICE bool in_vectors(int count) const {
    return strides[1] == 1 && strides[0] % count == 0 && columns % count == 0 &&
           reinterpret_cast<uintptr_t>(data) % (count * sizeof(Element)) == 0;
  }
};

/// How many rows a warp copies at once, of which each takes so many lanes: a power of two, which
/// divides the rows of every tile.
template <int kLanes>
inline constexpr int kRowsOfWarp = std::bit_floor(32U / kLanes);

/// Copies kRows rows of kColumns of each gate, kCount neighbors at a time: a warp copies a row, or
/// several short ones.
template <int kThreads, int kRows, int kColumns, int kCount, typename Element, typename PlaceOf>
LLTM_DEVICE void copy_weight_vectors(const WeightsOfBlock<Element>& weights,
                                     const PlaceOf& place_of) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(Element));
  constexpr int kRowVectors = kColumns / kCount;
  constexpr int kLanes = kRowVectors < 32 ? kRowVectors : 32;  // that copy a row together
  constexpr int kWarpRows = kRowsOfWarp<kLanes>, kPassRows = kThreads / 32 * kWarpRows;
  constexpr int kPasses = kRows / kPassRows;
  static_assert(kRows % kPassRows == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane >= kWarpRows * kLanes) {
    return;
  }
  const int first_row = warp * kWarpRows + lane / kLanes;
  const int64_t pass_stride = kPassRows * weights.strides[0];
#pragma unroll 1
  for (int gate = 0; gate < weights.gates; ++gate) {
#pragma unroll 1
    for (int vector = lane % kLanes; vector < kRowVectors; vector += 32) {
      const int column = vector * kCount;
      const int rows = column < weights.columns ? weights.rows : 0;
      const Element* from = weights.data + gate * weights.gate_stride +
                            first_row * weights.strides[0] + column * weights.strides[1];
#pragma unroll kBytes >= 4 ? 2 : 32
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row = first_row + pass * kPassRows;
        const uint32_t place = place_of(gate, row, column);
        if constexpr (kBytes >= 4) {
          copy_async<kBytes>(place, from, row < rows ? kBytes : 0);
        } else {
          // Loads are not asynchronous: many of them are started before the first is stored.
          uint32_t element;
          load_half_once(element, from, row < rows);
          store_shared_low_half(place, element);
        }
        from += pass_stride;
      }
    }
  }
}

/// Copies kRows rows of kColumns of each gate, with zeros where they do not exist, to
/// place_of(gate, row, column), where vectors of 16 bytes stay together. All threads of the block
/// call it, and the weights can be read after a block barrier.
template <int kThreads, int kRows, int kColumns, typename Element, typename PlaceOf>
LLTM_DEVICE void copy_weights(const WeightsOfBlock<Element>& weights, const PlaceOf& place_of) {
  constexpr int kVector = 16 / sizeof(Element), kWord = 4 / sizeof(Element);
  if (weights.in_vectors(kVector)) {
    copy_weight_vectors<kThreads, kRows, kColumns, kVector>(weights, place_of);
  } else if (kWord == 1 || weights.in_vectors(kWord)) {
    copy_weight_vectors<kThreads, kRows, kColumns, kWord>(weights, place_of);
  } else {
    copy_weight_vectors<kThreads, kRows, kColumns, 1>(weights, place_of);
  }
  commit_copies();
  wait_copies<0>();
}

}  // namespace lltm::cuda
