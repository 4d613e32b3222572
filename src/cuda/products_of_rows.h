// Matrix products of any number of rows: BLAS counts them in 32 bits. product(out, a, b) computes
// out = a @ b of fewer.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace lltm::cuda {

/// The most rows of a product; those after them start at a multiple of 64 rows.
constexpr int64_t kMostRowsOfProduct = std::numeric_limits<int32_t>::max() / 64 * 64;

/// out = a @ b, for any number of rows of a.
template <typename Product>
void product_of_rows_out(const at::Tensor& out,
                         const at::Tensor& a,
                         const at::Tensor& b,
                         const Product& product,
                         int64_t most = kMostRowsOfProduct) {
  for (int64_t first = 0; first < a.size(0); first += most) {
    const int64_t count = std::min(most, a.size(0) - first);
    product(out.narrow(0, first, count), a.narrow(0, first, count), b);
  }
}

/// out = a.T @ b, for any number of rows of both. Where there are several products, these are added
/// in float32, or in float64 for float64.
template <typename Product>
void product_over_rows_out(const at::Tensor& out,
                           const at::Tensor& a,
                           const at::Tensor& b,
                           const Product& product,
                           int64_t most = kMostRowsOfProduct) {
  const int64_t rows = a.size(0);
  if (rows <= most) {
    product(out, a.t(), b);
    return;
  }
  const auto dtype = at::toOpMathType(out.scalar_type());
  const at::Tensor sum = at::empty(out.sizes(), out.options().dtype(dtype)).zero_();
  const at::Tensor of_part = at::empty_like(sum);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    product(of_part, a.narrow(0, first, count).t(), b.narrow(0, first, count));
    sum.add_(of_part);
  }
  out.copy_(sum);
}

}  // namespace lltm::cuda
