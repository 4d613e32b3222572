// What the recurrence in 16 bits needs where a cluster of blocks shares the state (mma.cuh).
//
// A block computes its columns of the state and sends them to all blocks of the cluster, itself
// among them. What arrives counts on a barrier in shared memory, so that nothing else synchronizes
// the blocks. Operand B has two buffers, and each buffer a barrier for each tile. That is enough:
// whoever has received all of a step knows that all warps of all blocks have read the step before.
#pragma once

#include "../../ptx/barrier.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/registers.cuh"
#include "../../ptx/shared.cuh"
#include "mma.cuh"

#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

/// Adds the sums of the two warps that have the same columns, each of a share of K. They get the
/// results of one row each.
template <typename Shape, int kSums>
class SharesOfK {
 public:
  static constexpr int kThreadsOfShare = Shape::kThreads / Shape::kShares;
  static constexpr int kBytes = Shape::kShares == 1 ? 0 : 2 * kSums * 2 * 2 * kThreadsOfShare * 4;

  LLTM_DEVICE SharesOfK(const OwnElements<Shape>& own, uint32_t shared)
      : share_(own.share), warps_(own.warp + 1) {
    const int thread = static_cast<int>(threadIdx.x);
    const int to = own.share == 0 ? thread + kThreadsOfShare : thread - kThreadsOfShare;
    write_ = in_register(shared + 4 * to);
    read_ = in_register(shared + 4 * thread);
  }

  /// Adds the sums of a tile, and leaves each warp those of its row (sum_of). All threads of both
  /// call it.
  template <int kChains>
  LLTM_DEVICE void add(float (&sums)[kSums][kChains][4]) {
#pragma unroll
    for (int sum = 0; sum < kSums; ++sum) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        float of_row[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          of_row[row] = sums[sum][0][2 * column + row];
#pragma unroll
          for (int chain = 1; chain < kChains; ++chain) {
            of_row[row] += sums[sum][chain][2 * column + row];
          }
        }
        const uint32_t to = write_ + offset_of(sum, column);
        sums[sum][0][2 * column] = share_ == 0 ? of_row[0] : of_row[1];
        store_shared(to, __float_as_uint(share_ == 0 ? of_row[1] : of_row[0]));
      }
    }
    sync_threads_of<32 * Shape::kShares>(warps_);
#pragma unroll
    for (int sum = 0; sum < kSums; ++sum) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        sums[sum][0][2 * column] += __uint_as_float(load_shared(read_ + offset_of(sum, column)));
      }
    }
    // Another warp may still be reading. It has read when it is at the next barrier.
    buffer_ = kBytes / 2 - buffer_;
  }

 private:
  LLTM_DEVICE int offset_of(int sum, int column) const {
    return buffer_ + (2 * sum + column) * 2 * kThreadsOfShare * 4;
  }

  int share_, warps_;
  uint32_t write_, read_;
  int buffer_ = 0;
};

/// Operand B as RowOperands has it, for the blocks of a cluster. All threads of a warp call its
/// functions together, and drain() is called last.
///
/// What a warp sends to a block of one tile and part is in one piece there: of each 16 columns the
/// rows of the first half of its warps, then those of the second, with the 8 columns swapped in the
/// latter, so that the rows that are read at once are in different banks.
template <typename Shape, int kParts>
class ClusterOperands {
 public:
  static constexpr int kChunkBytes = 8 * 16 * 2, kPartBytes = Shape::kState / 16 * kChunkBytes;
  static constexpr int kTileBytes = kParts * kPartBytes;
  static constexpr int kStepBytes = Shape::kTiles * kTileBytes;
  static constexpr int kBytes = 2 * kStepBytes;
  static constexpr int kBarrierBytes = 2 * Shape::kTiles * 8;

  /// The cluster must call start_cluster() before anything is published.
  LLTM_DEVICE ClusterOperands(const OwnElements<Shape>& own,
                              const GroupRows<Shape>& rows,
                              uint32_t shared,
                              uint32_t barriers)
      : own_(own),
        rows_(rows.count),
        rows_to_send_(rows.count),
        barriers_(in_register(barriers)),
        read_(in_register(shared + own.share * (kPartBytes / Shape::kShares) +
                          own.lane / 16 * kChunkBytes + place_of(own.lane % 8, own.lane / 8 % 2))),
        write_(in_register(shared - barriers + own.column / 16 * kChunkBytes +
                           place_of(own.row, own.column / 8 % 2))) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * Shape::kTiles; ++i) {
        init_barrier(barriers + 8 * i, 1);
      }
      fence_barriers();
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        expect(tile, 0);
      }
    }
    // Neighboring lanes of a row send to different blocks.
