// Argument checks. Each message names the operator, the argument, what was expected and what was
// received.
//
// The CPU, CUDA and Meta kernels all call them, so sizes are read as SymInt. Under torch.compile a
// size may be a symbol; a Meta kernel that reads it with size() would specialize the compiled
// program to that one size. TORCH_SYM_CHECK defers the check until the size is known.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>

namespace example_ops {

inline std::string dtype_name(const at::Tensor& tensor) {
  return std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

/// None is passed to a plain Tensor argument as an undefined tensor. The Autograd kernels check for
/// it, because autograd would otherwise ask the tensor for its device and raise a different
/// message.
inline void check_defined(std::string_view op, std::string_view name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), op, ": expected ", name, " to be a tensor, got None");
}

inline void check_dtype(std::string_view op, std::string_view name, const at::Tensor& tensor) {
  check_defined(op, name, tensor);
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(
      dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
      op,
      ": expected ",
      name,
      " of dtype float64, float32, float16 or bfloat16, got ",
      dtype_name(tensor));
}

/// Checks that two tensors agree in dtype and device: nothing is cast or moved silently.
inline void check_like(std::string_view op,
                       std::string_view name,
                       const at::Tensor& tensor,
                       std::string_view reference_name,
                       const at::Tensor& reference) {
  check_defined(op, name, tensor);
  check_defined(op, reference_name, reference);
  TORCH_CHECK(tensor.scalar_type() == reference.scalar_type(),
              op,
              ": expected ",
              name,
              " of ",
              reference_name,
              "'s dtype ",
              dtype_name(reference),
              ", got ",
              dtype_name(tensor));
  TORCH_CHECK(tensor.device() == reference.device(),
              op,
              ": expected ",
              name,
              " on ",
              reference_name,
              "'s device ",
              reference.device(),
              ", got ",
              tensor.device());
}

/// `shape` describes the expected shape in words, such as "[batch, in]".
inline void check_rank(std::string_view op,
                       std::string_view name,
                       const at::Tensor& tensor,
                       int64_t rank,
                       std::string_view shape) {
  TORCH_CHECK(tensor.dim() == rank,
              op,
              ": expected ",
              name,
              " of shape ",
              shape,
              ", got ",
              tensor.sym_sizes());
}

inline void check_size(std::string_view op,
                       std::string_view name,
                       const at::Tensor& tensor,
                       int64_t dim,
                       const c10::SymInt& expected,
                       std::string_view shape) {
  TORCH_SYM_CHECK(tensor.sym_size(dim).sym_eq(expected),
                  op,
                  ": expected ",
                  name,
                  " of shape ",
                  shape,
                  ", its size ",
                  dim,
                  " being ",
                  expected,
                  ", got ",
                  tensor.sym_sizes());
}

}  // namespace example_ops
