// The gradients of biases, which are sums over the rows of d_gates.
#pragma once

#include "../../cell/accumulate.h"
#include "../../cell/cell_type.h"
#include "../../cell/sides.h"
#include "../ptx/device_function.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

/// d_bias of what a cell saves or, if it does not add its sides, of the inputs and of the gates,
/// each null if it is not wanted.
template <typename Cell, typename scalar_t>
struct BiasGradients {
  scalar_t *bias, *bias_hh;
  int64_t state_size;

  LLTM_HOST_DEVICE bool wanted() const {
    return bias != nullptr || (!Cell::kAdds && bias_hh != nullptr);
  }
  /// At k * state_size + column: of saved number k.
  template <typename Value>
  LLTM_HOST_DEVICE void store(int64_t index, Value sum) const {
    if constexpr (Cell::kAdds) {
      bias[index] = static_cast<scalar_t>(sum);
    } else {
      const auto k = static_cast<int>(index / state_size);
      const auto store_side = [&](scalar_t* to, int place) {
        if (to != nullptr && place >= 0) {
          to[index + (place - k) * state_size] = static_cast<scalar_t>(sum);
        }
      };
      store_side(bias, cell::input_at<Cell>(k));
      store_side(bias_hh, cell::gate_at<Cell>(k));
    }
  }
};

/// The gradients of biases as the sum of the rows of a matrix: of their parts, or of d_gates.
template <typename Cell, typename scalar_t, typename Term>
struct BiasSum {
  using acc_t = accumulate_t<scalar_t>;
  const Term* rows;  // (count, size)
  int64_t count, size, stride;
  BiasGradients<Cell, scalar_t> result;

  LLTM_DEVICE acc_t part(int64_t row, int64_t column) const {
    return static_cast<acc_t>(rows[row * stride + column]);
  }
  LLTM_DEVICE void store(int64_t index, acc_t sum) const { result.store(index, sum); }
};

/// Adds the rows in an order that depends only on their count. Term is scalar_t or its
/// accumulate_t; all cells that add their sides are alike. Enqueues on `stream` of the current
/// device, and returns the error of the launch.
template <typename Cell, typename scalar_t, typename Term>
cudaError_t launch_bias_sum(const BiasSum<Cell, scalar_t, Term>& sum, cudaStream_t stream);

}  // namespace lltm::cuda
