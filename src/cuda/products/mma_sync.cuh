// The product of a block by mma.sync (sm_80 and newer): a tile of C += A * B whose operands pass
// through shared memory in chunks of K, several of which are in flight (cp.async).
//
// A tile is kTileM x kTileN, divided among kWarpsM x kWarpsN warps. kWarpsK such groups share the
// steps of a chunk, which keeps many warps busy in a small tile. The caller decides where elements
// come from: it starts the copies.
#pragma once

#include "../problem.h"
#include "../ptx/cp_async.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/overlap.cuh"
#include "../ptx/shared.cuh"
#include "../tile/elements.h"
#include "operands.cuh"

namespace lltm::cuda {

/// Which operands of a chunk are loaded: those that are available before the previous kernel is
/// complete, or those that it computes. A step of a sequence awaits h, and the backward d_gates.
enum class Ready { kAll, kAvailable, kAwaited };

template <Arithmetic kArithmetic_,
          Major kMajorA,
          Major kMajorB,
          int kTileM_,
          int kTileN_,
          int kWarpsM_,
          int kWarpsN_,
          int kWarpsK_,
          int kStages_>
struct TileProduct {
  static constexpr Arithmetic kArithmetic = kArithmetic_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kWarpsK = kWarpsK_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN * kWarpsK;
  using Element = TensorElement<kArithmetic>;

  // A step is the K of one mma.sync, 32 bytes. A chunk is four steps, 128 bytes.
  static constexpr int kStepK = 32 / sizeof(Element);
  static constexpr int kSteps = 4;
  static constexpr int kChunkK = kSteps * kStepK;

  // Rows in shared memory are padded so that neither ldmatrix nor the 32-bit loads of a fragment
  // have bank conflicts.
  static constexpr int kPitchOfK = kChunkK + 16 / static_cast<int>(sizeof(Element));
  static constexpr int kPitchA = kMajorA == Major::kK ? kPitchOfK : kTileM + 8;
  static constexpr int kPitchB = kMajorB == Major::kK ? kPitchOfK : kTileN + 8;
  static constexpr int kElementsA = kPitchA * (kMajorA == Major::kK ? kTileM : kChunkK);
  static constexpr int kElementsB = kPitchB * (kMajorB == Major::kK ? kTileN : kChunkK);
  static constexpr int kStageElements = kElementsA + kElementsB;
  static constexpr int kPipelineBytes =
      kStages * kStageElements * static_cast<int>(sizeof(Element));

  // The finished tile in shared memory replaces the pipeline: rows of floats with a pitch of 8 or
  // 24 modulo 32.
  static constexpr int kPitchC = kTileN % 16 == 8 ? kTileN : kTileN + 8;
  static constexpr int kResultBytes = kWarpsK * kTileM * kPitchC * 4;
  static constexpr int kSharedBytes = kPipelineBytes > kResultBytes ? kPipelineBytes : kResultBytes;

  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static_assert(kWarpM % 16 == 0 && kWarpN % 8 == 0 && kSteps % kWarpsK == 0);

  // Where registers allow, each chunk is summed by itself first: a long chain of additions loses
  // accuracy, which SGEMM avoids by splitting K across more blocks.
  static constexpr bool kSumsChunks =
      kArithmetic == Arithmetic::kFloat32 && kFragmentsM * kFragmentsN <= 6;

  using Fragments = float[kFragmentsM][kFragmentsN][4];
  Fragments sum = {};

  static LLTM_DEVICE Element* a_of(Element* shared, int slot) {
    return shared + slot * kStageElements;
  }
  static LLTM_DEVICE Element* b_of(Element* shared, int slot) {
    return shared + slot * kStageElements + kElementsA;
  }

