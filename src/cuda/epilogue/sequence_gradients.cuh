// The epilogue of a step of the sequence's backward: turns the gradient of h that the following
// step left into d_gates and the gradient of the previous cell state.
#pragma once

#include "../../cell/lltm.h"
#include "../kernels/sequence/kernels.h"
#include "../ptx/global.cuh"
#include "../tile/elements.h"
#include "../tile/vectors.cuh"

namespace lltm::cuda {

/// kColumns neighboring elements of a row at a time. They are read and written at once: state_size
/// is a multiple of kColumns. If not kAtOnce, one by one, and the last ones may not exist.
template <typename scalar_t,
          typename Math,
          typename Cell = cell::Lltm,
          int kColumns = 1,
          bool kAtOnce = true>
class SequenceGradientsEpilogue {
  static constexpr int kGates = Cell::kGates;

 public:
  using acc_t = accumulate_t<scalar_t>;
  using Values = Vector<scalar_t, kColumns>;
  using Sums = Vector<acc_t, kColumns>;
  using Derivatives = typename Cell::template Derivatives<acc_t>;

  struct Fetched {
    bool ran_last, was_reset;  // at last_t
    bool runs, is_reset;       // at t
    Values gates[kGates] = {}, old_cell = {}, cell = {}, grad_output = {}, grad_cell = {};
    Sums d_cell = {};
    Derivatives by[kColumns];
  };

  LLTM_DEVICE explicit SequenceGradientsEpilogue(const SequenceGradientsParams<scalar_t>& params)
      : p_(params) {}

  LLTM_DEVICE int64_t rows() const { return p_.rows; }
  LLTM_DEVICE int64_t columns() const { return p_.state_size; }

  /// Prefetches what fetch() reads into L2.
  LLTM_DEVICE void prefetch(int64_t row, int64_t column) const {
    if (p_.t == kNoTime) {
      return;
    }
    const scalar_t* const gates = p_.gates + row * kGates * p_.state_size + column;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      prefetch_to_l2(gates + gate * p_.state_size);
    }
    prefetch_to_l2(p_.cells + row * p_.state_size + column);
    if (p_.grad_output.data != nullptr) {
      prefetch_to_l2(&p_.grad_output.at(p_.t, row, column));
    }
  }

