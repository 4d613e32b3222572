// Which rows of a sequence's batch run at which time.
#pragma once

#include "../checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace lltm::cpu {

/// A range [begin, end) of times or of places.
struct Span {
  int64_t begin;
  int64_t end;

  int64_t size() const { return end - begin; }
};

/// Sorts the rows by length, longest first, into places. The rows that run at time t then have the
/// first running(t) places, in either direction of time. Rows of equal length keep their order:
/// without lengths, a row's place is its index.
class Schedule {
 public:
  Schedule(const SequenceSizes<int64_t>& sizes,
           const std::optional<at::Tensor>& lengths,
           bool reverse)
      : steps_(sizes.steps), batch_(sizes.batch), reverse_(reverse) {
    if (!is_given(lengths)) {
      return;
    }
    const at::Tensor lengths_ = lengths->contiguous();
    const int64_t* length = lengths_.const_data_ptr<int64_t>();
    const auto clamped = [&](int64_t row) { return std::clamp<int64_t>(length[row], 0, steps_); };
    rows_.resize(batch_);
    std::iota(rows_.begin(), rows_.end(), int64_t{0});
    std::stable_sort(
        rows_.begin(), rows_.end(), [&](int64_t a, int64_t b) { return clamped(a) > clamped(b); });
    for (const int64_t row : rows_) {
      lengths_of_places_.push_back(clamped(row));
    }
    running_.resize(steps_);
    int64_t places = batch_;
    for (int64_t t = 0; t < steps_; ++t) {
      while (places > 0 && lengths_of_places_[places - 1] <= t) {
        --places;
      }
      running_[t] = places;
    }
  }

  int64_t batch() const { return batch_; }
  bool has_lengths() const { return !rows_.empty(); }

  /// The time of the k-th step that is run.
  int64_t time_of(int64_t k) const { return reverse_ ? steps_ - 1 - k : k; }

  /// The time of the step that was run before the one at time t.
  int64_t before(int64_t t) const { return reverse_ ? t + 1 : t - 1; }

  int64_t row(int64_t place) const { return has_lengths() ? rows_[place] : place; }

  /// Whether time t is the first at which the row at `place` runs.
  bool starts(int64_t t, int64_t place) const {
    return reverse_ ? t == (has_lengths() ? lengths_of_places_[place] : steps_) - 1 : t == 0;
  }

  /// How many of these places run at time t.
  int64_t running(int64_t t, const Span& places) const {
    const int64_t running = has_lengths() ? running_[t] : batch_;
    return std::clamp<int64_t>(running - places.begin, 0, places.size());
  }

  /// The times of the steps [first, last) in the order of execution.
  Span times(int64_t first, int64_t last) const {
    return reverse_ ? Span{steps_ - last, steps_ - first} : Span{first, last};
  }

 private:
  int64_t steps_;
  int64_t batch_;
  bool reverse_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> lengths_of_places_;
  std::vector<int64_t> running_;
};

/// The steps that a span of places runs in a span of times. They are the rows of the chunk's
/// matrices, ordered by time and then by place.
class Chunk {
 public:
  Chunk(const Schedule& schedule, const Span& times, const Span& places)
      : schedule_(schedule), times_(times), places_(places) {
    first_.reserve(times.size() + 1);
    int64_t rows = 0;
    for (int64_t t = times.begin; t < times.end; ++t) {
      first_.push_back(rows);
      rows += schedule.running(t, places);
    }
    first_.push_back(rows);
  }

  const Schedule& schedule() const { return schedule_; }
  const Span& times() const { return times_; }
  const Span& places() const { return places_; }
  int64_t rows() const { return first_.back(); }
  int64_t running(int64_t t) const { return schedule_.running(t, places_); }

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
  bool is_whole() const { return !schedule_.has_lengths() && places_.size() == schedule_.batch(); }

  at::Tensor matrix_of(const at::Tensor& steps) const {
    return steps.narrow(0, times_.begin, times_.size())
        .reshape({times_.size() * schedule_.batch(), steps.size(2)});
  }

  const at::Tensor& indices() const {
    if (!indices_.defined()) {
      indices_ = at::empty({rows()}, at::kLong);
      int64_t* index = indices_.mutable_data_ptr<int64_t>();
      for (int64_t t = times_.begin; t < times_.end; ++t) {
        for (int64_t place = places_.begin; place < places_.begin + running(t); ++place) {
          *index++ = (t - times_.begin) * schedule_.batch() + schedule_.row(place);
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
