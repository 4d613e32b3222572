// The epilogue of the forward: from pre-activations to gates, new_h and new_cell.
//
// What the kernels of the forward do with their sums is a policy: here that of a cell, and in
// epilogue/step.cuh those of a step of a sequence. A policy for kRows x kColumns elements at a time
// has
//   Fetched                       what the elements need besides sums, and which of them exist
//   fetch(fetched, row, column)   reads it: rows `row`, row + kFragmentRowStep, ..., and
//                                 neighboring columns; called before the sums are available
//   place(fetched, row, column)   the part of fetch that only computes addresses
//   finish(fetched, z)            z[gate][row * kColumns + column] are the sums over all of K, of
//                                 which an element has kSumsAnElement
// and, so that a thread with several rows does not wait for memory once per row, what it fetches of
// further rows before the sums are available:
//   State                         what Fetched has per row, the rest being per column; or empty
//   fetch_state(state, row, column)
//   place(fetched, state, row, column)
#pragma once

#include "../../cell/combined.h"
#include "../../cell/sides.h"
#include "../problem.h"
#include "../tile/elements.h"
#include "../tile/vectors.cuh"

#include <type_traits>

namespace lltm::cuda {

/// The distance between the rows that a thread holds in a fragment of the tensor core.
constexpr int kFragmentRowStep = 8;

/// The index of a row's first element in a contiguous matrix of `columns` columns. Both arguments
/// are below 2^32, so it takes one instruction.
LLTM_DEVICE int64_t index_of(int64_t row, int64_t columns) {
  return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(row)) *
                              static_cast<uint32_t>(columns));
}

/// Whether all of the neighboring columns of a thread exist, so that they are read and written at
/// once: four of a state_size that is a multiple of four, or one. Of two, one may not exist; they
/// are read one by one, and written at once if state_size is even.
template <int kColumns>
constexpr bool kAllExist = kColumns != 2;

/// Writes `columns` neighboring values of a row of the state, or zeros if the values do not count.
template <int kColumns, typename Element, typename Value>
LLTM_DEVICE void write_columns(
    Element* to, const Value* values, int columns, int64_t state_size, bool values_count = true) {
  Vector<Element, kColumns> vector;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    vector.values[c] = static_cast<Element>(values_count ? values[c] : 0);
  }
  if (kAllExist<kColumns> || state_size % kColumns == 0) {
    write_vector(to, vector);
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c < columns) {
        to[c] = vector.values[c];
      }
    }
  }
}

/// Computes kRows x kColumns elements from sums[gate][row * kColumns + column]. added(k, row,
/// column) belongs to z[k], and old_cell(row, column) is the state before.
template <typename Cell,
          typename Math,
          int kColumns,
          typename acc_t,
          int kElements,
          typename Added,
          typename OldCell>
LLTM_DEVICE void compute_elements(const acc_t (&sums)[Cell::kGates][kElements],
                                  const Added& added,
                                  const OldCell& old_cell,
                                  acc_t (&z)[Cell::kSaved][kElements],
                                  acc_t (&h)[kElements],
                                  acc_t (&cell)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    acc_t z_of_element[Cell::kSaved];
#pragma unroll
    for (int k = 0; k < Cell::kSaved; ++k) {
      const int gate = cell::gate_at<Cell>(k);
      z_of_element[k] = gate < 0 ? added(k, i / kColumns, i % kColumns)
                                 : sums[gate][i] + added(k, i / kColumns, i % kColumns);
      z[k][i] = z_of_element[k];
    }
    const cell::State<acc_t> state =
        Cell::template forward<Math>(z_of_element, old_cell(i / kColumns, i % kColumns));
    h[i] = state.h;
    cell[i] = state.cell;
  }
}

/// If there are four columns, biases and the rows of old_cell are aligned to four elements. Problem
/// is ForwardProblem or OneStepProblem.
template <typename Problem, typename Cell, typename Element, typename Math, int kRows, int kColumns>
class CellEpilogue {
  static constexpr int kInputs = Cell::kInputs, kSaved = Cell::kSaved;
  static constexpr bool kOfOneStep = std::is_same_v<Problem, OneStepProblem>;

 public:
  static constexpr int kItemRows = kRows, kItemColumns = kColumns, kSumsAnElement = kSaved;
  static constexpr bool kReadsFours = kColumns == 4;
  // Four columns are kept as one word, so that nothing unpacks them before the sums are available.
  using Columns =
      std::conditional_t<kReadsFours, WordOf<Element, kColumns>, Vector<Element, kColumns>>;
  struct State {
    Columns old_cell[kRows] = {};
  };
  struct Fetched {
    int rows = 0, columns = 0;   // that exist
    int64_t index, gates_index;  // of the first element, in new_h and in gates
    Columns bias[kInputs + (Cell::kAdds ? 0 : Cell::kGates)] = {};  // those of the gates last
    State state;
  };

