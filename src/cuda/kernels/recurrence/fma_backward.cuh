// The backward of the recurrence in float32 (fma.cuh).
#pragma once

#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../../cell/sides.h"
#include "../../epilogue/math.cuh"
#include "../../ptx/global.cuh"
#include "../../ptx/overlap.cuh"
#include "fma.cuh"
#include "launch_groups.cuh"
#include "rows.cuh"

namespace lltm::cuda {

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recurrence_backward_fma(const __grid_constant__ RecurrenceBackward<float> p) {
  using Cell = typename Tile::Cell;
  constexpr int kSaved = Cell::kSaved, kElements = Tile::kElements;
  constexpr int kCell = kSaved, kGradOutput = kSaved + 1,
                kGradCell = kSaved + 2;  // of what is fetched
  extern __shared__ __align__(128) unsigned char shared[];
#if __CUDA_ARCH__ < 900
  if (Tile::kCluster > 1) {
    return;
  }
#endif
  wait_for_previous_kernel();
  const uint32_t base = shared_address(shared);
  const int steps = static_cast<int>(p.steps), state_size = static_cast<int>(p.state_size);
  using Product = FmaProduct<Tile>;
  Product product(base);
  VectorsOf<Tile> vectors(product, base);
  const FetchedRing<Tile> ring(base + Tile::kVectorBytes);
  constexpr typename Product::Partial kNoParts[Tile::kRows] = {};

  const int64_t group = blockIdx.x / Tile::kCluster, block_row = group * p.group_rows;
  const int block_rows = at_most(p.rows - block_row, p.group_rows);
  const int column = product.column();
  const int64_t row = block_row + product.first_row();
  const RowsOfSequence& of_rows = p.rows_of_sequence;
  const RecurrenceSteps range =
      recurrence_steps(of_rows, block_row, block_rows, steps, 0, steps, p.reverse);
  bool exists[kElements];
  int length[kElements];
  // Gradients of the state that a row's next step, in this order, takes. That of h waits here while
  // a row does not run; the product adds what comes from the step before.
  float d_h[kElements], d_cell[kElements];
  [[maybe_unused]] float first_cell[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    exists[e] = column < state_size && product.first_row() + e < block_rows;
    length[e] = exists[e] ? length_of(of_rows, row + e, steps) : 0;
    d_h[e] = d_cell[e] = 0;
    if (exists[e]) {
      d_h[e] = p.grad_h_n.data != nullptr ? p.grad_h_n.at(0, row + e, column) : 0;
      d_cell[e] = p.grad_c_n.at(row + e, column);
    }
    if constexpr (Cell::kReadsOldCell) {
      first_cell[e] = exists[e] ? p.c0.at(row + e, column) : 0;
    }
  }
  // When a row starts, from first_cell.
  [[maybe_unused]] const auto starts_at = [&](int e, int t) {
    return t == (p.reverse ? length[e] - 1 : 0);
  };
  typename Product::Weights weights;
  product.load(p.weights, state_size, state_size, steps >> 30, weights);
  const bool writes = product.is_first();
  float d_bias[kSaved] = {};

  const int64_t elements = p.rows * p.state_size;
  const int64_t d_gates_of_step = p.rows * p.d_gates_stride;
  const int64_t in_step = row * p.state_size + column;
  const int64_t d_gates_stride = in_register(p.d_gates_stride);
  const auto write = [&](float* to, int e, bool condition, const float(&d_z)[kSaved]) {
#pragma unroll
    for (int k = 0; k < kSaved; ++k) {
      store_word(
          to + e * d_gates_stride + k * state_size, __float_as_uint(d_z[k]), condition && writes);
    }
  };
  const auto d_gates_at = [&](int t) {
    return p.d_gates + t * d_gates_of_step + row * p.d_gates_stride + column;
  };
  const auto write_zeros = [&](int begin, int end) {
    for (int k = begin; k < end; ++k) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        constexpr float kZeros[kSaved] = {};
        write(d_gates_at(range.time_of(k)), e, exists[e], kZeros);
      }
    }
  };
  write_zeros(range.first, range.begin);
  write_zeros(range.end, range.last);

  if (range.begin < range.end) {
    const int last_time = range.time_of(range.end - 1), towards = p.reverse ? 1 : -1;
    // Addresses at the time of the step that is copied next. Those of an absent gradient are not
    // used.
    int copied = range.end - 1;
    const float* gates =
        p.gates + int64_t{last_time} * kSaved * elements + row * kSaved * p.state_size + column;
    const float* cells = p.cells + last_time * elements + in_step;
    const auto first_of = [&](const Steps<float>& of) {
      return of.data == nullptr ? nullptr : &of.at(last_time, row, column);
    };
    const float *grad_output = first_of(p.grad_output), *grad_cells = first_of(p.grad_cells);
    const bool has_grad_output = grad_output != nullptr, has_grad_cells = grad_cells != nullptr;
    const auto copy_step = [&](uint32_t slot) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int k = 0; k < kSaved; ++k) {
          ring.copy(slot, e, k, gates + (e * kSaved + k) * state_size, exists[e]);
        }
        ring.copy(slot, e, kCell, cells + e * state_size, exists[e]);
        ring.copy(slot,
                  e,
                  kGradOutput,
                  grad_output + e * p.grad_output.strides[1],
                  exists[e] && has_grad_output);
        ring.copy(slot,
                  e,
                  kGradCell,
                  grad_cells + e * p.grad_cells.strides[1],
                  exists[e] && has_grad_cells);
      }
      commit_copies();
      const int64_t further = --copied >= range.begin ? towards : 0;
      gates += further * kSaved * elements;
      cells += further * elements;
      grad_output += further * p.grad_output.strides[0];
      grad_cells += further * p.grad_cells.strides[0];
    };
