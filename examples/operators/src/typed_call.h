// How the typed functions of example_ops.h reach their operators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <type_traits>
#include <utility>

namespace example_ops {

/// Calls the operator with this name, whose arguments and results are those of `function`, through
/// PyTorch's dispatcher. Finding an operator takes a search by name, so it is found once.
template <auto function, typename... Arguments>
auto call(const char* name, Arguments&&... arguments) {
  using Signature = std::remove_pointer_t<decltype(function)>;
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  return op.call(std::forward<Arguments>(arguments)...);
}

}  // namespace example_ops