  /// Multiplies the chunks [begin, end) of K. load(a, b, chunk, operands) starts the copies of
  /// these operands of a chunk. started() is called once the copies of as many chunks as fit have
  /// been started. With kOverlaps, the block has not yet waited for the previous kernel; if
  /// `early`, what is available of the first chunks is loaded before it does.
  template <bool kOverlaps = true, typename Load, typename Started>
  LLTM_DEVICE void run(
      Element* shared, int begin, int end, bool early, const Load& load, const Started& started) {
    // The first iterations only fill the pipeline. If all chunks fit, they are awaited together.
    const bool fits = end - begin < kStages;
    const int filling = min(end - begin, kStages - 1);
    const int first_round = kOverlaps ? begin + filling : begin;
    int slot = 0, free_slot = first_round - begin;
    if constexpr (kOverlaps) {
      // One copy of the code: first for the chunks that are loaded early, then for all.
      const int ahead = early ? filling : 0;
#pragma unroll 1
      for (int next = begin - ahead; next < begin + filling; ++next) {
        if (next == begin) {
          wait_for_previous_kernel();
        }
        const bool is_early = next < begin;
        const int chunk = is_early ? next + ahead : next;
        load(a_of(shared, chunk - begin),
             b_of(shared, chunk - begin),
             chunk,
             is_early     ? Ready::kAvailable
             : ahead == 0 ? Ready::kAll
                          : Ready::kAwaited);
        if (!is_early) {
          commit_copies();
        }
      }
      if (filling == 0) {
        wait_for_previous_kernel();
      }
    }
    if (filling == 0) {
      started();
    }
#pragma unroll 1
    for (int next = first_round; next < end + filling; ++next) {
      const bool filled = kOverlaps || next >= begin + filling;
      if (filled) {
        if (next == begin + filling) {
          started();
        }
        if (fits) {
          wait_copies<0>();
        } else {
          wait_copies<kStages - 2>();
        }
        __syncthreads();
      }
      if (next < end) {
        load(a_of(shared, free_slot), b_of(shared, free_slot), next, Ready::kAll);
      }
      commit_copies();
      free_slot = free_slot + 1 == kStages ? 0 : free_slot + 1;
      if (filled) {
        if constexpr (kSumsChunks) {
          Fragments chunk_sum = {};
          multiply(chunk_sum, a_of(shared, slot), b_of(shared, slot));
          add(sum, chunk_sum);
        } else {
          multiply(sum, a_of(shared, slot), b_of(shared, slot));
        }
        slot = slot + 1 == kStages ? 0 : slot + 1;
      }
    }
    wait_copies<0>();
    __syncthreads();
  }

  /// Stores the block's tile to `result` (rows of kPitchC floats), adding its kWarpsK parts.
  LLTM_DEVICE void store(float* result) {
    const int lane = threadIdx.x % 32;
    float* part = result + warp_k() * kTileM * kPitchC;
#pragma unroll
    for (int m = 0; m < kFragmentsM; ++m) {
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
        const int row = warp_m() * kWarpM + m * 16 + lane / 4;
        const int column = warp_n() * kWarpN + n * 8 + lane % 4 * 2;
        const float(&c)[4] = sum[m][n];
        *reinterpret_cast<float2*>(&part[row * kPitchC + column]) = make_float2(c[0], c[1]);
        *reinterpret_cast<float2*>(&part[(row + 8) * kPitchC + column]) = make_float2(c[2], c[3]);
      }
    }
    if constexpr (kWarpsK > 1) {
      __syncthreads();
      constexpr int kElements = kTileM * kPitchC;
#pragma unroll
      for (int first = 0; first < kElements; first += kThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        if (i < kElements) {
          float total = result[i];
#pragma unroll
          for (int k = 1; k < kWarpsK; ++k) {
            total += result[k * kElements + i];
          }
          result[i] = total;
        }
      }
    }
  }

 private:
  static LLTM_DEVICE void add(Fragments& values, const Fragments& others) {
#pragma unroll
    for (int m = 0; m < kFragmentsM; ++m) {
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[m][n][i] += others[m][n][i];
        }
      }
    }
  }

  static LLTM_DEVICE int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static LLTM_DEVICE int warp_m() { return warp() % kWarpsM; }
  static LLTM_DEVICE int warp_n() { return warp() / kWarpsM % kWarpsN; }
  static LLTM_DEVICE int warp_k() { return warp() / (kWarpsM * kWarpsN); }

  // to += a * b for one chunk.
  static LLTM_DEVICE void multiply(Fragments& to, const Element* a, const Element* b) {
#pragma unroll
    for (int i = 0; i < kSteps / kWarpsK; ++i) {
      const int step = i * kWarpsK + warp_k();
      uint32_t b_fragments[kFragmentsN][2];
      load_b(b_fragments, b, step);
      if constexpr (kArithmetic == Arithmetic::kFloat32) {
        uint32_t b_low[kFragmentsN][2];
#pragma unroll
        for (int n = 0; n < kFragmentsN; ++n) {
          take_apart(b_fragments[n], b_low[n]);
        }
#pragma unroll
        for (int m = 0; m < kFragmentsM; ++m) {
          uint32_t a_high[4], a_low[4];
          load_a(a_high, a, step, m);
          take_apart(a_high, a_low);
          // The tensor core truncates when it adds to its accumulator, so its sums cover one step
          // only. The steps are added in float32 registers.
          float step_sum[kFragmentsN][4];
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            multiply_tf32(step_sum[n], a_low, b_fragments[n]);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            multiply_add_tf32(step_sum[n], a_high, b_low[n]);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            multiply_add_tf32(step_sum[n], a_high, b_fragments[n]);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              to[m][n][i] += step_sum[n][i];
            }
          }
        }
      } else {
        if constexpr (kArithmetic == Arithmetic::kTf32) {
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            round_floats(b_fragments[n]);
          }
        }
