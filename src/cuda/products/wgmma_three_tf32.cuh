// The product of a block on Hopper in float32 (sm_90a): a tile of C += A * B. TMA copies the
// operands to shared memory in chunks of K, and wgmma multiplies them in three TF32 products. wgmma
// reads B only with K contiguous, and cannot split operands into high and low parts. So some warps
// rewrite each chunk of B, and A passes through registers. Where K is contiguous, they only write
// the low parts, since wgmma reads B itself as if its values were truncated to TF32.
#pragma once

#include "../pipeline/ring.cuh"
#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/overlap.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/wgmma.cuh"
#include "../scheduler/split_of_k.h"
#include "../tile/shapes.h"
#include "operands.cuh"

#include <bit>
#include <cstddef>
#include <type_traits>

namespace lltm::cuda {

/// A tile with 64 rows for each of kGroups warpgroups, and 96, 64 or 24 columns. kFeederGroups more
/// warpgroups feed them: up to three warps of each rewrite B, and one thread starts the copies.
template <Major kMajorB,
          int kGroups_,
          int kFeederGroups,
          int kStages_,
          int kTileN_ = kThreeTf32Columns>
struct ThreeTf32Product {
  using Element = float;
  static constexpr Arithmetic kArithmetic = Arithmetic::kFloat32;
  static constexpr int kGroups = kGroups_, kStages = kStages_;
  static constexpr int kTileM = 64 * kGroups, kTileN = kTileN_;
  static constexpr int kMultipliers = 128 * kGroups, kFinishers = kMultipliers;
  static constexpr int kRowTiles = 1;  // of a cluster that share B
  static constexpr int kThreads = kMultipliers + 128 * kFeederGroups;

  // A stage contains A as it is, B as it is or its high parts, and the low parts of B.
  static constexpr int kChunkK = kThreeTf32Chunk;
  static constexpr int kBytesA = kTileM * kChunkK * 4, kBytesB = kTileN * kChunkK * 4;
  static constexpr int kStageBytes = kBytesA + 2 * kBytesB;
  using Stages = Ring<kStages, kStageBytes, 4>;
  static constexpr int kPipelineBytes = Stages::kBytes + Stages::kBarrierBytes;
  static constexpr int kPitchC = kTileN + 8;
  static constexpr int kResultBytes = kTileM * kPitchC * 4;
  static constexpr int kSharedBytes = kPipelineBytes > kResultBytes ? kPipelineBytes : kResultBytes;

  // The boxes of a chunk that `load` copies. Where K is contiguous, their rows run along K,
  // swizzled. Otherwise those of A run along M, 32 elements each, swizzled, one box after the
  // other, and those of B along N, as they are.
  static constexpr int kBoxBytesA = kChunkK * 128;
  static_assert(kMajorB == Major::kK || kTileN != 32, "rows of 128 bytes would be permuted");

  // The threads that rewrite B, of which so many share a row, of eight pieces of 16 bytes.
  static constexpr int kShare = std::bit_floor(96U * kFeederGroups / kTileN);
  static constexpr int kRewriters = kShare * kTileN, kPieces = 8 / kShare;
  static_assert(kShare * kPieces == 8 && kRewriters % 32 == 0);

  static constexpr int kSums = kTileN / 2;
  float sum[kSums];

  /// The rows of A in a chunk's box, however many exist.
  static int box_rows(int64_t /*rows*/) { return kTileM; }

  /// Initializes the barriers. Called before a block barrier.
  static LLTM_DEVICE void prepare(const unsigned char* shared) {
    if (threadIdx.x == 0) {
      Slots(shared).prepare(1, kMultipliers, kRewriters, 1);
      fence_barriers();
    }
  }