  /// Reads what no step writes.
  LLTM_DEVICE void fetch(Fetched& o, int64_t row, int64_t column) const {
    const RowsOfSequence& rows = p_.rows_of_sequence;
    o.ran_last = p_.last_t != kNoTime && rows.runs(row, p_.last_t);
    o.was_reset = p_.last_t != kNoTime && rows.is_reset(row, p_.last_t);
    o.runs = p_.t != kNoTime && rows.runs(row, p_.t);
    o.is_reset = p_.t != kNoTime && rows.is_reset(row, p_.t);
    if (p_.t == kNoTime) {
      return;
    }
    const scalar_t* const gates = p_.gates + row * kGates * p_.state_size + column;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      o.gates[gate] = read(gates + gate * p_.state_size, column);
    }
    o.cell = read(p_.cells + row * p_.state_size + column, column);
    if constexpr (Cell::kReadsOldCell) {
      const StridedRow<scalar_t> old = p_.old_cells.at(p_.t, row);
      o.old_cell = old.data == nullptr
                       ? Values{}
                       : read_anywhere(old.data + column * old.stride, old.stride, column);
    }
    if (p_.grad_output.data != nullptr) {
      o.grad_output = read_anywhere(p_.grad_output, row, column);
    }
    if (p_.grad_cells.data != nullptr) {
      o.grad_cell = read_anywhere(p_.grad_cells, row, column);
    }
  }

  /// Computes what the gradients are multiplied by. Called after fetch() and before finish().
  LLTM_DEVICE void prepare(Fetched& o) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      acc_t z[kGates];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        z[gate] = static_cast<acc_t>(o.gates[gate].values[i]);
      }
      o.by[i] = Cell::template derivatives<Math>(
          z, static_cast<acc_t>(o.old_cell.values[i]), static_cast<acc_t>(o.cell.values[i]));
    }
  }

  /// Reads what the previous step may have written.
  LLTM_DEVICE void fetch_carried(Fetched& o, int64_t row, int64_t column) const {
    if (o.runs) {
      o.d_cell = read_carried(p_.d_cell + row * p_.state_size + column, column);
    }
  }

  /// from_h are elements of d_gates[last_t] @ W_h.
  LLTM_DEVICE void finish(const Fetched& o,
                          int64_t row,
                          int64_t column,
                          const acc_t (&from_h)[kColumns]) const {
    const int64_t index = row * p_.state_size + column;
    Sums d_h;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      d_h.values[i] = o.was_reset ? acc_t(0) : from_h[i];
    }
    if (o.ran_last && !o.runs) {
      write(p_.d_h + index, d_h, column);
    } else if (!o.ran_last && o.runs) {
      d_h = read_carried(p_.d_h + index, column);
    }
    if (p_.t == kNoTime) {
      return;
    }
    Values d_gates[kGates];
    Sums d_cell;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      acc_t d_z[kGates] = {};
      if (o.runs) {
        const acc_t d_old_cell =
            Cell::backward(o.by[i],
                           d_h.values[i] + static_cast<acc_t>(o.grad_output.values[i]),
                           o.d_cell.values[i] + static_cast<acc_t>(o.grad_cell.values[i]),
                           d_z);
        d_cell.values[i] = o.is_reset ? acc_t(0) : d_old_cell;
      }
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        d_gates[gate].values[i] = static_cast<scalar_t>(d_z[gate]);
      }
    }
    if (o.runs) {
      write(p_.d_cell + index, d_cell, column);
    }
    scalar_t* const to = p_.d_gates + row * p_.d_gates_stride + column;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      write(to + gate * p_.state_size, d_gates[gate], column);
    }
  }

 private:
  /// Calls access(i) for the neighbors that exist, one by one.
  template <typename Access>
  LLTM_DEVICE void for_each(int64_t column, const Access& access) const {
    const int columns = at_most(p_.state_size - column, kColumns);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (i < columns) {
        access(i);
      }
    }
  }

  LLTM_DEVICE Values read(const scalar_t* from, int64_t column) const {
    if constexpr (kAtOnce) {
      return read_vector<kColumns>(from);
    } else {
      Values values{};
      for_each(column, [&](int i) { values.values[i] = from[i]; });
      return values;
    }
  }
  LLTM_DEVICE Values read_anywhere(const Steps<scalar_t>& of, int64_t row, int64_t column) const {
    return read_anywhere(&of.at(p_.t, row, column), of.strides[2], column);
  }
  LLTM_DEVICE Values read_anywhere(const scalar_t* first, int64_t stride, int64_t column) const {
    if constexpr (kAtOnce) {
      if (kColumns == 1 ||
          (stride == 1 && reinterpret_cast<uintptr_t>(first) % sizeof(Values) == 0)) {
        return read_vector<kColumns>(first);
      }
    }
    Values values{};
    for_each(column, [&](int i) { values.values[i] = first[i * stride]; });
    return values;
  }
  LLTM_DEVICE Sums read_carried(const acc_t* from, int64_t column) const {
    Sums sums{};
    if constexpr (kAtOnce) {
      using Bits = WordOf<acc_t, kColumns>;
      const Bits bits = __ldcg(reinterpret_cast<const Bits*>(from));
      memcpy(&sums, &bits, sizeof(bits));
    } else {
      for_each(column, [&](int i) { sums.values[i] = __ldcg(from + i); });
    }
    return sums;
  }
  template <typename T>
  LLTM_DEVICE void write(T* to, const Vector<T, kColumns>& values, int64_t column) const {
    if constexpr (kAtOnce) {
      write_vector(to, values);
    } else {
      for_each(column, [&](int i) { to[i] = values.values[i]; });
    }
  }

  const SequenceGradientsParams<scalar_t>& p_;
};

