// The backward of the recurrence in 16 bits (mma.cuh).
#pragma once

#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../../cell/sides.h"
#include "../../epilogue/math.cuh"
#include "../../ptx/overlap.cuh"
#include "block_rows.cuh"
#include "launch_groups.cuh"
#include "mma.cuh"
#include "mma_cluster.cuh"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// The cell state before the first step of each of a thread's rows, for cells that read it: a word
/// of columns for each row, which only the thread itself reads.
template <typename Shape>
class InitialCells {
 public:
  static constexpr int kBytes =
      Shape::Cell::kReadsOldCell ? Shape::kTiles * Shape::kOwnRows * Shape::kThreads * 4 : 0;

  LLTM_DEVICE InitialCells(const AnyCells<typename Shape::Element>& c0,
                           const OwnElements<Shape>& own,
                           int64_t first_row,
                           uint32_t shared)
      : words_(in_register(shared + 4 * threadIdx.x)) {
    float cells[Shape::kTiles][Shape::kOwnRows][Shape::kOwnColumns] = {};
    own.load(c0, first_row, [&](int tile, int r, int j, float c) { cells[tile][r][j] = c; });
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int r = 0; r < Shape::kOwnRows; ++r) {
        store_shared(words_ + offset_of(tile, r),
                     word_of_columns<typename Shape::Element>(cells[tile][r]));
      }
    }
  }

  LLTM_DEVICE uint32_t word(int tile, int row) const {
    return load_shared(words_ + offset_of(tile, row));
  }

 private:
  static LLTM_DEVICE int offset_of(int tile, int row) {
    return (tile * Shape::kOwnRows + row) * Shape::kThreads * 4;
  }

  uint32_t words_;
};

/// A cell that does not read it has none.
struct NoInitialCells {};

template <typename Shape>
struct MmaBackward {
  using Element = typename Shape::Element;
  static constexpr int kGates = Shape::Cell::kGates, kSaved = Shape::Cell::kSaved;
  static constexpr int kOwnRows = Shape::kOwnRows;
  static constexpr bool kReadsOldCell = Shape::Cell::kReadsOldCell;
  // The words of a row: what is saved, the cell state, the gradients of output and cells and, if it
  // is read, the cell state of the step before.
  static constexpr int kNewCell = kSaved, kGradOutput = kSaved + 1, kGradCells = kSaved + 2,
                       kOldCell = kSaved + 3;
  using Inputs = ColumnsAhead<Shape, kSaved + (kReadsOldCell ? 4 : 3)>;
  using Operands = OperandsOf<Shape, kGates>;
  using Weights = WeightFragments<Shape, true>;
  using Shares = SharesOfK<Shape, 1>;

  // In shared memory, after the barriers. The weights are read before anything else is written.
  static constexpr int kInputsAt = Operands::kBarrierBytes;
  static constexpr int kOperandsAt = kInputsAt + Inputs::kBytes;
  static constexpr int kSharesAt = kOperandsAt + Operands::kBytes;
  static constexpr int kInitialCellsAt = kSharesAt + Shares::kBytes;
  static constexpr int kWeightsAt = kInputsAt;
  static constexpr int kSharedBytes =
      std::max(kInitialCellsAt + InitialCells<Shape>::kBytes, kWeightsAt + Weights::kSharedBytes);

  /// Where a thread reads at a time.
  struct Sources {
    const Element *gates, *cells, *grad_output, *grad_cells;
    int size;  // of the state
    int64_t cells_time_stride, grad_output_strides[3], grad_cells_strides[3];
    // All rows or, of a gradient that is absent, none: a bool would be kept as a predicate in the
    // loop, which nvcc 13.0 loses.
    int grad_output_rows, grad_cells_rows;
    int times_left;

