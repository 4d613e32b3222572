#include "recurrent.h"

#include "../cell/products.h"

namespace lltm {
namespace {

template <typename Arguments>
RecurrentBackwardArguments with_gradients(const Arguments& arguments) {
  return {.grad_output = arguments.grad_output,
          .grad_h_n = arguments.grad_h_n,
          .grad_c_n = arguments.grad_c_n,
          .grad_cells = arguments.grad_cells,
          .output = arguments.output,
          .cells = arguments.cells,
          .gates = arguments.gates,
          .sequence = recurrent(arguments.sequence())};
}

}  // namespace

RecurrentArguments recurrent(const SequenceArguments& arguments) {
  return {.cell = CellType::kLltm,
          .input = arguments.input,
          .weight_ih = input_columns(arguments.weights),
          .weight_hh = h_columns(arguments.weights),
          .bias = arguments.bias,
          .h0 = arguments.h0,
          .c0 = arguments.c0,
          .lengths = int64_lengths(arguments.lengths),
          .reset = arguments.reset};
}

RecurrentArguments recurrent(const LstmArguments& arguments) {
  return {.cell = CellType::kLstm,
          .input = arguments.input,
          .weight_ih = arguments.weight_ih,
          .weight_hh = arguments.weight_hh,
          .bias = arguments.bias,
          .h0 = arguments.h0,
          .c0 = arguments.c0,
          .lengths = int64_lengths(arguments.lengths),
          .reset = arguments.reset};
}

RecurrentBackwardArguments recurrent(const SequenceBackwardArguments& arguments) {
  return with_gradients(arguments);
}

RecurrentBackwardArguments recurrent(const LstmBackwardArguments& arguments) {
  return with_gradients(arguments);
}

}  // namespace lltm
