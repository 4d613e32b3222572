// The epilogue of the forward: from pre-activations to gates, new_h and new_cell, of a cell or of a
// step of a sequence. Its code is as short as possible: 3 KB more of it cost a kernel of 2 us
// another 0.2 us.
#pragma once

#include "../../accumulate.h"
#include "../../cell.h"
#include "../step_problem.h"
#include "../tile/elements.h"
#include "../tile/vectors.cuh"

#include <type_traits>

namespace lltm::cuda {

/// The distance between the rows that a thread holds in a fragment of the tensor core.
constexpr int kFragmentRowStep = 8;

/// What happens to a row at a step.
enum class Turn {
  kIdle,        // it does not run
  kGoesOn,      // the next step starts from the state that this one leaves,
  kBeginsAnew,  // or from zeros
  kEnds,        // its last step
};

/// Finishes kRows x kColumns elements at a time: rows `row`, row + kFragmentRowStep, ..., and
/// neighboring columns. Problem is ForwardProblem, StepProblem, whose rows all run, or
/// StepOfRowsProblem. kWhole: state_size is a multiple of kColumns, so that all columns exist and
/// are written at once. They are also read at once, except that two columns of a cell may start
/// anywhere.
template <typename Problem, typename Element, typename Math, int kRows, int kColumns, bool kWhole>
class CellEpilogue {
 public:
  using acc_t = accumulate_t<Element>;
  static constexpr int kItemRows = kRows, kItemColumns = kColumns;
  static constexpr bool kOfStep = kOfSequence<Problem>;
  static constexpr bool kOfAnyRows = std::is_same_v<Problem, StepOfRowsProblem>;
  static constexpr bool kReadsAtOnce = kWhole && (kOfStep || kColumns != 2);
  // What is read at once is kept as a word, so that nothing unpacks it before the sums are
  // available.
  template <typename T>
  using Columns = std::conditional_t<kReadsAtOnce, WordOf<T, kColumns>, Vector<T, kColumns>>;
  using OldCell = std::conditional_t<kOfStep, acc_t, Element>;

  /// What the elements need besides sums, and which of them exist. The state is per row, the rest
  /// per column.
  struct State {
    Columns<OldCell> old_cell[kRows] = {};
    Turn turn[kRows] = {};  // of any rows
  };
  struct Operands {
    int rows = 0, columns = 0;  // that exist
    uint32_t row, column;       // of the first element
    Columns<Element> bias[3] = {};
    State state;
  };

  __device__ __forceinline__ explicit CellEpilogue(const Problem& problem) : p_(problem) {}

  /// The part of fetch() that only computes addresses.
  __device__ __forceinline__ void place(Operands& o, int64_t row, int64_t column) const {
    o.rows = rows_at(row, column);
    if (o.rows > 0) {
      o.columns = kWhole ? kColumns : at_most(p_.state_size - column, kColumns);
      o.row = static_cast<uint32_t>(row);
      o.column = static_cast<uint32_t>(column);
    }
  }

  /// Reads what the elements need. Called before the sums are available.
  __device__ __forceinline__ void fetch(Operands& o, int64_t row, int64_t column) const {
    place(o, row, column);
    if (o.rows == 0) {
      return;
    }
    if (p_.bias != nullptr) {
      const Element* const bias = static_cast<const Element*>(p_.bias) + column;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        read(o.bias[gate], bias + gate * p_.state_size, o.columns);
      }
    }
    fetch_state(o.state, row, column);
  }

