// The forward of the recurrence in 16 bits (mma.cuh).
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
#include "mma_input.cuh"

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

/// z_x of a block's elements, which a thread reads some tiles ahead. start() is called first.
template <typename Shape>
class ZxAhead {
 public:
  using Element = typename Shape::Element;
  static constexpr int kInputs = Shape::Cell::kInputs;
  using Columns = ColumnsAhead<Shape, kInputs>;
  using Words = typename Columns::Words;
  static constexpr int kBytes = Columns::kBytes;

  /// For the times of a launch from `low` on.
  LLTM_DEVICE ZxAhead(const RecurrenceForward<Element>& p,
                      const OwnElements<Shape>& own,
                      int state_size,
                      const GroupRows<Shape>& group,
                      const BlockTimes& times,
                      int low,
                      uint32_t shared)
      : columns_(own, shared),
        tiles_(group),
        data_(p.z_x +
              ((times.first - low) * p.rows + group.first + own.row) * kInputs * state_size +
              own.column),
        time_stride_(times.step * p.rows * kInputs * state_size),
        size_(state_size),
        times_to_fetch_(times.count),
        rows_(times.count > 0 ? own.rows : 0) {}

  LLTM_DEVICE void start() {
#pragma unroll 1
    for (int i = 0; i < Columns::kTilesAhead; ++i) {
      fetch(tiles_.first(i));
    }
  }

  LLTM_DEVICE void take(int tile, Words& words) {
    columns_.take(words);
    fetch(tiles_.after(tile, Columns::kTilesAhead));
  }

 private:
  LLTM_DEVICE void fetch(int tile) {
    columns_.fetch([&](int input, int r) {
      const int row = 8 * tile + r;
      return ColumnsAt<Element>{data_ + (row * kInputs + input) * size_, 1, rows_ - row};
    });
    if (tiles_.is_last(tile)) {
      data_ += time_stride_;
      rows_ = --times_to_fetch_ > 0 ? rows_ : 0;
    }
  }

  Columns columns_;
  TilesAhead<Shape> tiles_;
  const Element* data_;
  int64_t time_stride_;
  int size_;  // of the state
  int times_to_fetch_, rows_;
};

template <typename Shape>
struct MmaForward {
  using Element = typename Shape::Element;
  // The kernel multiplies the input, instead of reading z_x.
  static constexpr bool kXInside = Shape::kTile.x_inside;
  static constexpr int kGates = Shape::Cell::kGates, kSaved = Shape::Cell::kSaved;
  static constexpr int kOwnRows = Shape::kOwnRows, kOwnColumns = Shape::kOwnColumns;
  using Inputs = std::conditional_t<kXInside, InputProduct<Shape>, ZxAhead<Shape>>;
  using Operands = OperandsOf<Shape, 1>;
  using Weights = WeightFragments<Shape, false>;
  using Shares = SharesOfK<Shape, kGates>;

  // In shared memory, after the barriers. The weights of h are read before anything else is written
  // but the bias.
  static constexpr int kInputsAt = Operands::kBarrierBytes;
  static constexpr int kOperandsAt = kInputsAt + Inputs::kBytes;
  static constexpr int kSharesAt = kOperandsAt + Operands::kBytes;
  static constexpr int kWeightsAt = kInputsAt;
  static constexpr int kSharedBytes =
      std::max(kSharesAt + Shares::kBytes, kWeightsAt + Weights::kSharedBytes);
  static_assert(!kXInside || kSharedBytes <= bytes_to_multiply_input(kGates));
  static_assert(!kXInside ||
                kWeightsAt + Weights::kSharedBytes <=
                    kInputsAt +
                        SharedWeights<Shape, Shape::kState, kLargestRecurrentInput, true>::kBytes);

  /// What a thread writes for a tile at a step.
  struct Results {
    uint32_t h[kOwnRows] = {}, cell[kOwnRows] = {}, gates[kSaved][kOwnRows] = {};
  };

