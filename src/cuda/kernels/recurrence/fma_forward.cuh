// The forward of the recurrence in float32 (fma.cuh).
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

/// The rows of input that a block multiplies, in kAhead slots, each for a step. They are read
/// after a block barrier that follows the wait for them.
template <typename Tile>
class InputRing {
 public:
  // Each thread copies an element.
  static_assert(Tile::kRows * Tile::kState == Tile::kThreads);

  /// For the times from `first_time` on.
  LLTM_DEVICE InputRing(const RecurrenceForward<float>& p,
                        int64_t block_row,
                        int block_rows,
                        int first_time,
                        int direction,
                        uint32_t shared)
      : time_stride_(in_register(direction * p.input.strides[0])) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / Tile::kState, column = thread % Tile::kState;
    exists_ = row < block_rows && column < p.input_features;
    from_ = p.input.data + first_time * p.input.strides[0] +
            (block_row + row) * p.input.strides[1] + column * p.input.strides[2];
    write_ = in_register(shared + 4 * threadIdx.x);
  }

  static LLTM_DEVICE int slot(int k) { return (k & (Tile::kAhead - 1)) * Tile::kInputBytes; }

  /// Starts copying the next step's rows, or the last step's again.
  LLTM_DEVICE void copy(int slot, bool has_next) {
    copy_async<4>(write_ + slot, from_, exists_ ? 4 : 0);
    from_ += has_next ? time_stride_ : 0;
    commit_copies();
  }
  /// Waits for the copies of all steps but the latest two.
  static LLTM_DEVICE void wait() { wait_copies<2>(); }

 private:
  const float* from_;
  bool exists_;
  int64_t time_stride_;
  uint32_t write_;
};

