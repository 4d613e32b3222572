// z_x of a short sequence, or of a small one. The library's product would take as long to launch as
// to compute, and the recurrence would load its weights only after it.
//
// By mma.sync in TF32, which represents elements of 16 bits exactly. float32 elements are taken
// apart, and three products are added. A warp reads its operands from global memory to registers:
// each element is read by few warps.
#include "../../products/operands.cuh"
#include "../../ptx/global.cuh"
#include "../../ptx/mma.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/packed.cuh"
#include "../../runtime/launch.cuh"
#include "../../tile/vectors.cuh"
#include "recurrence.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {
namespace {

// A warp computes 16 rows of 32 columns. Many share K, each of which has a step of 16 columns at a
// time: what one takes for a step is mostly the latency of its loads and instructions. If there are
// few steps, the block has more rows.
constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kRows = 16, kColumns = 32, kFragments = kColumns / 8;
constexpr int kPitch = kColumns + 8;          // keeps the rows of a warp in different banks
constexpr int kOwnK = 4, kStepK = 4 * kOwnK;  // of a lane, which are neighbors, and of a step

template <typename Element>
struct InputProductParams {
  InputProductProblem<Element> problem;
  int k_warps;    // that share K: a power of two
  bool in_fours;  // whether all rows of K consist of aligned vectors of four elements
};

/// Four neighboring elements of a row of K.
template <typename Element, bool kVector>
struct Four {
  static constexpr bool kHalf = sizeof(Element) == 2;
  Word<(kHalf ? 8 : 16)> vector;
  uint32_t apart[4];

  /// Loads what is there of the columns from `column` on, and zeros. Does not wait.
  LLTM_DEVICE void load(const Element* row, int64_t stride, int column, int columns) {
    if constexpr (kVector) {
      load_again(vector, row + column, column < columns);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Element* const from = row + (column + i) * stride;
        if constexpr (kHalf) {
          load_half_once(apart[i], from, column + i < columns);
        } else {
          load_again(apart[i], from, column + i < columns);
        }
      }
    }
  }
  /// The bits of float.
  LLTM_DEVICE uint32_t bits(int i) const {
    if constexpr (!kVector) {
      return __float_as_uint(value_of_word<Element>(apart[i]));
    } else if constexpr (kHalf) {
      using Pair = Packed<Element>;
      const uint32_t word = i < 2 ? vector.x : vector.y;
      return __float_as_uint(i % 2 == 0 ? Pair::low(word) : Pair::high(word));
    } else {
      return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
    }
  }
};

/// sums += a * b of eight columns of K.
template <typename Element>
LLTM_DEVICE void multiply(float (&sums)[kFragments][4],
                          uint32_t (&a)[4],
                          uint32_t (&b)[kFragments][2]) {
  if constexpr (std::is_same_v<Element, float>) {
    uint32_t a_low[4];
    take_apart(a, a_low);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      // The tensor core truncates when it adds to its accumulator, so its sums are short.
      uint32_t b_low[2];
      float sum[4];
      take_apart(b[n], b_low);
      multiply_tf32(sum, a_low, b[n]);
      multiply_add_tf32(sum, a, b_low);
      multiply_add_tf32(sum, a, b[n]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[n][i] += sum[i];
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      multiply_add_tf32(sums[n], a, b[n]);
    }
  }
}

/// The part of a warp's sums whose steps of K are `first_step` and every k_warps-th after it.
template <bool kVector, typename Element>
LLTM_DEVICE void multiply_rows(float (&sums)[kFragments][4],
                               const InputProductParams<Element>& params,
                               int first_row,
                               int first_column,
                               int first_step) {
  const InputProductProblem<Element>& p = params.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32, of_step = lane % 4 * kOwnK;
  const int last_row = static_cast<int>(p.steps * p.rows) - 1;
  const int last_column = static_cast<int>(p.columns) - 1;
  // What is beyond the last row or column repeats it, and is not written.
  const Element* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto row = static_cast<uint32_t>(min(first_row + lane / 4 + i * 8, last_row));
    const auto of_step_rows = static_cast<uint32_t>(p.rows);
    rows[i] = &p.input.at(row / of_step_rows, row % of_step_rows, 0);
  }
  const Element* columns[kFragments];
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    columns[n] =
        p.weights.data + min(first_column + n * 8 + lane / 4, last_column) * p.weights.strides[0];
  }
  const int features = static_cast<int>(p.input_features);
