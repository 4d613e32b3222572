// Lengths in int32. The kernels of the devices read int64, so theirs are converted, on the device,
// before the kernel is called.
#pragma once

#include "../operators/checks.h"
#include "argument_list.h"
#include "optional_tensor.h"

#include <ATen/core/Tensor.h>

namespace lltm {
namespace detail {

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
    auto list = list_of(arguments);
    list[Arguments::kLengths] = arguments.lengths->to(at::kLong);
    return kernel(arguments_in<Arguments>(list), rest...);
  }
};

}  // namespace detail

/// The kernel of a device for lltm::sequence or lltm::sequence_backward, with lengths in int64.
template <auto kernel>
constexpr auto with_int64_lengths = &detail::Int64Lengths<kernel>::call;

}  // namespace lltm
