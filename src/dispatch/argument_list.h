// The tensors of an operator's arguments as one list, in the order of its schema, for code that
// treats all of them alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <optional>
#include <tuple>

namespace lltm {

template <size_t count>
using OptionalTensors = std::array<std::optional<at::Tensor>, count>;

/// An argument of an operator, of type Tensor or Tensor?.
struct TensorArgument {
  const std::optional<at::Tensor>& tensor;

  operator const at::Tensor&() const { return *tensor; }
  operator const std::optional<at::Tensor>&() const { return tensor; }
};

/// The list of one of the structs in arguments.h.
template <typename Arguments>
auto tensors_of(const Arguments& arguments) {
  return std::apply(
      [](const auto&... tensors) { return OptionalTensors<sizeof...(tensors)>{tensors...}; },
      arguments.tensors());
}

/// The inverse of tensors_of(): references to the elements of the list.
template <typename Arguments, size_t count>
Arguments pack_arguments(const OptionalTensors<count>& list) {
  return std::apply([](const auto&... tensors) { return Arguments{TensorArgument{tensors}...}; },
                    list);
}

}  // namespace lltm
