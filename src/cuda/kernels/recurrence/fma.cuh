// The recurrence in float32, by multiply-adds of the CUDA cores.
//
// A block multiplies its rows of V, which are h in the forward and d_gates in the backward, by the
// weights, which its threads hold in registers. A thread has kColumns columns of the state, with
// all of their gates in the forward, and a part of K: kLanes neighboring threads share the K of
// their columns. When their sums are scattered over these lanes, those of an element end in one
// thread, which computes it and puts it into the V of the next step. V has two buffers, so a step
// needs one barrier.
//
// The blocks of a cluster share the columns of a larger state, and each has all of V.
//
// What makes a step short: nothing of a step but the product and the math of an element lies on the
// path from one V to the next. What the elements read is copied to shared memory some steps ahead,
// by the threads that need it; what a step leaves is written after the next product. Nothing of it
// branches, so that it fills the gaps in the math of the elements. Addresses and strides are kept
// in registers, where the compiler would compute them again in every step.
#pragma once

#include "../../ptx/barrier.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/cp_async.cuh"
#include "../../ptx/registers.cuh"
#include "../../ptx/shared.cuh"
#include "../../reduction/lane_sums.cuh"
#include "cell_tiles.h"
#include "copy_weights.cuh"
#include "recurrence.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

/// The threads of a block, and the columns of a thread. They were found by measurement.
struct FmaThreads {
  int count, columns;
};
constexpr FmaThreads fma_threads(int gates, bool backward, const RecurrenceTile& tile) {
  if (tile.cluster > 1) {
    return {256, backward && tile.cluster == 4 ? 8 : 4};
  }
  switch (tile.state_size) {
    case 32:
      return {gates > 3 && tile.rows > 1 ? 128 : 32, 1};
    case 96:
      return {192, 4};
    default:
      return {2 * tile.state_size, (backward ? 2 : 1) * tile.state_size / 32};
  }
}

/// The sizes of a block.
template <typename Cell_, bool kBackward_, RecurrenceTile kTile>
struct FmaTile {
  using Cell = Cell_;
  static constexpr bool kBackward = kBackward_, kXInside = kTile.x_inside;
  static constexpr int kState = kTile.state_size, kRows = kTile.rows, kCluster = kTile.cluster;
  static_assert(!kXInside || (!kBackward && kCluster == 1));
  static constexpr int kGates = Cell::kGates;
  static constexpr FmaThreads kOfBlock = fma_threads(kGates, kBackward, kTile);
  static constexpr int kThreads = kOfBlock.count;
  static constexpr int kOwnState = kState / kCluster;  // the columns of a block
  static constexpr int kColumns = kOfBlock.columns;    // of a thread
  static constexpr int kBlocks = resident_fma_blocks(kGates, kTile);
  static constexpr int kVectors = kBackward ? Cell::kGates : 1;  // of kState columns, in a row of V
  static constexpr int kSums = kBackward ? 1 : Cell::kGates;     // of an element
  static constexpr int kK = kVectors * kState;
  static constexpr int kLanes = kThreads * kColumns / kOwnState;  // that share K
  static constexpr int kKOfLane = kK / kLanes;
  // Of the lanes that share K, each has one of the columns and some of the rows in the end, where
  // there are enough rows; otherwise several compute the same element.
  static constexpr int kRowLanes =
      std::min(kLanes / kColumns, static_cast<int>(std::bit_ceil(unsigned{kRows})));
  static constexpr int kElements = (kRows + kRowLanes - 1) / kRowLanes;  // neighboring rows
  static constexpr int kScatteredRows = kElements * kRowLanes;  // those past kRows do not exist
  // What an element reads in a step: what x gives it, unless that is computed here, or, in the
  // backward, what is saved, the cell state and the gradients of output and cells.
  static constexpr int kFetched = kXInside ? 0 : kBackward ? Cell::kSaved + 3 : Cell::kInputs;
  static constexpr int kAhead = 4;  // steps
  static constexpr int kVectorBytes = 2 * kRows * kK * 4;
  static constexpr int kFetchedBytes = kElements * kFetched * kThreads * 4;  // of a step
  static constexpr int kInputBytes = kXInside ? kRows * kState * 4 : 0;      // of a step
  // Weights are staged in shared memory, of which some GPUs have 99 KiB a block: those of all gates
  // at once, or of one after the other.
  static constexpr int kStagedGates = kState <= 64 ? kGates : 1;
  // The rows and columns of a gate's weights that are staged: those of h are the K of a forward.
  static constexpr int kStagedRows = kBackward ? kState : kOwnState;
  static constexpr int kStagedColumns = kBackward ? kOwnState : kState;
  static constexpr int kStageBytes = kStagedGates * kStagedRows * kStagedColumns * 4;
  static constexpr int kBarrierBytes = kCluster > 1 ? 16 : 0;
  static constexpr int kSharedBytes =
      kBarrierBytes + std::max(kVectorBytes + kAhead * (kFetchedBytes + kInputBytes), kStageBytes);
  static_assert(kThreads * kColumns % kOwnState == 0);
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
  static_assert(kK % kLanes == 0 && kKOfLane % 4 == 0 && kLanes >= kColumns);
  static_assert(kStagedGates == kGates || kState % (4 * kLanes) == 0);
};

