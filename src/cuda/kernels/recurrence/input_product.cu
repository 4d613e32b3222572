// z_x of a short sequence, or of a small one. The library's product would take as long to launch as
// to compute, and the recurrence would load its weights only after it.
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../runtime/launch.cuh"
#include "../../tile/elements.h"
#include "recurrence.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace lltm::cuda {
namespace {

// A block computes kTile x kTile of z_x, a thread kOwn rows of a column. Small tiles and much of K
// at once keep the time short that a few of them take.
constexpr int kTile = 32, kOwn = 4, kThreads = kTile * kTile / kOwn;
constexpr int kChunk = 128;           // of K
constexpr int kPitch = kTile + kOwn;  // keeps vectors of rows aligned

/// The first of up to kChunk columns of kTile rows: those of a warp's rows that a lane has.
template <typename Element>
struct Piece {
  static constexpr int kWarps = kThreads / 32, kRows = kTile / kWarps, kColumns = kChunk / 32;
  Element of[kRows][kColumns];

  /// Loads what exists of `columns` columns, and zeros. `row_at(row)` is where a row is, or null.
  template <typename RowAt>
  LLTM_DEVICE void load(const RowAt& row_at, int64_t columns, int64_t stride) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Element* const from = row_at(i * kWarps + warp);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int column = 32 * j + lane;
        of[i][j] = column < columns && from != nullptr ? from[column * stride] : Element(0);
      }
    }
  }

  /// Writes them to shared memory, transposed.
  LLTM_DEVICE void store(float (&tile)[kChunk][kPitch]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        tile[32 * j + lane][i * kWarps + warp] = static_cast<float>(of[i][j]);
      }
    }
  }
};

template <typename Element>
__global__ void __launch_bounds__(kThreads)
    input_product_kernel(const __grid_constant__ InputProductProblem<Element> p) {
  __shared__ __align__(16) float input[kChunk][kPitch], weights[kChunk][kPitch];
  __shared__ const Element* input_rows[kTile];
  wait_for_previous_kernel();
  start_next_kernel();
  const int64_t first_row = int64_t{blockIdx.x} * kTile, first_column = int64_t{blockIdx.y} * kTile;
  const int64_t all_rows = p.steps * p.rows;
  if (const int64_t row = first_row + threadIdx.x; threadIdx.x < kTile) {
    input_rows[threadIdx.x] = row < all_rows ? &p.input.at(row / p.rows, row % p.rows, 0) : nullptr;
  }
  __syncthreads();
  const int own_row = static_cast<int>(threadIdx.x) / kTile * kOwn;
  const int own_column = static_cast<int>(threadIdx.x) % kTile;
  const uint32_t input_at = shared_address(input);
  float sums[kOwn] = {};
  for (int64_t chunk = 0; chunk < p.input_features; chunk += kChunk) {
    const int64_t columns = p.input_features - chunk;
    // Nothing is stored before all is on its way: the compiler keeps loads behind stores.
    Piece<Element> of_input, of_weights;
    of_input.load(
        [&](int row) {
          const Element* const start = input_rows[row];
          return start == nullptr ? nullptr : start + chunk * p.input.strides[2];
        },
        columns,
        p.input.strides[2]);
    of_weights.load(
        [&](int row) -> const Element* {
          return first_column + row < p.columns
                     ? p.weights.data + (first_column + row) * p.weights.strides[0] +
                           chunk * p.weights.strides[1]
                     : nullptr;
        },
        columns,
        p.weights.strides[1]);
    of_input.store(input);
    of_weights.store(weights);
    __syncthreads();
    const int depth = static_cast<int>(min(columns, int64_t{kChunk}));
#pragma unroll 8
    for (int k = 0; k < depth; ++k) {
      uint32_t of_rows[kOwn];
      load_shared_4(of_rows, input_at + (k * kPitch + own_row) * 4);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        sums[i] = fmaf(__uint_as_float(of_rows[i]), weights[k][own_column], sums[i]);
      }
    }
    __syncthreads();
  }
  const int64_t column = first_column + own_column;
  if (column >= p.columns) {
    return;
  }
  const float bias = p.bias != nullptr ? static_cast<float>(p.bias[column * p.bias_stride]) : 0.0f;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t row = first_row + own_row + i;
    if (row < all_rows) {
      p.z_x[row * p.columns + column] = static_cast<Element>(sums[i] + bias);
    }
  }
}

}  // namespace

template <typename Element>
cudaError_t launch_input_product(const InputProductProblem<Element>& problem, cudaStream_t stream) {
  const dim3 grid =
      grid_of(ceil_div(problem.steps * problem.rows, kTile), ceil_div(problem.columns, kTile));
  return launch_in_clusters<&input_product_kernel<Element>, kThreads>(problem, grid, 1, stream);
}

template cudaError_t launch_input_product(const InputProductProblem<float>&, cudaStream_t);
template cudaError_t launch_input_product(const InputProductProblem<c10::Half>&, cudaStream_t);
template cudaError_t launch_input_product(const InputProductProblem<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
