#include "../cell.h"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

namespace lltm::cpu {

template <typename scalar_t>
void backward_rows(const BackwardParams<scalar_t>& params, int64_t row_begin, int64_t row_end) {
  using accumulate_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
  const auto load = [](scalar_t value) { return static_cast<accumulate_t>(value); };
  const auto load_or_zero = [&load](const scalar_t* values, int64_t index) {
    return values ? load(values[index]) : accumulate_t(0);
  };
  const int64_t state_size = params.state_size;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const scalar_t* gates = params.gates + row * 3 * state_size;
    for (int64_t column = 0; column < state_size; ++column) {
      const int64_t index = row * state_size + column;
      const cell::Gates<accumulate_t> z{load(gates[column]),
                                        load(gates[column + state_size]),
                                        load(gates[column + 2 * state_size])};
      const auto gradients =
          cell::backward<cell::StandardMath>(z,
                                             load(params.new_cell[index]),
                                             load_or_zero(params.grad_h, index),
                                             load_or_zero(params.grad_cell, index));
      if (params.d_gates) {
        scalar_t* d_gates = params.d_gates + row * 3 * state_size;
        d_gates[column] = static_cast<scalar_t>(gradients.gates.input_gate);
        d_gates[column + state_size] = static_cast<scalar_t>(gradients.gates.output_gate);
        d_gates[column + 2 * state_size] = static_cast<scalar_t>(gradients.gates.candidate);
      }
      if (params.d_old_cell) {
        params.d_old_cell[index] = static_cast<scalar_t>(gradients.old_cell);
      }
    }
  }
}

template void backward_rows(const BackwardParams<double>&, int64_t, int64_t);
template void backward_rows(const BackwardParams<float>&, int64_t, int64_t);
template void backward_rows(const BackwardParams<c10::Half>&, int64_t, int64_t);
template void backward_rows(const BackwardParams<c10::BFloat16>&, int64_t, int64_t);

}  // namespace lltm::cpu
