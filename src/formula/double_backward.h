// The gradients of the backward operators of sequences, in ATen operations that can be
// differentiated further. z is recomputed from the inputs, because gates is not differentiable. The
// gradients reach the node of the sequence through output and cells.
//
// They are written out, and not left to autograd, because a node calls them. The tensors that it
// has saved may be wrapped for a transform of torch.func that has returned, as for the function
// that torch.func.vjp returns. These no longer require a gradient.
#pragma once

#include "../operators/checks.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace lltm::formula {

/// The gradients that enter: those of the results of a sequence's backward operator, and of its
/// private sibling. Any may be undefined.
struct GradientsOfGradients {
  at::Tensor gates{};
  at::Tensor input{};
  at::Tensor weights{};    // of an LLTM
  at::Tensor weight_ih{};  // of the others
  at::Tensor weight_hh{};
  at::Tensor bias{};     // or that of a GRU's bias_ih
  at::Tensor bias_hh{};  // of a GRU
  at::Tensor h0{};
  at::Tensor c0{};
};

/// The gradients of grad_output, grad_h_n, grad_c_n, grad_cells, output, cells, input, weights,
/// bias and h0, whether they were given or not.
std::vector<at::Tensor> double_backward(const LltmSequenceBackwardArguments& arguments,
                                        bool reverse,
                                        const GradientsOfGradients& gradients);

/// The gradients of grad_output, grad_h_n, grad_c_n, grad_cells, output, cells, input, weight_ih,
/// weight_hh, bias, h0 and c0.
std::vector<at::Tensor> double_backward(const LstmBackwardArguments& arguments,
                                        bool reverse,
                                        const GradientsOfGradients& gradients);

/// The gradients of grad_output, grad_h_n, output, input, weight_ih, weight_hh, bias_ih, bias_hh
/// and h0.
std::vector<at::Tensor> double_backward(const GruBackwardArguments& arguments,
                                        bool reverse,
                                        const GradientsOfGradients& gradients);

}  // namespace lltm::formula
