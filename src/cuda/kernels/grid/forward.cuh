// The forward of the recurrence across the grid.
#pragma once

#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../../cell/sides.h"
#include "../../epilogue/math.cuh"
#include "../../ptx/registers.cuh"
#include "../../ptx/select.cuh"
#include "../../runtime/dispatch.h"
#include "elements.cuh"
#include "exchange.cuh"
#include "launch.cuh"
#include "prepare.cuh"
#include "product.cuh"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// The gate that only the output takes, where there is one.
template <typename Cell>
constexpr int kOutputGate = -1;
template <>
inline constexpr int kOutputGate<cell::Lltm> = 1;
template <>
inline constexpr int kOutputGate<cell::Lstm> = 3;

/// Products in 16 bits or TF32 leave nothing of what a corrected reciprocal adds to a forget gate.
template <typename Math>
struct WithShortForgetGate : Math {
  static LLTM_DEVICE float reciprocal_of_one_plus(float e) { return Math::reciprocal(1.0f + e); }
};

template <typename CellType, Arithmetic kArithmeticOf, GridTile kTileOf>
struct GridForward {
  using Cell = CellType;
  using Element = TensorElement<kArithmeticOf>;
  using Math =
      std::conditional_t<kArithmeticOf == Arithmetic::kFloat32,
                         ShortMath,
                         WithShortForgetGate<std::conditional_t<std::is_same_v<Element, float>,
                                                                ShortRoundedMath,
                                                                ShortForwardMath<Element>>>>;
  static constexpr Arithmetic kArithmetic = kArithmeticOf;
  static constexpr GridTile kTile = kTileOf;
  static constexpr bool kPlanes = kArithmetic == Arithmetic::kFloat32;
  static constexpr bool kScaled = is_float(kArithmetic);
  static constexpr int kGates = Cell::kGates, kInputs = Cell::kInputs, kSaved = Cell::kSaved;
  static constexpr int kUnits = kTile.units, kWarps = kTile.warps;
  static constexpr int kThreads = kTile.threads();
  static constexpr int kUnitGroups = kTile.unit_groups, kShares = kTile.shares();
  static_assert(kUnits % kUnitGroups == 0 && kWarps % kUnitGroups == 0 && kShares > 1);
  static constexpr int kOwnUnits = kUnits / kUnitGroups;  // of a warp
  static constexpr GridSizes kSizes{kTile, kGates, kArithmetic, false};
  static constexpr int kOwnGranules = kSizes.granules_of_warp(kTile);
  static constexpr int kGranules = kOwnGranules * kShares;
  static constexpr int kWeightTiles = kSizes.row_tiles_of_weights;
  // Runs of 16 bytes of V of a unit.
  static constexpr int kRunsOfUnit = kPlanes ? 2 : 1;
  static constexpr int kGroupBytes = kGranules * kGranuleBytes;

  using Weights = GridWeights<kOwnGranules, kWeightTiles, kTile.shared_granules>;
  using Sets = ElementSets<kWarps, kUnits>;
  static constexpr int kElements = Sets::kElements;
  // Even inputs are in the same half of a word, and so are odd ones.
  using Inputs = NumbersAhead<Element, kInputs, 2, kElements, Sets::kThreads, kInputs % 2 == 0>;
  // h, the float that is carried and, where h is scaled, what its products are multiplied by: at
  // the start, the inverse of the scale of h0.
  static constexpr int kKeptH = 0, kKeptCell = 1, kKeptScale = 2;
  using Kept = KeptNumbers<kScaled ? 3 : 2, kElements, Sets::kThreads>;
  // What the sums of an element are multiplied by.
  using Scales = KeptNumbers<kScaled ? kGates : 0, kElements, Sets::kThreads>;

  // With groups of warps that have units of their own, all warps fetch V into shared memory.
  static constexpr bool kStaged = kUnitGroups > 1;
  static constexpr int kPolls = kStaged ? (kGranules + kWarps - 1) / kWarps : kOwnGranules;