#pragma unroll
        for (int m = 0; m < kFragmentsM; ++m) {
          uint32_t a_fragment[4];
          load_a(a_fragment, a, step, m);
          if constexpr (kArithmetic == Arithmetic::kTf32) {
            round_floats(a_fragment);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            if constexpr (kArithmetic == Arithmetic::kTf32) {
              multiply_add_tf32(to[m][n], a_fragment, b_fragments[n]);
            } else if constexpr (kArithmetic == Arithmetic::kFloat16) {
              multiply_add_f16(to[m][n], a_fragment, b_fragments[n]);
            } else {
              multiply_add_bf16(to[m][n], a_fragment, b_fragments[n]);
            }
          }
        }
      }
    }
  }

  static LLTM_DEVICE void load_a(uint32_t (&fragment)[4], const Element* a, int step, int m) {
    const int lane = threadIdx.x % 32;
    const int first = warp_m() * kWarpM + m * 16;
    const int matrix = lane / 8, r = lane % 8;
    if constexpr (kMajorA == Major::kK) {
      constexpr int kHalf = kStepK / 2;
      load_matrices_x4(fragment,
                       shared_address(a + (first + matrix % 2 * 8 + r) * kPitchA + step * kStepK +
                                      matrix / 2 * kHalf));
    } else if constexpr (sizeof(Element) == 2) {
      load_matrices_x4_transposed(
          fragment,
          shared_address(a + (step * kStepK + matrix / 2 * 8 + r) * kPitchA + first +
                         matrix % 2 * 8));
    } else {
      const float* from = a + (step * kStepK + lane % 4) * kPitchA + first + lane / 4;
      fragment[0] = __float_as_uint(from[0]);
      fragment[1] = __float_as_uint(from[8]);
      fragment[2] = __float_as_uint(from[4 * kPitchA]);
      fragment[3] = __float_as_uint(from[4 * kPitchA + 8]);
    }
  }

  static LLTM_DEVICE void load_b(uint32_t (&fragments)[kFragmentsN][2],
                                 const Element* b,
                                 int step) {
    const int lane = threadIdx.x % 32;
    const int first = warp_n() * kWarpN;
    const int matrix = lane / 8, r = lane % 8;
    if constexpr (kMajorB == Major::kOther && sizeof(Element) == 4) {
      const float* from = b + (step * kStepK + lane % 4) * kPitchB + first + lane / 4;
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
        fragments[n][0] = __float_as_uint(from[n * 8]);
        fragments[n][1] = __float_as_uint(from[n * 8 + 4 * kPitchB]);
      }
    } else {
      // Two fragments per load, and the last one by itself if their number is odd.
#pragma unroll
      for (int n = 0; n + 1 < kFragmentsN; n += 2) {
        uint32_t pair[4];
        if constexpr (kMajorB == Major::kK) {
          load_matrices_x4(pair,
                           shared_address(b + (first + n * 8 + matrix / 2 * 8 + r) * kPitchB +
                                          step * kStepK + matrix % 2 * (kStepK / 2)));
        } else {
          load_matrices_x4_transposed(
              pair,
              shared_address(b + (step * kStepK + matrix % 2 * 8 + r) * kPitchB + first + n * 8 +
                             matrix / 2 * 8));
        }
        fragments[n][0] = pair[0];
        fragments[n][1] = pair[1];
        fragments[n + 1][0] = pair[2];
        fragments[n + 1][1] = pair[3];
      }
      if constexpr (kFragmentsN % 2 == 1) {
        constexpr int kLast = kFragmentsN - 1;
        static_assert(kMajorB == Major::kK);
        load_matrices_x2(fragments[kLast],
                         shared_address(b + (first + kLast * 8 + r) * kPitchB + step * kStepK +
                                        matrix % 2 * (kStepK / 2)));
      }
    }
  }
};

}  // namespace lltm::cuda
