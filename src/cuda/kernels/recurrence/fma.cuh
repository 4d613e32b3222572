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

#include "../../epilogue/math.cuh"
#include "../../ptx/barrier.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/cp_async.cuh"
#include "../../ptx/global.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/registers.cuh"
#include "../../ptx/shared.cuh"
#include "../../reduction/lane_sums.cuh"
#include "copy_weights.cuh"
#include "launch_groups.cuh"
#include "recurrence.h"
#include "rows.cuh"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

/// A block of kThreads threads for kRows rows and a state of up to kState columns. kXInside: it
/// multiplies up to as many columns of input, too.
template <typename Cell_,
          bool kBackward_,
          int kState_,
          int kRows_,
          bool kXInside_,
          int kThreads_,
          int kColumns_,
          int kCluster_>
struct FmaTile {
  using Cell = Cell_;
  static constexpr bool kBackward = kBackward_, kXInside = kXInside_;
  static constexpr int kCluster = kCluster_;
  static_assert(!kXInside || (!kBackward && kCluster == 1));
  static constexpr int kGates = Cell::kGates;
  static constexpr int kState = kState_, kRows = kRows_, kThreads = kThreads_;
  static constexpr int kOwnState = kState / kCluster;  // the columns of a block
  static constexpr int kColumns = kColumns_;           // of a thread
  static constexpr int kBlocks = resident_fma_blocks({kState, kRows, kXInside, kCluster});
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
  // What an element reads in a step: its pre-activations, unless they are computed here, and, in
  // the backward, the cell state and the gradients of output and cells.
  static constexpr int kOperands = kXInside ? 0 : Cell::kGates + (kBackward ? 3 : 0);
  static constexpr int kAhead = 4;  // steps
  static constexpr int kVectorBytes = 2 * kRows * kK * 4;
  static constexpr int kOperandBytes = kElements * kOperands * kThreads * 4;  // of a step
  static constexpr int kInputBytes = kXInside ? kRows * kState * 4 : 0;       // of a step
  // Weights are staged in shared memory, of which some GPUs have 99 KiB a block: those of all gates
  // at once, or of one after the other.
  static constexpr int kStagedGates = kState <= 64 ? kGates : 1;
  // The rows and columns of a gate's weights that are staged: those of h are the K of a forward.
  static constexpr int kStagedRows = kBackward ? kState : kOwnState;
  static constexpr int kStagedColumns = kBackward ? kOwnState : kState;
  static constexpr int kStageBytes = kStagedGates * kStagedRows * kStagedColumns * 4;
  static constexpr int kBarrierBytes = kCluster > 1 ? 16 : 0;
  static constexpr int kSharedBytes =
      kBarrierBytes + std::max(kVectorBytes + kAhead * (kOperandBytes + kInputBytes), kStageBytes);
  static_assert(kThreads * kColumns % kOwnState == 0);
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
  static_assert(kK % kLanes == 0 && kKOfLane % 4 == 0 && kLanes >= kColumns);
  static_assert(kStagedGates == kGates || kState % (4 * kLanes) == 0);
};

