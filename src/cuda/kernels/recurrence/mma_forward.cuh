// The forward of the recurrence in 16 bits (mma.cuh).
#pragma once

#include "../../epilogue/math.cuh"
#include "../../ptx/overlap.cuh"
#include "../../runtime/launch.cuh"
#include "block_rows.cuh"
#include "lltm_cell.cuh"
#include "mma.cuh"
#include "pairs.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace lltm::cuda {

template <typename Shape>
struct MmaForward {
  using Element = typename Shape::Element;
  static constexpr int kGates = Shape::Cell::kGates;
  static constexpr int kOwnRows = Shape::kOwnRows, kOwnColumns = Shape::kOwnColumns;
  using Inputs = ColumnsAhead<Shape, kGates>;
  using Operands = RowOperands<Shape, 1>;

  // The weights are read before the operands are written.
  static constexpr int kSharedBytes =
      Inputs::kBytes + std::max(Shape::kWeightsBytes, Operands::kBytes);

  /// What a thread writes for a tile at a step.
  struct Results {
    uint32_t h[kOwnRows] = {}, cell[kOwnRows] = {}, gates[kGates][kOwnRows] = {};
  };

  /// Where a thread writes its results of a time.
  struct Places {
    Element *output, *cells, *gates;
    bool keeps_cells, keeps_gates;
    int size;             // of the state
    int64_t time_stride;  // of output and cells

    __device__ __forceinline__ Places(const RecurrenceForward<Element>& p,
                                      const OwnElements<Shape>& own,
                                      int state_size,
                                      int64_t first_row,
                                      int t,
                                      int direction)
        : keeps_cells(p.cells != nullptr),
          keeps_gates(p.gates != nullptr),
          size(state_size),
          time_stride(direction * p.rows * p.state_size) {
      const int64_t row = t * p.rows + first_row + own.row;
      output = p.output + row * size + own.column;
      cells = p.cells + row * size + own.column;
      gates = p.gates + row * kGates * size + own.column;
    }

    __device__ __forceinline__ void store(const OwnElements<Shape>& own,
                                          int tile,
                                          const Results& results,
                                          bool exist) const {
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        const int row = 8 * tile + r;
        store_columns(own, output + row * size, results.h[r], row, exist);
        store_columns(own, cells + row * size, results.cell[r], row, exist && keeps_cells);
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          store_columns(own,
                        gates + (row * kGates + gate) * size,
                        results.gates[gate][r],
                        row,
                        exist && keeps_gates);
        }
      }
    }

    __device__ __forceinline__ void advance() {
      output += time_stride;
      cells += time_stride;
      gates += kGates * time_stride;
    }
  };
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads) recurrence_forward_mma_kernel(
    const __grid_constant__ RecurrenceForward<typename Shape::Element> p) {
  using Kernel = MmaForward<Shape>;
  using Cell = typename Shape::Cell;
  using Element = typename Shape::Element;
  using Math = ShortForwardMath<Element>;
  constexpr int kTiles = Shape::kTiles, kOwnRows = Shape::kOwnRows;
  constexpr int kOwnColumns = Shape::kOwnColumns, kGates = Cell::kGates;
  extern __shared__ __align__(16) unsigned char shared[];
  wait_for_previous_kernel();

  const int64_t first_row = int64_t{blockIdx.x} * Shape::kRows;
  const int block_rows = at_most(p.rows - first_row, Shape::kRows);
  const int size = parameter_in_register<Shape>(static_cast<int>(p.state_size));
  const OwnElements<Shape> own(block_rows, size);
  BlockRows rows(p.rows_of_sequence, first_row, block_rows, static_cast<int>(p.steps));
  // The chunk of time, and the part of it at which rows run.
  const int low =
      static_cast<int>(p.reverse ? p.steps - p.first_step - p.step_count : p.first_step);
  const int high = low + static_cast<int>(p.step_count);
  const BlockTimes times(low, min(high, rows.longest()), p.reverse);
  rows.fetch_resets(times.first, times.count > 0);

  const uint32_t inputs_at = shared_address(shared);
  typename Kernel::Inputs inputs(own, inputs_at);
  const Element* z_x =
      p.z_x + ((times.first - low) * p.rows + first_row + own.row) * kGates * size + own.column;
  const int64_t z_x_stride = times.step * p.rows * kGates * size;
  int times_to_fetch = times.count, rows_to_fetch = times.count > 0 ? own.rows : 0;
  const auto fetch = [&](int tile) {
    inputs.fetch([&](int gate, int r) {
      const int row = 8 * tile + r;
      return ColumnsAt<Element>{z_x + (row * kGates + gate) * size, 1, row < rows_to_fetch};
    });
    if (tile == kTiles - 1) {
      z_x += z_x_stride;
      rows_to_fetch = --times_to_fetch > 0 ? rows_to_fetch : 0;
    }
  };
#pragma unroll
  for (int i = 0; i < inputs.kTilesAhead; ++i) {
    fetch(i % kTiles);
  }

  WeightFragments<Shape> weights;
  weights.template load<false>(p.weights, p.state_size, own, inputs_at + Kernel::Inputs::kBytes);

  // The state: h as words of columns.
  uint32_t h[kTiles][kOwnRows] = {};
  float cell[kTiles][kOwnRows][kOwnColumns] = {};
  const auto for_each_element = [&](const auto& function) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          if (8 * tile + r < own.rows && j < own.columns) {
            function(tile, r, j, first_row + own.row + 8 * tile + r, own.column + j);
          }
        }
      }
    }
  };
  for_each_element([&](int tile, int r, int j, int64_t row, int column) {
    if (p.h0.data != nullptr) {
      h[tile][r] |= uint32_t{p.h0.at(0, row, column).x} << (16 * j);
    }
    if (p.c0.exact.data != nullptr) {
      cell[tile][r][j] = p.c0.exact.at(0, row, column);
    } else if (p.c0.rounded.data != nullptr) {
      cell[tile][r][j] = static_cast<float>(p.c0.rounded.at(0, row, column));
    }
  });

  typename Kernel::Operands operands(own, inputs_at + Kernel::Inputs::kBytes);
  // Replaces the state of the rows in a mask by zeros, and publishes h.
  const auto start_from_state = [&](int tile, int r, uint32_t resets) {
    const bool reset = (resets >> (8 * tile + r) & 1) != 0;
    h[tile][r] = reset ? 0 : h[tile][r];
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      cell[tile][r][j] = reset ? 0 : cell[tile][r][j];
    }
    operands.publish(tile, r, 0, h[tile][r]);
  };
  const uint32_t first_resets = own.own(rows.resets());
  __syncthreads();  // all weights have been read
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      start_from_state(tile, r, first_resets);
    }
  }
  rows.fetch_resets(times.first + times.step, times.count > 1);

  // With a single tile the results are written during the next step's product.
  constexpr bool kWritesLater = kTiles == 1;
  typename Kernel::Places places(
      p, own, size, first_row, times.first - (kWritesLater ? times.step : 0), times.step);
  typename Kernel::Results results;
  int t = times.first;