  /// Computes one tile. loader.load_a(a, barrier, chunk) and load_b(b, barrier, chunk), called by
  /// one thread, start the copies of a chunk, counted from zero. B is rewritten as soon as it
  /// arrives. fetch() and finish() are called by the threads that hold the sums: both after the
  /// product, which leaves few registers. The block need not have waited for the previous kernel:
  /// if k.early, the early chunks are loaded before the wait, and B of those after them that have a
  /// stage. between(), if there is one, is called when the first chunks have been multiplied.
  template <typename Loader, typename Fetch, typename Finish, typename Between = std::nullptr_t>
  LLTM_DEVICE void run(const unsigned char* shared,
                       const KRange& k,
                       const Loader& loader,
                       const Fetch& fetch,
                       const Finish& finish,
                       int first_chunks = 0,
                       const Between& between = {}) {
    const int chunks = k.chunks;
    run_feeders_and_multipliers(
        shared,
        [&](Slots& of_b) {
          Slots of_a = of_b;
          const auto begin = [&](int chunk) {
            of_b.wait_empty();
            arrive_expecting(of_b.full_b(), kBytesB);
            loader.load_b(of_b.b(), of_b.full_b(), chunk);
            arrive_expecting(of_b.full(), kBytesA);
            of_b.advance();
          };
          const auto end = [&](int chunk) {
            loader.load_a(of_a.a(), of_a.full(), chunk);
            of_a.advance();
          };
          const int known = k.early ? k.early_chunks : 0;
          const int ahead = k.early ? max(known, min(chunks, kStages)) : 0;
#pragma unroll 1
          for (int chunk = 0; chunk < ahead; ++chunk) {
            begin(chunk);
            if (chunk < known) {
              end(chunk);
            }
          }
          wait_for_previous_kernel();
#pragma unroll 1
          for (int chunk = known; chunk < ahead; ++chunk) {
            end(chunk);
          }
#pragma unroll 1
          for (int chunk = ahead; chunk < chunks; ++chunk) {
            begin(chunk);
            end(chunk);
          }
        },
        [&](Slots& slots, int thread) {
          struct Unit {
            int chunks;
          };
          rewrite<true>(
              slots,
              thread,
              [&](const auto& work) { work(Unit{chunks}); },
              [](const Unit&, int n) { return n; });
        },
        [&](Slots& slots) {
          if constexpr (std::is_null_pointer_v<Between>) {
            multiply<Major::kK>(slots, chunks);
          } else {
            clear(sum);
#pragma unroll 1
            for (int part = 0; part < 2; ++part) {
              multiply<Major::kK, /*kAdds=*/true>(slots,
                                                  part == 0 ? first_chunks : chunks - first_chunks);
              if (part == 0) {
                between();
              }
            }
          }
          fetch();
          finish();
        });
  }

  /// Computes the units of a block in sequence: each_unit(work) calls work(unit) for all of them,
  /// and of K they have unit.chunks chunks from unit.first_chunk on. load(a, b, barrier, unit,
  /// chunk), called by one thread, which waits for the previous kernel before, announces and starts
  /// the copies of a chunk. finish(unit) is called by the threads that hold the sums, while the
  /// next unit is loaded. Where the rows of B are K, so are those of A if has_rows_of_k(unit), and
  /// column_of_b(unit, n) is the column of the box that row n of the tile's B is made of.
  template <typename EachUnit,
            typename HasRowsOfK,
            typename Load,
            typename ColumnOf,
            typename Finish>
  LLTM_DEVICE void run_units(const unsigned char* shared,
                             const EachUnit& each_unit,
                             const HasRowsOfK& has_rows_of_k,
                             const Load& load,
                             const ColumnOf& column_of_b,
                             const Finish& finish) {
    run_feeders_and_multipliers(
        shared,
        [&](Slots& slots) {
          wait_for_previous_kernel();
          each_unit([&](const auto& unit) {
            for (int chunk = unit.first_chunk; chunk < unit.first_chunk + unit.chunks; ++chunk) {
              slots.wait_empty();
              load(slots.a(), slots.b(), slots.full(), unit, chunk);
              slots.advance();
            }
          });
        },
        [&](Slots& slots, int thread) { rewrite<false>(slots, thread, each_unit, column_of_b); },
        [&](Slots& slots) {
          each_unit([&](const auto& unit) {
            if (kMajorB == Major::kOther && has_rows_of_k(unit)) {
              multiply<Major::kOther>(slots, unit.chunks);
            } else {
              multiply<Major::kK>(slots, unit.chunks);
            }
            finish(unit);
          });
        });
  }

  /// Maps row r, of 16, of a warp to a row of the tile. Where M is contiguous in A, rows are
  /// permuted so that all floats of a fragment are in different banks.
  template <Major kMajorA>
  static LLTM_DEVICE int row_of(int warp, int r) {
    return kMajorA == Major::kK ? warp * 16 + r : row_of_fragment(warp, r);
  }

