// How a sequence with ATen's matrix products is split into blocks of places and chunks of time, and
// the state of a block's rows.
//
// Rows are independent, so each block runs its whole sequence by itself.
#pragma once

#include "../checks.h"
#include "schedule.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

namespace lltm::cpu {

/// The size of a chunk's matrices: small enough to stay in the cache from one use to the next.
constexpr int64_t kChunkBytes = 4 << 20;
/// The most that the matrices of a single step may take: larger batches are split into blocks.
constexpr int64_t kStepBytes = 16 << 20;

/// Calls function(places, steps_of_chunk) for each block.
template <typename Function>
void for_each_block(const SequenceSizes<int64_t>& sizes,
                    int64_t element_size,
                    const Function& function) {
  const int64_t bytes_of_row = (4 * sizes.state_size + sizes.input_features) * element_size;
  const int64_t rows = std::clamp<int64_t>(kStepBytes / bytes_of_row, 1, sizes.batch);
  const int64_t steps_of_chunk = std::max<int64_t>(1, kChunkBytes / (rows * bytes_of_row));
  for (int64_t first = 0; first < sizes.batch; first += rows) {
    function(Span{first, std::min(first + rows, sizes.batch)}, steps_of_chunk);
  }
}

/// The rows of (N, columns) tensors that belong to a block.
class PlacesOfBlock {
 public:
  PlacesOfBlock(const Schedule& schedule, const Span& places)
      : schedule_(schedule), places_(places) {
    if (schedule.has_lengths()) {
      rows_ = at::empty({places.size()}, at::kLong);
      int64_t* row = rows_.mutable_data_ptr<int64_t>();
      for (int64_t place = places.begin; place < places.end; ++place) {
        *row++ = schedule.row(place);
      }
    }
  }

  /// A new matrix of this block's rows of `states`, or of zeros if `states` is absent.
  at::Tensor gather_or_zeros(const std::optional<at::Tensor>& states,
                             int64_t columns,
                             at::ScalarType dtype) const {
    at::Tensor matrix = at::zeros({places_.size(), columns}, dtype);
    if (is_given(states)) {
      matrix.copy_(rows_.defined() ? states->index_select(0, rows_)
                                   : states->narrow(0, places_.begin, places_.size()));
    }
    return matrix;
  }

  void scatter(const at::Tensor& states, const at::Tensor& matrix) const {
    at::Tensor to = states;
    if (rows_.defined()) {
      to.index_copy_(0, rows_, matrix.to(states.scalar_type()));
    } else {
      to.narrow(0, places_.begin, places_.size()).copy_(matrix);
    }
  }

  /// Zeroes the rows of these contiguous matrices where reset (T, N) is true at time t.
  void zero_where_reset(const at::Tensor& reset,
                        int64_t t,
                        int64_t running,
                        std::initializer_list<at::Tensor> matrices) const {
    const bool* reset_t = reset.const_data_ptr<bool>() + t * schedule_.batch();
    for (int64_t place = 0; place < running; ++place) {
      if (reset_t[schedule_.row(places_.begin + place)]) {
        for (at::Tensor matrix : matrices) {
          matrix.select(0, place).zero_();
        }
      }
    }
  }

 private:
  const Schedule& schedule_;
  Span places_;
  at::Tensor rows_;  // undefined if every row's place is its index
};

}  // namespace lltm::cpu
