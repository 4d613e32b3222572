// Matrix products by ATen, of any number of rows: BLAS counts them in 32 bits.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace lltm::cuda {

/// out = a @ b, in out's dtype. For 16-bit a and b it may be float32, and nothing is rounded to 16
/// bits.
inline void product_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (a.size(1) == 0) {
    out.zero_();
  } else if (out.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, out.scalar_type());
  }
}

/// The most rows of a product; those after them start at a multiple of 64 rows.
constexpr int64_t kMostRowsOfProduct = std::numeric_limits<int32_t>::max() / 64 * 64;

/// out = a @ b, for any number of rows of a.
inline void product_of_rows_out(const at::Tensor& out,
                                const at::Tensor& a,
                                const at::Tensor& b,
                                int64_t most = kMostRowsOfProduct) {
  for (int64_t first = 0; first < a.size(0); first += most) {
    const int64_t count = std::min(most, a.size(0) - first);
    product_out(out.narrow(0, first, count), a.narrow(0, first, count), b);
  }
}

/// out = a.T @ b, for any number of rows of both. Where there are several products, these are added
/// in float32, or in float64 for float64.
inline void product_over_rows_out(const at::Tensor& out,
                                  const at::Tensor& a,
                                  const at::Tensor& b,
                                  int64_t most = kMostRowsOfProduct) {
  const int64_t rows = a.size(0);
  if (rows <= most) {
    product_out(out, a.t(), b);
    return;
  }
  const auto dtype = at::toOpMathType(out.scalar_type());
  const at::Tensor sum = at::empty(out.sizes(), out.options().dtype(dtype)).zero_();
  const at::Tensor product = at::empty_like(sum);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    product_out(product, a.narrow(0, first, count).t(), b.narrow(0, first, count));
    sum.add_(product);
  }
  out.copy_(sum);
}

}  // namespace lltm::cuda