  // Sums of a tick. Four gates have those of an element next to each other.
  static constexpr bool kVectors = kGates == 4;
  static constexpr int kSumsOfShare = kUnitGroups * kWeightTiles * 4 * 32;
  static constexpr int kSumBytes = kShares * kSumsOfShare * 4;
  static constexpr int kStageBytes = kStaged ? kGranules * kGranuleBytes : 0;
  static constexpr int kWeightBytes = kWarps * Weights::kSharedBytesOfWarp;
  // The barrier behind staged V also separates the sums of one tick from those of the next.
  // Otherwise there are two buffers of sums or, if shared memory is scarce, another barrier.
  static constexpr int kSumBuffers =
      kStaged || kWeightBytes + 2 * kSumBytes + Inputs::kBytes > kGridScarceBytes ? 1 : 2;

  static constexpr int kSumsAt = kWeightBytes;
  static constexpr int kStageAt = kSumsAt + kSumBuffers * kSumBytes;
  static constexpr int kInputsAt = kStageAt + kStageBytes;
  static constexpr int kScalesAt = kInputsAt + Inputs::kBytes;
  static constexpr int kKeptAt = kScalesAt + Scales::kGroupBytes;
  static constexpr int shared_bytes(int groups) { return kKeptAt + groups * Kept::kGroupBytes; }
  static constexpr int kMostBytes = shared_bytes(kGridRows / kGridGroupRows);

  /// Where the sum of rows 8 * block to 8 * block + 7 of a group of warps' weights is.
  static LLTM_DEVICE uint32_t sum_at(int share, int unit_group, int block, int parity) {
    const uint32_t block_of_share = unit_group * kWeightTiles * 2 + block;
    const uint32_t in_share = kVectors
                                  ? (block_of_share / 4 * 2 + parity) * 128 + block_of_share % 4
                                  : (block_of_share * 2 + parity) * 32;
    return 4 * (share * kSumsOfShare + in_share);
  }
  static constexpr uint32_t kLaneOfSum = kVectors ? 16 : 4;
};

