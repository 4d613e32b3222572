// Lengths in int32. The kernels of the devices read int64, so theirs are converted, on the device,
// before the kernel is called.
#pragma once

#include "checks.h"
#include "optional_tensor.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm {
namespace detail {

inline SequenceArguments with_lengths(const SequenceArguments& a,
                                      const std::optional<at::Tensor>& lengths) {
  return {a.input, a.weights, a.bias, a.h0, a.c0, lengths, a.reset};
}
inline SequenceBackwardArguments with_lengths(const SequenceBackwardArguments& a,
                                              const std::optional<at::Tensor>& lengths) {
  return {a.grad_output,
          a.grad_h_n,
          a.grad_c_n,
          a.grad_cells,
          a.output,
          a.cells,
          a.gates,
          a.input,
          a.weights,
          a.bias,
          a.h0,
          a.c0,
          lengths,
          a.reset};
}

template <auto kernel>
struct Int64Lengths;

template <typename Result,
          typename Arguments,
          typename... Rest,
          Result (*kernel)(const Arguments&, Rest...)>
struct Int64Lengths<kernel> {
  static Result call(const Arguments& arguments, Rest... rest) {
    if (!is_given(arguments.lengths) || arguments.lengths->scalar_type() != at::kInt) {
      return kernel(arguments, rest...);
    }
    check<int64_t>(arguments);  // before lengths are read
    const std::optional<at::Tensor> lengths = arguments.lengths->to(at::kLong);
    return kernel(with_lengths(arguments, lengths), rest...);
  }
};

}  // namespace detail

/// The kernel of a device for lltm::sequence or lltm::sequence_backward, with lengths in int64.
template <auto kernel>
constexpr auto with_int64_lengths = &detail::Int64Lengths<kernel>::call;

}  // namespace lltm
