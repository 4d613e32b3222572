// How a sequence with ATen's matrix products is split into blocks of places and chunks of time, the
// state of a block's rows, and the matrices of a chunk.
//
// Rows are independent, so each block runs its whole sequence by itself.
#pragma once

#include "../../operators/recurrent.h"
#include "../schedule.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

namespace lltm::cpu {

/// A range [begin, end) of times or of places.
struct Span {
  int64_t begin;
  int64_t end;

  int64_t size() const { return end - begin; }
};

/// The size of a chunk's matrices: small enough to stay in the cache from one use to the next.
constexpr int64_t kChunkBytes = 4 << 20;
/// The most that the matrices of a single step may take: larger batches are split into blocks.
constexpr int64_t kStepBytes = 16 << 20;

/// Calls function(places, steps_of_chunk) for each block.
template <typename Function>
void for_each_block(const SequenceSizes<int64_t>& sizes,
                    int64_t element_size,
                    const Function& function) {
  const int64_t bytes_of_row =
      (sizes.gates + sizes.state_size + sizes.input_features) * element_size;
  const int64_t rows = std::clamp<int64_t>(kStepBytes / bytes_of_row, 1, sizes.batch);
  const int64_t steps_of_chunk = std::max<int64_t>(1, kChunkBytes / (rows * bytes_of_row));
  for (int64_t first = 0; first < sizes.batch; first += rows) {
    function(Span{first, std::min(first + rows, sizes.batch)}, steps_of_chunk);
  }
}

/// The rows of (N, columns) tensors that belong to a block.
class BlockPlaces {
 public:
  BlockPlaces(const Schedule& schedule, const Span& places) : schedule_(schedule), places_(places) {
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

  /// Zeroes the rows of these contiguous matrices that are reset at time t.
  void zero_where_reset(int64_t t,
                        int64_t running,
                        std::initializer_list<at::Tensor> matrices) const {
    for (int64_t place = 0; schedule_.steps.reset && place < running; ++place) {
      if (schedule_.steps.resets(t, schedule_.row(places_.begin + place))) {
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

/// The steps that a span of places runs in a span of times. They are the rows of the chunk's
/// matrices, ordered by time and then by place.
class Chunk {
 public:
  /// The steps [first, last) are counted in the order of execution.
  Chunk(const Schedule& schedule, int64_t first, int64_t last, const Span& places)
      : schedule_(schedule),
        times_(schedule.steps.reverse
                   ? Span{schedule.steps.count - last, schedule.steps.count - first}
                   : Span{first, last}),
        places_(places) {
    first_.reserve(times_.size() + 1);
    int64_t rows = 0;
    for (int64_t t = times_.begin; t < times_.end; ++t) {
      first_.push_back(rows);
      rows += running(t);
    }
    first_.push_back(rows);
  }

  const Schedule& schedule() const { return schedule_; }
  const Span& times() const { return times_; }
  const Span& places() const { return places_; }
  int64_t rows() const { return first_.back(); }
  /// How many of these places run at time t.
  int64_t running(int64_t t) const {
    return std::clamp<int64_t>(schedule_.running(t) - places_.begin, 0, places_.size());
  }

  /// The rows of a matrix of this chunk that belong to time t.
  at::Tensor at_time(const at::Tensor& matrix, int64_t t) const {
    return matrix.narrow(0, first_[t - times_.begin], running(t));
  }

  /// This chunk's rows of a (T, N, columns) tensor, possibly as a view.
  at::Tensor gather(const at::Tensor& steps) const {
    const at::Tensor slab = matrix_of(steps);
    return is_whole() ? slab : slab.index_select(0, indices());
  }

  /// Writes this chunk's rows of a contiguous (T, N, columns) tensor.
  void scatter(const at::Tensor& steps, const at::Tensor& matrix) const {
    at::Tensor slab = matrix_of(steps);
    if (is_whole()) {
      slab.copy_(matrix);
    } else {
      slab.index_copy_(0, indices(), matrix.to(slab.scalar_type()));
    }
  }

 private:
  bool is_whole() const { return !schedule_.has_lengths() && places_.size() == batch(); }

  int64_t batch() const { return schedule_.steps.batch; }

  at::Tensor matrix_of(const at::Tensor& steps) const {
    return steps.narrow(0, times_.begin, times_.size())
        .reshape({times_.size() * batch(), steps.size(2)});
  }

  const at::Tensor& indices() const {
    if (!indices_.defined()) {
      indices_ = at::empty({rows()}, at::kLong);
      int64_t* index = indices_.mutable_data_ptr<int64_t>();
      for (int64_t t = times_.begin; t < times_.end; ++t) {
        for (int64_t place = places_.begin; place < places_.begin + running(t); ++place) {
          *index++ = (t - times_.begin) * batch() + schedule_.row(place);
        }
      }
    }
    return indices_;
  }

  const Schedule& schedule_;
  Span times_;
  Span places_;
  std::vector<int64_t> first_;
  mutable at::Tensor indices_;
};

}  // namespace lltm::cpu
