// Products of more rows than BLAS counts, with a smaller limit.
#include "cuda/products_of_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace lltm::cuda {
namespace {

TEST(ProductsOfRows, OfMoreRowsThanBlasCountsIsComputedInParts) {
  constexpr int64_t kMost = 64;
  const auto product = [](at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
    at::mm_out(out, a, b);
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t rows : {0, 1, 63, 64, 65, 128, 200}) {
      SCOPED_TRACE(rows);
      const at::Tensor a = at::randn({rows, 12}, dtype), b = at::randn({rows, 5}, dtype),
                       weights = at::randn({12, 5}, dtype);
      at::Tensor of_rows = at::full({rows, 5}, 7.0, dtype),
                 over_rows = at::full({12, 5}, 7.0, dtype);
      product_of_rows_out(of_rows, a, weights, product, kMost);
      product_over_rows_out(over_rows, a, b, product, kMost);
      const double tolerance = dtype == at::kFloat ? 1e-4 : 1e-12;
      EXPECT_TRUE(at::allclose(of_rows, a.matmul(weights), tolerance, tolerance));
      EXPECT_TRUE(at::allclose(over_rows, a.t().matmul(b), tolerance, tolerance));
      if (rows <= kMost) {  // as by one product
        EXPECT_TRUE(at::equal(over_rows, a.t().mm(b)));
      }
    }
  }
}

TEST(ProductsOfRows, KeepsTheRowsThatBlasCountsInOneProduct) {
  EXPECT_LE(kMostRowsOfProduct, 2147483647);
  EXPECT_GT(kMostRowsOfProduct, 2147483647 - 64);
  EXPECT_EQ(kMostRowsOfProduct % 64, 0);
}

}  // namespace
}  // namespace lltm::cuda