/// In place of an InputRing where z_x is read.
struct NoInputRing {
  template <typename... Arguments>
  LLTM_DEVICE explicit NoInputRing(const Arguments&...) {}
};
template <typename Tile>
using InputRingOf = std::conditional_t<Tile::kXInside, InputRing<Tile>, NoInputRing>;

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    recurrence_forward_fma(const __grid_constant__ RecurrenceForward<float> p) {
  using Cell = typename Tile::Cell;
  constexpr int kInputs = Cell::kInputs, kSaved = Cell::kSaved, kElements = Tile::kElements;
  extern __shared__ __align__(128) unsigned char shared[];
#if __CUDA_ARCH__ < 900
  if (Tile::kCluster > 1) {
    return;
  }
#endif
  if (!p.follows_input_product) {
    wait_for_previous_kernel();
  }
  const uint32_t base = shared_address(shared);
  const int steps = static_cast<int>(p.steps), state_size = static_cast<int>(p.state_size);
  using Product = FmaProduct<Tile>;
  Product product(base);
  VectorsOf<Tile> vectors(product, base);
  const FetchedRing<Tile> ring(base + Tile::kVectorBytes);
  const int64_t group = blockIdx.x / Tile::kCluster, block_row = group * p.group_rows;
  const int block_rows = at_most(p.rows - block_row, p.group_rows);
  const int column = product.column();
  const int64_t row = block_row + product.first_row();  // of the first element
  const RowsOfSequence& of_rows = p.rows_of_sequence;
  const RecurrenceSteps range = recurrence_steps(of_rows,
                                                 block_row,
                                                 block_rows,
                                                 steps,
                                                 static_cast<int>(p.first_step),
                                                 static_cast<int>(p.first_step + p.step_count),
                                                 p.reverse);
  bool exists[kElements];
  int length[kElements];
  float h[kElements], cell[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    exists[e] = column < state_size && product.first_row() + e < block_rows;
    length[e] = exists[e] ? length_of(of_rows, row + e, steps) : 0;
    h[e] = cell[e] = 0;
    if (exists[e]) {
      h[e] = p.h0.data != nullptr ? p.h0.at(0, row + e, column) : 0;
      cell[e] = p.c0.at(row + e, column);
    }
  }
  typename Product::Weights weights;
  product.load(p.weights, state_size, state_size, steps >> 30, weights);
  [[maybe_unused]] typename Product::Weights input_weights;
  [[maybe_unused]] const uint32_t input_rows = base + Tile::kVectorBytes;
  [[maybe_unused]] const uint32_t read_input = product.first_read(input_rows);
  [[maybe_unused]] float bias[kSaved] = {};
  if constexpr (Tile::kXInside) {
    product.load(p.input_weights,
                 state_size,
                 static_cast<int>(p.input_features),
                 steps >> 30,
                 input_weights);
  }
  if constexpr (Tile::kXInside || !Cell::kAdds) {
    if (p.bias != nullptr && product.column() < state_size) {
#pragma unroll
      for (int k = 0; k < kSaved; ++k) {
        bias[k] = p.bias[(k * state_size + product.column()) * p.bias_stride];
      }
    }
  }
  wait_for_previous_kernel();
  FetchedResets<kElements> is_reset;  // at the step that is computed next
  const auto fetch_resets = [&](int k) {
    is_reset.fetch(of_rows, row, length, range.time_of(k), k < range.end);
  };
  const auto apply_resets = [&](int e) {
    if (of_rows.reset != nullptr && is_reset[e]) {
      h[e] = cell[e] = 0;
    }
  };
  fetch_resets(range.begin);
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    apply_resets(e);
  }

  // Addresses of the first element at the time of a step.
  const int64_t elements = p.rows * p.state_size;  // of a step
  const int64_t first_time =
      min(range.time_of(range.first), range.time_of(max(range.last - 1, range.first)));
  const int64_t in_step = row * p.state_size + column,
                in_gates = row * kSaved * p.state_size + column;
  const auto index_at = [&](int t) { return t * elements + in_step; };
  const auto gates_index_at = [&](int64_t t) { return t * kSaved * elements + in_gates; };
  const auto inputs_index_at = [&](int64_t t) {
    return Cell::kAdds ? gates_index_at(t)
                       : t * kInputs * elements + row * kInputs * p.state_size + column;
  };
  const bool writes = product.is_first();

  const bool writes_cells = writes && p.cells != nullptr,
             writes_gates = writes && p.gates != nullptr;
  const ptrdiff_t cells_from_output = p.cells - p.output;
  const auto write = [&](float* output,
                         float* gates,
                         int e,
                         bool condition,
                         float out,
                         float c,
                         const float(&z)[kSaved]) {
    float* const to = output + e * state_size;
    store_word(to, __float_as_uint(out), condition && writes);
    store_word(to + cells_from_output, __float_as_uint(c), condition && writes_cells);
#pragma unroll
    for (int k = 0; k < kSaved; ++k) {
      store_word(
          gates + (e * kSaved + k) * state_size, __float_as_uint(z[k]), condition && writes_gates);
    }
  };
  const auto write_zeros = [&](int begin, int end) {
#pragma unroll 1
    for (int k = begin; k < end; ++k) {
      const int t = range.time_of(k);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        constexpr float kZeros[kSaved] = {};
        write(p.output + index_at(t), p.gates + gates_index_at(t), e, exists[e], 0, 0, kZeros);
      }
    }
  };
  write_zeros(range.first, range.begin);

  if (range.begin < range.end) {
    // What is copied ahead, from the addresses of step `copied` on. Past the end, the last step is
    // copied again.
    int copied = range.begin;
    const int first = range.time_of(range.begin);
    const float* z_x = p.z_x + inputs_index_at(first) - first_time * kInputs * elements;
    const int64_t step = in_register(p.reverse ? -elements : elements);
    const int64_t gates_step = in_register(kSaved * step);
    [[maybe_unused]] InputRingOf<Tile> input(
        p, block_row, block_rows, first, p.reverse ? -1 : 1, input_rows);
    const auto copy_step = [&](int k) {
      if constexpr (Tile::kXInside) {
        input.copy(input.slot(k), ++copied < range.end);
        return;
      }
      const uint32_t slot = ring.slot(k);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int k = 0; k < kInputs; ++k) {
          ring.copy(slot, e, k, z_x + (e * kInputs + k) * state_size, exists[e]);
        }
      }
      commit_copies();
      z_x += ++copied < range.end ? (Cell::kAdds ? gates_step : kInputs * step) : 0;
    };
