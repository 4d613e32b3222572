// The product with the input inside the recurrence in 16 bits (mma.cuh). Its weights stay in shared
// memory, where each fragment of operand A serves two tiles of rows. Rows of input are operand B,
// and are copied to shared memory some steps ahead.
#pragma once

#include "../../ptx/cp_async.cuh"
#include "../../ptx/shared.cuh"
#include "block_rows.cuh"
#include "mma.cuh"

#include <cstdint>

namespace lltm::cuda {

/// A row of the batch has a column of the sums to itself, so that what is beyond its length does
/// not matter to others.
template <typename Shape>
class InputProduct {
 public:
  using Element = typename Shape::Element;
  using Weights = SharedWeights<Shape, Shape::kState, kLargestRecurrentInput, true>;
  static constexpr int kGates = Shape::Cell::kGates;
  static constexpr int kPitch = kLargestRecurrentInput + 8;  // keeps rows in different banks
  static constexpr int kTileBytes = 8 * kPitch * 2, kPartBytes = 0, kChunkBytes = 16 * 2;
  // Rows of a step are used while those of the next one are complete and two more are on their way.
  static constexpr int kSteps = 4;
  static constexpr int kStepBytes = Shape::kRows * kPitch * 2;
  // For each gate and two neighboring columns, the bias as a thread's sums of a tile start from it.
  static constexpr int kBiasBytes = kGates * Shape::kState / 2 * 16;
  // First the weights: until load_weights() their memory is free for other uses.
  static constexpr int kRowsAt = Weights::kBytes, kBiasAt = kRowsAt + kSteps * kStepBytes;
  static constexpr int kBytes = kBiasAt + kBiasBytes;
  static_assert(Shape::kPairs && Shape::kOwnRows == 2 && Shape::kOwnColumns == 2);

  LLTM_DEVICE InputProduct(const RecurrenceForward<Element>& p,
                           const OwnElements<Shape>& own,
                           int64_t first_row,
                           int block_rows,
                           const BlockTimes& times,
                           uint32_t shared)
      : weights_(own, shared), times_to_fetch_(times.count) {
    const auto& input = p.input;
    const bool starts_at_vectors = reinterpret_cast<uintptr_t>(input.data) % 16 == 0 &&
                                   input.strides[0] % 8 == 0 && input.strides[1] % 8 == 0;
    by_vectors_ = in_register(starts_at_vectors ? 1 : 0);
    const int count = by_vectors_ != 0 ? 8 : 2, row_vectors = kLargestRecurrentInput / count;
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / row_vectors, column = thread % row_vectors * count;
    source_ =
        input.data + times.first * input.strides[0] + (first_row + row) * input.strides[1] + column;
    time_stride_ = times.step * input.strides[0];
    pass_stride_ = Shape::kThreads / row_vectors * input.strides[1];
    rows_ = times.count > 0 ? max(block_rows - row, 0) : 0;
    valid_bytes_ = in_register(2 * max(min(static_cast<int>(p.input_features) - column, count), 0));
    const uint32_t rows_at = shared + kRowsAt;
    write_ = in_register(rows_at + (row * kPitch + column) * 2);
    read_ = in_register(rows_at + (own.lane % 8 * kPitch + own.lane / 8 * 8) * 2);
    bias_ = in_register(shared + kBiasAt + own.column / 2 * 16);
    for (int gate = 0; gate < kGates; ++gate) {
      const auto bias_of = [&](int j) {
        const int64_t column = gate * p.state_size + own.column + j;
        return __float_as_uint(p.bias != nullptr && j < own.columns
                                   ? static_cast<float>(p.bias[column * p.bias_stride])
                                   : 0.0f);
      };
      const uint32_t first = bias_of(0), second = bias_of(1);
      store_shared_4(bias_ + gate * (kBiasBytes / kGates), {first, first, second, second});
    }
  }

  /// Fetches the first rows.
  LLTM_DEVICE void start() {
#pragma unroll
    for (int step = 0; step < kSteps - 1; ++step) {
      fetch(step * kStepBytes);
    }
  }

  /// Block barriers must come before, after other uses of their memory, and afterwards.
  LLTM_DEVICE void load_weights(const RecurrenceForward<Element>& p) {
    const int size = static_cast<int>(p.state_size);
    weights_.load(p.input_weights, size, size, static_cast<int>(p.input_features));
    wait_copies<0>();
  }

  /// Sets the sums of the tiles from `tile` on to bias and product.
  template <int kChains>
  LLTM_DEVICE void multiply(int tile,
                            float (&sums)[Shape::kTilesAtOnce][kGates][kChains][4]) const {
#pragma unroll
    for (int i = 0; i < Shape::kTilesAtOnce; ++i) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        uint32_t bias[4];
        load_shared_4(bias, bias_ + gate * (kBiasBytes / kGates));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[i][gate][0][j] = __uint_as_float(bias[j]);
        }
      }
    }
    multiply_tiles<Element, InputProduct, 1, kLargestRecurrentInput>(
        [&](uint32_t(&a)[4], int gate, int chunk) { weights_.fragment(a, gate, chunk); },
        read_ + now_ + tile * kTileBytes,
        sums);
  }

  /// Fetches rows for a later step. All threads have finished the step before this one.
  LLTM_DEVICE void fetch_later() {
    fetch(now_ == 0 ? (kSteps - 1) * kStepBytes : now_ - kStepBytes);
  }

  /// Ends a step. What the thread has fetched for the step after the next one is complete.
  LLTM_DEVICE void finish_step() {
    wait_copies<kSteps - 3>();
    now_ = now_ == (kSteps - 1) * kStepBytes ? 0 : now_ + kStepBytes;
  }

 private:
  LLTM_DEVICE void fetch(int to) {
    if (by_vectors_ != 0) {
      copy<8>(to);
    } else {
      copy<2>(to);
    }
    commit_copies();
    source_ += time_stride_;
    rows_ = --times_to_fetch_ > 0 ? rows_ : 0;
  }

  /// kCount neighbors at a time.
  template <int kCount>
  LLTM_DEVICE void copy(int to) const {
    constexpr int kPassRows = Shape::kThreads / (kLargestRecurrentInput / kCount);
    const Element* from = source_;
#pragma unroll
    for (int row = 0; row < Shape::kRows; row += kPassRows) {
      copy_async<2 * kCount>(write_ + to + row * kPitch * 2, from, row < rows_ ? valid_bytes_ : 0);
      from += pass_stride_;
    }
  }

  Weights weights_;
  int times_to_fetch_;
  int by_vectors_, rows_, valid_bytes_;  // of the thread's first row and column in a copy
  const Element* source_;
  int64_t time_stride_, pass_stride_;
  uint32_t write_, read_, bias_;
  int now_ = 0;
};

}  // namespace lltm::cuda