  /// Where a thread writes its results of a time.
  struct Places {
    Element *output, *cells, *gates;
    bool keeps_cells, keeps_gates;
    int size;             // of the state
    int64_t time_stride;  // of output and cells

    LLTM_DEVICE Places(const RecurrenceForward<Element>& p,
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
      gates = p.gates + row * kSaved * size + own.column;
    }

    /// For the tiles from `first_tile` on.
    LLTM_DEVICE void store(const OwnElements<Shape>& own,
                           int first_tile,
                           const Results (&results)[Shape::kTilesAtOnce],
                           bool exist) const {
      const auto for_each_row = [&](const auto& function) {
#pragma unroll
        for (int i = 0; i < Shape::kTilesAtOnce; ++i) {
#pragma unroll
          for (int r = 0; r < kOwnRows; ++r) {
            function(results[i], r, 8 * (first_tile + i) + r);
          }
        }
      };
      for_each_row([&](const Results& of, int r, int row) {
        store_columns(own, output + int64_t{row} * size, of.h[r], row, exist);
      });
      if_kept(keeps_cells, exist, [&](bool kept) {
        for_each_row([&](const Results& of, int r, int row) {
          store_columns(own, cells + int64_t{row} * size, of.cell[r], row, kept);
        });
      });
      if_kept(keeps_gates, exist, [&](bool kept) {
        for_each_row([&](const Results& of, int r, int row) {
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            store_columns(own, gates + int64_t{row * kSaved + k} * size, of.gates[k][r], row, kept);
          }
        });
      });
    }

    LLTM_DEVICE void advance() {
      output += time_stride;
      cells += time_stride;
      gates += kSaved * time_stride;
    }

   private:
    /// With several tiles, all the instructions cost more than a branch.
    template <typename Store>
    static LLTM_DEVICE void if_kept(bool keeps, bool exist, const Store& store) {
      if constexpr (Shape::kTiles == 1) {
        store(exist && keeps);
      } else if (keeps) {
        store(exist);
      }
    }
  };
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) recurrence_forward_mma_kernel(
    const __grid_constant__ RecurrenceForward<typename Shape::Element> p) {
  using Kernel = MmaForward<Shape>;
  using Cell = typename Shape::Cell;
  using Element = typename Shape::Element;
  using Math = ShortForwardMath<Element>;
  constexpr int kTiles = Shape::kTiles, kTilesAtOnce = Shape::kTilesAtOnce;
  constexpr int kOwnRows = Shape::kOwnRows, kOwnColumns = Shape::kOwnColumns;
  constexpr int kGates = Cell::kGates, kInputs = Cell::kInputs, kSaved = Cell::kSaved;
  constexpr bool kXInside = Kernel::kXInside;
  // With one tile, products wait for each other unless there are two sums.
  constexpr int kChains = kTilesAtOnce == 1 && Shape::kCluster == 1 ? 2 : 1;
  extern __shared__ __align__(16) unsigned char shared[];
#if __CUDA_ARCH__ < 900
  if (Shape::kCluster > 1) {
    return;
  }
#endif
  if (!p.follows_input_product) {
    wait_for_previous_kernel();
  }

  const GroupRows<Shape> group(p);
  const int64_t first_row = group.first;
  const int block_rows = group.count, tiles = group.tiles();
  const int size = kept_in_register<Shape>(static_cast<int>(p.state_size));
  const OwnElements<Shape> own(block_rows, size);
  BlockRows rows(p.rows_of_sequence, first_row, block_rows, static_cast<int>(p.steps));
  // The chunk of time, and the part of it at which rows run.
  const int low =
      static_cast<int>(p.reverse ? p.steps - p.first_step - p.step_count : p.first_step);
  const int high = low + static_cast<int>(p.step_count);
  const BlockTimes times(low, min(high, rows.longest()), p.reverse);
  rows.fetch_resets(times.first, times.count > 0);

  const uint32_t shared_at = shared_address(shared);
  const uint32_t inputs_at = shared_at + Kernel::kInputsAt;
  auto inputs = [&] {
    if constexpr (kXInside) {
      return typename Kernel::Inputs(p, own, first_row, block_rows, times, inputs_at);
    } else {
      return typename Kernel::Inputs(p, own, size, group, times, low, inputs_at);
    }
  }();
  typename Kernel::Weights weights;
  weights.load(p.weights, p.state_size, own, shared_at + Kernel::kWeightsAt);

  // The state: h as words of columns. With several tiles registers are scarce, and h is read again
  // from what has been published.
  constexpr bool kReadsState = kTilesAtOnce > 1;
  uint32_t h[kTiles][kOwnRows] = {};
  float cell[kTiles][kOwnRows][kOwnColumns] = {};
  own.load(p.h0, first_row, [&](int tile, int r, int j, uint32_t bits) {
    h[tile][r] |= bits << (16 * j);
  });
  own.load(p.c0, first_row, [&](int tile, int r, int j, float c) { cell[tile][r][j] = c; });

  // Of what x gives nothing to.
  [[maybe_unused]] float bias[kSaved][kOwnColumns] = {};
  if constexpr (!Cell::kAdds) {
    if (p.bias != nullptr) {
#pragma unroll
      for (int k = 0; k < kSaved; ++k) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          bias[k][j] = j < own.columns
                           ? static_cast<float>(p.bias[(k * size + own.column + j) * p.bias_stride])
                           : 0;
        }
      }
    }
  }

  typename Kernel::Operands operands(own, group, shared_at + Kernel::kOperandsAt, shared_at);
  [[maybe_unused]] typename Kernel::Shares shares(own, shared_at + Kernel::kSharesAt);
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
  wait_for_previous_kernel();
  inputs.start();
  if constexpr (kXInside) {
    inputs.load_weights(p);
    __syncthreads();
  }
  if constexpr (Shape::kCluster > 1) {
    operands.start_cluster();
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      start_from_state(tile, r, first_resets);
    }
  }
  operands.finish_all_tiles();
  rows.fetch_resets(times.first + times.step, times.count > 1);

  // With a single tile the results are written during the next step's product.
  constexpr bool kWritesLater = kTiles == 1;
  typename Kernel::Places places(
      p, own, size, first_row, times.first - (kWritesLater ? times.step : 0), times.step);
  typename Kernel::Results results[kTilesAtOnce];
  int t = times.first;
