// What the names of arguments and results say, in every operator. For those of one operator, see
// Operator::by_name(). python/lltm/_sharding.py has the dimensions of a batch, too.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace lltm {

constexpr bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether all rows of a batch share the argument.
constexpr bool is_parameter(std::string_view name) {
  return is_one_of(name, {"weights", "weight_ih", "weight_hh", "bias", "bias_ih", "bias_hh"});
}

/// Whether the dimension before the batch has the steps, in the operators of a sequence.
constexpr bool has_steps(std::string_view name) {
  return is_one_of(name,
                   {"input", "output", "cells", "gates", "grad_output", "grad_cells", "reset"});
}

/// Whether the results depend on the argument in a differentiable way: not on the workspace, and
/// not on what is no floating-point tensor.
constexpr bool is_differentiable(std::string_view name) {
  return !is_one_of(name, {"gates", "lengths", "reset"});
}

/// Whether autocast casts the argument of a forward operator, if it is a floating-point tensor:
/// with 16-bit tensors, a stream of calls carries its state in float32.
template <typename Arguments>
constexpr bool is_cast(std::string_view name) {
  if constexpr (requires { Arguments::kCarried; }) {
    return name != Arguments::kCarried;
  }
  return true;
}

/// The argument that a result is the gradient of; the name itself if it is no gradient.
constexpr std::string_view without_gradient_prefix(std::string_view name) {
  constexpr std::string_view kPrefix = "d_";
  return name.substr(name.starts_with(kPrefix) ? kPrefix.size() : 0);
}

}  // namespace lltm
