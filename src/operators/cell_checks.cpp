#include "checker.h"
#include "checks.h"

namespace lltm {
namespace {

/// The sizes that every other argument is checked against, taken from input and weights.
template <typename Size>
CellSizes<Size> cell_sizes(const Checker& check,
                           const at::Tensor& input,
                           const at::Tensor& weights) {
  check.rank<Size>({"input", input}, 2, "[batch, input_features]");
  const auto sizes = Sizes<Size>::of(input);
  const Size state_size = check.weights<Size>(weights, sizes[1]);
  return {sizes[0], sizes[1], state_size, Size(state_size * cell::Lltm::kGates)};
}

template <typename Size>
void gradient(const Checker& check,
              std::string_view name,
              const std::optional<at::Tensor>& gradient,
              const CellSizes<Size>& sizes) {
  if (is_given(gradient)) {
    check.like_input({name, *gradient});
    check.state({name, *gradient}, sizes.batch, sizes.state_size);
  }
}

}  // namespace

template <typename Size>
CellSizes<Size> check(const ForwardArguments& arguments) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  check_defined(arguments);
  const Checker check(arguments.kOperator, input);
  check.dense({"input", input});
  check.supported_dtype();
  check.like_input({"weights", weights});
  check.like_input({"old_h", old_h});
  check.like_input({"old_cell", old_cell});
  const auto sizes = cell_sizes<Size>(check, input, weights);
  check.bias<Size>("bias", bias, "[3*state_size]", sizes.gates);
  check.state({"old_h", old_h}, sizes.batch, sizes.state_size);
  check.state({"old_cell", old_cell}, sizes.batch, sizes.state_size);
  return sizes;
}

template <typename Size>
CellSizes<Size> check(const BackwardArguments& arguments) {
  const auto& [grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h] = arguments;
  check_defined(arguments);
  const Checker check(arguments.kOperator, input);
  check.dense({"input", input});
  check.supported_dtype();
  check.like_input({"new_cell", new_cell});
  check.like_input({"gates", gates});
  check.like_input({"weights", weights});
  check.like_input({"old_h", old_h});
  const auto sizes = cell_sizes<Size>(check, input, weights);
  check.bias<Size>("bias", bias, "[3*state_size]", sizes.gates);
  gradient(check, "grad_h", grad_h, sizes);
  gradient(check, "grad_cell", grad_cell, sizes);
  check.state({"new_cell", new_cell}, sizes.batch, sizes.state_size);
  check.template shape<Size, 2>(
      {"gates", gates}, "[batch, 3*state_size]", {sizes.batch, sizes.gates});
  check.state({"old_h", old_h}, sizes.batch, sizes.state_size);
  return sizes;
}

template CellSizes<int64_t> check(const ForwardArguments&);
template CellSizes<int64_t> check(const BackwardArguments&);
template CellSizes<c10::SymInt> check(const ForwardArguments&);
template CellSizes<c10::SymInt> check(const BackwardArguments&);

}  // namespace lltm
