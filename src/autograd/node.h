// The nodes of the autograd graph. They are recorded by hand, as those of ATen's operators are,
// because torch::autograd::Function refuses to run below a functorch transform.
#pragma once

#include "../dispatch/argument_list.h"
#include "../dispatch/optional_tensor.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lltm {

/// The name under which a node of a sequence saves the argument.
constexpr const char* kReverse = "reverse";

/// What a node saves besides tensors, by name.
using NodeData = std::initializer_list<std::pair<const char*, at::IValue>>;

/// A node that calls Backward::backward(context, gradients), as the node of a Function does. In
/// profiles its name is Backward::kName.
template <typename Backward>
struct NamedNode final : public torch::autograd::CppNode<Backward> {
  std::string name() const override { return Backward::kName; }
};

namespace detail {

/// A shared_ptr in PyTorch 2.11, an intrusive_ptr in 2.15.
using NodePointer = std::remove_cvref_t<decltype(std::declval<at::Tensor>().grad_fn())>;

template <typename Node, typename Pointer = NodePointer>
auto new_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<Node>(new Node, [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>();
  }
}

/// Calls the hooks that PyTorch 2.15 has for new nodes.
template <typename Pointer>
void fire_hooks(const Pointer& node) {
  if constexpr (requires { fire_node_creation_hooks(node); }) {
    fire_node_creation_hooks(node);
  }
}

}  // namespace detail

/// Records a node whose Backward takes the gradients of `outputs` to those of `inputs`. Either may
/// have undefined tensors. Backward finds `data` as saved_data. Gradients that are undefined stay
/// so. save() has to follow.
template <typename Backward>
auto record_node(const torch::autograd::variable_list& inputs,
                 const torch::autograd::variable_list& outputs,
                 NodeData data = {}) {
  const auto node = detail::new_node<NamedNode<Backward>>();
  node->set_ctx_grad_fn(node);
  node->is_variable_input_.assign(inputs.size(), true);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  torch::autograd::set_history(outputs, node);
  node->ctx_.set_materialize_grads(false);
  for (const auto& [key, value] : data) {
    node->ctx_.saved_data[key] = value;
  }
  detail::fire_hooks(detail::NodePointer(node));
  return node;
}

/// Saves what Backward finds by get_saved_variables(). Of a dual tensor of forward-mode AD, that is
/// the primal and the tangent, so the results of a node must have their tangents by now: a backward
/// below a dual level differentiates through everything that was saved.
template <typename Node>
void save(const Node& node, torch::autograd::variable_list saved) {
  node->ctx_.save_for_backward(std::move(saved));
  node->save_variables_to_ctx();
}

/// Which gradients Backward::backward() needs, in the order of the inputs of its node.
template <size_t count>
std::array<bool, count> wanted_gradients(const torch::autograd::AutogradContext& context) {
  std::array<bool, count> wanted{};
  for (size_t input = 0; input < count; ++input) {
    wanted[input] = context.needs_input_grad(input);
  }
  return wanted;
}

/// The tensors of a tuple or an array, undefined where absent.
template <typename Tensors>
torch::autograd::variable_list variables(const Tensors& tensors) {
  return std::apply(
      [](const auto&... all) { return torch::autograd::variable_list{or_undefined(all)...}; },
      tensors);
}

/// What a node has saved, absent where undefined.
template <size_t count>
OptionalTensors<count> saved_list(const torch::autograd::AutogradContext& context) {
  const torch::autograd::variable_list saved = context.get_saved_variables();
  OptionalTensors<count> list;
  std::transform(saved.begin(), saved.end(), list.begin(), if_defined);
  return list;
}

inline bool any_defined(const torch::autograd::variable_list& gradients) {
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) {
      return true;
    }
  }
  return false;
}

}  // namespace lltm
