#include "recurrent.h"

#include "../cell/products.h"

namespace lltm {

RecurrentArguments recurrent(const LltmSequenceArguments& arguments) {
  return {.cell = cell::kLltm,
          .input = arguments.input,
          .weights = arguments.weights,
          .weight_ih = input_columns(arguments.weights),
          .weight_hh = h_columns(arguments.weights),
          .bias = arguments.bias,
          .bias_hh = kAbsent,
          .h0 = arguments.h0,
          .c0 = arguments.c0,
          .lengths = int64_lengths(arguments.lengths),
          .reset = arguments.reset};
}

RecurrentArguments recurrent(const LstmArguments& arguments) {
  return {.cell = cell::kLstm,
          .input = arguments.input,
          .weights = {},
          .weight_ih = arguments.weight_ih,
          .weight_hh = arguments.weight_hh,
          .bias = arguments.bias,
          .bias_hh = kAbsent,
          .h0 = arguments.h0,
          .c0 = arguments.c0,
          .lengths = int64_lengths(arguments.lengths),
          .reset = arguments.reset};
}

RecurrentArguments recurrent(const GruArguments& arguments) {
  const std::optional<at::Tensor>& h0 = arguments.h0;
  return {.cell = cell::kGru,
          .input = arguments.input,
          .weights = {},
          .weight_ih = arguments.weight_ih,
          .weight_hh = arguments.weight_hh,
          .bias = arguments.bias_ih,
          .bias_hh = arguments.bias_hh,
          .h0 = is_given(h0) ? std::optional(h0->to(arguments.input.scalar_type())) : std::nullopt,
          .c0 = h0,
          .lengths = int64_lengths(arguments.lengths),
          .reset = arguments.reset};
}

}  // namespace lltm
