// The epilogue of a step of a sequence: a policy as described in epilogue/cell.cuh, with a cell
// state that is carried in the accumulation type. Only what is kept is written. Its code is as
// short as possible: 3 KB more of it cost a kernel of 2 us another 0.2 us.
#pragma once

#include "../../cell/accumulate.h"
#include "../step_problem.h"
#include "../tile/elements.h"
#include "../tile/vectors.cuh"
#include "cell.cuh"

#include <type_traits>

namespace lltm::cuda {

/// What happens to a row at a step.
enum class Turn {
  kIdle,        // it does not run
  kGoesOn,      // the next step starts from the state that this one leaves,
  kBeginsAnew,  // or from zeros
  kEnds,        // its last step
};

/// Columns are as in CellEpilogue.
template <typename Cell, typename Element, typename Math, int kRows, int kColumns>
class StepEpilogue {
  static constexpr int kGates = Cell::kGates, kSaved = Cell::kSaved;

 public:
  using acc_t = accumulate_t<Element>;
  static constexpr int kItemRows = kRows, kItemColumns = kColumns, kSumsAnElement = kGates;
  struct State {};  // nothing is fetched ahead
  struct Fetched {
    int rows = 0, columns = 0;  // that exist
    int column;                 // of the first element
    int64_t row;                // of the first element, in the batch
    Turn turn[kRows] = {};
    Vector<Element, kColumns> added[kRows][kSaved] = {};
    Vector<acc_t, kColumns> old_cell[kRows] = {};
  };

  LLTM_DEVICE explicit StepEpilogue(const StepProblem& problem) : p_(problem) {}

  LLTM_DEVICE void place(Fetched& o, int64_t row, int64_t column) const {
    o.rows = 0;
    if (column < p_.state_size && row < p_.batch) {
      o.rows = kRows == 2 && row + kFragmentRowStep < p_.batch ? 2 : 1;
      o.columns = kAllExist<kColumns> ? kColumns : at_most(p_.state_size - column, kColumns);
      o.column = static_cast<int>(column);
      o.row = row;
    }
  }

