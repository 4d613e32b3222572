// The backward of the recurrence across the grid: the gradients of all that is saved, from the last
// step that was run to the first. K is the gates of all columns, unit by unit, and a thread
// computes all that does not depend on the gradient of h before V arrives.
#pragma once

#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../../cell/sides.h"
#include "../../epilogue/math.cuh"
#include "../../ptx/select.cuh"
#include "../../runtime/dispatch.h"
#include "elements.cuh"
#include "exchange.cuh"
#include "launch.cuh"
#include "prepare.cuh"
#include "product.cuh"

#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

template <typename CellType, Arithmetic kArithmeticOf, GridTile kTileOf>
struct GridBackward {
  using Cell = CellType;
  using Element = TensorElement<kArithmeticOf>;
  static constexpr Arithmetic kArithmetic = kArithmeticOf;
  using Math = std::conditional_t<kArithmetic == Arithmetic::kFloat32, ShortMath, ShortRoundedMath>;
  static constexpr GridTile kTile = kTileOf;
  static constexpr bool kThreeProducts = kArithmetic == Arithmetic::kFloat32;
  static constexpr int kGates = Cell::kGates, kSaved = Cell::kSaved;
  static constexpr int kUnits = kTile.units, kWarps = kTile.warps;
  static constexpr int kThreads = kTile.threads();
  static_assert(kTile.unit_groups == 1 && kTile.shared_granules == 0);
  static constexpr GridSizes kSizes{kTile, kGates, kArithmetic, true};
  static constexpr int kOwnGranules = kSizes.granules_of_warp(kTile);
  static constexpr int kWeightTiles = kSizes.row_tiles_of_weights;
  static constexpr int kRunsOfColumns = 8 / columns_of_run(kArithmetic);  // of a unit and gate
  static constexpr int kGroupBytes = kOwnGranules * kWarps * kGranuleBytes;

  using Weights = GridWeights<kOwnGranules, kWeightTiles, 0>;
  using Sets = ElementSets<kWarps, kUnits>;
  static constexpr int kElements = Sets::kElements;
  // What is saved, the cell state, the gradients of output and cells and, if it is read, the cell
  // state of the step before.
  static constexpr bool kReadsOldCell = Cell::kReadsOldCell;
  static constexpr int kNewCell = kSaved, kGradOutput = kSaved + 1, kGradCells = kSaved + 2,
                       kOldCell = kSaved + 3, kWords = kSaved + (kReadsOldCell ? 4 : 3);
  // Even saved numbers are in the same half of a word, and so are odd ones.
  static LLTM_HOST_DEVICE constexpr int kind_of(int word) {
    return word < kSaved ? word % 2 : word - kSaved + 2;
  }
  using Inputs = NumbersAhead<Element, kWords, kind_of(kWords - 1) + 1, kElements, Sets::kThreads>;
  // The gradients of the state that a row's next step, in this order, takes, of h without the
  // product; and the cell state before the first step.
  static constexpr int kKeptH = 0, kKeptCell = 1, kKeptFirstCell = 2;
  using Kept = KeptNumbers<kReadsOldCell ? 3 : 2, kElements, Sets::kThreads>;

  static constexpr int kSumBytes = kWarps * kWeightTiles * 4 * 32 * 4;
  static constexpr int kInputsAt = 2 * kSumBytes;
  static constexpr int kKeptAt = kInputsAt + Inputs::kBytes;
  static constexpr int shared_bytes(int groups) { return kKeptAt + groups * Kept::kGroupBytes; }
  static constexpr int kMostBytes = shared_bytes(kGridRows / kGridGroupRows);
  static_assert(kInputsAt >= kSaved * Sets::kSets * 8 * 4);  // sums of d_bias

  static LLTM_DEVICE uint32_t sum_at(int share, int unit, int parity, int lane) {
    return 4 * (((share * kWeightTiles * 2 + unit) * 2 + parity) * 32 + lane);
  }
};

