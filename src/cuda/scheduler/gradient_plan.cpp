#include "gradient_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace lltm::cuda {
namespace {

// Microseconds: a chunk of K of a tile of each product, all else of a tile, and the kernel that
// adds up parts, by itself and for a megabyte of them. Fitted to products of 24 shapes from
// (1,512,512) to (65536,32,128), each in up to 80 plans, by replay of captured graphs: NVIDIA H200,
// 2026-11-22.
struct TileTimes {
  int state_columns, weight_columns;
  double state_chunk, weight_chunk, state_tile, weight_tile;
  double sums, sums_megabyte;
};
constexpr TileTimes kHalfTimes[] = {
    {64, 64, 0.389, 0.466, 3.50, 3.54, 0, 0},
    {64, 256, 0.381, 0.786, 0.38, 2.59, 1.04, 1.70},
    {128, 256, 0.353, 0.748, 2.53, 3.76, 1.14, 0.34},
    {256, 256, 0.562, 0.811, 5.26, 2.47, 0.08, 0.35},
};
constexpr TileTimes kTf32Times[] = {
    {64, 64, 0.557, 0.569, 4.92, 6.95, 0, 0},
    {64, 256, 0.432, 0.440, 0.0, 6.95, 0.0, 1.94},
    {128, 256, 0.460, 0.684, 4.94, 7.46, 0.51, 0.17},
    {256, 256, 0.670, 0.722, 6.32, 4.14, 0.02, 0.29},
};
constexpr int kTileRows = 128;
// What it takes to exchange sums, microseconds, by 1, 2, 4 and 8 ranks.
constexpr double kExchange[] = {0, 0, 0.3, 1.0};

double ceil_div(int64_t a, int64_t b) {
  return static_cast<double>((a + b - 1) / b);
}

struct Sizes {
  int64_t batch, input_features, state_size;
  bool one_segment;
  int chunk_k;

  int64_t width() const { return state_size + input_features; }
  double column_tiles(int columns) const {
    return one_segment ? ceil_div(width(), columns)
                       : ceil_div(state_size, columns) + ceil_div(input_features, columns);
  }
};

double estimate(const Sizes& s, const TileTimes& of, const GradientPlan& plan, int cluster) {
  const bool shares = of.weight_columns == 64;
  const double state_rows = ceil_div(s.width(), kTileRows) / (shares ? 1 : cluster);
  const double weight_rows =
      ceil_div(3 * s.state_size, kTileRows) / (plan.shares_weights ? 1 : cluster);
  const double state_units =
      std::ceil(state_rows) * ceil_div(s.batch, of.state_columns) * plan.state_parts;
  const double weight_units =
      std::ceil(weight_rows) * s.column_tiles(of.weight_columns) * plan.weight_parts;
  const double state_shares = shares ? cluster : plan.state_parts;
  const double weight_shares = plan.shares_weights ? cluster : plan.weight_parts;
  const double state =
      ceil_div(3 * s.state_size, s.chunk_k) / state_shares * of.state_chunk + of.state_tile;
  const double weight =
      ceil_div(s.batch, s.chunk_k) / weight_shares * of.weight_chunk + of.weight_tile;
  const double clusters = plan.blocks / cluster;
  double us = std::max({(state_units * state + weight_units * weight) / clusters, state, weight});
  if (state_units > clusters) {
    us = std::max(us, std::ceil(state_units / clusters) * state);
  }
  if (state_units + weight_units > clusters) {
    us += 0.3 * std::min(state, weight);
  }
  const double parts = (plan.state_parts > 1 ? state_units * cluster * of.state_columns : 0) +
                       (plan.weight_parts > 1 ? weight_units * cluster * of.weight_columns : 0);
  if (!shares && parts > 0) {
    us += of.sums + of.sums_megabyte * parts * kTileRows * 4e-6;
  }
  return us;
}

GradientChoice choose(Arithmetic arithmetic, const Sizes& s, int multiprocessors) {
  const bool half = arithmetic != Arithmetic::kTf32;
  const int64_t state_chunks = (3 * s.state_size + s.chunk_k - 1) / s.chunk_k;
  const int64_t weight_chunks = (s.batch + s.chunk_k - 1) / s.chunk_k;
  GradientChoice best{};
  const auto consider =
      [&](const TileTimes& of, const GradientPlan& plan, int cluster, double more) {
        const double us = estimate(s, of, plan, cluster) + more;
        if (best.plan.blocks == 0 || us < best.us) {
          best = {plan, us};
        }
      };
  for (const TileTimes& of : half ? kHalfTimes : kTf32Times) {
    if (of.weight_columns == 64) {
      for (int log = 0; log < 4; ++log) {
        const int ranks = 1 << log;
        for (const bool shares_weights : {false, true}) {
          if (shares_weights && (ranks == 1 || weight_chunks < 2)) {
            continue;
          }
          consider(of,
                   {.state_columns = 64,
                    .weight_columns = 64,
                    .ranks = ranks,
                    .shares_weights = shares_weights,
                    .state_parts = 1,
                    .weight_parts = 1,
                    .blocks = 2 * multiprocessors / ranks * ranks},
                   ranks,
                   kExchange[log]);
        }
      }
      continue;
    }
    if (of.state_columns < 256 && of.state_columns == 64 && s.batch > 64) {
      continue;
    }
    for (const int state_parts : {1, 2, 3, 4, 6, 8}) {
      for (const int weight_parts : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
        if (state_parts > std::max<int64_t>(state_chunks / 2, 1) ||
            weight_parts > std::max<int64_t>(weight_chunks / 2, 1)) {
          continue;
        }
        consider(of,
                 {.state_columns = of.state_columns,
                  .weight_columns = of.weight_columns,
                  .ranks = 1,
                  .shares_weights = false,
                  .state_parts = state_parts,
                  .weight_parts = weight_parts,
                  .blocks = multiprocessors / 2 * 2},
                 2,
                 0);
      }
    }
  }
  return best;
}

}  // namespace

GradientChoice choose_gradient_plan(Arithmetic arithmetic,
                                    int64_t batch,
                                    int64_t input_features,
                                    int64_t state_size,
                                    bool one_segment,
                                    int multiprocessors) {
  // The same sizes come back, and some hundred estimates take longer than the checks of a call.
  struct Known {
    Arithmetic arithmetic{};
    int64_t sizes[3]{};
    bool one_segment{};
    int multiprocessors{};

    bool operator==(const Known&) const = default;
  };
  struct Entry {
    Known known;
    GradientChoice choice;
  };
  constexpr size_t kEntries = 16;
  thread_local Entry entries[kEntries];
  const Known known{arithmetic, {batch, input_features, state_size}, one_segment, multiprocessors};
  Entry& entry =
      entries[static_cast<size_t>(batch * 7 + input_features * 3 + state_size) % kEntries];
  if (!(entry.known == known)) {
    const Sizes sizes{.batch = batch,
                      .input_features = input_features,
                      .state_size = state_size,
                      .one_segment = one_segment,
                      .chunk_k = arithmetic == Arithmetic::kTf32 ? 32 : 64};
    entry = {known, choose(arithmetic, sizes, multiprocessors)};
  }
  return entry.choice;
}

}  // namespace lltm::cuda