#pragma unroll
    for (int i = 0; i < kSends; ++i) {
      blocks_[i] = address_in_block(barriers, min(own.lane / 4 % 4 + 4 * i, Shape::kCluster - 1));
    }
  }

  LLTM_DEVICE void start_cluster() const {
    cluster_arrive_with_stores();
    cluster_wait();
  }

  /// Sends columns of the thread's row of a tile to all blocks, for the next step.
  LLTM_DEVICE void publish(int tile, int /*row*/, int part, uint32_t word) const {
    // Four threads have eight neighboring columns of a row: together 16 bytes.
    const auto word_of = [&](int i) {
      return __uint_as_float(__shfl_sync(~0u, word, (own_.lane & ~12) | i << 2));
    };
    const float4 vector = {word_of(0), word_of(1), word_of(2), word_of(3)};
    const uint32_t to = write_ + next_ + tile * kTileBytes + part * kPartBytes;
#pragma unroll
    for (int i = 0; i < kSends; ++i) {
      if (8 * tile + own_.row < rows_to_send_ && own_.lane / 4 % 4 + 4 * i < Shape::kCluster) {
        send_16(blocks_[i] + to, vector, blocks_[i] + barrier_of(tile, next_));
      }
    }
  }

  /// Waits for what all blocks have published of a tile for this step.
  LLTM_DEVICE void start_tiles(int tile) {
    if (tile == 0) {
      now_ = next_;
      next_ = kStepBytes - next_;
      // The two buffers take turns, so a barrier completes a phase every other step.
      parity_ ^= now_ == 0 ? 1 : 0;
    }
    wait_phase(barriers_ + barrier_of(tile, now_), parity_);
    if (threadIdx.x == 0) {
      expect(tile, next_);
    }
  }

  LLTM_DEVICE void finish_tiles(int /*tile*/) const {}
  LLTM_DEVICE void finish_all_tiles() const {}

  /// Waits for what has been published last. Then no block sends anything to this one.
  LLTM_DEVICE void drain(int tiles) {
    for (int tile = 0; tile < tiles; ++tile) {
      start_tiles(tile);
    }
  }

  /// Adds the products of the weights and a tile's rows.
  template <typename Weights, int kSums, int kChains>
  LLTM_DEVICE void multiply(const Weights& weights,
                            int tile,
                            float (&sums)[1][kSums][kChains][4]) const {
    static_assert(kSums == (kParts == 1 ? Shape::Cell::kGates : 1));
    weights.template multiply<ClusterOperands, kParts>(read_ + now_ + tile * kTileBytes, sums);
  }

 private:
  static constexpr int kSends = (Shape::kCluster + 3) / 4;

  /// Where 8 columns of a row of a tile are.
  static LLTM_DEVICE int place_of(int row, int eight) {
    const int half = row % 2;
    return (4 * half + row / 2) * 32 + 16 * (eight ^ half);
  }
  static LLTM_DEVICE int barrier_of(int tile, int buffer) {
    return 16 * tile + (buffer == 0 ? 0 : 8);
  }
  LLTM_DEVICE void expect(int tile, int buffer) const {
    const int rows = max(min(rows_ - 8 * tile, 8), 0);
    arrive_expecting(barriers_ + barrier_of(tile, buffer), rows * kParts * Shape::kState * 2);
  }

  const OwnElements<Shape>& own_;
  int rows_, rows_to_send_;
  uint32_t barriers_, read_, write_;  // write_ counts from the barriers
  uint32_t blocks_[kSends];           // their barriers
  int now_ = 0, next_ = 0;
  uint32_t parity_ = 1;  // of the phase of this step
};

/// Operand B of a shape.
template <typename Shape, int kParts>
using OperandsOf = std::conditional_t<(Shape::kCluster > 1),
                                      ClusterOperands<Shape, kParts>,
                                      RowOperands<Shape, kParts>>;

}  // namespace lltm::cuda