/// The words of V that a thread publishes for an element. In 16 bits its column and that of lane ^
/// 4 share words: one lane of the pair writes those of the first two gates, the other the rest.
template <typename Kernel>
struct PublishedGradients {
  using Cell = typename Kernel::Cell;
  static constexpr int kGates = Kernel::kGates, kSaved = Kernel::kSaved;
  static constexpr bool kHalves = sizeof(typename Kernel::Element) == 2;
  static constexpr int kWords = kHalves ? 2 : kGates;

  static LLTM_DEVICE int first_gate(int lane) { return kHalves ? lane / 4 % 2 * 2 : 0; }
  static LLTM_DEVICE bool has(int word, int lane) { return first_gate(lane) + word < kGates; }
  /// Of word 0; others are 128 bytes apart.
  static LLTM_DEVICE int offset(int unit, int row, int lane) {
    const int column = lane / 4;
    const int run = kHalves ? unit * kGates + first_gate(lane) : (2 * unit + column / 4) * kGates;
    return run * 128 + row * 16 + (kHalves ? column / 2 : column % 4) * 4;
  }
  template <int kGate>
  static LLTM_DEVICE float of_gate(const float (&d)[kSaved]) {
    return d[std::integral_constant<int, Cell::kOfGate[kGate]>::value];
  }
  static LLTM_DEVICE void words(const float (&d)[kSaved], int lane, uint32_t (&to)[kWords]) {
    if constexpr (kHalves) {
      using Numbers = Packed<typename Kernel::Element>;
      const uint32_t first = Numbers::pack(of_gate<0>(d), of_gate<1>(d)),
                     rest =
                         Numbers::pack(of_gate<2>(d), kGates > 3 ? of_gate<kGates - 1>(d) : 0.0f);
      const bool odd = lane / 4 % 2 != 0;
      const uint32_t other = __shfl_xor_sync(~0u, odd ? first : rest, 4);
      const uint32_t low = odd ? other : first, high = odd ? rest : other;
      to[0] = __byte_perm(low, high, 0x5410);
      to[1] = __byte_perm(low, high, 0x7632);
    } else {
#pragma unroll
      for (int saved = 0; saved < kSaved; ++saved) {
        if (const int gate = cell::gate_at<Cell>(saved); gate >= 0) {
          to[gate] = Kernel::kArithmetic == Arithmetic::kTf32 ? round_to_tf32(d[saved])
                                                              : bits_to_split(d[saved]);
          // A NaN with other bits is the same to a product.
          if (Kernel::kArithmetic == Arithmetic::kTf32 && to[gate] == kEmptyWord) {
            to[gate] = 0x7fffffffu;
          }
        }
      }
    }
  }
};

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) recurrence_backward_grid_kernel(
    const __grid_constant__ OfGrid<RecurrenceBackward<typename Kernel::Element>> p) {
  using Cell = typename Kernel::Cell;
  using Element = typename Kernel::Element;
  using Sets = typename Kernel::Sets;
  using Published = PublishedGradients<Kernel>;
  constexpr int kGates = Kernel::kGates, kSaved = Kernel::kSaved, kElements = Kernel::kElements;
  constexpr int kOwnGranules = Kernel::kOwnGranules;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t shared_at = shared_address(shared);

  const int state_size = static_cast<int>(p.state_size), steps = static_cast<int>(p.steps);
  const int units = (state_size + 7) / 8;
  const int team = static_cast<int>(blockIdx.x) / p.grid.blocks;
  const int block = static_cast<int>(blockIdx.x) % p.grid.blocks;
  const int first_unit = block * Kernel::kUnits;
  const int team_rows = p.grid.groups * 8;
  const int64_t first_row = int64_t{team} * team_rows;
  const int rows_of_team = at_most(p.rows - first_row, team_rows);
  const int groups = (rows_of_team + 7) / 8;
  const Sets sets(8 * first_unit, state_size);
  const int lane = sets.lane, warp = sets.warp;
  const bool finishes = warp < Sets::kElementWarps;

  TeamRows rows(p.rows_of_sequence, first_row, rows_of_team, steps);
  const BlockTimes times(0, rows.longest(), !p.reverse);
  rows.fetch_resets(times.first, times.count > 0);

  const typename Kernel::Weights weights(
      p.workspace.weights +
          int64_t{block * Kernel::kWarps + warp} * kOwnGranules * Kernel::kWeightTiles * 64 + lane,
      shared_at,
      static_cast<unsigned>(p.steps >> 62));

  typename Kernel::Inputs inputs(shared_at + Kernel::kInputsAt);
  const typename Kernel::Kept kept(shared_at + Kernel::kKeptAt);
  GridSlots<Kernel::kGroupBytes> slots(p.workspace.slots, p.grid, team);
  const auto exists = [&](int e, int group) {
    return sets.has[e] && sets.row[e] + 8 * group < rows_of_team;
  };
  bool publishes[kElements];
  int word_at[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    publishes[e] = sets.set(e) < Sets::kSets && first_unit + sets.unit(e) < units;
    word_at[e] = Published::offset(first_unit + sets.unit(e), sets.row[e], lane);
  }

  // What elements read, some ticks ahead.
  int times_to_copy = times.count, group_to_copy = 0, time_to_copy = times.first;
  const auto source = [&](int word, int e, int64_t t, int64_t row) -> const Element* {
    const int64_t at = t * p.rows + row;
    const int column = sets.column[e];
    if (word < kSaved) {
      return p.gates + (at * kSaved + word) * state_size + column;
    }
    if (word == Kernel::kNewCell || word == Kernel::kOldCell) {
      return p.cells + (word == Kernel::kNewCell ? at : at + times.step * p.rows) * state_size +
             column;
    }
    const Steps<Element>& of = word == Kernel::kGradOutput ? p.grad_output : p.grad_cells;
    return of.data == nullptr ? nullptr : &of.at(t, row, column);
  };
  const auto copy_inputs = [&] {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const bool here = times_to_copy > 0 && exists(e, group_to_copy);
      const int64_t row = first_row + sets.row[e] + 8 * group_to_copy;
#pragma unroll
      for (int word = 0; word < Kernel::kWords; ++word) {
        const Element* const from = source(word, e, time_to_copy, row);
        inputs.copy(word,
                    Kernel::kind_of(word),
                    e,
                    from,
                    time_to_copy,
                    here && from != nullptr && (word != Kernel::kOldCell || times_to_copy > 1));
      }
    }
    inputs.commit();
    if (++group_to_copy == groups) {
      group_to_copy = 0;
      --times_to_copy;
      time_to_copy += times.step;
    }
  };

  if (finishes) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
