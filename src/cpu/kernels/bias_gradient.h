// d_bias = the sum of d_gates over the rows.
#pragma once

#include "access.h"
#include "kernels.h"

namespace lltm::cpu {
namespace {

template <typename scalar_t>
void bias_gradient(const BiasGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using Sums = Access<typename A::real>;
  using V = Simd<typename A::real>;
  constexpr int kVectors = 4;
  // Three levels of sums, because the rounding error of a sum grows with its length.
  constexpr int64_t kRowsPerSum = 16;
  constexpr int64_t kRowsPerTotal = 64 * kRowsPerSum;
  for (int64_t column = begin; column < end; column += kVectors * V::kLanes) {
    V totals[kVectors];
    V sums[kVectors];
    int64_t counts[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      counts[v] = clamp(end - column - v * V::kLanes, 0, V::kLanes);
      totals[v] =
          params.is_first ? V(0) : Sums::load(params.sums + column + v * V::kLanes, counts[v]);
      sums[v] = V(0);
    }
    for (int64_t block = 0; block < params.row_count; block += kRowsPerSum) {
      V partial[kVectors] = {V(0), V(0), V(0), V(0)};
      for (int64_t row = block; row < smaller(block + kRowsPerSum, params.row_count); ++row) {
        const scalar_t* from = params.rows[row].d_gates + column;
        for (int v = 0; v < kVectors; ++v) {
          partial[v] = partial[v] + A::load(from + v * V::kLanes, counts[v]);
        }
      }
      const bool is_total = (block + kRowsPerSum) % kRowsPerTotal == 0;
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = sums[v] + partial[v];
        if (is_total) {
          totals[v] = totals[v] + sums[v];
          sums[v] = V(0);
        }
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const V total = totals[v] + sums[v];
      if (params.is_last) {
        A::store(total, params.d_bias + column + v * V::kLanes, counts[v]);
      } else {
        Sums::store(total, params.sums + column + v * V::kLanes, counts[v]);
      }
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