template <int kThreads>
__device__ __forceinline__ void sync_block() {
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

  __device__ __forceinline__ explicit FmaProduct(uint32_t vectors) {
    const int thread = static_cast<int>(threadIdx.x);
    lane_ = in_register(thread % 32);
    share_ = thread % kLanes;
    first_column_ = thread / kLanes * kColumns;
    first_of_block_ = first_of_block<Tile::kCluster>(Tile::kOwnState);
    column_ = first_of_block_ + first_column_ + share_ % kColumns;
    first_row_ = share_ / kColumns % Tile::kRowLanes * Tile::kElements;
    copy_ = share_ / (kColumns * Tile::kRowLanes);
    shared_ = vectors;
    read_ = first_read(vectors);
  }

  /// The elements of this thread: a column of the state, and kElements rows of the block.
  __device__ __forceinline__ int column() const { return column_; }
  __device__ __forceinline__ int first_row() const { return first_row_; }
  /// How many threads before this one have the same elements.
  __device__ __forceinline__ int copy() const { return copy_; }
  __device__ __forceinline__ bool is_first() const { return copy_ == 0; }

  /// A thread's weights of h or, in the forward, of the input.
  using Weights = float[Tile::kSums][kColumns][Tile::kKOfLane];

  /// Loads this thread's weights, of which `rows` of each gate and `columns` exist, with zeros
  /// for others. `zero` is 0, which the compiler must not know. All threads of the block call it;
  /// they use all of its shared memory.
  __device__ __forceinline__ void load(const RecurrentWeights<float>& weights,
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
  __device__ __forceinline__ uint32_t first_read(uint32_t vectors) const {
    return in_register(vectors + 16 * share_);
  }

  /// Adds products with a row (first_read).
  static __device__ __forceinline__ void multiply(const Weights& weights,
                                                  uint32_t row,
                                                  Partial& partial) {
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
  __device__ __forceinline__ void multiply(const Weights& weights,
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
  __device__ __forceinline__ void finish(Sums& sums) const {
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
  static __device__ __forceinline__ int place_of(int row, int column) {
    const int four = column / 4, permuted = (four & ~7) | ((four ^ row / 4) & 7);
    return 4 * (row * Tile::kStagedColumns + 4 * permuted + column % 4);
  }

  /// Copies the weights of kStagedGates gates to shared memory.
  __device__ __forceinline__ void stage(const RecurrentWeights<float>& weights,
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
  __device__ __forceinline__ void take_staged(int first_gate, Weights& loaded) const {
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
          const int k = first_k + 4 * share_ + i % 4, column = first_column_ + c;
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

  int lane_, share_, first_column_, column_, first_row_, copy_;
  int first_of_block_;
  uint32_t shared_, read_;
};

/// Fills both buffers of V with zeros.
template <typename Tile>
__device__ __forceinline__ void clear_vectors(uint32_t vectors) {
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

  __device__ __forceinline__ BlockVectors(const FmaProduct<Tile>& product, uint32_t vectors)
      : is_first_(product.is_first()),
        vectors_(vectors),
        write_(in_register(vectors + 4 * (product.first_row() * Tile::kK + product.column()))) {}

  /// Starts from zeros, after the weights have been loaded.
  __device__ __forceinline__ void start() const {
    clear_vectors<Tile>(vectors_);
    sync_block<Tile::kThreads>();
  }

  /// Puts a value of an element into a buffer of V.
  __device__ __forceinline__ void put(int buffer, int element, int vector, float value) const {
    if (is_first_) {
      store_shared(
          write_ + 4 * ((buffer * Tile::kRows + element) * Tile::kK + vector * Tile::kState),
          __float_as_uint(value));
    }
  }

  /// Waits for what all threads have put into a buffer.
  __device__ __forceinline__ void receive(int /*buffer*/) const { sync_block<Tile::kThreads>(); }

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

  __device__ __forceinline__ ClusterVectors(const FmaProduct<Tile>& product, uint32_t vectors)
      : vectors_(vectors),
        barriers_(in_register(vectors + Tile::kSharedBytes - Tile::kBarrierBytes)) {
    if (threadIdx.x == 0) {
      init_barrier(barriers_, 1);
      init_barrier(barriers_ + 8, 1);
      fence_barriers();
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    first_row_ = Tile::kScatteredRows > Tile::kRows ? product.first_row() : 0;
    four_ = in_register(lane & ~3);
    write_ = in_register(4 * (product.first_row() * Tile::kK + (product.column() & ~3)));
    const int sender = lane % 4 + 4 * product.copy();
#pragma unroll
    for (int i = 0; i < kSends; ++i) {
      const int block = sender + kSenders * i;
      sends_[i] = block < Tile::kCluster;
      blocks_[i] = address_in_block(vectors, sends_[i] ? block : 0);
    }
  }

  __device__ __forceinline__ void start() const {
    clear_vectors<Tile>(vectors_);
    if (threadIdx.x == 0) {
      expect(0);
      expect(1);
    }
    cluster_arrive_with_stores();
    cluster_wait();
  }

  /// Sends a value of an element to all blocks.
  __device__ __forceinline__ void put(int buffer, int element, int vector, float value) const {
    // Four neighboring lanes have four neighboring columns, which they send to different blocks.
    const auto of = [&](int i) { return __shfl_sync(~0u, value, four_ | i); };
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

  __device__ __forceinline__ void receive(int buffer) {
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

  __device__ __forceinline__ void expect(int buffer) const {
    arrive_expecting(barriers_ + 8 * buffer, Tile::kVectorBytes / 2);
  }

  int first_row_, four_;
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
class OperandRing {
 public:
  __device__ __forceinline__ explicit OperandRing(uint32_t shared)
      : base_(in_register(shared + 4 * threadIdx.x)) {}

  /// The slot of a step.
  __device__ __forceinline__ uint32_t slot(int k) const {
    return base_ + (k & (Tile::kAhead - 1)) * Tile::kOperandBytes;
  }
  __device__ __forceinline__ static void copy(
      uint32_t slot, int element, int operand, const float* from, bool exists) {
    copy_async<4>(address(slot, element, operand), from, exists ? 4 : 0);
  }
  __device__ __forceinline__ static float read(uint32_t slot, int element, int operand) {
    return __uint_as_float(load_shared(address(slot, element, operand)));
  }
  /// Waits until the operands of the current step are there: those of the later steps, and of the
  /// one that takes the place of the last step, may be on their way.
  __device__ __forceinline__ static void wait() { wait_copies<Tile::kAhead - 2>(); }

 private:
  __device__ __forceinline__ static uint32_t address(uint32_t slot, int element, int operand) {
    return slot + 4 * (element * Tile::kOperands + operand) * Tile::kThreads;
  }

  uint32_t base_;
};

/// The rows of input that a block multiplies, in kAhead slots, each for a step. They are read
/// after a block barrier that follows the wait for them.
template <typename Tile>
class InputRing {
 public:
  // Each thread copies an element.
  static_assert(Tile::kRows * Tile::kState == Tile::kThreads);

  /// For the times from `first_time` on.
  __device__ __forceinline__ InputRing(const RecurrenceForward<float>& p,
                                       int64_t block_row,
                                       int block_rows,
                                       int first_time,
                                       int direction,
                                       uint32_t shared)
      : time_stride_(in_register(direction * p.input.strides[0])) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / Tile::kState, column = thread % Tile::kState;
    exists_ = row < block_rows && column < p.input_features;
    from_ = p.input.data + first_time * p.input.strides[0] +
            (block_row + row) * p.input.strides[1] + column * p.input.strides[2];
    write_ = in_register(shared + 4 * threadIdx.x);
  }

  static __device__ __forceinline__ int slot(int k) {
    return (k & (Tile::kAhead - 1)) * Tile::kInputBytes;
  }

  /// Starts copying the next step's rows, or the last step's again.
  __device__ __forceinline__ void copy(int slot, bool has_next) {
    copy_async<4>(write_ + slot, from_, exists_ ? 4 : 0);
    from_ += has_next ? time_stride_ : 0;
    commit_copies();
  }
  /// Waits for the copies of all steps but the latest two.
  static __device__ __forceinline__ void wait() { wait_copies<2>(); }

 private:
  const float* from_;
  bool exists_;
  int64_t time_stride_;
  uint32_t write_;
};

/// In place of an InputRing where z_x is read.
struct NoInputRing {
  template <typename... Arguments>
  __device__ __forceinline__ explicit NoInputRing(const Arguments&...) {}
};
template <typename Tile>
using InputRingOf = std::conditional_t<Tile::kXInside, InputRing<Tile>, NoInputRing>;

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recurrence_forward_fma(const __grid_constant__ RecurrenceForward<float> p) {
  using Cell = typename Tile::Cell;
  constexpr int kGates = Cell::kGates, kElements = Tile::kElements;
  extern __shared__ __align__(128) unsigned char shared[];
#if __CUDA_ARCH__ < 900
  if (Tile::kCluster > 1) {
    return;
  }
#endif
  if (!p.follows_input_product) {
    wait_for_previous_kernel();
  }
  const uint32_t base = shared_address(shared);
  const int steps = static_cast<int>(p.steps), state_size = static_cast<int>(p.state_size);
  using Product = FmaProduct<Tile>;
  Product product(base);
  VectorsOf<Tile> vectors(product, base);
  const OperandRing<Tile> ring(base + Tile::kVectorBytes);
  const int64_t group = blockIdx.x / Tile::kCluster, block_row = group * p.group_rows;
  const int block_rows = at_most(p.rows - block_row, p.group_rows);
  const int column = product.column();
  const int64_t row = block_row + product.first_row();  // of the first element
  const RowsOfSequence& of_rows = p.rows_of_sequence;
  const RecurrenceSteps range = recurrence_steps(of_rows,
                                                 block_row,
                                                 block_rows,
                                                 steps,
                                                 static_cast<int>(p.first_step),
                                                 static_cast<int>(p.first_step + p.step_count),
                                                 p.reverse);
  bool exists[kElements];
  int length[kElements];
  float h[kElements], cell[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    exists[e] = column < state_size && product.first_row() + e < block_rows;
    length[e] = exists[e] ? length_of(of_rows, row + e, steps) : 0;
    h[e] = cell[e] = 0;
    if (exists[e]) {
      h[e] = p.h0.data != nullptr ? p.h0.at(0, row + e, column) : 0;
      cell[e] = p.c0.at(row + e, column);
    }
  }
  typename Product::Weights weights;
  product.load(p.weights, state_size, state_size, steps >> 30, weights);
  [[maybe_unused]] typename Product::Weights input_weights;
  [[maybe_unused]] const uint32_t input_rows = base + Tile::kVectorBytes;
  [[maybe_unused]] const uint32_t read_input = product.first_read(input_rows);
  [[maybe_unused]] float bias[kGates] = {};
  if constexpr (Tile::kXInside) {
    product.load(p.input_weights,
                 state_size,
                 static_cast<int>(p.input_features),
                 steps >> 30,
                 input_weights);
    if (p.bias != nullptr && product.column() < state_size) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        bias[gate] = p.bias[(gate * state_size + product.column()) * p.bias_stride];
      }
    }
  }
  wait_for_previous_kernel();
  // Replaces the state of rows that are reset when they run at time t.
  const auto reset_at = [&](int e, int t) {
    return exists[e] && t < length[e] && of_rows.is_reset(row + e, t);
  };
  if (of_rows.reset != nullptr && range.begin < range.end) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (reset_at(e, range.time_of(range.begin))) {
        h[e] = cell[e] = 0;
      }
    }
  }

  // Addresses of the first element at the time of a step.
  const int64_t elements = p.rows * p.state_size;  // of a step
  const int64_t first_time =
      min(range.time_of(range.first), range.time_of(max(range.last - 1, range.first)));
  const int64_t in_step = row * p.state_size + column,
                in_gates = row * kGates * p.state_size + column;
  const auto index_at = [&](int t) { return t * elements + in_step; };
  const auto gates_index_at = [&](int t) { return t * kGates * elements + in_gates; };
  const bool writes = product.is_first();

  const bool writes_cells = writes && p.cells != nullptr,
             writes_gates = writes && p.gates != nullptr;
  const ptrdiff_t cells_from_output = p.cells - p.output;
  const auto write = [&](float* output,
                         float* gates,
                         int e,
                         bool condition,
                         float out,
                         float c,
                         const float(&z)[kGates]) {
    float* const to = output + e * state_size;
    store_word(to, __float_as_uint(out), condition && writes);
    store_word(to + cells_from_output, __float_as_uint(c), condition && writes_cells);
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      store_word(gates + (e * kGates + gate) * state_size,
                 __float_as_uint(z[gate]),
                 condition && writes_gates);
    }
  };
  const auto write_zeros = [&](int begin, int end) {
#pragma unroll 1
    for (int k = begin; k < end; ++k) {
      const int t = range.time_of(k);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        constexpr float kZeros[kGates] = {};
        write(p.output + index_at(t), p.gates + gates_index_at(t), e, exists[e], 0, 0, kZeros);
      }
    }
  };
  write_zeros(range.first, range.begin);

  if (range.begin < range.end) {
    // What is copied ahead, from the addresses of step `copied` on. Past the end, the last step is
    // copied again.
    int copied = range.begin;
    const int first = range.time_of(range.begin);
    const float* z_x = p.z_x + gates_index_at(first) - first_time * kGates * elements;
    const int64_t step = in_register(p.reverse ? -elements : elements);
    const int64_t gates_step = in_register(kGates * step);
    [[maybe_unused]] InputRingOf<Tile> input(
        p, block_row, block_rows, first, p.reverse ? -1 : 1, input_rows);
    const auto copy_step = [&](int k) {
      if constexpr (Tile::kXInside) {
        input.copy(input.slot(k), ++copied < range.end);
        return;
      }
      const uint32_t slot = ring.slot(k);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          ring.copy(slot, e, gate, z_x + (e * kGates + gate) * state_size, exists[e]);
        }
      }
      commit_copies();
      z_x += ++copied < range.end ? gates_step : 0;
    };
#pragma unroll 1
    for (int i = 0; i < Tile::kAhead - (Tile::kXInside ? 0 : 1); ++i) {
      copy_step(i);
    }
    if constexpr (Tile::kXInside) {
      input.wait();
    }
    vectors.start();
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      vectors.put(0, e, 0, h[e]);
    }
    bool resets_next[kElements] = {};
    const auto look_for_resets = [&](int k) {
      if (of_rows.reset != nullptr) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          resets_next[e] = k < range.end && reset_at(e, range.time_of(k));
        }
      }
    };
    look_for_resets(range.begin + 1);
    vectors.receive(0);

    // Of the step before the current one, which is written now.
    float* output = p.output + index_at(first) - step;
    float* gates = p.gates + gates_index_at(first) - gates_step;
    float z[kElements][kGates], out[kElements], new_cell[kElements];
    const auto write_last_step = [&](bool has_last) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        write(output, gates, e, has_last && exists[e], out[e], new_cell[e], z[e]);
      }
      output += step;
      gates += gates_step;
    };
    const int count = range.end - range.begin;
    int time = first;
    // The products with the input of the current step are computed during the one before.
    typename Product::Partial parts[Tile::kRows];
    const auto multiply_input = [&](int k) {
      if constexpr (Tile::kXInside) {
#pragma unroll
        for (int r = 0; r < Tile::kRows; ++r) {
          parts[r] = {};
          product.multiply(
              input_weights, read_input + input.slot(k) + 4 * r * Tile::kState, parts[r]);
        }
      }
    };
    multiply_input(0);
    if constexpr (Tile::kXInside) {
      sync_block<Tile::kThreads>();
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      float z_of_x[kElements][kGates];
      if constexpr (!Tile::kXInside) {
        ring.wait();
      }
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          z_of_x[e][gate] = Tile::kXInside ? bias[gate] : ring.read(ring.slot(i), e, gate);
        }
      }
      typename Product::Sums sums;
      product.multiply(weights, i & 1, parts, sums);
      write_last_step(i > 0);
      // In the place of the step before or, if the input's product is already computed, of this
      // one.
      copy_step(i - (Tile::kXInside ? 0 : 1));
      product.finish(sums);
      multiply_input(i + 1);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const bool runs = time < length[e];
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          z[e][gate] = z_of_x[e][gate] + sums.of[gate][e];
        }
        float c = cell[e];
        const float new_h = Cell::template forward<ShortMath>(z[e], c);
        h[e] = runs ? new_h : h[e];
        cell[e] = runs ? c : cell[e];
        if (of_rows.reset != nullptr && resets_next[e]) {
          h[e] = cell[e] = 0;
        }
        vectors.put(~i & 1, e, 0, h[e]);
        out[e] = runs ? new_h : 0;
        new_cell[e] = runs ? c : 0;
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          z[e][gate] = runs ? z[e][gate] : 0;
        }
      }
      look_for_resets(range.begin + i + 2);
      time += p.reverse ? -1 : 1;
      if constexpr (Tile::kXInside) {
        input.wait();
      }
      vectors.receive(~i & 1);
    }
    write_last_step(true);
  }
  write_zeros(range.end, range.last);

  if (writes) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (exists[e]) {
        const int64_t to = in_step + e * state_size;
        p.h_n[to] = h[e];
        (p.c_n.exact != nullptr ? p.c_n.exact : p.c_n.rounded)[to] = cell[e];
      }
    }
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recurrence_backward_fma(const __grid_constant__ RecurrenceBackward<float> p) {
  using Cell = typename Tile::Cell;
  constexpr int kGates = Cell::kGates, kElements = Tile::kElements;
  constexpr int kCell = kGates, kGradOutput = kGates + 1, kGradCell = kGates + 2;  // operands
  extern __shared__ __align__(128) unsigned char shared[];
#if __CUDA_ARCH__ < 900
  if (Tile::kCluster > 1) {
    return;
  }
#endif
  wait_for_previous_kernel();
  const uint32_t base = shared_address(shared);
  const int steps = static_cast<int>(p.steps), state_size = static_cast<int>(p.state_size);
  using Product = FmaProduct<Tile>;
  Product product(base);
  VectorsOf<Tile> vectors(product, base);
  const OperandRing<Tile> ring(base + Tile::kVectorBytes);
  constexpr typename Product::Partial kNoParts[Tile::kRows] = {};

  const int64_t group = blockIdx.x / Tile::kCluster, block_row = group * p.group_rows;
  const int block_rows = at_most(p.rows - block_row, p.group_rows);
  const int column = product.column();
  const int64_t row = block_row + product.first_row();
  const RowsOfSequence& of_rows = p.rows_of_sequence;
  const RecurrenceSteps range =
      recurrence_steps(of_rows, block_row, block_rows, steps, 0, steps, p.reverse);
  bool exists[kElements];
  int length[kElements];
  // Gradients of the state that a row's next step, in this order, takes. That of h waits here while
  // a row does not run; the product adds what comes from the step before.
  float d_h[kElements], d_cell[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    exists[e] = column < state_size && product.first_row() + e < block_rows;
    length[e] = exists[e] ? length_of(of_rows, row + e, steps) : 0;
    d_h[e] = d_cell[e] = 0;
    if (exists[e]) {
      d_h[e] = p.grad_h_n.data != nullptr ? p.grad_h_n.at(0, row + e, column) : 0;
      d_cell[e] = p.grad_c_n.at(row + e, column);
    }
  }
  typename Product::Weights weights;
  product.load(p.weights, state_size, state_size, steps >> 30, weights);
  const bool writes = product.is_first();
  float d_bias[kGates] = {};

  const int64_t elements = p.rows * p.state_size;
  const int64_t d_gates_of_step = p.rows * p.d_gates_stride;
  const int64_t in_step = row * p.state_size + column;
  const int64_t d_gates_stride = in_register(p.d_gates_stride);
  const auto write = [&](float* to, int e, bool condition, const float(&d_z)[kGates]) {
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      store_word(to + e * d_gates_stride + gate * state_size,
                 __float_as_uint(d_z[gate]),
                 condition && writes);
    }
  };
  const auto d_gates_at = [&](int t) {
    return p.d_gates + t * d_gates_of_step + row * p.d_gates_stride + column;
  };
  const auto write_zeros = [&](int begin, int end) {
    for (int k = begin; k < end; ++k) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        constexpr float kZeros[kGates] = {};
        write(d_gates_at(range.time_of(k)), e, exists[e], kZeros);
      }
    }
  };
  write_zeros(range.first, range.begin);
  write_zeros(range.end, range.last);

  if (range.begin < range.end) {
    const int last_time = range.time_of(range.end - 1), towards = p.reverse ? 1 : -1;
    // Addresses at the time of the step that is copied next. Those of an absent gradient are not
    // used.
    int copied = range.end - 1;
    const float* gates =
        p.gates + last_time * kGates * elements + row * kGates * p.state_size + column;
    const float* cells = p.cells + last_time * elements + in_step;
    const auto first_of = [&](const Steps<float>& of) {
      return of.data == nullptr ? nullptr : &of.at(last_time, row, column);
    };
    const float *grad_output = first_of(p.grad_output), *grad_cells = first_of(p.grad_cells);
    const bool has_grad_output = grad_output != nullptr, has_grad_cells = grad_cells != nullptr;
    const auto copy_step = [&](uint32_t slot) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          ring.copy(slot, e, gate, gates + (e * kGates + gate) * state_size, exists[e]);
        }
        ring.copy(slot, e, kCell, cells + e * state_size, exists[e]);
        ring.copy(slot,
                  e,
                  kGradOutput,
                  grad_output + e * p.grad_output.strides[1],
                  exists[e] && has_grad_output);
        ring.copy(slot,
                  e,
                  kGradCell,
                  grad_cells + e * p.grad_cells.strides[1],
                  exists[e] && has_grad_cells);
      }
      commit_copies();
      const int64_t further = --copied >= range.begin ? towards : 0;
      gates += further * kGates * elements;
      cells += further * elements;
      grad_output += further * p.grad_output.strides[0];
      grad_cells += further * p.grad_cells.strides[0];
    };