  LLTM_DEVICE void fetch(Fetched& o, int64_t row, int64_t column) const {
    place(o, row, column);
    if (o.rows == 0) {
      return;
    }
    const Element* const added =
        static_cast<const Element*>(p_.added.data) + row * p_.added.stride + column;
    const acc_t* const old_cell =
        static_cast<const acc_t*>(p_.old_cell.data) + row * p_.old_cell.stride + column;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < o.rows) {
        if (p_.added.data != nullptr) {
          const Element* const of_row = added + r * kFragmentRowStep * p_.added.stride;
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            if (const int input = cell::input_at<Cell>(k); input >= 0) {
              read(o.added[r][k], of_row + input * p_.state_size, o.columns);
            }
          }
        }
        if constexpr (!Cell::kAdds) {
          const Element* const bias = static_cast<const Element*>(p_.bias) + column;
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            if (cell::input_at<Cell>(k) < 0) {
              read(o.added[r][k], bias + k * p_.state_size, o.columns);
            }
          }
        }
        read(o.old_cell[r], old_cell + r * kFragmentRowStep * p_.old_cell.stride, o.columns);
        if (rows_differ()) {
          o.turn[r] = turn_of(row + r * kFragmentRowStep);
        }
      }
    }
  }

  LLTM_DEVICE void finish(const Fetched& o, const acc_t (&sums)[kGates][kRows * kColumns]) const {
    if (o.rows == 0) {
      return;
    }
    acc_t z[kSaved][kRows * kColumns], h[kRows * kColumns], c[kRows * kColumns];
    compute_elements<Cell, Math, kColumns>(
        sums,
        [&](int k, int row, int column) {
          return static_cast<acc_t>(o.added[row][k].values[column]);
        },
        [&](int row, int column) { return o.old_cell[row].values[column]; },
        z,
        h,
        c);
    const auto write_rows = [&](auto differ) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < o.rows) {
          write_row<differ>(o, r, z, h, c);
        }
      }
    };
    if (rows_differ()) {
      write_rows(std::true_type{});
    } else {
      write_rows(std::false_type{});
    }
  }

 private:
  /// Writes one of the rows; if they do not differ, they all go on or end.
  template <bool kDiffer>
  LLTM_DEVICE void write_row(const Fetched& o,
                             int r,
                             const acc_t (&z)[kSaved][kRows * kColumns],
                             const acc_t (&h)[kRows * kColumns],
                             const acc_t (&c)[kRows * kColumns]) const {
    const Turn turn = kDiffer ? o.turn[r] : turn_of_all();
    const int64_t row = o.row + r * kFragmentRowStep;
    const int64_t index = row * p_.state_size + o.column;
    const bool runs = turn != Turn::kIdle, goes_on = turn != Turn::kBeginsAnew;
    const auto write = [&](auto* to, const acc_t* values, bool values_count) {
      write_columns<kColumns>(to, values + r * kColumns, o.columns, p_.state_size, values_count);
    };
    write(element(p_.new_h, index), h, runs);
    if (p_.new_cell != nullptr) {
      write(element(p_.new_cell, index), c, runs);
    }
    if (p_.gates != nullptr) {
      const int64_t first_gate = first_gate_of(index, o.column);
#pragma unroll
      for (int k = 0; k < kSaved; ++k) {
        write(element(p_.gates, first_gate + k * p_.state_size), z[k], runs);
      }
    }
    if (!runs) {
      return;
    }
    if (void* const next_h = const_cast<void*>(p_.next_h.data);
        turn == Turn::kEnds || next_h != nullptr) {
      write(turn == Turn::kEnds ? element(p_.h_n, index)
                                : element(next_h, row * p_.next_h.stride + o.column),
            h,
            goes_on);
    }
    if (p_.next_cell != nullptr) {
      write(static_cast<acc_t*>(p_.next_cell) + index, c, goes_on);
    }
  }

  /// Whether each row has a turn of its own. In a batch without lengths and resets, all rows do the
  /// same and are written by shorter code; but not where columns may be written one by one, whose
  /// code is too long to stand here twice.
  LLTM_DEVICE bool rows_differ() const {
    return !kAllExist<kColumns> || p_.rows.lengths != nullptr || p_.rows.reset != nullptr;
  }

  LLTM_DEVICE Turn turn_of_all() const { return p_.next_t == kNever ? Turn::kEnds : Turn::kGoesOn; }
  LLTM_DEVICE Turn turn_of(int64_t row) const {
    const int64_t length = p_.rows.length_of(row);
    if (p_.t >= length) {
      return Turn::kIdle;
    }
    if (p_.next_t >= length) {
      return Turn::kEnds;
    }
    return p_.rows.is_reset(row, p_.next_t) ? Turn::kBeginsAnew : Turn::kGoesOn;
  }

  /// The index of an element's first saved number, given its own: a row has kSaved times as many.
  /// The others are state_size apart.
  static LLTM_DEVICE int64_t first_gate_of(int64_t index, int column) {
    return kSaved * index - (kSaved - 1) * column;
  }
  static LLTM_DEVICE Element* element(void* matrix, int64_t index) {
    return static_cast<Element*>(matrix) + index;
  }

  template <typename T>
  static LLTM_DEVICE void read(Vector<T, kColumns>& vector, const T* from, int columns) {
    if constexpr (kAllExist<kColumns>) {
      vector = read_vector<kColumns>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < columns) {
          vector.values[i] = from[i];
        }
      }
    }
  }

  const StepProblem& p_;
};

/// The epilogue of a problem.
template <typename Problem, typename Cell, typename Element, typename Math, int kRows, int kColumns>
using EpilogueOf = std::conditional_t<kOfSequence<Problem>,
                                      StepEpilogue<Cell, Element, Math, kRows, kColumns>,
                                      CellEpilogue<Problem, Cell, Element, Math, kRows, kColumns>>;

}  // namespace lltm::cuda