template <int kThreads>
LLTM_DEVICE void sync_block() {
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

/// The product of a block, and which elements its threads finish.
template <typename Tile>
class FmaProduct {
 public:
  static constexpr int kColumns = Tile::kColumns, kLanes = Tile::kLanes;

  LLTM_DEVICE explicit FmaProduct(uint32_t vectors) {
    const int thread = static_cast<int>(threadIdx.x);
    lane_ = in_register(thread % 32);
    k_share_ = thread % kLanes;
    first_column_ = thread / kLanes * kColumns;
    first_of_block_ = first_of_block<Tile::kCluster>(Tile::kOwnState);
    column_ = first_of_block_ + first_column_ + k_share_ % kColumns;
    first_row_ = k_share_ / kColumns % Tile::kRowLanes * Tile::kElements;
    copy_ = k_share_ / (kColumns * Tile::kRowLanes);
    shared_ = vectors;
    read_ = first_read(vectors);
  }

  /// The elements of this thread: a column of the state, and kElements rows of the block.
  LLTM_DEVICE int column() const { return column_; }
  LLTM_DEVICE int first_row() const { return first_row_; }
  /// How many threads before this one have the same elements.
  LLTM_DEVICE int copy() const { return copy_; }
  LLTM_DEVICE bool is_first() const { return copy_ == 0; }

  /// A thread's weights of h or, in the forward, of the input.
  using Weights = float[Tile::kSums][kColumns][Tile::kKOfLane];

  /// Loads this thread's weights, of which `rows` of each gate and `columns` exist, with zeros
  /// for others. `zero` is 0, which the compiler must not know. All threads of the block call it;
  /// they use all of its shared memory.
  LLTM_DEVICE void load(const RecurrentWeights<float>& weights,
                        int rows,
                        int columns,
                        unsigned zero,
                        Weights& loaded) const {
#pragma unroll
    for (int gate = 0; gate < Tile::kGates; gate += Tile::kStagedGates) {
      stage(weights, gate, rows, columns);
      sync_block<Tile::kThreads>();
      take_staged(gate, loaded);
      sync_block<Tile::kThreads>();
    }
#pragma unroll
    for (int sum = 0; sum < Tile::kSums; ++sum) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < Tile::kKOfLane; ++i) {
          wait_for(loaded[sum][c][i], zero);
        }
      }
    }
  }

  // Few sums are computed in two halves, so that few warps fill the pipeline.
  static constexpr int kHalves = Tile::kSums * kColumns < 6 ? 2 : 1;
  /// This thread's part of the sums of its columns, of a row.
  struct Partial {
    float of[Tile::kSums][kHalves][kColumns] = {};
  };
  /// The sums of the rows, before they are scattered.
  struct Sums {
    float of[Tile::kSums][Tile::kScatteredRows];
  };

  /// Where this thread reads rows of V, or of the input, that start at a shared address.
  LLTM_DEVICE uint32_t first_read(uint32_t vectors) const {
    return in_register(vectors + 16 * k_share_);
  }

  /// Adds products with a row (first_read).
  static LLTM_DEVICE void multiply(const Weights& weights, uint32_t row, Partial& partial) {
#pragma unroll
    for (int i = 0; i < Tile::kKOfLane / 4; ++i) {
      uint32_t four[4];
      load_shared_4(four, row + 16 * kLanes * i);
#pragma unroll
      for (int sum = 0; sum < Tile::kSums; ++sum) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            float& to = partial.of[sum][j % kHalves][c];
            to = fmaf(weights[sum][c][4 * i + j], __uint_as_float(four[j]), to);
          }
        }
      }
    }
  }

  /// Adds the products of the rows of a buffer of V, and scatters the sums over the columns.
  LLTM_DEVICE void multiply(const Weights& weights,
                            int buffer,
                            const Partial (&parts)[Tile::kRows],
                            Sums& sums) const {
    const uint32_t from = read_ + 4 * buffer * Tile::kRows * Tile::kK;
#pragma unroll
    for (int row = 0; row < Tile::kRows; ++row) {
      Partial partial = parts[row];
      multiply(weights, from + 4 * row * Tile::kK, partial);
#pragma unroll
      for (int sum = 0; sum < Tile::kSums; ++sum) {
        float columns[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          columns[c] = partial.of[sum][0][c];
          if constexpr (kHalves == 2) {
            columns[c] += partial.of[sum][1][c];
          }
        }
        scatter_sums<kColumns / 2, 1>(columns, lane_);
        sums.of[sum][row] = columns[0];
      }
    }
#pragma unroll
    for (int sum = 0; sum < Tile::kSums; ++sum) {
#pragma unroll
      for (int row = Tile::kRows; row < Tile::kScatteredRows; ++row) {
        sums.of[sum][row] = 0;
      }
    }
  }

  /// Leaves the sums of this thread's elements in front.
  LLTM_DEVICE void finish(Sums& sums) const {
#pragma unroll
    for (int sum = 0; sum < Tile::kSums; ++sum) {
      scatter_sums<kColumns * Tile::kRowLanes / 2, kColumns>(sums.of[sum], lane_);
#pragma unroll
      for (int bit = kColumns * Tile::kRowLanes; bit < kLanes; bit *= 2) {
#pragma unroll
        for (int e = 0; e < Tile::kElements; ++e) {
          sums.of[sum][e] += __shfl_xor_sync(0xffffffff, sums.of[sum][e], bit);
        }
      }
    }
  }

 private:
  /// Where a weight is while it is staged. The fours of a row are permuted, so that threads that
  /// read along K, in the backward down the rows, find them in different banks.
  static LLTM_DEVICE int place_of(int row, int column) {
    const int four = column / 4, permuted = (four & ~7) | ((four ^ row / 4) & 7);
    return 4 * (row * Tile::kStagedColumns + 4 * permuted + column % 4);
  }

  /// Copies the weights of kStagedGates gates to shared memory.
  LLTM_DEVICE void stage(const RecurrentWeights<float>& weights,
                         int first_gate,
                         int rows,
                         int columns) const {
    const int first_row = Tile::kBackward ? 0 : first_of_block_;
    const int first_column = Tile::kBackward ? first_of_block_ : 0;
    const int64_t gate_stride = rows * weights.strides[0];
    const float* const data = weights.data + first_gate * gate_stride +
                              first_row * weights.strides[0] + first_column * weights.strides[1];
    copy_weights<Tile::kThreads, Tile::kStagedRows, Tile::kStagedColumns>(
        WeightsOfBlock<float>{data,
                              {weights.strides[0], weights.strides[1]},
                              gate_stride,
                              Tile::kStagedGates,
                              rows - first_row,
                              columns - first_column},
        [&](int gate, int row, int column) {
          return shared_ + place_of(gate * Tile::kStagedRows + row, column);
        });
  }

  /// Takes those of this thread's weights that are staged, of the gates from `first_gate` on.
  LLTM_DEVICE void take_staged(int first_gate, Weights& loaded) const {
    const int first_row = first_gate * Tile::kStagedRows;
#pragma unroll
    for (int sum = 0; sum < Tile::kSums; ++sum) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < Tile::kKOfLane; ++i) {
          const int first_k = 4 * kLanes * (i / 4);  // of all lanes
          const int gate = Tile::kBackward ? first_k / Tile::kState : sum;
          if (Tile::kStagedGates < Tile::kGates && gate != first_gate) {
            continue;
          }
          const int k = first_k + 4 * k_share_ + i % 4, column = first_column_ + c;
          const int row = (Tile::kBackward ? k : sum * Tile::kStagedRows + column) - first_row;
          const int in_row = Tile::kBackward ? column : k;
          // Four neighbors at once: of K in the forward, of the columns in the backward.
          if constexpr (Tile::kBackward && kColumns % 4 != 0) {
            loaded[sum][c][i] = __uint_as_float(load_shared(shared_ + place_of(row, in_row)));
          } else if ((Tile::kBackward ? c : i) % 4 == 0) {
            uint32_t four[4];
            load_shared_4(four, shared_ + place_of(row, in_row));
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              (Tile::kBackward ? loaded[sum][c + n][i] : loaded[sum][c][i + n]) =
                  __uint_as_float(four[n]);
            }
          }
        }
      }
    }
  }

  int lane_, k_share_, first_column_, column_, first_row_, copy_;
  int first_of_block_;
  uint32_t shared_, read_;
};