#pragma unroll 1
  for (int k = 0; k < times.count; ++k) {
    operands.start_step();
    uint32_t running = 0, next_resets = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float sums[kGates][2][4] = {};
      operands.multiply(weights, tile, sums);
      if (tile == 0) {
        running = own.own(rows.running(t));
        next_resets = own.own(rows.resets());
        t += times.step;
        rows.fetch_resets(t + times.step, k + 2 < times.count);
      }
      if constexpr (kWritesLater) {
        places.store(own, tile, results, k > 0);
      }
      typename Kernel::Inputs::Words z_x_words;
      inputs.take(z_x_words);
      fetch((tile + inputs.kTilesAhead) % kTiles);
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        const bool runs = (running >> (8 * tile + r) & 1) != 0;
        float z[kGates][kOwnColumns], new_h[kOwnColumns], new_cell[kOwnColumns];
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          float z_of_element[kGates];
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            z[gate][j] = sum_of(own, sums[gate], r, j) + column_of<Element>(z_x_words[gate][r], j);
            z_of_element[gate] = z[gate][j];
          }
          new_cell[j] = cell[tile][r][j];
          new_h[j] = Cell::template forward<Math>(z_of_element, new_cell[j]);
          cell[tile][r][j] = runs ? new_cell[j] : cell[tile][r][j];
        }
        const uint32_t h_word = own.existing(word_of_columns<Element>(new_h));
        h[tile][r] = runs ? h_word : h[tile][r];
        start_from_state(tile, r, next_resets);
        results.h[r] = runs ? h_word : 0;
        results.cell[r] = runs ? word_of_columns<Element>(new_cell) : 0;
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          results.gates[gate][r] = runs ? word_of_columns<Element>(z[gate]) : 0;
        }
      }
      if constexpr (!kWritesLater) {
        places.store(own, tile, results, true);
      }
    }
    places.advance();
  }
  if constexpr (kWritesLater) {
    places.store(own, 0, results, times.count > 0);
  }
  // Not earlier: blocks of the next kernel that wait would keep other streams' from starting.
  start_next_kernel();

  for_each_element([&](int tile, int r, int j, int64_t row, int column) {
    const int64_t index = row * size + column;
    p.h_n[index] = Element(static_cast<uint16_t>(h[tile][r] >> (16 * j)), Element::from_bits());
    if (p.c_n.exact != nullptr) {
      p.c_n.exact[index] = cell[tile][r][j];
    }
    if (p.c_n.rounded != nullptr) {
      p.c_n.rounded[index] = element_of<Element>(cell[tile][r][j]);
    }
  });
  typename Kernel::Places idle(p, own, size, first_row, max(low, rows.longest()), 1);
#pragma unroll 1
  for (int time = max(low, rows.longest()); time < high; ++time) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      idle.store(own, tile, {}, true);
    }
    idle.advance();
  }
}

template <typename Element>
cudaError_t launch_recurrence_mma(const RecurrenceForward<Element>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  if (problem.state_size > tile.state_size || problem.steps > std::numeric_limits<int>::max()) {
    return cudaErrorInvalidValue;
  }
  return with_mma_tile(tile, is_in_pairs(problem), [&]<int kState, int kRows, bool kPairs>() {
    using Shape = MmaShape<LltmCell, Element, kState, kRows, kPairs>;
    return launch_in_clusters<&recurrence_forward_mma_kernel<Shape>,
                              Shape::kThreads,
                              MmaForward<Shape>::kSharedBytes>(
        problem, dim3(static_cast<unsigned>(recurrence_blocks(problem.rows, tile))), 1, stream);
  });
}

}  // namespace lltm::cuda
