// The nodes of the backward operators: the double backward, which differentiates the composite
// formula. The formula only runs when the node does, because most graphs of gradients are never
// differentiated: torch.func.grad always records one.
#pragma once

#include "node.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace lltm {

/// The gradients of formula(inputs) with respect to the inputs that require one, given those of its
/// results. Both may be undefined. The gradients are differentiable if grad mode is on.
template <typename Formula>
torch::autograd::variable_list differentiate(const torch::autograd::variable_list& inputs,
                                             const torch::autograd::variable_list& gradients,
                                             const Formula& formula) {
  using torch::autograd::variable_list;
  const bool create_graph = c10::GradMode::is_enabled();
  const torch::autograd::AutoGradMode enable_grad(true);
  // A gradient stops at these views, even where an input was computed from another one.
  variable_list views = inputs;
  variable_list leaves;
  for (at::Tensor& view : views) {
    if (view.defined() && view.requires_grad()) {
      view = view.view_as(view);
      leaves.push_back(view);
    }
  }
  variable_list results, gradients_of_results;
  const variable_list all_results = formula(views);
  for (size_t result = 0; result < all_results.size(); ++result) {
    if (gradients[result].defined() && all_results[result].requires_grad()) {
      results.push_back(all_results[result]);
      gradients_of_results.push_back(gradients[result]);
    }
  }
  variable_list found(inputs.size());
  if (results.empty()) {
    return found;
  }
  const variable_list of_leaves = torch::autograd::grad(results,
                                                        leaves,
                                                        gradients_of_results,
                                                        /*retain_graph=*/create_graph,
                                                        create_graph,
                                                        /*allow_unused=*/true);
  auto next = of_leaves.begin();
  for (size_t input = 0; input < inputs.size(); ++input) {
    if (!views[input].is_same(inputs[input])) {
      found[input] = *next++;
    }
  }
  return found;
}

}  // namespace lltm