#pragma unroll 1
    for (int i = 0; i < Tile::kAhead - 1; ++i) {
      copy_step(ring.slot(i));
    }
    vectors.start();
    // Whether a gradient comes from the step that was computed before, and whether the step that is
    // computed next starts from a reset state.
    bool passes[kElements] = {}, is_reset[kElements] = {};
    const auto look_for_resets = [&](int k) {
      if (of_rows.reset != nullptr) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int t = range.time_of(k);
          is_reset[e] =
              k >= range.begin && exists[e] && t < length[e] && of_rows.is_reset(row + e, t);
        }
      }
    };
    look_for_resets(range.end - 1);

    // Of the step computed before the current one.
    const int64_t d_gates_step = in_register(towards * d_gates_of_step);
    float* d_gates = d_gates_at(last_time) - d_gates_step;
    float d_z[kElements][kGates];
    const auto write_last_step = [&](bool has_last) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        write(d_gates, e, has_last && exists[e], d_z[e]);
      }
      d_gates += d_gates_step;
    };
    typename Product::Sums sums;
    const int count = range.end - range.begin;
    int time = last_time;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      ring.wait();
      typename Cell::Derivatives by[kElements];
      float grad_h[kElements], grad_cell[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        float z[kGates];
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          z[gate] = ring.read(ring.slot(i), e, gate);
        }
        by[e] = Cell::template derivatives<ShortMath>(z, ring.read(ring.slot(i), e, kCell));
        grad_h[e] = ring.read(ring.slot(i), e, kGradOutput);
        grad_cell[e] = ring.read(ring.slot(i), e, kGradCell);
      }
      product.multiply(weights, i & 1, kNoParts, sums);
      write_last_step(i > 0);
      copy_step(ring.slot(i - 1));
      product.finish(sums);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const bool runs = time < length[e];
        const float from_h = d_h[e] + (passes[e] ? sums.of[0][e] : 0);
        float c = d_cell[e] + grad_cell[e];
        Cell::backward(by[e], from_h + grad_h[e], c, d_z[e]);
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          d_z[e][gate] = runs ? d_z[e][gate] : 0;
          vectors.put(~i & 1, e, gate, d_z[e][gate]);
          d_bias[gate] += d_z[e][gate];
        }
        d_h[e] = runs ? 0 : from_h;
        d_cell[e] = !runs ? d_cell[e] : is_reset[e] ? 0 : c;
        passes[e] = runs && !is_reset[e];
      }
      look_for_resets(range.end - 2 - i);
      time += towards;
      vectors.receive(~i & 1);
    }
    write_last_step(true);
    if (p.d_h0 != nullptr) {
      product.multiply(weights, count & 1, kNoParts, sums);
      product.finish(sums);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        d_h[e] += passes[e] ? sums.of[0][e] : 0;
      }
    }
  }

  // Not earlier: blocks of the next kernel that wait would keep other streams' from starting.
  start_next_kernel();
  if (writes) {
    float* const d_c0 = p.d_c0.exact != nullptr ? p.d_c0.exact : p.d_c0.rounded;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int64_t to = in_step + e * state_size;
      if (exists[e] && p.d_h0 != nullptr) {
        p.d_h0[to] = d_h[e];
      }
      if (exists[e] && d_c0 != nullptr) {
        d_c0[to] = d_cell[e];
      }
    }
  }
  if (p.d_bias_parts != nullptr) {
    // The sums of the threads that have the same column, which take the place of V.
    sync_block<Tile::kThreads>();
    if (writes) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const int lane_of_rows = product.first_row() / kElements;
        store_shared(base + 4 * (lane_of_rows * Tile::kK + gate * Tile::kState + column),
                     __float_as_uint(d_bias[gate]));
      }
    }
    sync_block<Tile::kThreads>();
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kK; i += Tile::kThreads) {
      const int gate = i / Tile::kState, of_gate = i % Tile::kState;
      float sum = 0;
      for (int lane_of_rows = 0; lane_of_rows < Tile::kRowLanes; ++lane_of_rows) {
        sum += __uint_as_float(load_shared(base + 4 * (lane_of_rows * Tile::kK + i)));
      }
      const int of_block = of_gate - first_of_block<Tile::kCluster>(Tile::kOwnState);
      if (of_gate < state_size && of_block >= 0 && of_block < Tile::kOwnState) {
        p.d_bias_parts[(group * kGates + gate) * state_size + of_gate] = sum;
      }
    }
  }
}