  LLTM_DEVICE explicit CellEpilogue(const Problem& problem) : p_(problem) {}

  LLTM_DEVICE void place(Fetched& o, int64_t row, int64_t column) const {
    o.rows = 0;
    if (column >= p_.state_size || row >= p_.batch) {
      return;
    }
    o.rows = kRows == 2 && row + kFragmentRowStep < p_.batch ? 2 : 1;
    o.columns = kAllExist<kColumns> ? kColumns : at_most(p_.state_size - column, kColumns);
    o.index = index_of(row, p_.state_size) + column;
    o.gates_index = index_of(row, kSaved * p_.state_size) + column;
  }

  LLTM_DEVICE void place(Fetched& o, const State& state, int64_t row, int64_t column) const {
    place(o, row, column);
    o.state = state;
  }

  LLTM_DEVICE void fetch(Fetched& o, int64_t row, int64_t column) const {
    place(o, row, column);
    if (o.rows == 0) {
      return;
    }
    if (p_.bias != nullptr) {
      const Element* const bias = static_cast<const Element*>(p_.bias) + column;
#pragma unroll
      for (int input = 0; input < kInputs; ++input) {
        read(o.bias[input], bias + input * p_.state_size, o.columns);
      }
    }
    if constexpr (!Cell::kAdds) {
      if (p_.bias_hh != nullptr) {
        const Element* const bias = static_cast<const Element*>(p_.bias_hh) + column;
#pragma unroll
        for (int gate = 0; gate < Cell::kGates; ++gate) {
          read(o.bias[kInputs + gate], bias + gate * p_.state_size, o.columns);
        }
      }
    }
    fetch_state(o.state, row, column);
  }

  LLTM_DEVICE void fetch_state(State& state, int64_t row, int64_t column) const {
    const Element* const old_cell =
        static_cast<const Element*>(p_.old_cell.data) + row * p_.old_cell.stride + column;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r * kFragmentRowStep < p_.batch && column < p_.state_size) {
        read(state.old_cell[r],
             old_cell + r * kFragmentRowStep * p_.old_cell.stride,
             at_most(p_.state_size - column, kColumns));
      }
    }
  }

  LLTM_DEVICE void finish(const Fetched& o, const float (&sums)[kSaved][kRows * kColumns]) const {
    if (o.rows == 0) {
      return;
    }
    Vector<Element, kColumns> bias[std::extent_v<decltype(o.bias)>], old_cell[kRows];
    memcpy(&bias, &o.bias, sizeof(bias));
    memcpy(&old_cell, &o.state.old_cell, sizeof(old_cell));
    float z[kSaved][kRows * kColumns], h[kRows * kColumns], c[kRows * kColumns];
    const auto bias_of = [&](int place, int column) {
      return static_cast<float>(bias[place].values[column]);
    };
    compute_elements<cell::CombinedOf<Cell>, Math, kColumns>(
        sums,
        [&](int k, int, int column) {
          if constexpr (Cell::kAdds) {
            return bias_of(k, column);
          } else {
            const int input = cell::input_at<Cell>(k), gate = cell::gate_at<Cell>(k);
            return (input < 0 ? 0.0f : bias_of(input, column)) +
                   (gate < 0 ? 0.0f : bias_of(kInputs + gate, column));
          }
        },
        [&](int row, int column) { return static_cast<float>(old_cell[row].values[column]); },
        z,
        h,
        c);
    Element* const gates = static_cast<Element*>(p_.gates) + o.gates_index;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < o.rows) {
        const int64_t below = r * kFragmentRowStep;
        if (!kOfOneStep || p_.gates != nullptr) {
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            write_columns<kColumns>(gates + (below * kSaved + k) * p_.state_size,
                                    z[k] + r * kColumns,
                                    o.columns,
                                    p_.state_size);
          }
        }
        const auto write = [&](void* to, const float* values) {
          write_columns<kColumns>(static_cast<Element*>(to) + o.index + below * p_.state_size,
                                  values + r * kColumns,
                                  o.columns,
                                  p_.state_size);
        };
        write(p_.new_h, h);
        write(p_.new_cell, c);
        if constexpr (kOfOneStep && !Cell::kCarriesH) {
          write(p_.h_n, h);
          if (p_.cells != nullptr) {
            write(p_.cells, c);
          }
        }
      }
    }
  }

 private:
  static LLTM_DEVICE void read(Columns& to, const Element* from, int columns) {
    if constexpr (kReadsFours) {
      to = *reinterpret_cast<const Columns*>(from);
    } else {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (kAllExist<kColumns> || c < columns) {
          to.values[c] = from[c];
        }
      }
    }
  }

  const Problem& p_;
};

}  // namespace lltm::cuda
