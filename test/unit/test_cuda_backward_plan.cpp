// Which kernels compute a backward on CUDA, and how its products are divided into units: plain host
// code, tested without a GPU.
#include "cuda/plan/backward.h"
#include "cuda/scheduler/schedule_gradients.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace lltm::cuda {
namespace {

using test::kArithmetics;
using test::kH200;
constexpr DeviceFacts kDevices[] = {
    kH200, test::kEighthOfAnH200, test::kSliceOfSmallClusters, test::kA100};

/// For contiguous matrices.
Shape shape_of(std::optional<Arithmetic> arithmetic,
               int64_t batch,
               int64_t input_features,
               int64_t state_size) {
  const int size = arithmetic ? element_size(*arithmetic) : 8;
  return {.work = Work::kBackward,
          .arithmetic = arithmetic,
          .batch = batch,
          .input_features = input_features,
          .state_size = state_size,
          .vector_rows = Matrix{nullptr, input_features}.starts_at_vectors(size) &&
                         Matrix{nullptr, state_size}.starts_at_vectors(size)};
}

/// Log-uniform sizes: two in five are arbitrary, the others multiples of eight.
std::vector<Shape> random_shapes(int count) {
  std::mt19937_64 random(1);
  const auto size = [&](double least, double most) {
    return test::log_uniform(random, least, most);
  };
  std::vector<Shape> shapes;
  for (int i = 0; i < count; ++i) {
    int64_t batch = size(1, i % 4 == 0 ? 70000 : 4096), input = size(1, 2048);
    int64_t state = size(1, 2048);
    if (i % 5 > 1) {
      input = (input + 7) / 8 * 8;
      state = (state + 7) / 8 * 8;
    }
    input = i % 23 == 0 ? 0 : input;
    batch = std::max<int64_t>(std::min(batch, (int64_t{1} << 31) / ((input + state) * state)), 1);
    for (const Arithmetic arithmetic : kArithmetics) {
      shapes.push_back(shape_of(arithmetic, batch, input, state));
    }
  }
  return shapes;
}

std::string_view chosen(const Shape& shape) {
  return choose(shape, kH200).candidate->name;
}

TEST(BackwardChoice, HasTheLeastEstimateOfWhatIsSupported) {
  for (const Shape& shape : random_shapes(400)) {
    const auto choice = choose(shape, kH200);
    for (const Candidate& other : candidates(Work::kBackward)) {
      if (const auto found = estimate(other, shape, kH200)) {
        EXPECT_LE(choice.estimate.us, found->us) << choice.candidate->name << " " << other.name;
      }
    }
  }
}

// Whatever the constants of a GPU.
TEST(BackwardChoice, IsOfTheGroupThatSuitsTheSizes) {
  for (const Arithmetic arithmetic : kArithmetics) {
    EXPECT_EQ(choose(shape_of(arithmetic, 1, 512, 512), kH200).candidate->group, Group::kFewRows);
    EXPECT_EQ(choose(shape_of(arithmetic, 256, 2048, 2048), kH200).candidate->group,
              Group::kHopper);
  }
}

TEST(BackwardChoice, IsSupportedOnEveryDevice) {
  std::set<std::string_view> seen;
  for (const DeviceFacts& device : kDevices) {
    for (const Shape& shape : random_shapes(400)) {
      const auto [candidate, estimate, is_selected] = choose(shape, device);
      ASSERT_TRUE(supports(*candidate, shape, device)) << candidate->name;
      seen.insert(candidate->name);
      const int ranks = estimate.plan.ranks;
      ASSERT_GE(ranks, 1) << candidate->name;
      ASSERT_GT(device.resident_in_clusters_of(ranks), 0) << candidate->name << " " << ranks;
    }
  }
  EXPECT_EQ(seen.size(), candidates(Work::kBackward).size());
}

TEST(BackwardChoice, LeavesNoMoreRowsToTheLibraryThanItCounts) {
  for (const Arithmetic arithmetic : kArithmetics) {
    const Shape shape = shape_of(arithmetic, int64_t{1} << 31, 1, 1);
    EXPECT_EQ(choose(shape, kH200).candidate->group, Group::kTiles);
  }
}

TEST(BackwardChoice, TakesACandidateByItsName) {
  std::set<std::string_view> names;
  for (const Candidate& candidate : candidates(Work::kBackward)) {
    EXPECT_TRUE(names.insert(candidate.name).second) << candidate.name;
    for (const Shape& shape : random_shapes(100)) {
      const Candidate& found = *choose(shape, kH200, {.name = candidate.name}).candidate;
      if (supports(candidate, shape, kH200)) {
        EXPECT_EQ(found.name, candidate.name);
      } else {
        EXPECT_EQ(found.group, Group::kTiles) << candidate.name;
      }
    }
  }
}

TEST(BackwardChoice, TakesAGroupWhereItCan) {
  for (const Shape& shape : random_shapes(100)) {
    for (const Group group : {Group::kFewRows, Group::kHopper, Group::kTiles, Group::kLibrary}) {
      bool can = false;
      for (const Candidate& candidate : candidates(Work::kBackward)) {
        can |= candidate.group == group && supports(candidate, shape, kH200);
      }
      EXPECT_EQ(choose(shape, kH200, {.group = group}).candidate->group,
                can ? group : Group::kTiles);
    }
  }
}

/// The choice for the rows of all steps of a sequence, whose steps have computed d_old_h.
std::string_view chosen_for_sequence(Arithmetic arithmetic,
                                     int64_t rows,
                                     int64_t input_features,
                                     int64_t state_size,
                                     CellType cell = CellType::kLltm) {
  Shape shape = shape_of(arithmetic, rows, input_features, state_size);
  shape.cell = cell;
  shape.forms_d_old_h = false;
  return chosen(shape);
}

// These batches are far beyond those that the estimates are fitted to.
TEST(BackwardChoice, IsThatOfWgmmaForTheStepsOfASequence) {
  const int64_t sequences[][3] = {{128 * 16, 128, 128},
                                  {256 * 32, 512, 512},
                                  {256 * 64, 1024, 1024},
                                  {128 * 128, 2048, 2048},
                                  {64 * 4096, 128, 128},
                                  {256 * 256, 384, 384},
                                  {1000 * 8, 80, 256},
                                  {512 * 64, 32, 2048},
                                  {1024 * 1024, 256, 256},
                                  {100 * 30, 2000, 100},
                                  {4096 * 16, 64, 512},
                                  {200 * 100, 300, 300}};
  for (const auto& [rows, input_features, state_size] : sequences) {
    for (const CellType cell : {CellType::kLltm, CellType::kLstm}) {
      EXPECT_EQ(chosen_for_sequence(Arithmetic::kFloat32, rows, input_features, state_size, cell),
                "backward_wgmma_float32")
          << rows << " " << input_features << " " << state_size;
    }
    EXPECT_EQ(chosen_for_sequence(
                  Arithmetic::kBFloat16, rows, input_features, state_size, CellType::kLstm),
              "backward_library");
  }
  // Most of a tile lies outside so few columns: with d_old_h, wgmma takes 510 us and the library
  // 220.
  EXPECT_EQ(chosen_for_sequence(Arithmetic::kFloat32, 200000, 16, 16), "backward_library");
}

// For all steps of a sequence, whose steps have computed d_old_h: a long batch is split where
// d_weights has too few tiles for the multiprocessors, and only there.
TEST(BackwardChoice, CutsALongBatchWhereTilesAreFew) {
  const auto parts = [](int64_t rows, int64_t size) {
    Shape shape = shape_of(Arithmetic::kFloat32, rows, size, size);
    shape.forms_d_old_h = false;
    return choose(shape, kH200).estimate.plan.weight_parts;
  };
  EXPECT_GE(parts(65536, 384), 4);  // 72 tiles
  EXPECT_GE(parts(262144, 128), 16);
  EXPECT_EQ(parts(16384, 2048), 1);
}

TEST(BackwardChoice, LeavesFloat64ToTheLibrary) {
  const Shape shape = shape_of(std::nullopt, 64, 512, 512);
  for (const auto group : {std::optional<Group>(), std::optional(Group::kTiles)}) {
    EXPECT_EQ(choose(shape, kH200, {.group = group}).candidate->group, Group::kLibrary);
  }
}

/// Checks all units of all clusters and ranks, for a problem in which the bits of `wanted` select
/// d_old_h, d_input and d_weights.
void expect_each_product_once(const Shape& shape, const GradientPlan& plan, int wanted) {
  SCOPED_TRACE(std::to_string(shape.batch) + " " + std::to_string(shape.input_features) + " " +
               std::to_string(shape.state_size) + " wanted " + std::to_string(wanted));
  const WantedGradients of{.batch = shape.batch,
                           .input_features = shape.input_features,
                           .state_size = shape.state_size,
                           .gates = shape.gates(),
                           .d_old_h = (wanted & 1) != 0,
                           .d_input = (wanted & 2) != 0 && shape.input_features > 0,
                           .d_weights = (wanted & 4) != 0};
  const bool tf32 = shape.arithmetic == Arithmetic::kTf32;
  const int chunk_k = tf32 ? 32 : 64;
  const bool one_segment = tf32 || shape.input_features == 0;
  const GradientSchedule s = schedule_gradients(*shape.arithmetic, of, plan, one_segment);
  const int ranks = s.weights.ranks;
  ASSERT_LE(s.shares.clusters * ranks, 1 << 30);
  // The number of chunks of K that each tile sums.
  std::map<std::tuple<bool, bool, int, int>, int> chunks;
  for (int cluster = 0; cluster < s.shares.clusters; ++cluster) {
    for (int rank = 0; rank < ranks; ++rank) {
      int before = 0;  // units of this block
      s.for_each_unit(cluster, rank, [&](const GradientUnit& unit) {
        // Ranks exchange the sums of one tile, before they write any other.
        if (s.tiles(unit.of_weights).share == RanksShare::kK) {
          ASSERT_EQ(before, 0);
        }
        ++before;
        // TMA's boxes start at multiples of 16 bytes, and tiles are whole.
        ASSERT_EQ(unit.row % kGradientRows, 0);
        ASSERT_EQ(unit.column % (unit.of_weights ? plan.weight_columns : plan.state_columns), 0);
        ASSERT_GE(unit.row, 0);
        ASSERT_GE(unit.chunks, 0);
        chunks[{unit.of_weights, unit.second_segment, unit.row, unit.column}] += unit.chunks;
      });
    }
  }
  const int64_t h = of.state_size, x = of.input_features;
  const auto expect_tiles = [&](bool of_weights,
                                bool second,
                                int64_t first_row,
                                int64_t end_row,
                                int64_t columns,
                                int tile_columns,
                                int64_t k) {
    for (int64_t row = first_row / kGradientRows * kGradientRows; row < end_row;
         row += kGradientRows) {
      for (int64_t column = 0; column < columns; column += tile_columns) {
        const auto found =
            chunks.find({of_weights, second, static_cast<int>(row), static_cast<int>(column)});
        ASSERT_NE(found, chunks.end()) << of_weights << " " << row << " " << column;
        ASSERT_EQ(found->second, (k + chunk_k - 1) / chunk_k);
        chunks.erase(found);
      }
    }
  };
  if (of.d_old_h || of.d_input) {
    expect_tiles(false,
                 false,
                 of.d_old_h ? 0 : h,
                 of.d_input ? h + x : h,
                 of.batch,
                 plan.state_columns,
                 3 * h);
  }
  if (of.d_weights) {
    expect_tiles(true, false, 0, 3 * h, one_segment ? h + x : h, plan.weight_columns, of.batch);
    if (!one_segment) {
      expect_tiles(true, true, 0, 3 * h, x, plan.weight_columns, of.batch);
    }
  }
  // What remains are tiles below the last one, which fill up a cluster.
  for (const auto& [tile, count] : chunks) {
    const auto& [of_weights, second, row, column] = tile;
    ASSERT_GE(row, of_weights ? 3 * h : h);
  }
}

// In bfloat16 (128,2048,2048) has 3072 tiles of 128x64 of d_weights. By clusters that share their
// K, the loop of a sequence took 250 us per step; by tiles of 256 columns it takes 40.
TEST(GradientPlan, SharesNoKOfFarMoreTilesThanAreResident) {
  for (const Arithmetic arithmetic : {Arithmetic::kTf32, Arithmetic::kBFloat16}) {
    for (const int64_t batch : {64, 128}) {
      for (const int64_t input_features : {1024, 2048}) {
        const Shape shape = shape_of(arithmetic, batch, input_features, 2048);
        const GradientPlan plan = choose_gradient_plan(shape, kH200).plan;
        EXPECT_EQ(plan.weight_columns, 256) << batch << ", " << input_features;
      }
    }
  }
}

// A part of these d_weights has 17 GB. Where tiles cost nothing but their chunks, parts divide the
// work more evenly, but adding 32 of them takes far longer.
TEST(GradientPlan, AddsNoPartsOfHugeWeights) {
  Costs costs = kCosts;
  costs.backward.wgmma.half.columns_256_256.weight_tile = 0;
  DeviceFacts device = kH200;
  device.costs = &costs;
  for (const int64_t batch : {4096, 8192}) {
    const Shape shape = shape_of(Arithmetic::kBFloat16, batch, 32000, 40000);
    const GradientPlan plan = choose_gradient_plan(shape, device).plan;
    EXPECT_EQ(plan.weight_parts, 1) << batch;
  }
}

// The 12 tiles of d_weights have 32 chunks each, and the 64 others 6. In bfloat16 this takes 11.3
// us if clusters of eight share only the former, and 14.2 if clusters of two share both.
TEST(GradientPlan, SharesKOfFewTilesOverALongBatchAlone) {
  for (const Arithmetic arithmetic : {Arithmetic::kTf32, Arithmetic::kBFloat16}) {
    const GradientPlan plan =
        choose_gradient_plan(shape_of(arithmetic, 2048, 128, 128), kH200).plan;
    EXPECT_TRUE(plan.shares_weights);
    EXPECT_FALSE(plan.shares_state);
    EXPECT_GE(plan.ranks, 4);
  }
}

TEST(GradientSchedule, HasEachChunkOfEachTileOnce) {
  for (const DeviceFacts& device : kDevices) {
    for (const Shape& shape : random_shapes(40)) {
      if (shape.arithmetic == Arithmetic::kFloat32) {
        continue;
      }
      const GradientPlan plan = choose_gradient_plan(shape, device).plan;
      for (int wanted = 1; wanted < 8; ++wanted) {
        if (plan.weight_columns == 64) {
          for (const auto& [shares_state, shares_weights] :
               {std::pair{true, false}, {true, true}, {false, true}, {false, false}}) {
            for (const int ranks : {1, 2, 4, 8}) {
              GradientPlan other = plan;
              other.ranks = ranks;
              other.shares_state = shares_state;
              other.shares_weights = shares_weights;
              other.blocks = 2 * device.multiprocessors / ranks * ranks;
              expect_each_product_once(shape, other, wanted);
            }
          }
        }
        expect_each_product_once(shape, plan, wanted);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

/// The chunks of K of each tile of both products in float32, by segment, row and column: how often
/// each is computed.
using ComputedChunks = std::map<std::tuple<bool, bool, int, int>, std::vector<int>>;

ComputedChunks computed_chunks(const GradientSchedule& schedule) {
  ComputedChunks computed;
  const int ranks = schedule.state.ranks;
  for (int cluster = 0; cluster < schedule.shares.clusters; ++cluster) {
    for (int rank = 0; rank < ranks; ++rank) {
      bool shared = false;  // whether the unit before was one that the ranks share
      schedule.for_each_unit(cluster, rank, [&](const GradientUnit& unit) {
        EXPECT_FALSE(shared);
        shared = !unit.of_weights && ranks > 1;
        std::vector<int>& of_tile =
            computed[{unit.of_weights, unit.second_segment, unit.row, unit.column}];
        of_tile.resize(std::max(of_tile.size(), size_t(unit.first_chunk + unit.chunks)));
        for (int chunk = 0; chunk < unit.chunks; ++chunk) {
          ++of_tile[static_cast<size_t>(unit.first_chunk + chunk)];
        }
      });
    }
  }
  return computed;
}

ComputedChunks expected_chunks(const WantedGradients& of, int tile_rows) {
  ComputedChunks expected;
  const auto add = [&](bool of_weights, bool second, int64_t rows, int64_t columns, int64_t k) {
    for (int row = 0; row < rows; row += tile_rows) {
      for (int column = 0; column < columns; column += kThreeTf32Columns) {
        expected[{of_weights, second, row, column}] =
            std::vector<int>(static_cast<size_t>(tiles_of(k, kThreeTf32Chunk)), 1);
      }
    }
  };
  const int64_t gates = 3 * of.state_size;
  add(false, false, of.d_old_h ? of.batch : 0, of.state_size, gates);
  add(false, true, of.d_input ? of.batch : 0, of.input_features, gates);
  add(true, false, of.d_weights ? gates : 0, of.state_size, of.batch);
  add(true, true, of.d_weights ? gates : 0, of.input_features, of.batch);
  return expected;
}

TEST(Float32GradientSchedule, HasEachChunkOfEachTileOnce) {
  std::mt19937_64 random(2);
  for (const Shape& shape : random_shapes(60)) {
    if (shape.arithmetic != Arithmetic::kFloat32) {
      continue;
    }
    for (int wanted = 1; wanted < 8; ++wanted) {
      const WantedGradients gradients{.batch = shape.batch,
                                      .input_features = shape.input_features,
                                      .state_size = shape.state_size,
                                      .gates = shape.gates(),
                                      .d_old_h = (wanted & 1) != 0,
                                      .d_input = (wanted & 2) != 0,
                                      .d_weights = (wanted & 4) != 0};
      const bool small = random() % 2 == 0;
      const int parts = 1 + static_cast<int>(random() % 4);
      const int ranks = 1 + static_cast<int>(random() % 8);
      const GradientPlan plan{
          .rows = small ? 64 : 128,
          .state_columns = kThreeTf32Columns,
          .weight_columns = kThreeTf32Columns,
          .ranks = ranks,
          .shares_state = ranks > 1,
          .weight_parts = std::min(parts, tiles_of(shape.batch, kThreeTf32Chunk)),
          .blocks = 8 + static_cast<int>(random() % 256)};
      SCOPED_TRACE(std::to_string(shape.batch) + " " + std::to_string(shape.input_features) + " " +
                   std::to_string(shape.state_size) + " wanted " + std::to_string(wanted) +
                   " ranks " + std::to_string(plan.ranks) + " parts " +
                   std::to_string(plan.weight_parts) + " blocks " + std::to_string(plan.blocks));
      const GradientSchedule schedule =
          schedule_gradients(Arithmetic::kFloat32, gradients, plan, /*one_segment=*/false);
      ASSERT_EQ(computed_chunks(schedule), expected_chunks(gradients, plan.rows));
    }
  }
}

// The blocks compute one share each, and a share that waits for another block to end would take as
// long again.
TEST(Float32GradientSchedule, IsResidentAtOnce) {
  for (const DeviceFacts& device : kDevices) {
    for (const Shape& shape : random_shapes(200)) {
      const Choice choice = choose(shape, device, {.name = "backward_wgmma_float32"});
      const bool by_wgmma = choice.candidate->group == Group::kHopper;
      ASSERT_EQ(by_wgmma, device.wgmma && shape.arithmetic == Arithmetic::kFloat32);
      if (by_wgmma) {
        const GradientPlan& plan = choice.estimate.plan;
        const GradientSchedule schedule =
            schedule_gradients(Arithmetic::kFloat32,
                               {.batch = shape.batch,
                                .input_features = shape.input_features,
                                .state_size = shape.state_size,
                                .gates = shape.gates(),
                                .d_old_h = true,
                                .d_input = true,
                                .d_weights = true},
                               plan,
                               /*one_segment=*/false);
        ASSERT_GT(schedule.shares.clusters, 0);
        ASSERT_LE(schedule.shares.clusters * plan.ranks,
                  device.resident_in_clusters_of(plan.ranks));
      }
    }
  }
}

// 88 tiles of d_old_h and d_input with 192 chunks, and 2112 of d_weights with 8: the clusters
// without one of the former compute so many more of the latter that all have as much to do, but for
// a tile.
TEST(Float32GradientSchedule, GivesAllClustersTheSame) {
  const GradientPlan plan{.rows = 128,
                          .state_columns = kThreeTf32Columns,
                          .weight_columns = kThreeTf32Columns,
                          .blocks = 132};
  const GradientSchedule schedule = schedule_gradients(Arithmetic::kFloat32,
                                                       {.batch = 256,
                                                        .input_features = 2048,
                                                        .state_size = 2048,
                                                        .gates = 3 * 2048,
                                                        .d_old_h = true,
                                                        .d_input = true,
                                                        .d_weights = true},
                                                       plan,
                                                       /*one_segment=*/false);
  ASSERT_EQ(schedule.shares.clusters, 132);
  double least = 1e9, most = 0;
  for (int cluster = 0; cluster < schedule.shares.clusters; ++cluster) {
    const double cost = (192 + kTileCost) * schedule.shares.states_of(cluster) +
                        (8 + kTileCost) * schedule.shares.weights_of(cluster);
    least = std::min(least, cost);
    most = std::max(most, cost);
  }
  EXPECT_LE(most - least, 8 + kTileCost);
}

}  // namespace
}  // namespace lltm::cuda