    LLTM_DEVICE Sources(const RecurrenceBackward<Element>& p,
                        const OwnElements<Shape>& own,
                        int state_size,
                        int64_t first_row,
                        const BlockTimes& times)
        : size(state_size),
          cells_time_stride(times.step * p.rows * p.state_size),
          grad_output_rows(in_register(p.grad_output.data != nullptr ? Shape::kRows : 0)),
          grad_cells_rows(in_register(p.grad_cells.data != nullptr ? Shape::kRows : 0)),
          times_left(times.count) {
      const int64_t row = first_row + own.row, step = times.first * p.rows + row;
      gates = p.gates + step * kSaved * size + own.column;
      cells = p.cells + step * size + own.column;
      grad_output = start(p.grad_output, grad_output_strides, times, row, own.column);
      grad_cells = start(p.grad_cells, grad_cells_strides, times, row, own.column);
    }

    /// Where word `word` of a row is, of the thread's first `rows` rows.
    LLTM_DEVICE ColumnsAt<Element> at(int word, int row, int rows) const {
      if (word < kSaved) {
        return {gates + (row * kSaved + word) * size, 1, rows - row};
      }
      if (word == kNewCell) {
        return {cells + row * size, 1, rows - row};
      }
      if (word == kOldCell) {
        return {cells + cells_time_stride + row * size, 1, times_left > 1 ? rows - row : 0};
      }
      if (word == kGradOutput) {
        return {grad_output + row * grad_output_strides[1],
                grad_output_strides[2],
                min(rows - row, grad_output_rows)};
      }
      return {grad_cells + row * grad_cells_strides[1],
              grad_cells_strides[2],
              min(rows - row, grad_cells_rows)};
    }

    LLTM_DEVICE void advance() {
      gates += kSaved * cells_time_stride;
      cells += cells_time_stride;
      grad_output += grad_output_strides[0];
      grad_cells += grad_cells_strides[0];
      --times_left;
    }

   private:
    static LLTM_DEVICE const Element* start(const Steps<Element>& gradient,
                                            int64_t (&strides)[3],
                                            const BlockTimes& times,
                                            int64_t row,
                                            int column) {
      strides[0] = times.step * gradient.strides[0];
      strides[1] = gradient.strides[1];
      strides[2] = gradient.strides[2];
      return gradient.data + times.first * gradient.strides[0] + row * gradient.strides[1] +
             column * gradient.strides[2];
    }
  };

  /// What a thread writes for a tile at a step.
  struct Results {
    uint32_t d_gates[kSaved][kOwnRows] = {};
  };

  /// Where a thread writes its results of a time.
  struct Places {
    Element* d_gates;
    int size;
    int64_t row_stride, time_stride;

    LLTM_DEVICE Places(const RecurrenceBackward<Element>& p,
                       const OwnElements<Shape>& own,
                       int state_size,
                       int64_t first_row,
                       int t,
                       int direction)
        : d_gates(p.d_gates + (t * p.rows + first_row + own.row) * p.d_gates_stride + own.column),
          size(state_size),
          row_stride(kept_in_register<Shape>(p.d_gates_stride)),
          time_stride(direction * p.rows * p.d_gates_stride) {}

    LLTM_DEVICE void store(const OwnElements<Shape>& own,
                           int tile,
                           const Results& results,
                           bool exist) const {
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        const int row = 8 * tile + r;
#pragma unroll
        for (int k = 0; k < kSaved; ++k) {
          store_columns(
              own, d_gates + row * row_stride + k * size, results.d_gates[k][r], row, exist);
        }
      }
    }