/// The tiles, for every number of rows: threads and columns of a thread were found by measurement.
template <typename Cell, bool kBackward, int kState, int kRows, bool kXInside, int kCluster>
using FmaTileOf = FmaTile<Cell,
                          kBackward,
                          kState,
                          kRows,
                          kXInside,
                          kState == 32      ? 32
                          : (kCluster == 1) ? 2 * kState
                                            : 256,
                          kState == 32                                                      ? 1
                          : kState == 96 || (kCluster > 1 && !(kBackward && kState == 256)) ? 4
                          : (kCluster == 1) ? (kBackward ? 2 : 1) * kState / 32
                                            : 8,
                          kCluster>;

/// Calls launch<Tile>() for a tile.
template <typename Cell, bool kBackward, typename Launch>
cudaError_t with_fma_tile(const RecurrenceTile& tile, const Launch& launch) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_if_it_is = [&]<int kState, int kRows, int kCluster>() {
    if (tile == RecurrenceTile{kState, kRows, /*x_inside=*/false, kCluster}) {
      error =
          launch.template operator()<FmaTileOf<Cell, kBackward, kState, kRows, false, kCluster>>();
    }
    if constexpr (!kBackward && kState == 32 && kRows == 1) {
      if (tile == RecurrenceTile{kState, kRows, /*x_inside=*/true}) {
        error = launch.template operator()<FmaTileOf<Cell, kBackward, kState, kRows, true, 1>>();
      }
    }
  };
  const auto for_rows = [&]<int kState, int kCluster>() {
    launch_if_it_is.template operator()<kState, 1, kCluster>();
    launch_if_it_is.template operator()<kState, 2, kCluster>();
    launch_if_it_is.template operator()<kState, 4, kCluster>();
    if constexpr (kCluster > 1) {  // of which a multiprocessor computes one row after the other
      launch_if_it_is.template operator()<kState, 3, kCluster>();
      launch_if_it_is.template operator()<kState, 5, kCluster>();
    }
  };
  for_rows.template operator()<32, 1>();
  for_rows.template operator()<64, 1>();
  for_rows.template operator()<96, 1>();
  for_rows.template operator()<128, 1>();
  for_rows.template operator()<256, 4>();
  for_rows.template operator()<512, 16>();
  return error;
}

}  // namespace lltm::cuda