#pragma unroll 1
    for (int i = 0; i < Tile::kAhead - 1; ++i) {
      copy_step(ring.slot(i));
    }
    vectors.start();
    // Whether a gradient comes from the step that was computed before, and whether the step that is
    // computed next starts from a reset state.
    bool passes[kElements] = {};
    FetchedResets<kElements> is_reset;
    is_reset.fetch(of_rows, row, length, last_time, true);
    // Derivatives that depend on old_cell need a step's resets at its start, so those are fetched
    // during the step before. Other cells fetch them at the end of it: fetched in front of the
    // product, even resets that are absent make a step up to 13 % longer.
    [[maybe_unused]] FetchedResets<kElements> is_reset_before;

    // Of the step computed before the current one.
    const int64_t d_gates_step = in_register(towards * d_gates_of_step);
    float* d_gates = d_gates_at(last_time) - d_gates_step;
    float d_z[kElements][kSaved];
    const auto write_last_step = [&](bool has_last) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        write(d_gates, e, has_last && exists[e], d_z[e]);
      }
      d_gates += d_gates_step;
    };
    typename Product::Sums sums;
    const int count = range.end - range.begin;
    int time = last_time;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      ring.wait();
      if constexpr (Cell::kReadsOldCell) {
        is_reset_before.fetch(of_rows, row, length, time + towards, i + 1 < count);
      }
      typename Cell::template Derivatives<float> by[kElements];
      float grad_h[kElements], grad_cell[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        float z[kSaved];
#pragma unroll
        for (int k = 0; k < kSaved; ++k) {
          z[k] = ring.read(ring.slot(i), e, k);
        }
        float old_cell = 0;
        if constexpr (Cell::kReadsOldCell) {
          // The next slot has the values of the step before.
          old_cell = is_reset[e]          ? 0
                     : starts_at(e, time) ? first_cell[e]
                                          : ring.read(ring.slot(i + 1), e, kCell);
        }
        by[e] =
            Cell::template derivatives<ShortMath>(z, old_cell, ring.read(ring.slot(i), e, kCell));
        grad_h[e] = ring.read(ring.slot(i), e, kGradOutput);
        grad_cell[e] = ring.read(ring.slot(i), e, kGradCell);
      }
      product.multiply(weights, i & 1, kNoParts, sums);
      write_last_step(i > 0);
      copy_step(ring.slot(i - 1));
      product.finish(sums);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const bool runs = time < length[e];
        const float from_h = d_h[e] + (passes[e] ? sums.of[0][e] : 0);
        const float c = Cell::backward(by[e], from_h + grad_h[e], d_cell[e] + grad_cell[e], d_z[e]);