/// The words of V that a thread publishes for an element: its column and that of lane ^ 4 share
/// words, of which each lane of a pair writes one in planes, else the even one both.
template <typename Kernel>
struct PublishedH {
  static LLTM_DEVICE int offset(int unit, int row, int lane) {
    const int column = lane / 4;
    return Kernel::kPlanes
               ? (2 * unit + column / 4) * 128 + row * 16 + column / 2 % 2 * 4 + column % 2 * 8
               : unit * 128 + row * 16 + column * 2;
  }
  /// Whether the lane writes a word.
  static LLTM_DEVICE bool writes(int lane) { return Kernel::kPlanes || lane / 4 % 2 == 0; }
  static LLTM_DEVICE uint32_t word(float h, float scale, int lane) {
    if constexpr (Kernel::kPlanes) {
      const float scaled = h * scale;
      uint32_t planes;
      asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(planes) : "f"(low_part(scaled)), "f"(scaled));
      const uint32_t other = __shfl_xor_sync(~0u, planes, 4);
      return lane / 4 % 2 != 0 ? __byte_perm(other, planes, 0x7632)
                               : __byte_perm(planes, other, 0x5410);
    } else {
      uint32_t bits;
      if constexpr (Kernel::kScaled) {
        bits = half_bits(h * scale);
      } else {
        bits = bits_of<typename Kernel::Element>(h);
      }
      return bits & 0xffffu | __shfl_xor_sync(~0u, bits, 4) << 16;
    }
  }
};

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) recurrence_forward_grid_kernel(
    const __grid_constant__ OfGrid<RecurrenceForward<typename Kernel::Element>> p) {
  using Cell = typename Kernel::Cell;
  using Element = typename Kernel::Element;
  using Sets = typename Kernel::Sets;
  using Published = PublishedH<Kernel>;
  constexpr int kGates = Kernel::kGates, kInputs = Kernel::kInputs, kSaved = Kernel::kSaved;
  constexpr int kElements = Kernel::kElements;
  constexpr int kOwnGranules = Kernel::kOwnGranules, kGranules = Kernel::kGranules;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t shared_at = shared_address(shared);

  const int state_size = static_cast<int>(p.state_size);
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
  const int unit_group = warp % Kernel::kUnitGroups, share = warp / Kernel::kUnitGroups;
  const bool finishes = warp < Sets::kElementWarps;

  TeamRows rows(p.rows_of_sequence, first_row, rows_of_team, static_cast<int>(p.steps));
  // The chunk of time, and the part of it at which rows run.
  const int low =
      static_cast<int>(p.reverse ? p.steps - p.first_step - p.step_count : p.first_step);
  const int high = low + static_cast<int>(p.step_count);
  const BlockTimes times(low, min(high, rows.longest()), p.reverse);
  rows.fetch_resets(times.first, times.count > 0);

  const unsigned zero = in_register(static_cast<unsigned>(p.steps >> 62));
  const typename Kernel::Weights weights(
      p.workspace.weights +
          int64_t{block * Kernel::kWarps + warp} * kOwnGranules * Kernel::kWeightTiles * 64 + lane,
      shared_at + warp * Kernel::Weights::kSharedBytesOfWarp + 16 * lane,
      zero);

  // Whether weights of the block or a row of h0 are not finite.
  bool has_infinite = false;
  if constexpr (Kernel::kPlanes) {
    for (int i = static_cast<int>(threadIdx.x); i < kGates * 8 * Kernel::kUnits;
         i += Kernel::kThreads) {
      const int gate = i / (8 * Kernel::kUnits);
      const int column = 8 * first_unit + i % (8 * Kernel::kUnits);
      has_infinite |=
          column < state_size && is_of_infinite(p.workspace.of_weights[gate * state_size + column]);
    }
    const int row = static_cast<int>(threadIdx.x);
    has_infinite |= row < rows_of_team && p.h0.data != nullptr &&
                    is_of_infinite(p.workspace.of_h0[first_row + row]);
    has_infinite = __syncthreads_or(has_infinite) != 0;
  }

  typename Kernel::Inputs inputs(shared_at + Kernel::kInputsAt);
  const typename Kernel::Kept kept(shared_at + Kernel::kKeptAt);
  const typename Kernel::Scales scales(shared_at + Kernel::kScalesAt);
  GridSlots<Kernel::kGroupBytes> slots(p.workspace.slots, p.grid, team);

  // Whether an element of a group exists; those that do not exist, in rows and units that do, are
  // published as zeros.
  const auto exists = [&](int e, int group) {
    return sets.has[e] && sets.row[e] + 8 * group < rows_of_team;
  };
  bool publishes[kElements];
  int word_at[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    publishes[e] =
        Published::writes(lane) && sets.set(e) < Sets::kSets && first_unit + sets.unit(e) < units;
    word_at[e] = Published::offset(first_unit + sets.unit(e), sets.row[e], lane);
  }
  const auto publish = [&](const PlaceOfWords& place, int e, float h, float scale) {
    place.publish(Published::word(sets.has[e] ? h : 0.0f, scale, lane));
  };
  const auto place_of = [&](int e, unsigned char* now, unsigned char* two_before, int group) {
    const bool exists = publishes[e] && sets.row[e] + 8 * group < rows_of_team;
    return PlaceOfWords(now + word_at[e], two_before + word_at[e], exists);
  };

  // z_x, some ticks ahead.
  const int64_t step_elements = p.rows * p.state_size, z_step = kInputs * step_elements;
  const Element* z_x[kElements];  // of the tick that is copied next
  int times_to_copy = times.count, group_to_copy = 0, time_to_copy = times.first;
  if (finishes) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      z_x[e] = p.z_x + (times.first - low) * z_step +
               (first_row + sets.row[e]) * kInputs * state_size + sets.column[e];
#pragma unroll
      for (int kind = 0; kind < 2; ++kind) {
        inputs.set(kind, e, z_x[e] - times.first * z_step + kind * state_size, z_step);
      }
    }
  }
  // From an element of a group to that of the next one, and from the last group to the first of the
  // next step.
  const int64_t to_next_group = in_register(int64_t{8 * state_size});
  const int64_t to_next_step =
      in_register(times.step * step_elements - (groups - 1) * to_next_group);
  const auto copy_inputs = [&] {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const bool here = times_to_copy > 0 && exists(e, group_to_copy);
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        inputs.copy(i, i % 2, e, z_x[e] + i * state_size, time_to_copy, here);
      }
      z_x[e] += kInputs * (group_to_copy + 1 < groups ? to_next_group : to_next_step);
    }
    inputs.commit();
    if (++group_to_copy == groups) {
      group_to_copy = 0;
      --times_to_copy;
      time_to_copy += times.step;
    }
  };

  // Of what x gives nothing to.
  [[maybe_unused]] float bias[kElements][kSaved] = {};
  if constexpr (!Cell::kAdds) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