  /// Stores the tile to `result`, rows of kPitchC floats, where K is contiguous in A.
  LLTM_DEVICE void store(float* result) const {
    if (static_cast<int>(threadIdx.x) >= kMultipliers) {
      return;
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const row = result + row_of<Major::kK>(warp(), lane / 4 + half * 8) * kPitchC;
#pragma unroll
      for (int n = 0; n < kTileN / 8; ++n) {
        *reinterpret_cast<float2*>(row + n * 8 + lane % 4 * 2) =
            make_float2(sum[n * 4 + half * 2], sum[n * 4 + half * 2 + 1]);
      }
    }
  }

 private:
  // The registers per thread if all threads get the same number, and what they get after the
  // feeders release theirs.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr bool kMovesRegisters = kLaunchRegisters < 248;
  static constexpr int kFeederRegisters = kGroups == 1 ? 56 : 48;
  static constexpr int kFreeRegisters =
      (kLaunchRegisters * kThreads - kFeederRegisters * 128 * kFeederGroups) / kMultipliers / 8 * 8;
  static constexpr int kMultiplierRegisters = kFreeRegisters < 240 ? kFreeRegisters : 240;

  struct Slots : Stages {
    LLTM_DEVICE explicit Slots(const unsigned char* shared)
        : Stages(shared_address(shared), shared_address(shared) + Stages::kBytes) {}
    LLTM_DEVICE uint32_t a() const { return this->data(); }
    LLTM_DEVICE uint32_t b() const { return this->data() + kBytesA; }
    // The chunk's B has been rewritten; or has arrived, if it has a barrier of its own.
    LLTM_DEVICE uint32_t ready() const { return this->barrier(2); }
    LLTM_DEVICE uint32_t full_b() const { return this->barrier(3); }
  };

  // feed(slots) is called by the thread that loads, rewrite(slots, thread) by those that rewrite B,
  // and multiply(slots) by those that multiply.
  template <typename Feed, typename Rewrite, typename Multiply>
  LLTM_DEVICE void run_feeders_and_multipliers(const unsigned char* shared,
                                               const Feed& feed,
                                               const Rewrite& rewrite,
                                               const Multiply& multiply) {
    Slots slots(shared);
    const int thread = static_cast<int>(threadIdx.x) - kMultipliers;
    if (thread >= 0) {
      if constexpr (kMovesRegisters) {
        give_registers<kFeederRegisters>();
      }
      if (thread < kRewriters) {
        rewrite(slots, thread);
      } else if (thread == kRewriters) {
        feed(slots);
      }
      __syncwarp();
    } else {
      if constexpr (kMovesRegisters) {
        take_registers<kMultiplierRegisters>();
      }
      multiply(slots);
      if constexpr (kMovesRegisters) {
        give_registers<kLaunchRegisters>();
      }
    }
    // All warpgroups are done with the pipeline, and have taken and released registers.
    __syncthreads();
    if constexpr (kMovesRegisters) {
      if (thread >= 0) {
        take_registers<kLaunchRegisters>();
      }
    }
  }

  static LLTM_DEVICE int warp() { return static_cast<int>(threadIdx.x) / 32; }

