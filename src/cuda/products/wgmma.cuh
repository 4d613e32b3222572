// The product of a block on Hopper in 16 bits or TF32 (sm_90a): a tile of C += A * B. TMA copies
// the operands to shared memory in chunks of K, and wgmma reads them there.
#pragma once

#include "../pipeline/ring.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/wgmma.cuh"
#include "../scheduler/split_of_k.h"
#include "../tile/elements.h"

#include <cstddef>
#include <type_traits>

namespace lltm::cuda {

/// A tile with 64 rows for each of kGroups warpgroups. kHelpers more threads do not take part in
/// the product. One more warp starts the copies; in a product that overlaps the previous kernel,
/// one warp starts those of A and another one those of B. kRowTiles_ blocks of a cluster have the
/// same columns, and each copies its share of B's chunks to all of them.
template <Arithmetic kArithmetic_,
          int kGroups_,
          int kTileN_,
          int kStages_,
          int kRowTiles_,
          int kHelpers,
          bool kOverlaps = false>
struct WgmmaProduct {
  static constexpr Arithmetic kArithmetic = kArithmetic_;
  static constexpr int kGroups = kGroups_, kStages = kStages_, kRowTiles = kRowTiles_;
  using Element = TensorElement<kArithmetic>;
  static constexpr int kTileM = 64 * kGroups, kTileN = kTileN_;
  static constexpr int kMultipliers = 128 * kGroups, kFinishers = kMultipliers + kHelpers;
  static constexpr int kLoaders = kOverlaps ? 2 : 1;
  static constexpr int kThreads = kFinishers + 32 * kLoaders;
  static constexpr int kChunkBytes = 128, kChunkK = kChunkBytes / sizeof(Element);
  static constexpr int kBytesA = kTileM * kChunkBytes, kBytesB = kTileN * kChunkBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static_assert(kStageBytes % 1024 == 0, "the pattern of swizzled rows repeats every 1024 bytes");
  using Slots = Ring<kStages, kStageBytes>;
  static constexpr int kPipelineBytes = kStages * kStageBytes + Slots::kBarrierBytes;

  static constexpr int kSums = kTileN / 2;
  float sum[kSums];

  /// The rows of A in a chunk's box if only `rows` rows exist: none beyond a small batch.
  static int box_rows(int64_t rows) {
    return rows < kTileM ? static_cast<int>((rows + 7) / 8 * 8) : kTileM;
  }

  static LLTM_DEVICE Slots slots_of(const unsigned char* shared) {
    const uint32_t base = shared_address(shared);
    return Slots(base, base + kStages * kStageBytes);
  }

  /// Initializes the barriers. Called by all threads before a barrier of the cluster; the first
  /// thread that loads does it.
  static LLTM_DEVICE void prepare(const unsigned char* shared) {
    if (threadIdx.x == kFinishers) {
      slots_of(shared).prepare(kLoaders, kGroups * kRowTiles);
      fence_barriers();
    }
  }

  /// Multiplies the chunks of a block. All threads that load call loader.load_all(slots), which
  /// copies all chunks. The finishers call fetch() before the product and finish() after it; of
  /// these, the multipliers hold the sums. In a product that overlaps the previous kernel, fetch()
  /// may wait for that kernel: the early chunks are multiplied before. between(), if there is one,
  /// is called by the multipliers when the first chunks have been multiplied, which there are the
  /// early ones.
  template <typename Loader, typename Fetch, typename Finish, typename Between = std::nullptr_t>
  LLTM_DEVICE void run(const unsigned char* shared,
                       const KRange& k,
                       const Loader& loader,
                       const Fetch& fetch,
                       const Finish& finish,
                       int first_chunks = 0,
                       const Between& between = {}) {
    Slots slots = slots_of(shared);
    if (threadIdx.x >= kFinishers) {
      loader.load_all(slots);
      return;
    }
    uint32_t to_release = 0;
    constexpr bool kInParts = !std::is_null_pointer_v<Between>;
    constexpr bool kFetchesBetween = kInParts && kOverlaps;
    static_assert(!kFetchesBetween || kFinishers == kMultipliers);
    if constexpr (kOverlaps && !kInParts) {
      clear(sum);
      if (threadIdx.x < kMultipliers) {
        multiply(slots, 0, k.early_chunks, k, to_release);
      }
    }
    if constexpr (!kFetchesBetween) {
      fetch();
    }
    if (threadIdx.x < kMultipliers) {
      if constexpr (kInParts || !kOverlaps) {
        clear(sum);
      } else if constexpr (kFinishers > kMultipliers) {
        // The helpers never get here with sums. The compiler does not know that, and would wait for
        // each wgmma before it issues the next one, in both loops.
        keep_behind(sum);
      }
      if constexpr (!kInParts) {
        multiply(slots, kOverlaps ? k.early_chunks : 0, k.chunks, k, to_release);
      } else {
        // With a loop for each part, the assembler would wait for each wgmma (C7511).
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {
          const int first = part == 0 ? 0 : first_chunks;
          multiply(slots, first, part == 0 ? first_chunks : k.chunks, k, to_release);
          if (part == 0) {
            between();
            if constexpr (kFetchesBetween) {
              fetch();
            }
          }
        }
      }
    }
    finish();
  }

 private:
  // Multiplies the chunks [begin, end). `to_release` is the `empty` barrier of the previous chunk's
  // slot.
  LLTM_DEVICE void multiply(
      Slots& slots, int begin, int end, const KRange& k, uint32_t& to_release) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const uint32_t rows = static_cast<uint32_t>(threadIdx.x) / 128 * 64 * kChunkBytes;
    // The offset from a barrier of this block to that of a block that copies to this one.
    uint32_t to_peer = 0;
    if constexpr (kRowTiles > 1) {
      to_peer = address_in_block(slots.empty(), k.peer + k.peer_step * (thread % kRowTiles)) -
                slots.empty();
    }
#pragma unroll 1
    for (int chunk = begin; chunk < end; ++chunk) {
      slots.wait_full();
      const uint64_t a = describe_matrix(slots.data() + rows);
      const uint64_t b = describe_matrix(slots.data() + kBytesA);
      fence_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        // 32 bytes further along K, in the descriptor's units of 16 bytes.
        multiply_group<kArithmetic>(sum, a + step * 2, b + step * 2);
      }
      commit_products();
      // The products of one chunk stay in flight while those of the next one start.
      wait_products<1>();
      // No thread waits for a slot that is not filled again, and its block may have exited.
      if (chunk > 0 && chunk - 1 + kStages < k.chunks && thread < kRowTiles) {
        if constexpr (kRowTiles > 1) {
          arrive_in_cluster(to_release + to_peer);
        } else {
          arrive(to_release);
        }
      }
      to_release = slots.empty();
      slots.advance();
    }
    wait_products<0>();
    keep_behind(sum);
  }
};

}  // namespace lltm::cuda