    LLTM_DEVICE void advance() { d_gates += time_stride; }
  };
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) recurrence_backward_mma_kernel(
    const __grid_constant__ RecurrenceBackward<typename Shape::Element> p) {
  using Kernel = MmaBackward<Shape>;
  using Cell = typename Shape::Cell;
  using Element = typename Shape::Element;
  using Math = ShortRoundedMath;
  constexpr int kTiles = Shape::kTiles, kTilesAtOnce = Shape::kTilesAtOnce;
  constexpr int kOwnRows = Shape::kOwnRows, kOwnColumns = Shape::kOwnColumns;
  constexpr int kGates = Cell::kGates, kSaved = Cell::kSaved;
  // Products wait for each other unless there are four sums.
  constexpr int kChains = 4 / kTilesAtOnce;
  extern __shared__ __align__(16) unsigned char shared[];
#if __CUDA_ARCH__ < 900
  if (Shape::kCluster > 1) {
    return;
  }
#endif
  wait_for_previous_kernel();

  const GroupRows<Shape> group(p);
  const int64_t first_row = group.first;
  const int block_rows = group.count, tiles = group.tiles();
  const int size = kept_in_register<Shape>(static_cast<int>(p.state_size)),
            steps = static_cast<int>(p.steps);
  const OwnElements<Shape> own(block_rows, size);
  BlockRows rows(p.rows_of_sequence, first_row, block_rows, steps);
  const BlockTimes times(0, rows.longest(), !p.reverse);
  rows.fetch_resets(times.first, times.count > 0);

  const uint32_t shared_at = shared_address(shared);
  typename Kernel::Inputs inputs(own, shared_at + Kernel::kInputsAt);
  typename Kernel::Sources sources(p, own, size, first_row, times);
  TilesAhead<Shape> tiles_ahead(group);
  int times_to_fetch = times.count, rows_to_fetch = times.count > 0 ? own.rows : 0;
  const auto fetch = [&](int tile) {
    inputs.fetch([&](int word, int r) { return sources.at(word, 8 * tile + r, rows_to_fetch); });
    if (tiles_ahead.is_last(tile)) {
      sources.advance();
      rows_to_fetch = --times_to_fetch > 0 ? rows_to_fetch : 0;
    }
  };
  typename Kernel::Weights weights;
  weights.load(p.weights, p.state_size, own, shared_at + Kernel::kWeightsAt);

  // The gradient of the cell state that a row's next step starts from, in the order of the
  // backward, and that of h, except for the product with the gates of the step before.
  float d_cell[kTiles][kOwnRows][kOwnColumns] = {}, d_h[kTiles][kOwnRows][kOwnColumns] = {};
  own.load(p.grad_h_n, first_row, [&](int tile, int r, int j, uint32_t bits) {
    d_h[tile][r][j] = Packed<Element>::low(bits);
  });
  own.load(p.grad_c_n, first_row, [&](int tile, int r, int j, float d) { d_cell[tile][r][j] = d; });

  typename Kernel::Operands operands(own, group, shared_at + Kernel::kOperandsAt, shared_at);
  [[maybe_unused]] typename Kernel::Shares shares(own, shared_at + Kernel::kSharesAt);
  __syncthreads();  // all weights have been read
#pragma unroll 1
  for (int i = 0; i < inputs.kTilesAhead; ++i) {
    fetch(tiles_ahead.first(i));
  }
  if constexpr (Shape::kCluster > 1) {
    operands.start_cluster();
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        operands.publish(tile, r, gate, 0);
      }
    }
  }
  operands.finish_all_tiles();
  const auto initial_cells = [&] {
    if constexpr (Cell::kReadsOldCell) {
      return InitialCells<Shape>(p.c0, own, first_row, shared_at + Kernel::kInitialCellsAt);
    } else {
      return NoInitialCells();
    }
  }();

  // With a single tile the results are written during the next step's product.
  constexpr bool kWritesLater = kTiles == 1;
  typename Kernel::Places places(
      p, own, size, first_row, times.first - (kWritesLater ? times.step : 0), times.step);
  typename Kernel::Results results[kTilesAtOnce];
  float d_bias[kSaved][kOwnColumns] = {};
  // The rows whose h has been the operand of the step that the backward did last. For others the
  // product says nothing.
  uint32_t linked = 0;
  // The product of a step.
  const auto multiply = [&](int first_tile, float(&sums)[kTilesAtOnce][1][kChains][4]) {
    operands.start_tiles(first_tile);
    operands.multiply(weights, first_tile, sums);
    if constexpr (Shape::kShares > 1) {
      shares.add(sums[0]);
    }
  };
  // The gradient of h after the product.
  const auto gradient_of_h = [&](const float(&sums)[1][kChains][4], int tile, int r, int j) {
    const float product = sum_of(own, sums[0], r, j);
    return d_h[tile][r][j] + ((linked >> (8 * tile + r) & 1) != 0 ? product : 0.0f);
  };
  int t = times.first;