#pragma unroll
      for (int word = 0; word < Kernel::kWords; ++word) {
        if (word >= 2 && word < kSaved) {
          continue;  // a kind that has been said
        }
        const Element* const from = source(word, e, 0, first_row + sets.row[e]);
        const int64_t stride = word < kSaved || word == Kernel::kNewCell || word == Kernel::kOldCell
                                   ? p.rows * state_size * (word < kSaved ? kSaved : 1)
                               : word == Kernel::kGradOutput ? p.grad_output.strides[0]
                                                             : p.grad_cells.strides[0];
        inputs.set(Kernel::kind_of(word), e, from, from == nullptr ? 0 : stride);
      }
#pragma unroll 1
      for (int group = 0; group < groups; ++group) {
        const bool here = exists(e, group);
        const int64_t row = first_row + sets.row[e] + 8 * group;
        kept.put(Kernel::kKeptH,
                 e,
                 group,
                 here && p.grad_h_n.data != nullptr
                     ? number_of(p.grad_h_n.at(0, row, sets.column[e]))
                     : 0);
        kept.put(Kernel::kKeptCell, e, group, here ? p.grad_c_n.at(row, sets.column[e]) : 0);
        if constexpr (Kernel::kReadsOldCell) {
          kept.put(Kernel::kKeptFirstCell, e, group, here ? p.c0.at(row, sets.column[e]) : 0);
        }
      }
    }