#pragma unroll
      for (int saved = 0; saved < kSaved; ++saved) {
        if (p.bias != nullptr && sets.has[e] && cell::input_at<Cell>(saved) < 0) {
          bias[e][saved] = number_of(p.bias[(saved * state_size + sets.column[e]) * p.bias_stride]);
        }
      }
    }
  }

  // The state before the first step.
  const auto next_resets_at_start = rows.resets();
  if (finishes) {
#pragma unroll 1
    for (int i = 0; i < Kernel::Inputs::kTicks; ++i) {
      copy_inputs();
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if constexpr (Kernel::kScaled) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          scales.put(gate,
                     e,
                     0,
                     sets.has[e] ? p.workspace.of_weights[gate * state_size + sets.column[e]] : 0);
        }
      }
#pragma unroll 1
      for (int group = 0; group < groups; ++group) {
        const bool here = exists(e, group);
        const int row_of_team = sets.row[e] + 8 * group;
        const int64_t row = first_row + row_of_team;
        const bool reset = next_resets_at_start[row_of_team];
        float h = 0, scale = 1;
        if (here && !reset && p.h0.data != nullptr) {
          h = number_of(p.h0.at(0, row, sets.column[e]));
        }
        kept.put(Kernel::kKeptH, e, group, h);
        kept.put(Kernel::kKeptCell, e, group, here && !reset ? p.c0.at(row, sets.column[e]) : 0);
        if constexpr (Kernel::kScaled) {
          const float of_h0 = p.h0.data != nullptr && row_of_team < rows_of_team
                                  ? p.workspace.of_h0[row]
                                  : 1.0f / kScaleOfH;
          kept.put(Kernel::kKeptScale, e, group, Cell::kCarriesH && reset ? 1 / kScaleOfH : of_h0);
          scale = inverse_of_power(of_h0);
        }
        if (p.h0.data != nullptr) {
          publish(place_of(e, slots.before(group), slots.two_before(group), group), e, h, scale);
        }
      }
    }
  }
  rows.fetch_resets(times.first + times.step, times.count > 1);

  // The pieces of V that a lane loads.
  const int first_piece = Kernel::kStaged ? warp : share * kOwnGranules;
  const auto granule_of = [&](int i) {
    return first_piece + (Kernel::kStaged ? Kernel::kWarps * i : i);
  };
  const int from_lane = first_piece * kGranuleBytes + lane % 4 * 128 + lane / 4 * 16;
  const auto piece_offset = [&](int i) { return (granule_of(i) - first_piece) * kGranuleBytes; };
  Polls<Kernel::kPolls> polls;
  const auto start = [&](const unsigned char* of_group, int group) {
    const unsigned char* const from = of_group + from_lane;
    const bool has_row = lane / 4 + 8 * group < rows_of_team;
    polls.start(
        [&](int i) {
          return has_row && 4 * granule_of(i) + lane % 4 < units * Kernel::kRunsOfUnit &&
                 granule_of(i) < kGranules;
        },
        [&](int i) { return from + piece_offset(i); });
  };

  // With several groups, V of the next tick is asked for before elements are finished, so that it
  // travels meanwhile. With one, it is not there before.
  const bool asks_early = groups > 1, has_h0 = p.h0.data != nullptr;
  if (has_h0) {
    start(slots.before(0), 0);
  }
  const bool rows_vary = TeamRows::vary(p.rows_of_sequence);
  // `ran`: the rows that have run. Then h of a float32 forward has the scale of all steps.
  TeamRows::Mask running = rows.running(times.first), next_resets = {}, ran = {};
  int tick = 0, t = times.first;
  int64_t element_at[kElements];  // in the output
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    element_at[e] = (t * p.rows + first_row + sets.row[e]) * state_size + sets.column[e];
  }