#pragma unroll 1
    for (int i = 0; i < Tile::kAhead - (Tile::kXInside ? 0 : 1); ++i) {
      copy_step(i);
    }
    if constexpr (Tile::kXInside) {
      input.wait();
    }
    vectors.start();
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      vectors.put(0, e, 0, h[e]);
    }
    fetch_resets(range.begin + 1);
    vectors.receive(0);

    // Of the step before the current one, which is written now.
    float* output = p.output + index_at(first) - step;
    float* gates = p.gates + gates_index_at(first) - gates_step;
    float z[kElements][kSaved], out[kElements], new_cell[kElements];
    const auto write_last_step = [&](bool has_last) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        write(output, gates, e, has_last && exists[e], out[e], new_cell[e], z[e]);
      }
      output += step;
      gates += gates_step;
    };
    const int count = range.end - range.begin;
    int time = first;
    // The products with the input of the current step are computed during the one before.
    typename Product::Partial parts[Tile::kRows];
    const auto multiply_input = [&](int k) {
      if constexpr (Tile::kXInside) {
#pragma unroll
        for (int r = 0; r < Tile::kRows; ++r) {
          parts[r] = {};
          product.multiply(
              input_weights, read_input + input.slot(k) + 4 * r * Tile::kState, parts[r]);
        }
      }
    };
    multiply_input(0);
    if constexpr (Tile::kXInside) {
      sync_block<Tile::kThreads>();
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      float z_of_x[kElements][kSaved];
      if constexpr (!Tile::kXInside) {
        ring.wait();
      }
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int k = 0; k < kSaved; ++k) {
          const int input = cell::input_at<Cell>(k);
          z_of_x[e][k] = Tile::kXInside || input < 0 ? bias[k] : ring.read(ring.slot(i), e, input);
        }
      }
      typename Product::Sums sums;
      product.multiply(weights, i & 1, parts, sums);
      write_last_step(i > 0);
      // In the place of the step before or, if the input's product is already computed, of this
      // one.
      copy_step(i - (Tile::kXInside ? 0 : 1));
      product.finish(sums);
      multiply_input(i + 1);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const bool runs = time < length[e];
#pragma unroll
        for (int k = 0; k < kSaved; ++k) {
          const int gate = cell::gate_at<Cell>(k);
          z[e][k] = gate < 0 ? z_of_x[e][k] : z_of_x[e][k] + sums.of[gate][e];
        }
        const cell::State<float> state = Cell::template forward<ShortMath>(z[e], cell[e]);
        h[e] = runs ? state.h : h[e];
        cell[e] = runs ? state.cell : cell[e];
        apply_resets(e);
        vectors.put(~i & 1, e, 0, h[e]);
        out[e] = runs ? state.h : 0;
        new_cell[e] = runs ? state.cell : 0;
#pragma unroll
        for (int k = 0; k < kSaved; ++k) {
          z[e][k] = runs ? z[e][k] : 0;
        }
      }
      fetch_resets(range.begin + i + 2);
      time += p.reverse ? -1 : 1;
      if constexpr (Tile::kXInside) {
        input.wait();
      }
      vectors.receive(~i & 1);
    }
    write_last_step(true);
  }
  write_zeros(range.end, range.last);

  if (writes) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (exists[e]) {
        const int64_t to = in_step + e * state_size;
        p.h_n[to] = h[e];
        (p.c_n.exact != nullptr ? p.c_n.exact : p.c_n.rounded)[to] = cell[e];
      }
    }
  }
}

template <typename Cell>
cudaError_t launch_recurrence_fma(const RecurrenceForward<float>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  if (tile.x_inside && (problem.input_features < 1 || problem.input_features > tile.state_size)) {
    return cudaErrorInvalidValue;
  }
  return dispatch<kFmaTilesOf<Cell::kGates, Cell::kSaved>>(tile, [&](auto instance) {
    using Tile = FmaTile<Cell, /*kBackward=*/false, instance>;
    return launch_groups<&recurrence_forward_fma<Tile>, Tile::kThreads, Tile::kSharedBytes>(
        problem, tile, stream, problem.least_shared_bytes);
  });
}

}  // namespace lltm::cuda
