#include "recurrent.h"

#include "../cell/products.h"

namespace lltm {

RecurrentArguments recurrent(const SequenceArguments& arguments) {
  return {.cell = CellType::kLltm,
          .input = arguments.input,
          .weights = arguments.weights,
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
          .weights = {},
          .weight_ih = arguments.weight_ih,
          .weight_hh = arguments.weight_hh,
          .bias = arguments.bias,
          .h0 = arguments.h0,
          .c0 = arguments.c0,
          .lengths = int64_lengths(arguments.lengths),
          .reset = arguments.reset};
}

}  // namespace lltm