/// Four neighbors of a row at a time, as a policy of FragmentFinisher.
template <typename scalar_t, typename Math, typename Cell, bool kAtOnce>
class SequenceGradientFours {
 public:
  static constexpr int kItemRows = 1, kItemColumns = 4, kSumsAnElement = 1;
  using Epilogue = SequenceGradientsEpilogue<scalar_t, Math, Cell, kItemColumns, kAtOnce>;
  struct State {};  // nothing is fetched ahead
  struct Fetched {
    int rows = 0;  // that exist
    int64_t row, column;
    typename Epilogue::Fetched of_elements;
  };

  LLTM_DEVICE explicit SequenceGradientFours(const SequenceGradientsParams<scalar_t>& params)
      : epilogue_(params) {}

  LLTM_DEVICE void prefetch(int64_t row, int64_t column) const {
    if (exist(row, column)) {
      epilogue_.prefetch(row, column);
    }
  }
  LLTM_DEVICE void fetch(Fetched& o, int64_t row, int64_t column) const {
    if (exist(row, column)) {
      o.rows = 1;
      o.row = row;
      o.column = column;
      epilogue_.fetch(o.of_elements, row, column);
    }
  }
  LLTM_DEVICE void fetch_carried(Fetched& o) const {
    if (o.rows > 0) {
      epilogue_.fetch_carried(o.of_elements, o.row, o.column);
    }
  }
  LLTM_DEVICE void prepare(Fetched& o) const { epilogue_.prepare(o.of_elements); }
  LLTM_DEVICE void finish(const Fetched& o, const float (&sums)[1][4]) const {
    if (o.rows > 0) {
      epilogue_.finish(o.of_elements, o.row, o.column, sums[0]);
    }
  }

 private:
  LLTM_DEVICE bool exist(int64_t row, int64_t column) const {
    return row < epilogue_.rows() && column < epilogue_.columns();
  }

  const Epilogue epilogue_;
};

/// Finishes the elements of a tile that belong to this rank, kAtOnce per thread at a time. The
/// elements of a thread are kThreads apart.
template <typename Epilogue, int kTileN, int kThreads, int kAtOnce>
class StepFinisher {
 public:
  /// For those of the rows [first_row, first_row + rows) of the tile at (row, column) that exist.
  LLTM_DEVICE StepFinisher(
      const Epilogue& epilogue, int64_t row, int64_t column, int first_row, int rows)
      : epilogue_(epilogue),
        row_(row + first_row),
        column_(column),
        rows_(max(at_most(epilogue.rows() - row_, rows), 0)),
        columns_(at_most(epilogue.columns() - column, kTileN)) {}

  /// For elements that do not exist, what another element needs is read: predicated loads would
  /// wait for each other.
  LLTM_DEVICE void fetch() {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      epilogue_.fetch(operands_[i],
                      min(row_ + row_of(i), epilogue_.rows() - 1),
                      column_ + min(column_of(i), columns_ - 1));
    }
  }
  LLTM_DEVICE void fetch_carried() {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (exists(i)) {
        epilogue_.fetch_carried(operands_[i], row_ + row_of(i), column_ + column_of(i));
      }
    }
  }

  /// Called after the first fetch() and fetch_carried().
  template <typename Sums>
  LLTM_DEVICE void finish(const Sums& sums) {
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (exists(i)) {
          float from_h[1];
          sums.template read<1, 1>(from_h, row_of(i), column_of(i));
          epilogue_.prepare(operands_[i]);
          epilogue_.finish(operands_[i], row_ + row_of(i), column_ + column_of(i), from_h);
        }
      }
      element_ += kAtOnce * kThreads;
      if (element_ >= rows_ * kTileN) {
        return;
      }
      fetch();
      fetch_carried();
    }
  }

 private:
  LLTM_DEVICE int row_of(int i) const { return (element_ + i * kThreads) / kTileN; }
  LLTM_DEVICE int column_of(int i) const { return (element_ + i * kThreads) % kTileN; }
  LLTM_DEVICE bool exists(int i) const { return row_of(i) < rows_ && column_of(i) < columns_; }

  const Epilogue epilogue_;
  const int64_t row_, column_;
  const int rows_, columns_;
  int element_ = static_cast<int>(threadIdx.x);
  typename Epilogue::Fetched operands_[kAtOnce];
};

}  // namespace lltm::cuda
