// The operators' schemas, and their typed C++ API.
//
// `gates` holds the pre-activations z with the bias added, in the input's dtype. Storing the
// activated gates instead would save three exponentials per element in backward, but:
//  - the matrix product can write its result, z, directly to the workspace, and the pointwise pass
//    then only reads it;
//  - the derivatives of sigmoid and ELU keep their relative accuracy in the tails. Computed from
//    activated gates they are s*(1-s) and 1+g, which cancel: in bfloat16, s(5) = 0.9933 rounds to
//    0.9922, and 1-s is off by 16 %.
#include "lltm/lltm.h"
#include "operators.h"
#include "tf32.h"
#include "version.h"

#include <torch/library.h>

TORCH_LIBRARY(lltm, m) {
  m.def(
      "forward(Tensor input, Tensor weights, Tensor? bias, Tensor old_h, Tensor old_cell)"
      " -> (Tensor new_h, Tensor new_cell, Tensor gates)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "backward(Tensor? grad_h, Tensor? grad_cell, Tensor new_cell, Tensor gates, Tensor input,"
      " Tensor weights, Tensor? bias, Tensor old_h, bool[5] output_mask)"
      " -> (Tensor? d_input, Tensor? d_weights, Tensor? d_bias, Tensor? d_old_h,"
      " Tensor? d_old_cell)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "sequence(Tensor input, Tensor weights, Tensor? bias=None, Tensor? h0=None, Tensor? c0=None,"
      " Tensor? lengths=None, Tensor? reset=None, bool reverse=False, bool keep=False)"
      " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor cells, Tensor gates)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "sequence_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n,"
      " Tensor? grad_cells, Tensor output, Tensor cells, Tensor gates, Tensor input,"
      " Tensor weights, Tensor? bias, Tensor? h0, Tensor? c0, Tensor? lengths, Tensor? reset,"
      " bool reverse, bool[5] output_mask)"
      " -> (Tensor? d_input, Tensor? d_weights, Tensor? d_bias, Tensor? d_h0, Tensor? d_c0)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "sequence_plan(Tensor input, Tensor weights, Tensor? bias=None, Tensor? h0=None,"
      " Tensor? c0=None, Tensor? lengths=None, Tensor? reset=None, bool reverse=False,"
      " bool keep=False) -> str");
  m.def(
      "_sequence_gate_gradients(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n,"
      " Tensor? grad_cells, Tensor output, Tensor cells, Tensor gates, Tensor input,"
      " Tensor weights, Tensor? bias, Tensor? h0, Tensor? c0, Tensor? lengths, Tensor? reset,"
      " bool reverse, bool[2] state_mask) -> (Tensor d_gates, Tensor? d_h0, Tensor? d_c0)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "lstm(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias=None, Tensor? h0=None,"
      " Tensor? c0=None, Tensor? lengths=None, Tensor? reset=None, bool reverse=False,"
      " bool keep=False)"
      " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor cells, Tensor gates)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "lstm_plan(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias=None,"
      " Tensor? h0=None, Tensor? c0=None, Tensor? lengths=None, Tensor? reset=None,"
      " bool reverse=False, bool keep=False) -> str");
  m.def(
      "lstm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor? grad_cells,"
      " Tensor output, Tensor cells, Tensor gates, Tensor input, Tensor weight_ih,"
      " Tensor weight_hh, Tensor? bias, Tensor? h0, Tensor? c0, Tensor? lengths, Tensor? reset,"
      " bool reverse, bool[6] output_mask)"
      " -> (Tensor? d_input, Tensor? d_weight_ih, Tensor? d_weight_hh, Tensor? d_bias,"
      " Tensor? d_h0, Tensor? d_c0)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_lstm_gate_gradients(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n,"
      " Tensor? grad_cells, Tensor output, Tensor cells, Tensor gates, Tensor input,"
      " Tensor weight_ih, Tensor weight_hh, Tensor? bias, Tensor? h0, Tensor? c0, Tensor? lengths,"
      " Tensor? reset, bool reverse, bool[2] state_mask)"
      " -> (Tensor d_gates, Tensor? d_h0, Tensor? d_c0)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "gru(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None,"
      " Tensor? bias_hh=None, Tensor? h0=None, Tensor? lengths=None, Tensor? reset=None,"
      " bool reverse=False, bool keep=False) -> (Tensor output, Tensor h_n, Tensor gates)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "gru_plan(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None,"
      " Tensor? bias_hh=None, Tensor? h0=None, Tensor? lengths=None, Tensor? reset=None,"
      " bool reverse=False, bool keep=False) -> str");
  m.def(
      "gru_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor output, Tensor gates,"
      " Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh,"
      " Tensor? h0, Tensor? lengths, Tensor? reset, bool reverse, bool[6] output_mask)"
      " -> (Tensor? d_input, Tensor? d_weight_ih, Tensor? d_weight_hh, Tensor? d_bias_ih,"
      " Tensor? d_bias_hh, Tensor? d_h0)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_gru_gate_gradients(Tensor? grad_output, Tensor? grad_h_n, Tensor output, Tensor gates,"
      " Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh,"
      " Tensor? h0, Tensor? lengths, Tensor? reset, bool reverse, bool[1] state_mask)"
      " -> (Tensor d_gates, Tensor? d_h0)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "lltm_layers(Tensor input, Tensor[] parameters, Tensor? h0=None, Tensor? c0=None,"
      " Tensor? lengths=None, Tensor? reset=None, Tensor? batch_sizes=None,"
      " Tensor? sorted_indices=None, Tensor? unsorted_indices=None, bool has_biases=True,"
      " bool batch_first=False, float dropout=0., bool bidirectional=False, bool keep=False)"
      " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor[] states)",
      {at::Tag::pt2_compliant_tag, at::Tag::maybe_aliasing_or_mutating});
  m.def(
      "lstm_layers(Tensor input, Tensor[] parameters, Tensor? h0=None, Tensor? c0=None,"
      " Tensor? lengths=None, Tensor? reset=None, Tensor? batch_sizes=None,"
      " Tensor? sorted_indices=None, Tensor? unsorted_indices=None, bool has_biases=True,"
      " bool batch_first=False, float dropout=0., bool bidirectional=False, bool keep=False)"
      " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor[] states)",
      {at::Tag::pt2_compliant_tag, at::Tag::maybe_aliasing_or_mutating});
  m.def(
      "gru_layers(Tensor input, Tensor[] parameters, Tensor? h0=None,"
      " Tensor? lengths=None, Tensor? reset=None, Tensor? batch_sizes=None,"
      " Tensor? sorted_indices=None, Tensor? unsorted_indices=None, bool has_biases=True,"
      " bool batch_first=False, float dropout=0., bool bidirectional=False, bool keep=False)"
      " -> (Tensor output, Tensor h_n, Tensor[] states)",
      {at::Tag::pt2_compliant_tag, at::Tag::maybe_aliasing_or_mutating});
  m.def("has_cuda() -> bool", lltm::has_cuda);
  m.def("_allows_tf32(bool lstm) -> bool", [](bool lstm) {
    return lltm::allows_tf32(lstm ? lltm::CellType::kLstm : lltm::CellType::kLltm);
  });
}

namespace lltm {
namespace {

// The operators return None for gradients that were not requested, and these functions undefined
// tensors.
template <typename... Tensors>
std::tuple<Tensors...> or_undefined(std::tuple<std::optional<Tensors>...>&& gradients) {
  return std::apply(
      [](auto&&... tensors) { return std::tuple{std::move(tensors).value_or(at::Tensor())...}; },
      std::move(gradients));
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& input,
                                                       const at::Tensor& weights,
                                                       const std::optional<at::Tensor>& bias,
                                                       const at::Tensor& old_h,
                                                       const at::Tensor& old_cell) {
  return op::Forward::call({input, weights, bias, old_h, old_cell});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const std::optional<at::Tensor>& grad_h,
    const std::optional<at::Tensor>& grad_cell,
    const at::Tensor& new_cell,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& old_h,
    std::array<bool, 5> output_mask) {
  return or_undefined(op::Backward::call(
      {grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h}, output_mask));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> sequence(
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& c0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    bool keep) {
  return op::LltmSequence::call({input, weights, bias, h0, c0, lengths, reset}, reverse, keep);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> sequence_backward(
    const std::optional<at::Tensor>& grad_output,
    const std::optional<at::Tensor>& grad_h_n,
    const std::optional<at::Tensor>& grad_c_n,
    const std::optional<at::Tensor>& grad_cells,
    const at::Tensor& output,
    const at::Tensor& cells,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& c0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    std::array<bool, 5> output_mask) {
  return or_undefined(op::LltmSequenceBackward::call({grad_output,
                                                      grad_h_n,
                                                      grad_c_n,
                                                      grad_cells,
                                                      output,
                                                      cells,
                                                      gates,
                                                      input,
                                                      weights,
                                                      bias,
                                                      h0,
                                                      c0,
                                                      lengths,
                                                      reset},
                                                     reverse,
                                                     output_mask));
}

std::string sequence_plan(const at::Tensor& input,
                          const at::Tensor& weights,
                          const std::optional<at::Tensor>& bias,
                          const std::optional<at::Tensor>& h0,
                          const std::optional<at::Tensor>& c0,
                          const std::optional<at::Tensor>& lengths,
                          const std::optional<at::Tensor>& reset,
                          bool reverse,
                          bool keep) {
  return op::LltmSequencePlan::call({input, weights, bias, h0, c0, lengths, reset}, reverse, keep);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input,
    const at::Tensor& weight_ih,
    const at::Tensor& weight_hh,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& c0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    bool keep) {
  return op::Lstm::call({input, weight_ih, weight_hh, bias, h0, c0, lengths, reset}, reverse, keep);
}

std::string lstm_plan(const at::Tensor& input,
                      const at::Tensor& weight_ih,
                      const at::Tensor& weight_hh,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& h0,
                      const std::optional<at::Tensor>& c0,
                      const std::optional<at::Tensor>& lengths,
                      const std::optional<at::Tensor>& reset,
                      bool reverse,
                      bool keep) {
  return op::LstmPlan::call(
      {input, weight_ih, weight_hh, bias, h0, c0, lengths, reset}, reverse, keep);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> lstm_backward(
    const std::optional<at::Tensor>& grad_output,
    const std::optional<at::Tensor>& grad_h_n,
    const std::optional<at::Tensor>& grad_c_n,
    const std::optional<at::Tensor>& grad_cells,
    const at::Tensor& output,
    const at::Tensor& cells,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weight_ih,
    const at::Tensor& weight_hh,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& c0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    std::array<bool, 6> output_mask) {
  return or_undefined(op::LstmBackward::call({grad_output,
                                              grad_h_n,
                                              grad_c_n,
                                              grad_cells,
                                              output,
                                              cells,
                                              gates,
                                              input,
                                              weight_ih,
                                              weight_hh,
                                              bias,
                                              h0,
                                              c0,
                                              lengths,
                                              reset},
                                             reverse,
                                             output_mask));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gru(const at::Tensor& input,
                                                   const at::Tensor& weight_ih,
                                                   const at::Tensor& weight_hh,
                                                   const std::optional<at::Tensor>& bias_ih,
                                                   const std::optional<at::Tensor>& bias_hh,
                                                   const std::optional<at::Tensor>& h0,
                                                   const std::optional<at::Tensor>& lengths,
                                                   const std::optional<at::Tensor>& reset,
                                                   bool reverse,
                                                   bool keep) {
  return op::Gru::call(
      {input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset}, reverse, keep);
}

std::string gru_plan(const at::Tensor& input,
                     const at::Tensor& weight_ih,
                     const at::Tensor& weight_hh,
                     const std::optional<at::Tensor>& bias_ih,
                     const std::optional<at::Tensor>& bias_hh,
                     const std::optional<at::Tensor>& h0,
                     const std::optional<at::Tensor>& lengths,
                     const std::optional<at::Tensor>& reset,
                     bool reverse,
                     bool keep) {
  return op::GruPlan::call(
      {input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset}, reverse, keep);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_backward(
    const std::optional<at::Tensor>& grad_output,
    const std::optional<at::Tensor>& grad_h_n,
    const at::Tensor& output,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weight_ih,
    const at::Tensor& weight_hh,
    const std::optional<at::Tensor>& bias_ih,
    const std::optional<at::Tensor>& bias_hh,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    std::array<bool, 6> output_mask) {
  return or_undefined(op::GruBackward::call({grad_output,
                                             grad_h_n,
                                             output,
                                             gates,
                                             input,
                                             weight_ih,
                                             weight_hh,
                                             bias_ih,
                                             bias_hh,
                                             h0,
                                             lengths,
                                             reset},
                                            reverse,
                                            output_mask));
}

const char* version() {
  return LLTM_VERSION;
}

bool has_cuda() {
  return LLTM_CUDA_ARCHITECTURES[0] != '\0';
}

}  // namespace lltm