#pragma unroll 1
    for (int i = 0; i < Kernel::Inputs::kTicks; ++i) {
      copy_inputs();
    }
  }

  // The pieces of V that a lane loads.
  const int from_lane = warp * kOwnGranules * kGranuleBytes + lane % 4 * 128 + lane / 4 * 16;
  const int runs_left =
      units * kGates * Kernel::kRunsOfColumns - 4 * warp * kOwnGranules - lane % 4;
  Polls<kOwnGranules> polls;
  const auto start = [&](const unsigned char* of_group, int group) {
    const unsigned char* const from = of_group + from_lane;
    const bool has_row = lane / 4 + 8 * group < rows_of_team;
    polls.start([&](int i) { return has_row && runs_left > 4 * i; },
                [&](int i) { return from + i * kGranuleBytes; });
  };
  const bool asks_early = groups > 1, rows_vary = TeamRows::vary(p.rows_of_sequence);
  const auto read = [&](int word, int e, int t) {
    return inputs.read(word, Kernel::kind_of(word), e, t);
  };

  float d_bias[kElements][kSaved] = {};
  int tick = 0, t = times.first;
  // `linked`: the rows whose h has been the operand of the step that was done last. For others the
  // product says nothing. `goes_on`: those for which this step is not the first of the forward.
  TeamRows::Mask running = rows.running(t), resets = {}, goes_on = running, linked = {};
  // After the last step, another product gives the gradient of h0.
  const bool wants_h0 =
      Cell::kCarriesH ? p.d_c0.rounded != nullptr || p.d_c0.exact != nullptr : p.d_h0 != nullptr;
  const int count = times.count + (wants_h0 && times.count > 0 ? 1 : 0);
#pragma unroll 1
  for (int k = 0; k < count; ++k) {
    const bool is_step = k < times.count;
#pragma unroll 1
    for (int group = 0; group < groups; ++group, tick ^= 1) {
      // Asked for earlier, it would not be there, and the threads that finish elements would wait
      // for it before they do what follows.
      if (k > 0 && !asks_early) {
        start(slots.before(group), group);
      }
      // While V is on its way:
      if (rows_vary && group == 0) {
        running = rows.running(t);
        resets = rows.resets();
        rows.fetch_resets(t + times.step, k + 1 < times.count);
        goes_on = rows.running(t + times.step);
      }
      typename Cell::template Derivatives<float> by[kElements];
      float grad_h[kElements], grad_cell[kElements], d_z[kElements][kSaved];
      PlaceOfWords places[kElements];
      if (finishes && is_step) {
        inputs.wait();
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int row_of_team = sets.row[e] + 8 * group;
          places[e] = PlaceOfWords(slots.now(group) + word_at[e],
                                   slots.two_before(group) + word_at[e],
                                   publishes[e] && row_of_team < rows_of_team);
          float z[kSaved];
#pragma unroll
          for (int saved = 0; saved < kSaved; ++saved) {
            z[saved] = read(saved, e, t);
          }
          float old_cell = 0;
          if constexpr (Kernel::kReadsOldCell) {
            old_cell = select(k + 1 < times.count && goes_on[row_of_team],
                              read(Kernel::kOldCell, e, t),
                              kept.get(Kernel::kKeptFirstCell, e, group));
            old_cell = select(resets[row_of_team], 0, old_cell);
          }
          by[e] = Cell::template derivatives<typename Kernel::Math>(
              z, old_cell, read(Kernel::kNewCell, e, t));
          grad_h[e] = read(Kernel::kGradOutput, e, t) + kept.get(Kernel::kKeptH, e, group);
          grad_cell[e] = read(Kernel::kGradCells, e, t);
        }
        copy_inputs();
      }
      GridSums<Kernel::kThreeProducts> sums[Kernel::kWeightTiles];
      if (k > 0) {
        const unsigned char* const from = slots.before(group) + from_lane;
        polls.finish([&](int i) { return from + i * kGranuleBytes; });
#pragma unroll
        for (int granule = 0; granule < kOwnGranules; ++granule) {
#pragma unroll
          for (int tile = 0; tile < Kernel::kWeightTiles; ++tile) {
            WeightsOfGranule a;
            weights.get(granule, tile, a);
            multiply_granule<Kernel::kArithmetic, true>(sums[tile], a, polls.of[granule]);
          }
        }
      }
#pragma unroll
      for (auto& of_tile : sums) {
        of_tile.clear_low_of_infinite();
      }
      const uint32_t sums_at = shared_at + tick * Kernel::kSumBytes;
#pragma unroll
      for (int tile = 0; tile < Kernel::kWeightTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          store_shared(sums_at + Kernel::sum_at(warp, 2 * tile + i / 2, i % 2, lane),
                       __float_as_uint(sums[tile].sum(i, 1)));
        }
      }
      __syncthreads();
      if (asks_early) {
        if (group + 1 == groups) {
          start(slots.now(0), 0);
        } else if (k > 0) {
          start(slots.before(group + 1), group + 1);
        }
      }