#pragma unroll 1
  for (int k = 0; k < times.count; ++k) {
    const bool multiplies = k > 0 || has_h0;
#pragma unroll 1
    for (int group = 0; group < groups; ++group, tick ^= 1) {
      // While V is on its way:
      if (rows_vary && group == 0) {
        running = rows.running(t);
        next_resets = rows.resets();
        rows.fetch_resets(t + 2 * times.step, k + 2 < times.count);
      }
      float x[kElements][kInputs], old_h[kElements], old_cell[kElements];
      [[maybe_unused]] float of_h[kElements], scale[kElements];
      PlaceOfWords places[kElements];
      if (finishes) {
        inputs.wait();
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          places[e] = place_of(e, slots.now(group), slots.two_before(group), group);
#pragma unroll
          for (int i = 0; i < kInputs; ++i) {
            x[e][i] = inputs.read(i, i % 2, e, t);
          }
          old_h[e] = kept.get(Kernel::kKeptH, e, group);
          old_cell[e] = kept.get(Kernel::kKeptCell, e, group);
          scale[e] = of_h[e] = 1;
          if constexpr (Kernel::kScaled) {
            const int row_of_team = sets.row[e] + 8 * group;
            const float of_old_h = kept.get(Kernel::kKeptScale, e, group);
            if constexpr (Cell::kCarriesH) {
              // No h becomes larger than 1 and than all of the row's h0, but some may stay as
              // large.
              of_h[e] = of_old_h;
              scale[e] = inverse_of_power(
                  select(running[row_of_team], fmaxf(of_old_h, 1 / kScaleOfH), of_old_h));
            } else {
              of_h[e] = select(ran[row_of_team], 1 / kScaleOfH, of_old_h);
              scale[e] = select(running[row_of_team], kScaleOfH, inverse_of_power(of_old_h));
            }
          }
        }
      }
      GridSums<Kernel::kPlanes> sums[Kernel::kWeightTiles];
      if (multiplies) {
        const unsigned char* const from = slots.before(group) + from_lane;
        polls.finish([&](int i) { return from + piece_offset(i); });
      }
      const uint32_t stage = shared_at + Kernel::kStageAt + 16 * lane;
      if constexpr (Kernel::kStaged) {
        if (multiplies) {
#pragma unroll
          for (int i = 0; i < Kernel::kPolls; ++i) {
            if (granule_of(i) < kGranules) {
              const uint4& v = polls.of[i];
              store_shared_4(stage + granule_of(i) * kGranuleBytes, {v.x, v.y, v.z, v.w});
            }
          }
        }
        __syncthreads();
      }
      if (multiplies) {
#pragma unroll
        for (int granule = 0; granule < kOwnGranules; ++granule) {
          uint4 v;
          if constexpr (Kernel::kStaged) {
            uint32_t words[4];
            load_shared_4(words, stage + (share * kOwnGranules + granule) * kGranuleBytes);
            v = make_uint4(words[0], words[1], words[2], words[3]);
          } else {
            v = polls.of[granule];
          }
#pragma unroll
          for (int weight_tile = 0; weight_tile < Kernel::kWeightTiles; ++weight_tile) {
            WeightsOfGranule a;
            weights.get(granule, weight_tile, a);
            multiply_granule<Kernel::kArithmetic, false>(sums[weight_tile], a, v);
          }
        }
      }
      if (has_infinite) {
#pragma unroll
        for (auto& of_tile : sums) {
          of_tile.clear_low_of_infinite();
        }
      }
      const uint32_t sums_at = shared_at + Kernel::kSumsAt + lane * Kernel::kLaneOfSum +
                               (Kernel::kSumBuffers == 1 ? 0 : tick * Kernel::kSumBytes);
#pragma unroll
      for (int parity = 0; parity < 2; ++parity) {
        constexpr int kBlocks = 2 * Kernel::kWeightTiles, kAtOnce = Kernel::kVectors ? 4 : 1;
        const auto sum = [&](int block) {
          return __float_as_uint(sums[block / 2].sum(block % 2 * 2 + parity, 1 / kLowPlane));
        };
#pragma unroll
        for (int block = 0; block < kBlocks; block += kAtOnce) {
          const uint32_t to = sums_at + Kernel::sum_at(share, unit_group, block, parity);
          if constexpr (Kernel::kVectors) {
            store_shared_4(to, {sum(block), sum(block + 1), sum(block + 2), sum(block + 3)});
          } else {
            store_shared(to, sum(block));
          }
        }
      }
      __syncthreads();
      if (asks_early) {
        if (group + 1 == groups) {
          start(slots.now(0), 0);
        } else if (multiplies) {
          start(slots.before(group + 1), group + 1);
        }
      }
      float z[kElements][kSaved];
      cell::State<float> state[kElements];
      if (finishes) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int row_of_team = sets.row[e] + 8 * group;
          float of_share[Kernel::kShares][kGates] = {};
          if (sets.set(e) < Sets::kSets) {
            const int unit = sets.unit(e);
#pragma unroll
            for (int i = 0; i < Kernel::kShares; ++i) {
#pragma unroll
              for (int gate = 0; gate < kGates; gate += Kernel::kVectors ? 4 : 1) {
                const uint32_t from =
                    sums_at + Kernel::sum_at(i,
                                             unit / Kernel::kOwnUnits,
                                             unit % Kernel::kOwnUnits * kGates + gate,
                                             sets.parity());
                if constexpr (Kernel::kVectors) {
                  uint32_t words[kGates];
                  load_shared_4(words, from);
#pragma unroll
                  for (int of = 0; of < kGates; ++of) {
                    of_share[i][of] = __uint_as_float(words[of]);
                  }
                } else {
                  of_share[i][gate] = __uint_as_float(load_shared(from));
                }
              }
            }
          }
          // Sums by pairs, all gates at once, wait the least for each other.
#pragma unroll
          for (int apart = 1; apart < Kernel::kShares; apart *= 2) {
#pragma unroll
            for (int i = 0; i + apart < Kernel::kShares; i += 2 * apart) {
#pragma unroll
              for (int gate = 0; gate < kGates; ++gate) {
                of_share[i][gate] += of_share[i + apart][gate];
              }
            }
          }
#pragma unroll
          for (int saved = 0; saved < kSaved; ++saved) {
            const int gate = cell::gate_at<Cell>(saved), input = cell::input_at<Cell>(saved);
            float s = 0;
            if (gate >= 0) {
              s = of_share[0][gate];
              if constexpr (Kernel::kScaled) {
                s = s * scales.get(gate, e, 0) * of_h[e];
              }
            }
            z[e][saved] = s + (input < 0 ? bias[e][saved] : x[e][input]);
          }
#pragma unroll
          for (float& number : z[e]) {
            asm volatile("" : "+f"(number));
          }
          if constexpr (kOutputGate<Cell> >= 0) {
            // Otherwise the assembler would compute it last, behind the new cell state.
            const float o = cell::output_gate_value<typename Kernel::Math>(z[e][kOutputGate<Cell>]);
            old_cell[e] = __uint_as_float(__float_as_uint(old_cell[e]) ^ __float_as_uint(o) & zero);
          }
          state[e] = Cell::template forward<typename Kernel::Math>(z[e], old_cell[e]);
          old_h[e] = select(
              next_resets[row_of_team], 0, select(running[row_of_team], state[e].h, old_h[e]));
          publish(places[e], e, old_h[e], scale[e]);
        }
      }
      // The earliest that V of the next step may be there. What follows is not on its way.
      if (!asks_early) {
        start(slots.now(0), 0);
      }
      if (finishes) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int row_of_team = sets.row[e] + 8 * group;
          const bool runs = running[row_of_team], reset = next_resets[row_of_team];
          kept.put(Kernel::kKeptH, e, group, old_h[e]);
          kept.put(Kernel::kKeptCell,
                   e,
                   group,
                   select(reset, 0, select(runs, state[e].cell, old_cell[e])));
          if constexpr (Kernel::kScaled && Cell::kCarriesH) {
            kept.put(Kernel::kKeptScale,
                     e,
                     group,
                     select(reset, 1 / kScaleOfH, inverse_of_power(scale[e])));
          }
          const bool here = exists(e, group);
          store_number(p.output + element_at[e], select(runs, state[e].h, 0), here);
          if (p.cells != nullptr) {
            store_number(p.cells + element_at[e], select(runs, state[e].cell, 0), here);
          }
          if (p.gates != nullptr) {
            Element* const gates =
                p.gates + (kSaved * element_at[e] - (kSaved - 1) * sets.column[e]);
#pragma unroll
            for (int saved = 0; saved < kSaved; ++saved) {
              store_number(gates + saved * state_size, select(runs, z[e][saved], 0), here);
            }
          }
        }