/// Fills both buffers of V with zeros.
template <typename Tile>
LLTM_DEVICE void clear_vectors(uint32_t vectors) {
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kVectorBytes / 16; i += Tile::kThreads) {
    store_shared_4(vectors + 16 * i, {0, 0, 0, 0});
  }
}

/// Where the elements of a block by itself leave V for the next step. All threads call its
/// functions.
template <typename Tile>
class BlockVectors {
 public:
  static_assert(Tile::kScatteredRows == Tile::kRows);

  LLTM_DEVICE BlockVectors(const FmaProduct<Tile>& product, uint32_t vectors)
      : is_first_(product.is_first()),
        vectors_(vectors),
        write_(in_register(vectors + 4 * (product.first_row() * Tile::kK + product.column()))) {}

  /// Starts from zeros, after the weights have been loaded.
  LLTM_DEVICE void start() const {
    clear_vectors<Tile>(vectors_);
    sync_block<Tile::kThreads>();
  }

  /// Puts a value of an element into a buffer of V.
  LLTM_DEVICE void put(int buffer, int element, int vector, float value) const {
    if (is_first_) {
      store_shared(
          write_ + 4 * ((buffer * Tile::kRows + element) * Tile::kK + vector * Tile::kState),
          __float_as_uint(value));
    }
  }