#pragma unroll
        for (int k = 0; k < kSaved; ++k) {
          d_z[e][k] = runs ? d_z[e][k] : 0;
          if (const int gate = cell::gate_at<Cell>(k); gate >= 0) {
            vectors.put(~i & 1, e, gate, d_z[e][k]);
          }
          d_bias[k] += d_z[e][k];
        }
        d_h[e] = runs ? 0 : from_h;
        d_cell[e] = !runs ? d_cell[e] : is_reset[e] ? 0 : c;
        passes[e] = runs && !is_reset[e];
      }
      time += towards;
      if constexpr (Cell::kReadsOldCell) {
        is_reset = is_reset_before;
      } else {
        is_reset.fetch(of_rows, row, length, time, i + 1 < count);
      }
      vectors.receive(~i & 1);
    }
    write_last_step(true);
    if (Cell::kCarriesH ? p.d_c0.exact != nullptr || p.d_c0.rounded != nullptr
                        : p.d_h0 != nullptr) {
      product.multiply(weights, count & 1, kNoParts, sums);
      product.finish(sums);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        d_h[e] += passes[e] ? sums.of[0][e] : 0;
      }
    }
  }

  // Not earlier: blocks of the next kernel that wait would keep other streams' from starting.
  start_next_kernel();
  if (writes) {
    float* const d_c0 = p.d_c0.exact != nullptr ? p.d_c0.exact : p.d_c0.rounded;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int64_t to = in_step + e * state_size;
      if (exists[e] && p.d_h0 != nullptr) {
        p.d_h0[to] = d_h[e];
      }
      if (exists[e] && d_c0 != nullptr) {
        d_c0[to] = Cell::kCarriesH ? d_cell[e] + d_h[e] : d_cell[e];
      }
    }
  }
  if (p.d_bias_parts != nullptr) {
    // The sums of the threads that have the same column, which take the place of V.
    constexpr int kNumbers = kSaved * Tile::kState;
    static_assert(4 * Tile::kRowLanes * kNumbers <= Tile::kSharedBytes - Tile::kBarrierBytes);
    sync_block<Tile::kThreads>();
    if (writes) {
#pragma unroll
      for (int k = 0; k < kSaved; ++k) {
        const int lane_of_rows = product.first_row() / kElements;
        store_shared(base + 4 * (lane_of_rows * kNumbers + k * Tile::kState + column),
                     __float_as_uint(d_bias[k]));
      }
    }
    sync_block<Tile::kThreads>();
    for (int i = static_cast<int>(threadIdx.x); i < kNumbers; i += Tile::kThreads) {
      const int gate = i / Tile::kState, of_gate = i % Tile::kState;
      float sum = 0;
      for (int lane_of_rows = 0; lane_of_rows < Tile::kRowLanes; ++lane_of_rows) {
        sum += __uint_as_float(load_shared(base + 4 * (lane_of_rows * kNumbers + i)));
      }
      const int of_block = of_gate - first_of_block<Tile::kCluster>(Tile::kOwnState);
      if (of_gate < state_size && of_block >= 0 && of_block < Tile::kOwnState) {
        p.d_bias_parts[(group * kSaved + gate) * state_size + of_gate] = sum;
      }
    }
  }
}

template <typename Cell>
cudaError_t launch_recurrence_fma(const RecurrenceBackward<float>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  return dispatch<kFmaTilesOf<Cell::kGates, Cell::kSaved>>(tile, [&](auto instance) {
    constexpr RecurrenceTile kTile = instance;
    if constexpr (kTile.x_inside) {
      return cudaErrorInvalidValue;
    } else {
      using Tile = FmaTile<Cell, /*kBackward=*/true, kTile>;
      return launch_groups<&recurrence_backward_fma<Tile>, Tile::kThreads, Tile::kSharedBytes>(
          problem, tile, stream);
    }
  });
}

}  // namespace lltm::cuda