#pragma unroll
      for (int e = 0; finishes && e < kElements; ++e) {
        const int row_of_team = sets.row[e] + 8 * group;
        float of_share[Kernel::kWarps] = {};
        if (sets.set(e) < Sets::kSets) {
#pragma unroll
          for (int i = 0; i < Kernel::kWarps; ++i) {
            of_share[i] = __uint_as_float(
                load_shared(sums_at + Kernel::sum_at(i, sets.unit(e), sets.parity(), lane)));
          }
        }
#pragma unroll
        for (int apart = 1; apart < Kernel::kWarps; apart *= 2) {
#pragma unroll
          for (int i = 0; i + apart < Kernel::kWarps; i += 2 * apart) {
            of_share[i] += of_share[i + apart];
          }
        }
        const float product = select(linked[row_of_team], of_share[0], 0);
        if (!is_step) {
          kept.put(Kernel::kKeptH, e, group, kept.get(Kernel::kKeptH, e, group) + product);
          continue;
        }
        const bool runs = running[row_of_team], reset = resets[row_of_team];
        const float d_cell = kept.get(Kernel::kKeptCell, e, group);
        const float d_old_cell =
            Cell::backward(by[e], product + grad_h[e], d_cell + grad_cell[e], d_z[e]);
#pragma unroll
        for (float& number : d_z[e]) {
          number = select(runs && sets.has[e], number, 0);
        }
        uint32_t words[Published::kWords];
        Published::words(d_z[e], lane, words);
#pragma unroll
        for (int word = 0; word < Published::kWords; ++word) {
          places[e].publish(words[word], 128 * word, Published::has(word, lane));
        }
        kept.put(Kernel::kKeptH,
                 e,
                 group,
                 select(runs, 0, kept.get(Kernel::kKeptH, e, group) + product));
        kept.put(Kernel::kKeptCell, e, group, select(runs, select(reset, 0, d_old_cell), d_cell));
      }
#pragma unroll
      for (int e = 0; finishes && is_step && e < kElements; ++e) {
        const int row_of_team = sets.row[e] + 8 * group;
        const bool here = exists(e, group);
        Element* const d_gates =
            p.d_gates + (t * p.rows + first_row + row_of_team) * p.d_gates_stride + sets.column[e];
#pragma unroll
        for (int saved = 0; saved < kSaved; ++saved) {
          store_number(d_gates + saved * state_size, d_z[e][saved], here);
          // What is written. A row that does not exist does not run.
          d_bias[e][saved] += number_of(rounded<Element>(d_z[e][saved]));
        }
      }
    }
    if (k % kGridFence == kGridFence - 1) {
      fence_of_grid();
    }