  /// Waits for what all threads have put into a buffer.
  LLTM_DEVICE void receive(int /*buffer*/) const { sync_block<Tile::kThreads>(); }

 private:
  bool is_first_;
  uint32_t vectors_, write_;
};

/// The same for the blocks of a cluster, each of which has all of V. What is put arrives on a
/// barrier of the buffer in every block, and nothing else synchronizes them. Two buffers are
/// enough: whoever has received all of a step knows that all warps of all blocks have read the step
/// before.
template <typename Tile>
class ClusterVectors {
 public:
  static_assert(Tile::kColumns % 4 == 0);
  static_assert(2 * Tile::kRows >= Tile::kRowLanes, "the sums of the bias take the place of V");

  LLTM_DEVICE ClusterVectors(const FmaProduct<Tile>& product, uint32_t vectors)
      : vectors_(vectors),
        barriers_(in_register(vectors + Tile::kSharedBytes - Tile::kBarrierBytes)) {
    if (threadIdx.x == 0) {
      init_barrier(barriers_, 1);
      init_barrier(barriers_ + 8, 1);
      fence_barriers();
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    first_row_ = Tile::kScatteredRows > Tile::kRows ? product.first_row() : 0;
    first_of_four_ = in_register(lane & ~3);
    write_ = in_register(4 * (product.first_row() * Tile::kK + (product.column() & ~3)));
    const int sender = lane % 4 + 4 * product.copy();
#pragma unroll
    for (int i = 0; i < kSends; ++i) {
      const int block = sender + kSenders * i;
      sends_[i] = block < Tile::kCluster;
      blocks_[i] = address_in_block(vectors, sends_[i] ? block : 0);
    }
  }

  LLTM_DEVICE void start() const {
    clear_vectors<Tile>(vectors_);
    if (threadIdx.x == 0) {
      expect(0);
      expect(1);
    }
    cluster_arrive_with_stores();
    cluster_wait();
  }

  /// Sends a value of an element to all blocks.
  LLTM_DEVICE void put(int buffer, int element, int vector, float value) const {
    // Four neighboring lanes have four neighboring columns, which they send to different blocks.
    const auto of = [&](int i) { return __shfl_sync(~0u, value, first_of_four_ | i); };
    const float4 columns = {of(0), of(1), of(2), of(3)};
    const uint32_t to =
        write_ + 4 * ((buffer * Tile::kRows + element) * Tile::kK + vector * Tile::kState);
#pragma unroll
    for (int i = 0; i < kSends; ++i) {
      if (sends_[i] && first_row_ + element < Tile::kRows) {
        send_16(blocks_[i] + to, columns, blocks_[i] + (barriers_ - vectors_) + 8 * buffer);
      }
    }
  }

  LLTM_DEVICE void receive(int buffer) {
    wait_phase(barriers_ + 8 * buffer, parities_ >> buffer & 1);
    parities_ ^= 1 << buffer;
    if (threadIdx.x == 0) {
      expect(buffer);
    }
  }

 private:
  // The lanes that have the same four columns of a row.
  static constexpr int kSenders = 4 * Tile::kLanes / (Tile::kColumns * Tile::kRowLanes);
  static constexpr int kSends = (Tile::kCluster + kSenders - 1) / kSenders;

  LLTM_DEVICE void expect(int buffer) const {
    arrive_expecting(barriers_ + 8 * buffer, Tile::kVectorBytes / 2);
  }

  int first_row_, first_of_four_;
  uint32_t vectors_, barriers_, write_;
  uint32_t blocks_[kSends];
  bool sends_[kSends];
  uint32_t parities_ = 0;  // of each buffer's next phase
};

template <typename Tile>
using VectorsOf =
    std::conditional_t<(Tile::kCluster > 1), ClusterVectors<Tile>, BlockVectors<Tile>>;

/// What the elements of a thread read, in kAhead slots, each for a step.
template <typename Tile>
class FetchedRing {
 public:
  LLTM_DEVICE explicit FetchedRing(uint32_t shared)
      : base_(in_register(shared + 4 * threadIdx.x)) {}

  /// The slot of a step.
  LLTM_DEVICE uint32_t slot(int k) const {
    return base_ + (k & (Tile::kAhead - 1)) * Tile::kFetchedBytes;
  }
  static LLTM_DEVICE void copy(
      uint32_t slot, int element, int value, const float* from, bool exists) {
    copy_async<4>(address(slot, element, value), from, exists ? 4 : 0);
  }
  static LLTM_DEVICE float read(uint32_t slot, int element, int value) {
    return __uint_as_float(load_shared(address(slot, element, value)));
  }
  /// Waits until the values of the current step are there and, in a backward that reads the old
  /// cell state, those of the next: the values of later steps, and of the one that takes the
  /// place of the last step, may be on their way.
  static LLTM_DEVICE void wait() {
    constexpr bool kReadsNext = Tile::kBackward && Tile::Cell::kReadsOldCell;
    wait_copies<Tile::kAhead - 2 - (kReadsNext ? 1 : 0)>();
  }

 private:
  static LLTM_DEVICE uint32_t address(uint32_t slot, int element, int value) {
    return slot + 4 * (element * Tile::kFetched + value) * Tile::kThreads;
  }

  uint32_t base_;
};

}  // namespace lltm::cuda
