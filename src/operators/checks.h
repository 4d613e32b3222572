// The argument checks of the operators. They run before anything is computed, in the CPU, CUDA and
// Meta kernels and before the composite formula. The Autograd and Autocast kernels, which only pass
// tensors on, check for undefined tensors alone.
//
// Every check raises c10::Error with a message that names the operator, the argument, what was
// expected and what was received.
#pragma once

#include "arguments.h"

#include <cstddef>
#include <optional>
#include <tuple>

namespace lltm {

/// Checks the argument at this position of the operator's schema, as check_defined() does.
void check_argument(const char* operator_name, size_t position, const at::Tensor& tensor);
void check_argument(const char* operator_name,
                    size_t position,
                    const std::optional<at::Tensor>& tensor);

/// Checks for undefined tensors, which is how None is passed to an argument of type Tensor, and for
/// nested ones.
template <typename Arguments>
void check_defined(const Arguments& arguments) {
  std::apply(
      [](const auto&... tensors) {
        size_t position = 0;
        (check_argument(Arguments::kOperator, position++, tensors), ...);
      },
      arguments.tensors());
}

/// Checks every argument: whether it is defined, and its dtype, device, rank and sizes.
template <typename Size>
CellSizes<Size> check(const ForwardArguments& arguments);
template <typename Size>
CellSizes<Size> check(const BackwardArguments& arguments);
template <typename Size, typename Arguments>
  requires Arguments::kHasSteps
SequenceSizes<Size> check(const Arguments& arguments);

}  // namespace lltm
