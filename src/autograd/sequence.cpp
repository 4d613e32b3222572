// lltm::sequence under the Autograd key.
#include "../formula/sequence.h"

#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../gradient_index.h"
#include "../optional_tensor.h"
#include "differentiation.h"
#include "lltm/lltm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kReverse = "reverse";

/// Always keeps cells and gates. cells is an output of the node even if the caller did not request
/// it, because the double backward returns a gradient through it.
class SequenceFunction : public torch::autograd::Function<SequenceFunction> {
 public:
  // backward() reads only saved variables, so compiled autograd may trace it.
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx,
                               const Tensor& input,
                               const Tensor& weights,
                               const std::optional<Tensor>& bias,
                               const std::optional<Tensor>& h0,
                               const std::optional<Tensor>& c0,
                               const std::optional<Tensor>& lengths,
                               const std::optional<Tensor>& reset,
                               bool reverse,
                               Tensor* gates) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [output, h_n, c_n, cells, workspace] =
        lltm::sequence(input, weights, bias, h0, c0, lengths, reset, reverse, /*keep=*/true);
    // gates is not an output of the node: it is not differentiable, and compiled autograd does not
    // support nodes with outputs that are marked as such.
    *gates = std::move(workspace);
    ctx->save_for_backward({input,
                            weights,
                            or_undefined(bias),
                            or_undefined(h0),
                            or_undefined(c0),
                            or_undefined(lengths),
                            or_undefined(reset),
                            output,
                            cells,
                            *gates});
    ctx->saved_data[kReverse] = reverse;
    return {std::move(output), std::move(h_n), std::move(c_n), std::move(cells)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (std::none_of(gradients.begin(), gradients.end(), [](const Tensor& gradient) {
          return gradient.defined();
        })) {
      return variable_list(kArgumentCount);
    }
    const variable_list saved = ctx->get_saved_variables();
    auto [d_input, d_weights, d_bias, d_h0, d_c0] =
        lltm::sequence_backward(if_defined(gradients[0]),
                                if_defined(gradients[1]),
                                if_defined(gradients[2]),
                                if_defined(gradients[3]),
                                /*output=*/saved[7],
                                /*cells=*/saved[8],
                                /*gates=*/saved[9],
                                /*input=*/saved[0],
                                /*weights=*/saved[1],
                                /*bias=*/if_defined(saved[2]),
                                /*h0=*/if_defined(saved[3]),
                                /*c0=*/if_defined(saved[4]),
                                /*lengths=*/if_defined(saved[5]),
                                /*reset=*/if_defined(saved[6]),
                                ctx->saved_data[kReverse].toBool(),
                                wanted_gradients(*ctx, saved));
    variable_list results{std::move(d_input),
                          std::move(d_weights),
                          std::move(d_bias),
                          std::move(d_h0),
                          std::move(d_c0)};
    results.resize(kArgumentCount);
    return results;
  }

 private:
  // The other four are lengths, reset, reverse and gates.
  static constexpr size_t kArgumentCount = kGradientCount + 4;
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_autograd(
    const SequenceArguments& arguments, bool reverse, bool keep) {
  check_defined(arguments);
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  if (below_functorch() || any_has_tangent(input, weights, bias, h0, c0)) {
    return formula::sequence(arguments, reverse, keep);
  }
  if (!any_requires_grad(input, weights, bias, h0, c0)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return lltm::sequence(input, weights, bias, h0, c0, lengths, reset, reverse, keep);
  }
  // Function::apply does not accept undefined tensors, not even inside an optional.
  Tensor gates;
  auto results = SequenceFunction::apply(input,
                                         weights,
                                         if_given(bias),
                                         if_given(h0),
                                         if_given(c0),
                                         if_given(lengths),
                                         if_given(reset),
                                         reverse,
                                         &gates);
  if (!keep) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto none_of = [](const Tensor& steps) {
      return steps.new_empty_symint({0, steps.sym_size(1), steps.sym_size(2)});
    };
    results[3] = none_of(results[3]);
    gates = none_of(gates);
  }
  return {std::move(results[0]),
          std::move(results[1]),
          std::move(results[2]),
          std::move(results[3]),
          std::move(gates)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence", dispatcher_kernel<sequence_autograd, lltm::sequence>());
}

}  // namespace lltm
