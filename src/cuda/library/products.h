// Matrix products by the library. Those of float32 take their precision from the call, because
// ATen's read the setting for matrix products, which is not the LSTM's.
#pragma once

#include "../problem.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm::cuda {

/// out = a @ b, in out's dtype. For 16-bit a and b it may be float32, and nothing is rounded to 16
/// bits. out's rows are contiguous. If it adds, out += a @ b.
void product_out(const at::Tensor& out,
                 const at::Tensor& a,
                 const at::Tensor& b,
                 std::optional<Arithmetic> arithmetic,
                 bool adds = false);

/// out = a @ b + bias, all of one dtype other than float64.
void biased_product_out(const at::Tensor& out,
                        const at::Tensor& bias,
                        const at::Tensor& a,
                        const at::Tensor& b,
                        Arithmetic arithmetic);

}  // namespace lltm::cuda
