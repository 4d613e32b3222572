// The epilogue of a step of the sequence's backward: turns the gradient of h that the following
// step left into d_gates and the gradient of the previous cell state.
#pragma once

#include "../../cell/lltm.h"
#include "../kernels/sequence/kernels.h"
#include "../ptx/global.cuh"
#include "../tile/elements.h"

namespace lltm::cuda {

template <typename scalar_t, typename Math, typename Cell = cell::Lltm>
class SequenceGradientsEpilogue {
  static constexpr int kGates = Cell::kGates;

 public:
  using acc_t = accumulate_t<scalar_t>;

  struct Operands {
    bool ran_last, was_reset;  // at last_t
    bool runs, is_reset;       // at t
    scalar_t gates[kGates] = {}, old_cell = 0, cell = 0, grad_output = 0, grad_cell = 0;
    acc_t d_cell = 0;
  };

  __device__ __forceinline__ explicit SequenceGradientsEpilogue(
      const SequenceGradientsParams<scalar_t>& params)
      : p_(params) {}

  __device__ __forceinline__ int64_t rows() const { return p_.rows; }
  __device__ __forceinline__ int64_t columns() const { return p_.state_size; }

  /// Prefetches what fetch() reads into L2.
  __device__ __forceinline__ void prefetch(int64_t row, int64_t column) const {
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
  __device__ __forceinline__ void fetch(Operands& o, int64_t row, int64_t column) const {
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
      o.gates[gate] = gates[gate * p_.state_size];
    }
    o.cell = p_.cells[row * p_.state_size + column];
    if constexpr (Cell::kReadsOldCell) {
      const StridedRow<scalar_t> old = p_.old_cells.at(p_.t, row);
      if (old.data != nullptr) {
        o.old_cell = old.data[column * old.stride];
      }
    }
    if (p_.grad_output.data != nullptr) {
      o.grad_output = p_.grad_output.at(p_.t, row, column);
    }
    if (p_.grad_cells.data != nullptr) {
      o.grad_cell = p_.grad_cells.at(p_.t, row, column);
    }
  }

  /// Reads what the previous step may have written.
  __device__ __forceinline__ void fetch_carried(Operands& o, int64_t row, int64_t column) const {
    if (o.runs) {
      o.d_cell = __ldcg(p_.d_cell + row * p_.state_size + column);
    }
  }

  /// from_h is an element of d_gates[last_t] @ W_h.
  __device__ __forceinline__ void finish(const Operands& o,
                                         int64_t row,
                                         int64_t column,
                                         acc_t from_h) const {
    const int64_t index = row * p_.state_size + column;
    acc_t d_h = o.was_reset ? acc_t(0) : from_h;
    if (o.ran_last && !o.runs) {
      p_.d_h[index] = d_h;
    } else if (!o.ran_last && o.runs) {
      d_h = __ldcg(p_.d_h + index);
    }
    if (p_.t == kNoTime) {
      return;
    }
    acc_t d_z[kGates] = {};
    if (o.runs) {
      acc_t z[kGates];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        z[gate] = static_cast<acc_t>(o.gates[gate]);
      }
      const auto by = Cell::template derivatives<Math>(
          z, static_cast<acc_t>(o.old_cell), static_cast<acc_t>(o.cell));
      const acc_t d_old_cell = Cell::backward(by,
                                              d_h + static_cast<acc_t>(o.grad_output),
                                              o.d_cell + static_cast<acc_t>(o.grad_cell),
                                              d_z);
      p_.d_cell[index] = o.is_reset ? acc_t(0) : d_old_cell;
    }
    scalar_t* const to = p_.d_gates + row * p_.d_gates_stride + column;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      to[gate * p_.state_size] = static_cast<scalar_t>(d_z[gate]);
    }
  }

 private:
  const SequenceGradientsParams<scalar_t>& p_;
};

/// Finishes the elements of a tile that belong to this rank, kAtOnce per thread at a time. The
/// elements of a thread are kThreads apart.
template <typename Epilogue, int kTileN, int kThreads, int kAtOnce>
class StepFinisher {
 public:
  /// For those of the rows [first_row, first_row + rows) of the tile at (row, column) that exist.
  __device__ __forceinline__
  StepFinisher(const Epilogue& epilogue, int64_t row, int64_t column, int first_row, int rows)
      : epilogue_(epilogue),
        row_(row + first_row),
        column_(column),
        rows_(max(at_most(epilogue.rows() - row_, rows), 0)),
        columns_(at_most(epilogue.columns() - column, kTileN)) {}

  /// Prefetches what fetch() reads, for all elements.
  __device__ __forceinline__ void prefetch() const {
#pragma unroll 1
    for (int i = 0; element_ + i * kThreads < rows_ * kTileN; ++i) {
      if (column_of(i) < columns_) {
        epilogue_.prefetch(row_ + row_of(i), column_ + column_of(i));
      }
    }
  }

  /// For elements that do not exist, what another element needs is read: predicated loads would
  /// wait for each other.
  __device__ __forceinline__ void fetch() {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      epilogue_.fetch(operands_[i],
                      min(row_ + row_of(i), epilogue_.rows() - 1),
                      column_ + min(column_of(i), columns_ - 1));
    }
  }
  __device__ __forceinline__ void fetch_carried() {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (exists(i)) {
        epilogue_.fetch_carried(operands_[i], row_ + row_of(i), column_ + column_of(i));
      }
    }
  }

  /// Called after the first fetch() and fetch_carried().
  template <typename Sums>
  __device__ __forceinline__ void finish(const Sums& sums) {
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (exists(i)) {
          float from_h[1];
          sums.template read<1, 1>(from_h, row_of(i), column_of(i));
          epilogue_.finish(operands_[i], row_ + row_of(i), column_ + column_of(i), from_h[0]);
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
  __device__ __forceinline__ int row_of(int i) const { return (element_ + i * kThreads) / kTileN; }
  __device__ __forceinline__ int column_of(int i) const {
    return (element_ + i * kThreads) % kTileN;
  }
  __device__ __forceinline__ bool exists(int i) const {
    return row_of(i) < rows_ && column_of(i) < columns_;
  }

  const Epilogue epilogue_;
  const int64_t row_, column_;
  const int rows_, columns_;
  int element_ = static_cast<int>(threadIdx.x);
  typename Epilogue::Operands operands_[kAtOnce];
};

}  // namespace lltm::cuda
