// The end of a forward tile: from the sums of the products to gates, new_cell and new_h.
#pragma once

#include "../../cell.h"
#include "../problem.h"
#include "../tile/elements.cuh"

namespace lltm::cuda {

/// Where a tile lies: rows of the batch and columns of the state, and how many of each exist.
struct ForwardTilePlace {
  int64_t first_row, first_hidden;
  int rows, hidden;
};

/// Finishes a tile's rows [first_row, first_row + rows), an element a thread at a time. What an
/// element needs beside its sums is fetched ahead: for the first one before the product, so that it
/// is there after it.
template <typename Element, int kHidden, int kThreads>
class CellFinisher {
 public:
  __device__ __forceinline__
  CellFinisher(const ForwardProblem& params, const ForwardTilePlace& place, int first_row, int rows)
      : p_(params),
        place_(place),
        first_(first_row),
        elements_(rows * kHidden),
        element_(static_cast<int>(threadIdx.x)) {}

  __device__ __forceinline__ void fetch() {
    const int m = first_ + element_ / kHidden, j = element_ % kHidden;
    if (element_ < elements_ && m < place_.rows && j < place_.hidden) {
      const int64_t row = place_.first_row + m, column = place_.first_hidden + j;
      if (p_.bias != nullptr) {
        const Element* const bias = static_cast<const Element*>(p_.bias) + column;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          bias_[gate] = to_float(bias[gate * p_.state_size]);
        }
      }
      old_cell_ = to_float(
          static_cast<const Element*>(p_.old_cell.data)[row * p_.old_cell.stride + column]);
    }
  }

  /// After the first fetch().
  template <typename Sums>
  __device__ __forceinline__ void finish(const Sums& sums) {
#pragma unroll 1
    while (element_ < elements_) {
      const int m = first_ + element_ / kHidden, j = element_ % kHidden;
      if (m < place_.rows && j < place_.hidden) {
        float z[3];
        sums.template read<3, kHidden>(z, element_ / kHidden, j);
        const int64_t row = place_.first_row + m, column = place_.first_hidden + j;
        Element* const gates = static_cast<Element*>(p_.gates) + row * 3 * p_.state_size + column;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          z[gate] += bias_[gate];
          assign(gates[gate * p_.state_size], z[gate]);
        }
        const cell::State<float> state =
            cell::forward<cell::StandardMath>(cell::Gates<float>{z[0], z[1], z[2]}, old_cell_);
        const int64_t index = row * p_.state_size + column;
        assign(static_cast<Element*>(p_.new_h)[index], state.h);
        assign(static_cast<Element*>(p_.new_cell)[index], state.cell);
      }
      element_ += kThreads;
      fetch();
    }
  }

 private:
  const ForwardProblem& p_;
  const ForwardTilePlace place_;
  const int first_, elements_;
  int element_;
  float bias_[3] = {}, old_cell_ = 0;
};

}  // namespace lltm::cuda