  // Loads this warp's rows of a chunk of A.
  template <Major kMajorA>
  static LLTM_DEVICE void load_a(uint32_t (&fragments)[4][4], uint32_t a) {
    const int lane = threadIdx.x % 32;
    if constexpr (kMajorA == Major::kK) {
      const int matrix = lane / 8;
      const int r = lane % 8;
      const uint32_t row = a + (warp() * 16 + matrix % 2 * 8 + r) * 128;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        load_matrices_x4(fragments[step], row + (((step * 2 + matrix / 2) ^ r) * 16));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int m = row_of<kMajorA>(warp(), lane / 4 + i % 2 * 8);
        const int k = lane % 4 + i / 2 * 4;  // plus 8 per step
        const uint32_t from = a + offset_in_boxes(m, k);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          fragments[step][i] = load_shared(from + step * 8 * 128);
        }
      }
    }
  }

  // Writes the low parts of a row of B, or of pieces of it, behind B, chunk by chunk. Where K is
  // contiguous, the row itself has the high parts: shared memory limits these kernels, so nothing
  // is written that need not be. Where N is contiguous, a row is made of a column of the box, and
  // the high parts of rows replace B.
  template <bool kBByItself, typename EachUnit, typename ColumnOf>
  static LLTM_DEVICE void rewrite(Slots& slots,
                                  int thread,
                                  const EachUnit& each_unit,
                                  const ColumnOf& column_of_b) {
    const int n = thread % kTileN, first_piece = thread / kTileN * kPieces;
    each_unit([&](const auto& unit) {
      [[maybe_unused]] const uint32_t first = (first_piece * 4 * kTileN + column_of_b(unit, n)) * 4;
#pragma unroll 1
      for (int chunk = 0; chunk < unit.chunks; ++chunk) {
        slots.wait(kBByItself ? slots.full_b() : slots.full());
        const uint32_t b = slots.b();
        uint32_t values[kPieces][4];
        if constexpr (kMajorB == Major::kK) {
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) {
            load_shared_4(values[piece], piece_of_row(b, n, first_piece + piece));
          }
        } else {
#pragma unroll
          for (int k = 0; k < kPieces * 4; ++k) {
            values[k / 4][k % 4] = load_shared(b + first + k * kTileN * 4);
          }
          // Threads write rows where others still read columns.
          sync_threads_of<kRewriters>(1);
        }
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const uint32_t to = piece_of_row(b, n, first_piece + piece);
          if constexpr (kMajorB == Major::kK) {
            leave_low_parts(values[piece]);
            store_shared_4(to + kBytesB, values[piece]);
          } else {
            uint32_t low[4];
            take_apart(values[piece], low);
            store_shared_4(to + kBytesB, low);
            store_shared_4(to, values[piece]);
          }
        }
        fence_for_copies();
        arrive(slots.ready());
        slots.advance();
      }
    });
  }

  // The address of 16 bytes of row `row` of B or A, whose vectors are permuted.
  static LLTM_DEVICE uint32_t piece_of_row(uint32_t rows, int row, int piece) {
    return rows + row * 128 + ((piece ^ (row % 8)) * 16);
  }

  static LLTM_DEVICE void wait_for_chunk(const Slots& slots) {
    slots.wait_full();
    slots.wait(slots.ready());
  }

  LLTM_DEVICE void add(const float (&values)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sum[i] += values[i];
    }
  }

  // The tensor core truncates its sums. Products with a low part are small, and stay in it for all
  // of K. Those of high parts leave it after each chunk, or after each of its four steps where
  // there are registers for that, and are added in float32 while the small ones are in flight.
  //
  // A of the next chunk is loaded while this one is multiplied.
  //
  // With kAdds, the products are added to `sum`.
  template <Major kMajorA, bool kAdds = false>
  LLTM_DEVICE void multiply(Slots& slots, int chunks) {
    constexpr int kLarge = kSums <= 16 ? 4 : 1;
    float small[kSums] = {}, large[kLarge][kSums] = {};
    if constexpr (!kAdds) {
      clear(sum);
    }
    uint32_t a[2][4][4], next[4][4];
    if (chunks > 0) {
      wait_for_chunk(slots);
      load_a<kMajorA>(next, slots.a());
    }
#pragma unroll 1
    for (int chunk = 1; chunk <= chunks; ++chunk) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[0][step][i] = next[step][i];
        }
        take_apart(a[0][step], a[1][step]);
      }
      const uint64_t b = describe_matrix(slots.b());
      fence_products();
      multiply_group_tf32<true>(large[0], a[0][0], b);
#pragma unroll
      for (int step = 1; step < 4; ++step) {
        multiply_group_tf32<(kLarge > 1)>(large[step % kLarge], a[0][step], b + step * 2);
      }
      commit_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply_group_tf32<false>(small, a[1][step], b + step * 2);
        multiply_group_tf32<false>(small, a[0][step], b + kBytesB / 16 + step * 2);
      }
      commit_products();
      const uint32_t empty = slots.empty();
      slots.advance();
      if (chunk < chunks) {
        wait_for_chunk(slots);
        load_a<kMajorA>(next, slots.a());
      }
      wait_products<1>();
#pragma unroll
      for (int i = 0; i < kLarge; ++i) {
        keep_behind(large[i]);
        add(large[i]);
      }
      wait_products<0>();
      keep_until_here(a[0]);
      keep_until_here(a[1]);
      // Every thread has read its own part of A.
      arrive(empty);
    }
    keep_behind(small);
    add(small);
  }
};

}  // namespace lltm::cuda
