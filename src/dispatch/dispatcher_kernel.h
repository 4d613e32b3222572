// Kernels that take the tensors of an operator as one struct (arguments.h). The dispatcher calls a
// kernel with the arguments of the schema one by one, as the typed C++ API has them.
#pragma once

#include "lltm/lltm.h"

#include <c10/core/CompileTimeFunctionPointer.h>

#include <cstddef>
#include <tuple>
#include <utility>

namespace lltm {
namespace detail {

template <auto kernel, auto typed_operator>
struct DispatcherKernel;

template <typename Result,
          typename Arguments,
          typename... Rest,
          Result (*kernel)(const Arguments&, Rest...),
          typename TypedResult,
          typename... Parameters,
          TypedResult (*typed_operator)(Parameters...)>
struct DispatcherKernel<kernel, typed_operator> {
  static Result call(Parameters... parameters) {
    constexpr size_t kMembers = sizeof...(Parameters) - sizeof...(Rest);
    const auto all = std::tie(parameters...);
    return [&]<size_t... member, size_t... rest>(std::index_sequence<member...>,
                                                 std::index_sequence<rest...>) {
      return kernel(Arguments{std::get<member>(all)...}, std::get<kMembers + rest>(all)...);
    }(std::make_index_sequence<kMembers>(), std::index_sequence_for<Rest...>());
  }
};

}  // namespace detail

/// What to register for `typed_operator`, for example lltm::sequence: `kernel` is called with its
/// first parameters as a struct of references, and the rest as they are.
template <auto kernel, auto typed_operator>
constexpr auto dispatcher_kernel() {
  using Kernel = detail::DispatcherKernel<kernel, typed_operator>;
  return c10::CompileTimeFunctionPointer<decltype(Kernel::call), &Kernel::call>();
}

}  // namespace lltm