#pragma unroll 1
  for (int k = first_step * kStepK; k < features; k += params.k_warps * kStepK) {
    Four<Element, kVector> a[2], b[kFragments];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[i].load(rows[i], p.input.strides[2], k + of_step, features);
    }
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      b[n].load(columns[n], p.weights.strides[1], k + of_step, features);
    }
    // Both operands have the columns of K in the same order, which does not matter otherwise.
#pragma unroll
    for (int half = 0; half < kOwnK; half += 2) {
      uint32_t a_bits[4], b_bits[kFragments][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a_bits[i] = a[i % 2].bits(half + i / 2);
      }
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        b_bits[n][0] = b[n].bits(half);
        b_bits[n][1] = b[n].bits(half + 1);
      }
      multiply<Element>(sums, a_bits, b_bits);
    }
  }
}

/// An element of z_x without its bias, by itself: an infinity that is taken apart gives NaN, which
/// is infinity minus infinity.
LLTM_DEVICE float product_of(const InputProductProblem<float>& p, int64_t row, int column) {
  const float* const weights = p.weights.data + column * p.weights.strides[0];
  float sum = 0;
#pragma unroll 1
  for (int64_t k = 0; k < p.input_features; ++k) {
    sum = fmaf(p.input.at(row / p.rows, row % p.rows, k), weights[k * p.weights.strides[1]], sum);
  }
  return sum;
}

template <typename Element>
__global__ void __launch_bounds__(kThreads, 2)
    input_product_kernel(const __grid_constant__ InputProductParams<Element> params) {
  __shared__ float parts[kWarps][kRows][kPitch];
  wait_for_previous_kernel();
  start_next_kernel();
  const InputProductProblem<Element>& p = params.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int block_rows = kWarps / params.k_warps * kRows;
  const int first_row = static_cast<int>(blockIdx.x) * block_rows;
  const int first_column = static_cast<int>(blockIdx.y) * kColumns;
  const int row_of_warp = first_row + warp / params.k_warps * kRows;
  float sums[kFragments][4] = {};
  if (params.in_fours) {
    multiply_rows<true>(sums, params, row_of_warp, first_column, warp % params.k_warps);
  } else {
    multiply_rows<false>(sums, params, row_of_warp, first_column, warp % params.k_warps);
  }
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    float* const to = &parts[warp][lane / 4][n * 8 + lane % 4 * 2];
    *reinterpret_cast<float2*>(to) = make_float2(sums[n][0], sums[n][1]);
    *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(sums[n][2], sums[n][3]);
  }
  __syncthreads();
  const int column = first_column + lane;
  if (column >= p.columns) {
    return;
  }
  const float bias = p.bias != nullptr ? static_cast<float>(p.bias[column * p.bias_stride]) : 0.0f;
  const int rows = min(static_cast<int>(p.steps * p.rows) - first_row, block_rows);
#pragma unroll 1
  for (int row = warp; row < rows; row += kWarps) {
    float sum = 0;
    for (int part = 0; part < params.k_warps; ++part) {
      sum += parts[row / kRows * params.k_warps + part][row % kRows][lane];
    }
    if constexpr (std::is_same_v<Element, float>) {
      if (isnan(sum)) {
        sum = product_of(p, first_row + row, column);
      }
    }
    p.z_x[int64_t{first_row + row} * p.columns + column] = static_cast<Element>(sum + bias);
  }
}

/// Whether the rows of K consist of aligned vectors of four elements.
template <typename Element>
bool has_fours(const InputProductProblem<Element>& p) {
  return p.input_features % 4 == 0 && p.input.starts_at_neighbors(4) && p.weights.strides[1] == 1 &&
         Matrix{p.weights.data, p.weights.strides[0]}.starts_at_neighbors(4, sizeof(Element));
}

}  // namespace

template <typename Element>
cudaError_t launch_input_product(const InputProductProblem<Element>& problem, cudaStream_t stream) {
  const int64_t steps = ceil_div(problem.input_features, kStepK);
  const auto k_warps =
      static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(steps, 1, kWarps))));
  const dim3 grid = grid_of(ceil_div(problem.steps * problem.rows, kWarps / k_warps * kRows),
                            ceil_div(problem.columns, kColumns));
  return launch_in_clusters<&input_product_kernel<Element>, kThreads>(
      InputProductParams<Element>{problem, k_warps, has_fours(problem)}, grid, 1, stream);
}

template cudaError_t launch_input_product(const InputProductProblem<float>&, cudaStream_t);
template cudaError_t launch_input_product(const InputProductProblem<c10::Half>&, cudaStream_t);
template cudaError_t launch_input_product(const InputProductProblem<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