#pragma unroll 1
  for (int k = 0; k < times.count; ++k) {
    uint32_t running = 0, next_resets = 0;
#pragma unroll
    for (int first_tile = 0; first_tile < kTiles; first_tile += kTilesAtOnce) {
      const bool is_last = first_tile + kTilesAtOnce == kTiles;
      if (Shape::kCluster > 1 && first_tile >= tiles) {
        break;
      }
      float sums[kTilesAtOnce][kGates][kChains][4] = {};
      // What x gives the last gate, if h gives its own to another number.
      [[maybe_unused]] float of_x[kTilesAtOnce][1][4];
      if constexpr (kXInside) {
        inputs.multiply(first_tile, sums);
      }
      if constexpr (kXInside && !Cell::kAdds) {
#pragma unroll
        for (int i = 0; i < kTilesAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            of_x[i][0][j] = sums[i][kGates - 1][0][j];
            sums[i][kGates - 1][0][j] = 0;
          }
        }
      }
      operands.start_tiles(first_tile);
      if constexpr (kReadsState) {
#pragma unroll
        for (int tile = first_tile; tile < first_tile + kTilesAtOnce; ++tile) {
#pragma unroll
          for (int r = 0; r < kOwnRows; ++r) {
            h[tile][r] = operands.published(tile, r);
          }
        }
      }
      operands.multiply(weights, first_tile, sums);
      if constexpr (Shape::kShares > 1) {
        shares.add(sums[0]);
      }
      if (first_tile == 0) {
        running = own.own(rows.running(t));
        next_resets = own.own(rows.resets());
        t += times.step;
        rows.fetch_resets(t + times.step, k + 2 < times.count);
      }
      if constexpr (kXInside) {
        if (is_last) {
          inputs.fetch_later();
        }
      }
      if constexpr (kWritesLater) {
        places.store(own, first_tile, results, k > 0);
      }
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        const int tile = first_tile + i;
        [[maybe_unused]] uint32_t z_x_words[kInputs][kOwnRows];
        if constexpr (!kXInside) {
          inputs.take(tile, z_x_words);
        }
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
          const bool runs = (running >> (8 * tile + r) & 1) != 0;
          float z[kSaved][kOwnColumns], new_h[kOwnColumns], new_cell[kOwnColumns];
#pragma unroll
          for (int j = 0; j < kOwnColumns; ++j) {
            float z_of_element[kSaved];
#pragma unroll
            for (int k = 0; k < kSaved; ++k) {
              const int gate = cell::gate_at<Cell>(k), input = cell::input_at<Cell>(k);
              z[k][j] = gate >= 0  ? sum_of(own, sums[i][gate], r, j)
                        : kXInside ? sum_of(own, of_x[i], r, j)
                                   : 0;
              if (input < 0) {
                z[k][j] += bias[k][j];
              } else if constexpr (!kXInside) {
                z[k][j] += column_of<Element>(z_x_words[input][r], j);
              }
              z_of_element[k] = z[k][j];
            }
            const cell::State<float> state =
                Cell::template forward<Math>(z_of_element, cell[tile][r][j]);
            new_h[j] = state.h;
            new_cell[j] = state.cell;
            cell[tile][r][j] = runs ? new_cell[j] : cell[tile][r][j];
          }
          const uint32_t h_word = own.existing(word_of_columns<Element>(new_h));
          h[tile][r] = runs ? h_word : h[tile][r];
          start_from_state(tile, r, next_resets);
          results[i].h[r] = runs ? h_word : 0;
          results[i].cell[r] = runs ? word_of_columns<Element>(new_cell) : 0;
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            results[i].gates[k][r] = runs ? word_of_columns<Element>(z[k]) : 0;
          }
        }
      }
      if constexpr (kXInside) {
        if (is_last) {
          inputs.finish_step();
        }
      }
      operands.finish_tiles(first_tile);
      if constexpr (!kWritesLater) {
        places.store(own, first_tile, results, true);
      }
    }
    places.advance();
  }
  if constexpr (kWritesLater) {
    places.store(own, 0, results, times.count > 0);
  }
  if constexpr (kReadsState) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        h[tile][r] = operands.published_for_next(tile, r);
      }
    }
  }
  if constexpr (Shape::kCluster > 1) {
    operands.drain(tiles);
  }
  // Not earlier: blocks of the next kernel that wait would keep other streams' from starting.
  start_next_kernel();

  own.for_each(first_row, [&](int tile, int r, int j, int64_t row, int column) {
    const int64_t index = row * size + column;
    p.h_n[index] = Element(static_cast<uint16_t>(h[tile][r] >> (16 * j)), Element::from_bits());
    p.c_n.store(index, cell[tile][r][j], element_of<Element>);
  });
  typename Kernel::Places idle(p, own, size, first_row, max(low, rows.longest()), 1);
#pragma unroll 1
  for (int time = max(low, rows.longest()); time < high; ++time) {
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += kTilesAtOnce) {
      const typename Kernel::Results zeros[kTilesAtOnce];
      idle.store(own, tile, zeros, true);
    }
    idle.advance();
  }
}

template <typename Cell, typename Element>
cudaError_t launch_recurrence_mma(const RecurrenceForward<Element>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  if (tile.x_inside &&
      (problem.input_features < 1 || problem.input_features > kLargestRecurrentInput)) {
    return cudaErrorInvalidValue;
  }
  return dispatch_mma<Cell>(problem, tile, [&](auto instance, auto in_pairs) {
    using Shape = MmaShape<Cell, Element, instance, in_pairs>;
    return launch_groups<&recurrence_forward_mma_kernel<Shape>,
                         Shape::kThreads,
                         MmaForward<Shape>::kSharedBytes>(
        problem, tile, stream, problem.least_shared_bytes);
  });
}

}  // namespace lltm::cuda
