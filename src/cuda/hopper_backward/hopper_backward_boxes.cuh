// What Hopper's two kernels of the backward in 16 bits have in common: every matrix is copied, and
// d_weights are written, in boxes of 64x64 elements.
#pragma once

#include "../problem.h"
#include "../ptx/wgmma.cuh"
#include "../runtime/tensor_maps.h"
#include "../tile/elements.cuh"
#include "../tile/vectors.cuh"

namespace lltm::cuda {

constexpr int kBoxSize = 64, kBoxBytes = kBoxSize * kBoxSize * 2;

struct BackwardMaps {
  CUtensorMap d_gates, weights_h, weights_input, old_h, input;
  CUtensorMap d_old_h, d_input, d_weights_h, d_weights_input;
};

/// Describes the matrices, but for those that are not wanted, or empty. False where one cannot be
/// described.
inline bool describe_backward(BackwardMaps* maps, Arithmetic arithmetic, const BackwardProblem& p) {
  const int64_t state = p.state_size, features = p.input_features, gates = 3 * state;
  const int64_t width = state + features;
  const auto describe_part = [&](CUtensorMap* map,
                                 const void* data,
                                 int64_t first,
                                 int64_t columns,
                                 int64_t rows,
                                 int64_t stride) {
    return data == nullptr || columns == 0 ||
           describe(map,
                    {.arithmetic = arithmetic,
                     .matrix = {static_cast<const char*>(data) + first * 2, stride},
                     .rows = rows,
                     .columns = columns,
                     .box_rows = kBoxSize,
                     .box_columns = kBoxSize});
  };
  return describe_part(&maps->d_gates, p.d_gates, 0, gates, p.batch, gates) &&
         describe_part(&maps->weights_h, p.weights.data, 0, state, gates, p.weights.stride) &&
         describe_part(
             &maps->weights_input, p.weights.data, state, features, gates, p.weights.stride) &&
         describe_part(&maps->old_h, p.old_h.data, 0, state, p.batch, p.old_h.stride) &&
         describe_part(&maps->input, p.input.data, 0, features, p.batch, p.input.stride) &&
         describe_part(&maps->d_old_h, p.d_old_h, 0, state, p.batch, state) &&
         describe_part(&maps->d_input, p.d_input, 0, features, p.batch, features) &&
         describe_part(&maps->d_weights_h, p.d_weights, 0, state, gates, width) &&
         describe_part(&maps->d_weights_input, p.d_weights, state, features, gates, width);
}

#if defined(LLTM_HOPPER)
// sum += a * b, 64 of K: a box of a, whose rows are M, or with kTransposed K, and as many boxes of
// b as the sums are of, whose rows are K. A thread has half of a column's rows.
template <Arithmetic kArithmetic, bool kTransposed, int kSums>
__device__ __forceinline__ void multiply_boxes(float (&sum)[kSums], uint32_t a, uint32_t b) {
  // 16 of K further: 16 rows of 128 bytes, or 32 bytes of a row, in units of 16.
  constexpr int kStepA = kTransposed ? 128 : 2, kStepB = 128;
  const uint64_t from_a = kTransposed ? describe_rows_of_k(a, kBoxBytes) : describe_matrix(a);
  const uint64_t from_b = describe_rows_of_k(b, kBoxBytes);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if constexpr (kArithmetic == Arithmetic::kFloat16) {
      multiply_rows_of_k_f16<kTransposed>(sum, from_a + step * kStepA, from_b + step * kStepB);
    } else {
      multiply_rows_of_k_bf16<kTransposed>(sum, from_a + step * kStepA, from_b + step * kStepB);
    }
  }
}
#endif

// Puts the sums of two boxes, 64x128, that a group of four warps has where they can be written
// from.
template <typename Element>
__device__ __forceinline__ void stage_boxes(unsigned char* boxes, const float* sum) {
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Element* const to =
      reinterpret_cast<Element*>(boxes) + (warp * 16 + lane / 4) * kBoxSize + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    Element* const piece = to + n / 8 * (kBoxBytes / 2) + ((n % 8) ^ (lane / 4)) * 8;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      Vector<Element, 2> two;
      assign(two.values[0], sum[n * 4 + below * 2]);
      assign(two.values[1], sum[n * 4 + below * 2 + 1]);
      write_vector(piece + below * 8 * kBoxSize, two);
    }
  }
}

}  // namespace lltm::cuda