#pragma unroll 1
  for (int k = 0; k < times.count; ++k) {
    // `starts`: those running whose first step, in the order of the forward, this is.
    uint32_t running = 0, resets = 0, starts = 0;
#pragma unroll
    for (int first_tile = 0; first_tile < kTiles; first_tile += kTilesAtOnce) {
      if (Shape::kCluster > 1 && first_tile >= tiles) {
        break;
      }
      float sums[kTilesAtOnce][1][kChains][4] = {};
      multiply(first_tile, sums);
      if (first_tile == 0) {
        running = own.own(rows.running(t));
        resets = own.own(rows.resets());
        t += times.step;
        rows.fetch_resets(t, k + 1 < times.count);
        if constexpr (Cell::kReadsOldCell) {
          starts = k + 1 < times.count ? running & ~own.own(rows.running(t)) : running;
        }
      }
      if constexpr (kWritesLater) {
        places.store(own, first_tile, results[0], k > 0);
      }
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        const int tile = first_tile + i;
        typename Kernel::Inputs::Words words;
        inputs.take(words);
        fetch(tiles_ahead.after(tile, inputs.kTilesAhead));
        if constexpr (Cell::kReadsOldCell) {
#pragma unroll
          for (int r = 0; r < kOwnRows; ++r) {
            const uint32_t initial = initial_cells.word(tile, r);
            uint32_t& old_cell = words[Kernel::kOldCell][r];
            old_cell = (starts >> (8 * tile + r) & 1) != 0 ? initial : old_cell;
            old_cell = (resets >> (8 * tile + r) & 1) != 0 ? 0 : old_cell;
          }
        }
        typename Cell::template Derivatives<float> derivatives[kOwnRows][kOwnColumns];
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
          for (int j = 0; j < kOwnColumns; ++j) {
            float z[kSaved];
#pragma unroll
            for (int k = 0; k < kSaved; ++k) {
              z[k] = column_of<Element>(words[k][r], j);
            }
            float old_cell = 0;
            if constexpr (Cell::kReadsOldCell) {
              old_cell = column_of<Element>(words[Kernel::kOldCell][r], j);
            }
            derivatives[r][j] = Cell::template derivatives<Math>(
                z, old_cell, column_of<Element>(words[Kernel::kNewCell][r], j));
          }
        }
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
          const bool runs = (running >> (8 * tile + r) & 1) != 0;
          const bool reset = (resets >> (8 * tile + r) & 1) != 0;
          float d_z[kSaved][kOwnColumns];
#pragma unroll
          for (int j = 0; j < kOwnColumns; ++j) {
            const float d_h_here = gradient_of_h(sums[i], tile, r, j);
            float d_z_of_element[kSaved];
            const float d_cell_here = Cell::backward(
                derivatives[r][j],
                d_h_here + column_of<Element>(words[Kernel::kGradOutput][r], j),
                d_cell[tile][r][j] + column_of<Element>(words[Kernel::kGradCells][r], j),
                d_z_of_element);
#pragma unroll
            for (int k = 0; k < kSaved; ++k) {
              d_z[k][j] = d_z_of_element[k];
            }
            d_h[tile][r][j] = runs ? 0.0f : d_h_here;
            d_cell[tile][r][j] = runs ? (reset ? 0.0f : d_cell_here) : d_cell[tile][r][j];
          }
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            const uint32_t word = runs ? own.existing(word_of_columns<Element>(d_z[k])) : 0;
            if (const int gate = cell::gate_at<Cell>(k); gate >= 0) {
              operands.publish(tile, r, gate, word);
            }
            results[i].d_gates[k][r] = word;
          }
        }
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
#pragma unroll
            for (int j = 0; j < kOwnColumns; ++j) {
              d_bias[k][j] += column_of<Element>(results[i].d_gates[k][r], j);
            }
          }
        }
      }
      operands.finish_tiles(first_tile);
      if constexpr (!kWritesLater) {
#pragma unroll
        for (int i = 0; i < kTilesAtOnce; ++i) {
          places.store(own, first_tile + i, results[i], true);
        }
      }
    }
    linked = running & ~resets;
    places.advance();
  }
  if constexpr (kWritesLater) {
    places.store(own, 0, results[0], times.count > 0);
  }
  // Not earlier: blocks of the next kernel that wait would keep other streams' from starting.
  start_next_kernel();

  if (p.d_bias_parts != nullptr) {
    float* const to = p.d_bias_parts + group.group * kSaved * size + own.column;
#pragma unroll
    for (int k = 0; k < kSaved; ++k) {
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        float sum = d_bias[k][j];
        if constexpr (!Shape::kOneRow) {  // over the threads of a column
          sum += __shfl_xor_sync(~0u, sum, 1);
          sum += __shfl_xor_sync(~0u, sum, 2);
        }
        if constexpr (Shape::kShares > 1) {
          float of_all[1][1][4] = {{{sum, sum}}};
          shares.add(of_all);
          sum = of_all[0][0][0];
        }
        if ((Shape::kOneRow || own.lane % 4 == 0) && own.share == 0 && j < own.columns) {
          to[k * size + j] = sum;
        }
      }
    }
  }
  if (p.d_h0 != nullptr || Cell::kCarriesH || Shape::kCluster > 1) {
    // A cluster's blocks receive all that was sent.
#pragma unroll
    for (int first_tile = 0; first_tile < kTiles; first_tile += kTilesAtOnce) {
      if (Shape::kCluster > 1 && first_tile >= tiles) {
        break;
      }
      float sums[kTilesAtOnce][1][kChains][4] = {};
      multiply(first_tile, sums);
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        const int tile = first_tile + i;
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
          for (int j = 0; j < kOwnColumns; ++j) {
            d_h[tile][r][j] = gradient_of_h(sums[i], tile, r, j);
          }
        }
      }
    }
  }
  own.for_each(first_row, [&](int tile, int r, int j, int64_t row, int column) {
    const int64_t index = row * size + column;
    if (p.d_h0 != nullptr) {
      p.d_h0[index] = element_of<Element>(d_h[tile][r][j]);
    }
    p.d_c0.store(index,
                 Cell::kCarriesH ? d_cell[tile][r][j] + d_h[tile][r][j] : d_cell[tile][r][j],
                 element_of<Element>);
  });
  typename Kernel::Places idle(p, own, size, first_row, rows.longest(), 1);
#pragma unroll 1
  for (int time = rows.longest(); time < steps; ++time) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      idle.store(own, tile, {}, true);
    }
    idle.advance();
  }
}

template <typename Cell, typename Element>
cudaError_t launch_recurrence_mma(const RecurrenceBackward<Element>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  return dispatch_mma<Cell>(problem, tile, [&](auto instance, auto in_pairs) {
    constexpr RecurrenceTile kTile = instance;
    if constexpr (kTile.x_inside) {
      return cudaErrorInvalidValue;
    } else {
      using Shape = MmaShape<Cell, Element, kTile, in_pairs>;
      return launch_groups<&recurrence_backward_mma_kernel<Shape>,
                           Shape::kThreads,
                           MmaBackward<Shape>::kSharedBytes>(problem, tile, stream);
    }
  });
}

}  // namespace lltm::cuda
