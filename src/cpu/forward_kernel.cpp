#include "../cell.h"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

namespace lltm::cpu {

template <typename scalar_t>
void forward_rows(const ForwardParams<scalar_t>& params, int64_t row_begin, int64_t row_end) {
  using accumulate_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
  const auto load = [](scalar_t value) { return static_cast<accumulate_t>(value); };
  const int64_t state_size = params.state_size;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const scalar_t* gates = params.gates + row * 3 * state_size;
    const int64_t begin = row * state_size;
    for (int64_t column = 0; column < state_size; ++column) {
      const cell::Gates<accumulate_t> z{load(gates[column]),
                                        load(gates[column + state_size]),
                                        load(gates[column + 2 * state_size])};
      const auto state =
          cell::forward<cell::StandardMath>(z, load(params.old_cell[begin + column]));
      params.new_h[begin + column] = static_cast<scalar_t>(state.h);
      params.new_cell[begin + column] = static_cast<scalar_t>(state.cell);
    }
  }
}

template void forward_rows(const ForwardParams<double>&, int64_t, int64_t);
template void forward_rows(const ForwardParams<float>&, int64_t, int64_t);
template void forward_rows(const ForwardParams<c10::Half>&, int64_t, int64_t);
template void forward_rows(const ForwardParams<c10::BFloat16>&, int64_t, int64_t);

}  // namespace lltm::cpu