  /// The part of fetch() that a thread calls for further rows before their sums are available, so
  /// that it does not wait for memory once per row.
  __device__ __forceinline__ void fetch_state(State& state, int64_t row, int64_t column) const {
    const int rows = rows_at(row, column);
    const OldCell* const old_cell =
        static_cast<const OldCell*>(p_.old_cell.data) + row * p_.old_cell.stride + column;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) {
        read(state.old_cell[r],
             old_cell + r * kFragmentRowStep * p_.old_cell.stride,
             at_most(p_.state_size - column, kColumns));
        if constexpr (kOfAnyRows) {
          state.turn[r] = turn_of(row + r * kFragmentRowStep);
        }
      }
    }
  }

  /// sums[gate][row * kColumns + column] are those over all of K.
  __device__ __forceinline__ void finish(const Operands& o,
                                         const acc_t (&sums)[3][kRows * kColumns]) const {
    if (o.rows == 0) {
      return;
    }
    Vector<Element, kColumns> bias[3];
    Vector<OldCell, kColumns> old_cell[kRows];
    memcpy(&bias, &o.bias, sizeof(bias));
    memcpy(&old_cell, &o.state.old_cell, sizeof(old_cell));
    acc_t z[3][kRows][kColumns], h[kRows][kColumns], c[kRows][kColumns];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          z[gate][r][i] = sums[gate][r * kColumns + i] + static_cast<acc_t>(bias[gate].values[i]);
        }
        const cell::State<acc_t> state =
            cell::forward<Math>(cell::Gates<acc_t>{z[0][r][i], z[1][r][i], z[2][r][i]},
                                static_cast<acc_t>(old_cell[r].values[i]));
        h[r][i] = state.h;
        c[r][i] = state.cell;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= o.rows) {
        return;
      }
      const Turn turn = o.state.turn[r];
      const uint32_t row = o.row + r * kFragmentRowStep;
      // Both factors are below 2^32, so the product takes one instruction.
      const auto index =
          static_cast<int64_t>(uint64_t{row} * static_cast<uint32_t>(p_.state_size) + o.column);
      const bool runs = !kOfAnyRows || turn != Turn::kIdle;
      const auto write = [&](auto* to, const acc_t* values, bool values_count) {
        write_columns(to, values, o.columns, values_count);
      };
      write(element(p_.new_h, index), h[r], runs);
      // Of a step, only what is kept is written.
      if (!kOfStep || p_.new_cell != nullptr) {
        write(element(p_.new_cell, index), c[r], runs);
      }
      if (!kOfStep || p_.gates != nullptr) {
        const int64_t first_gate = 3 * index - 2 * int64_t{o.column};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          write(element(p_.gates, first_gate + gate * p_.state_size), z[gate][r], runs);
        }
      }
      if constexpr (kOfAnyRows) {
        if (runs) {
          const bool goes_on = turn != Turn::kBeginsAnew;
          void* const next_h = const_cast<void*>(p_.next_h.data);
          write(turn == Turn::kEnds ? element(p_.h_n, index)
                                    : element(next_h, row * p_.next_h.stride + o.column),
                h[r],
                goes_on);
          write(static_cast<acc_t*>(p_.next_cell) + index, c[r], goes_on);
        }
      } else if constexpr (kOfStep) {
        if (p_.next_cell != nullptr) {
          write(static_cast<acc_t*>(p_.next_cell) + index, c[r], true);
        }
        if (p_.h_n != nullptr) {
          write(element(p_.h_n, index), h[r], true);
        }
      }
    }
  }

 private:
  // The rows from `row` on that have a column.
  __device__ __forceinline__ int rows_at(int64_t row, int64_t column) const {
    return column >= p_.state_size || row >= p_.batch        ? 0
           : kRows == 2 && row + kFragmentRowStep < p_.batch ? 2
                                                             : 1;
  }
  static __device__ __forceinline__ Element* element(void* matrix, int64_t index) {
    return static_cast<Element*>(matrix) + index;
  }

  __device__ __forceinline__ Turn turn_of(int64_t row) const {
    const int64_t length = p_.rows.length_of(row);
    if (p_.t >= length) {
      return Turn::kIdle;
    }
    if (p_.next_t >= length) {
      return Turn::kEnds;
    }
    return p_.rows.is_reset(row, p_.next_t) ? Turn::kBeginsAnew : Turn::kGoesOn;
  }

  template <typename T>
  static __device__ __forceinline__ void read(Columns<T>& to, const T* from, int columns) {
    if constexpr (kReadsAtOnce) {
      to = *reinterpret_cast<const Columns<T>*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < columns) {
          to.values[i] = from[i];
        }
      }
    }
  }

  // Writes neighbors of a row, or zeros if the values do not count.
  template <typename T>
  static __device__ __forceinline__ void write_columns(T* to,
                                                       const acc_t* values,
                                                       int columns,
                                                       bool values_count) {
    Vector<T, kColumns> vector;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      vector.values[i] = static_cast<T>(values_count ? values[i] : acc_t(0));
    }
    if constexpr (kWhole) {
      write_vector(to, vector);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < columns) {
          to[i] = vector.values[i];
        }
      }
    }
  }

  const Problem& p_;
};

}  // namespace lltm::cuda