#pragma unroll
    for (int i = 0; i < TeamRows::kMasks; ++i) {
      linked.of[i] = running.of[i] & ~resets.of[i];
    }
    slots.advance();
    t += times.step;
  }

  if (p.d_bias_parts != nullptr) {
    // Over the rows of each set, then over the odd and the even rows.
    __syncthreads();
    if (finishes) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
#pragma unroll
        for (int saved = 0; saved < kSaved; ++saved) {
          float sum = d_bias[e][saved];
          sum += __shfl_xor_sync(~0u, sum, 1);
          sum += __shfl_xor_sync(~0u, sum, 2);
          if (lane % 4 == 0 && sets.set(e) < Sets::kSets) {
            store_shared(shared_at + 4 * ((saved * Sets::kSets + sets.set(e)) * 8 + lane / 4),
                         __float_as_uint(sum));
          }
        }
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kSaved * 8 * Kernel::kUnits;
         i += Kernel::kThreads) {
      const int saved = i / (8 * Kernel::kUnits), column = i % (8 * Kernel::kUnits);
      const uint32_t from =
          shared_at + 4 * ((saved * Sets::kSets + column / 8 * 2) * 8 + column % 8);
      const float sum =
          __uint_as_float(load_shared(from)) + __uint_as_float(load_shared(from + 32));
      if (8 * first_unit + column < state_size) {
        p.d_bias_parts[(int64_t{team} * kSaved + saved) * state_size + 8 * first_unit + column] =
            sum;
      }
    }
  }
  if (finishes) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
#pragma unroll 1
      for (int group = 0; group < groups; ++group) {
        const bool here = exists(e, group);
        const int64_t row = first_row + sets.row[e] + 8 * group;
        const int64_t index = row * state_size + sets.column[e];
        if (here && p.d_h0 != nullptr) {
          p.d_h0[index] = rounded<Element>(kept.get(Kernel::kKeptH, e, group));
        }
        if (here) {
          float d_c0 = kept.get(Kernel::kKeptCell, e, group);
          if constexpr (Cell::kCarriesH) {
            d_c0 += kept.get(Kernel::kKeptH, e, group);
          }
          p.d_c0.store(index, d_c0, rounded<Element>);
        }
#pragma unroll 1
        for (int time = rows.longest(); time < steps; ++time) {
          Element* const d_gates =
              p.d_gates + (time * p.rows + row) * p.d_gates_stride + sets.column[e];
#pragma unroll
          for (int saved = 0; saved < kSaved; ++saved) {
            store_number(d_gates + saved * state_size, 0.0f, here);
          }
        }
      }
    }
  }
}

template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_recurrence_grid(
    const OfGrid<RecurrenceBackward<TensorElement<kArithmetic>>>& problem,
    const GridTile& tile,
    cudaStream_t stream) {
  if (const cudaError_t error = prepare_grid<kArithmetic, true>(
          problem, tile, Cell::kGates, {}, /*has_weights=*/false, stream);
      error != cudaSuccess) {
    return error;
  }
  return dispatch<grid_tiles<kArithmetic, true>()>(tile, [&](auto instance) {
    using Kernel = GridBackward<Cell, kArithmetic, instance>;
    static_assert(grid_shared_bytes<Cell>(instance, kArithmetic, true, 2) ==
                  Kernel::shared_bytes(2));
    return launch_grid<&recurrence_backward_grid_kernel<Kernel>,
                       Kernel::kThreads,
                       Kernel::kMostBytes>(
        problem, problem.grid, Kernel::shared_bytes(problem.grid.groups), stream);
  });
}

}  // namespace lltm::cuda