#pragma unroll
        for (int64_t& at : element_at) {
          at += group + 1 < groups ? to_next_group : to_next_step;
        }
        copy_inputs();
      }
      if constexpr (!Kernel::kStaged && Kernel::kSumBuffers == 1) {
        __syncthreads();
      }
    }
    if (k % kGridFence == kGridFence - 1) {
      fence_of_grid();
    }
    slots.advance();
    ran = running;
    t += times.step;
  }

  if (finishes) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
#pragma unroll 1
      for (int group = 0; group < groups; ++group) {
        const bool here = exists(e, group);
        const int64_t row = first_row + sets.row[e] + 8 * group;
        const int64_t index = row * state_size + sets.column[e];
        if (here) {
          p.h_n[index] = rounded<Element>(kept.get(Kernel::kKeptH, e, group));
          p.c_n.store(index, kept.get(Kernel::kKeptCell, e, group), rounded<Element>);
        }
#pragma unroll 1
        for (int time = max(low, rows.longest()); time < high; ++time) {
          const int64_t at = time * step_elements + index;
          store_number(p.output + at, 0.0f, here);
          store_number(p.cells + at, 0.0f, here && p.cells != nullptr);
          const int64_t gates_at = (time * p.rows + row) * kSaved * state_size + sets.column[e];
#pragma unroll
          for (int saved = 0; saved < kSaved; ++saved) {
            store_number(p.gates + gates_at + saved * state_size, 0.0f, here && p.gates != nullptr);
          }
        }
      }
    }
  }
}

template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_recurrence_grid(
    const OfGrid<RecurrenceForward<TensorElement<kArithmetic>>>& problem,
    const GridTile& tile,
    bool has_weights,
    cudaStream_t stream) {
  if (const cudaError_t error = prepare_grid<kArithmetic, false>(
          problem, tile, Cell::kGates, problem.h0, has_weights, stream);
      error != cudaSuccess) {
    return error;
  }
  return dispatch<grid_tiles<kArithmetic, false>()>(tile, [&](auto instance) {
    if constexpr (!has_grid_tile(Cell::kAdds, kArithmetic, false, instance)) {
      return cudaErrorInvalidValue;
    } else {
      using Kernel = GridForward<Cell, kArithmetic, instance>;
      static_assert(grid_shared_bytes<Cell>(instance, kArithmetic, false, 2) ==
                    Kernel::shared_bytes(2));
      return launch_grid<&recurrence_forward_grid_kernel<Kernel>,
                         Kernel::kThreads,
                         Kernel::kMostBytes>(
          problem, problem.grid, Kernel::shared_bytes(problem.grid.groups), stream);
    }
  });
}

}  // namespace lltm::cuda
