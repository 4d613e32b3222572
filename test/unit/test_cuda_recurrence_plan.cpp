// Which kernel runs all steps of a sequence on CUDA: plain host code, tested without a GPU.
#include "cuda/plan/candidates.h"
#include "cuda/plan/sequence.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>

namespace lltm::cuda {
namespace {

using test::kA100;
using test::kH200;

constexpr double kNever = std::numeric_limits<double>::infinity();

Shape shape_of(int64_t steps,
               int64_t rows,
               int64_t state_size,
               bool backward = false,
               Arithmetic arithmetic = Arithmetic::kFloat32,
               CellType cell = CellType::kLltm) {
  return {.work = Work::kSequence,
          .cell = cell,
          .arithmetic = arithmetic,
          .steps = steps,
          .batch = rows,
          .input_features = state_size,
          .state_size = state_size,
          .backward = backward};
}

std::string why_no_block(const Shape& shape, const DeviceFacts& device) {
  return why_no_recurrence(shape, device, Group::kBlock);
}
std::string why_no_cluster(const Shape& shape, const DeviceFacts& device) {
  return why_no_recurrence(shape, device, Group::kCluster);
}

TEST(RecurrencePlan, TakesTheCandidateWithTheLeastTime) {
  std::mt19937_64 random(1);
  int found = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto shape = shape_of(test::log_uniform(random, 1, 2000),
                                test::log_uniform(random, 1, 1e5),
                                test::log_uniform(random, 1, 600),
                                i % 2 == 1,
                                test::kArithmetics[i / 2 % 4],
                                static_cast<CellType>(i / 8 % kCellTypes));
    const double time_of_steps = 2.0 * static_cast<double>(shape.steps);
    const Candidate* const chosen = choose_recurrence(shape, kH200, {}, time_of_steps);
    for (const Candidate& other : candidates(Work::kSequence)) {
      if (!supports(other, shape, kH200)) {
        continue;
      }
      const double time = estimate(other, shape, kH200)->us;
      ASSERT_GT(time, 0);
      ASSERT_GE(time, chosen == nullptr ? time_of_steps : estimate(*chosen, shape, kH200)->us);
    }
    if (chosen != nullptr) {
      ++found;
      ASSERT_TRUE(supports(*chosen, shape, kH200));
      ASSERT_LE(shape.state_size, chosen->recurrence.state_size);
    }
  }
  EXPECT_GT(found, 1000);
}

TEST(RecurrencePlan, TakesLongerForMore) {
  for (const Candidate& candidate : candidates(Work::kSequence)) {
    if (candidate.group == Group::kGrid) {
      continue;  // takes few rows of its largest state
    }
    for (const bool backward : {false, true}) {
      if (backward && candidate.recurrence.x_inside) {
        continue;  // only a forward
      }
      const auto time = [&](int64_t steps, int64_t rows) {
        return estimate(candidate,
                        shape_of(steps,
                                 rows,
                                 candidate.recurrence.state_size,
                                 backward,
                                 candidate.float32 ? Arithmetic::kFloat32 : Arithmetic::kBFloat16,
                                 candidate.cell),
                        kH200)
            ->us;
      };
      EXPECT_LT(time(100, 16), time(200, 16)) << candidate.name;
      EXPECT_LE(time(100, 16), time(100, 1000)) << candidate.name;
      EXPECT_LT(time(100, 1000), time(100, 100'000)) << candidate.name;
    }
  }
}

TEST(RecurrencePlan, OfAGruTakesItsOwnKernels) {
  for (const bool backward : {false, true}) {
    for (const Arithmetic arithmetic : test::kArithmetics) {
      for (const int64_t state_size : {20, 64, 128, 256, 512}) {
        const auto shape = shape_of(100, 16, state_size, backward, arithmetic, CellType::kGru);
        const Candidate* const chosen = choose_recurrence(shape, kH200, {}, kNever);
        ASSERT_NE(chosen, nullptr);
        EXPECT_EQ(chosen->name.find("recurrence_gru_"), 0) << chosen->name;
        EXPECT_FALSE(chosen->recurrence.x_inside);
      }
    }
  }
  EXPECT_EQ(why_no_block(shape_of(3, 3, 200, false, Arithmetic::kFloat32, CellType::kGru), kH200),
            "takes a state_size of at most 128, got 200");
}

// Blocks of a team wait for each other.
TEST(GridPlan, HasRoomForAllBlocksAtOnce) {
  std::mt19937_64 random(1);
  int found = 0;
  for (int i = 0; i < 20'000; ++i) {
    DeviceFacts device = i % 2 == 0 ? kH200 : kA100;
    if (i / 2 % 3 > 0) {  // an L4, a slice of a GPU
      device.multiprocessors = i / 2 % 3 == 1 ? 58 : 16;
      device.shared_bytes_a_block = 99 * 1024;
    }
    const auto cell = static_cast<CellType>(i / 128 % kCellTypes);
    const Arithmetic arithmetic = test::kArithmetics[i / 16 % 4];
    const int64_t rows = test::log_uniform(random, 1, 3000);
    const int64_t state_size = test::log_uniform(random, 1, 1200);
    const bool backward = i / 64 % 2 == 1;
    const auto plan = plan_grid(shape_of(1, rows, state_size, backward, arithmetic, cell), device);
    if (!plan) {
      continue;
    }
    ++found;
    const GridTeams& teams = plan->teams;
    ASSERT_LE(teams.teams * teams.blocks, device.multiprocessors);
    const int bytes = with_cell(cell, [&]<typename Cell>() {
      return grid_shared_bytes<Cell>(plan->tile, arithmetic, backward, teams.groups);
    });
    ASSERT_LE(bytes, device.shared_bytes_a_block);
    // What inference needs beside z_x.
    ASSERT_LE(grid_workspace(plan->tile, teams, gates_of(cell), arithmetic, backward, rows).bytes,
              24 << 20);
    ASSERT_LE(plan->rows_of_team(), kGridRows);
    ASSERT_GE(int64_t{teams.teams} * plan->rows_of_team(), rows);
    ASSERT_LT(int64_t{teams.teams - 1} * plan->rows_of_team(), rows);  // no team is without rows
    ASSERT_GE(8 * teams.blocks * plan->tile.units, state_size);
    ASSERT_GT(plan->us, 0);
  }
  EXPECT_GT(found, 5000);
}

TEST(GridPlan, IsTakenIfSelected) {
  const Selection grid{.group = Group::kGrid};
  const auto shape = shape_of(100, 32, 512, false, Arithmetic::kFloat32, CellType::kLstm);
  const Candidate* const chosen = choose_recurrence(shape, kA100, grid, kNever);
  ASSERT_NE(chosen, nullptr);
  EXPECT_EQ(chosen->name, "recurrence_lstm_grid");
  EXPECT_EQ(why_no_recurrence(shape, kA100, Group::kGrid), "");
  EXPECT_EQ(why_no_recurrence(shape_of(100, 100, 1024), kA100, Group::kGrid),
            "has no tile for 100 rows of a state_size of 1024 on this GPU, on which all its blocks "
            "have to be resident");
  EXPECT_EQ(why_no_recurrence(shape_of(100, 100, 1025), kA100, Group::kGrid),
            "takes a state_size of at most 1024, got 1025");
}

/// "forward/backward" of inference and of a backward: g(rid), c(luster), b(lock) or s(teps).
std::string chosen(Arithmetic arithmetic,
                   int64_t steps,
                   int64_t rows,
                   int64_t state_size,
                   CellType cell = CellType::kLstm,
                   const DeviceFacts& device = kH200) {
  std::string both;
  for (const bool backward : {false, true}) {
    SequenceShape shape;
    static_cast<Shape&>(shape) = shape_of(steps, rows, state_size, backward, arithmetic, cell);
    shape.layout.size = element_size(arithmetic);
    shape.layout.steps = steps;
    shape.layout.batch = rows;
    shape.layout.gates = shape.gates();
    shape.layout.input_features = shape.layout.state_size = state_size;
    shape.input = shape.weights = shape.weights_input = {reinterpret_cast<void*>(4096), state_size};
    const SequencePlan plan = choose_sequence(shape, device, {});
    both += backward ? "/" : "";
    both += plan.recurrence == nullptr                  ? "s"
            : plan.recurrence->group == Group::kGrid    ? "g"
            : plan.recurrence->group == Group::kCluster ? "c"
                                                        : "b";
  }
  return both;
}

// What was faster on an H200.
TEST(GridPlan, IsChosenWhereItIsFaster) {
  constexpr Arithmetic kFloat32 = Arithmetic::kFloat32, kTf32 = Arithmetic::kTf32,
                       kFloat16 = Arithmetic::kFloat16;
  EXPECT_EQ(chosen(kFloat32, 256, 32, 512), "g/g");
  EXPECT_EQ(chosen(kTf32, 256, 32, 512), "g/g");
  EXPECT_EQ(chosen(kFloat16, 256, 32, 512), "g/g");
  EXPECT_EQ(chosen(kFloat32, 256, 32, 256), "c/c");
  EXPECT_EQ(chosen(kTf32, 256, 32, 256), "g/c");
  EXPECT_EQ(chosen(kTf32, 256, 256, 384), "g/s");
  EXPECT_EQ(chosen(kFloat16, 256, 256, 384), "g/s");
  for (const CellType cell : {CellType::kLltm, CellType::kGru}) {
    EXPECT_EQ(chosen(kFloat16, 256, 64, 384, cell), "c/c");  // across the grid 1.25 times as long
  }
  EXPECT_EQ(chosen(kTf32, 256, 64, 1024), "g/s");
  EXPECT_EQ(chosen(kFloat32, 256, 64, 1024), "s/s") << "its workspace would be too large";
  for (const Arithmetic arithmetic : {kFloat32, kTf32, kFloat16}) {
    EXPECT_EQ(chosen(arithmetic, 128, 8, 768), arithmetic == kFloat16 ? "g/g" : "g/s");
  }
  EXPECT_EQ(chosen(kFloat16, 128, 16, 1024), "g/g");
  EXPECT_EQ(chosen(kFloat32, 128, 16, 128), "c/c");
  EXPECT_EQ(chosen(kFloat16, 128, 16, 128), "b/b");
}

// Without a measurement: by the times of an LSTM.
TEST(GridPlan, OfAGruIsChosenBesideItsClustersAndSteps) {
  const auto of_gru = [](Arithmetic arithmetic, int64_t state_size, const DeviceFacts& device) {
    return chosen(arithmetic, 256, 32, state_size, CellType::kGru, device);
  };
  for (const Arithmetic arithmetic : test::kArithmetics) {
    EXPECT_EQ(of_gru(arithmetic, 96, kH200), "b/b");
    EXPECT_EQ(of_gru(arithmetic, 256, kH200), arithmetic == Arithmetic::kTf32 ? "g/c" : "c/c");
    EXPECT_EQ(of_gru(arithmetic, 512, kH200), "g/g");
    EXPECT_EQ(of_gru(arithmetic, 1024, kH200), "g/s");
    for (const int64_t state_size : {256, 384, 512}) {
      EXPECT_EQ(of_gru(arithmetic, state_size, kA100), "g/g") << state_size;
    }
  }
}

// A cell that does not add its sides has fewer of them.
TEST(GridPlan, HasATileForAllThatOthersHave) {
  int without = 0;
  for (int64_t state_size = 1; state_size <= 1024; ++state_size) {
    for (const Arithmetic arithmetic : test::kArithmetics) {
      for (const int64_t rows : {1, 8, 20, 60, 100, 150, 200, 300, 500}) {
        for (const bool backward : {false, true}) {
          const auto of_lltm =
              plan_grid(shape_of(1, rows, state_size, backward, arithmetic), kH200);
          const auto of_gru =
              plan_grid(shape_of(1, rows, state_size, backward, arithmetic, CellType::kGru), kH200);
          ASSERT_EQ(of_gru.has_value(), of_lltm.has_value()) << state_size << " " << rows;
          if (of_gru) {
            ASSERT_TRUE(has_grid_tile(/*adds=*/false, arithmetic, backward, of_gru->tile));
            ASSERT_LE(of_gru->us, 1.08 * of_lltm->us) << state_size << " " << rows;
            without += of_gru->tile != of_lltm->tile;
          }
        }
      }
    }
  }
  EXPECT_GT(without, 1000);
}

TEST(RecurrencePlan, ChunksCostLaunches) {
  const Candidate& candidate = candidates(Work::kSequence).front();
  Shape shape = shape_of(100, 16, 8);
  const double at_once = estimate(candidate, shape, kH200)->us;
  shape.launches = 10;
  EXPECT_GT(estimate(candidate, shape, kH200)->us, at_once);
}

// Where the workspace has no room for z_x of a step, as of inference with many rows.
TEST(RecurrencePlan, RunsSomeOfTheRowsAtATime) {
  Shape shape =
      shape_of(16, 100'000, 64, /*backward=*/false, Arithmetic::kBFloat16, CellType::kLstm);
  EXPECT_EQ(shape.parts(), 1);
  const Candidate& all = *choose_recurrence(shape, kH200, {}, kNever);
  const double us = estimate(all, shape, kH200)->us;
  shape.launches = 2 * shape.steps;
  EXPECT_EQ(shape.parts(), 2);
  const Candidate& in_parts = *choose_recurrence(shape, kH200, {}, kNever);
  EXPECT_GT(estimate(in_parts, shape, kH200)->us, us);
  EXPECT_LT(estimate(in_parts, shape, kH200)->us, 1.5 * us);
  EXPECT_EQ(why_no_block(shape, kH200), "");
  shape.batch = 1000;
  EXPECT_EQ(why_no_recurrence(shape, kH200, Group::kGrid),
            "has no workspace for a step of 1000 rows");
}

TEST(RecurrencePlan, MultipliesTheInputInsideWithManyRows) {
  Shape many{.work = Work::kSequence,
             .arithmetic = Arithmetic::kBFloat16,
             .steps = 64,
             .batch = 4096,
             .input_features = 128,
             .state_size = 128};
  const auto chosen = [](const Shape& shape) {
    return choose_recurrence(shape, kH200, {}, kNever);
  };
  const auto is_inside = [&](const Shape& shape) { return chosen(shape)->recurrence.x_inside; };
  Shape other = many;
  for (const CellType cell : {CellType::kLltm, CellType::kLstm, CellType::kGru}) {
    other.cell = cell;
    EXPECT_TRUE(is_inside(other));
  }
  other = many;
  other.batch = 2;
  EXPECT_FALSE(is_inside(other));
  other = many;
  other.backward = true;
  EXPECT_FALSE(is_inside(other));
  for (const int64_t input_features : {0, 129}) {
    other = many;
    other.input_features = input_features;
    EXPECT_FALSE(is_inside(other)) << input_features;
  }
  for (bool Shape::* const pairs : {&Shape::in_pairs, &Shape::input_in_pairs}) {
    other = many;
    other.*pairs = false;
    EXPECT_FALSE(is_inside(other));
  }
  DeviceFacts small = kA100;
  small.shared_bytes_a_block = 155 * 1024;  // fits the kernel without the input only
  EXPECT_TRUE(choose_recurrence(many, kA100, {}, kNever)->recurrence.x_inside);
  EXPECT_FALSE(choose_recurrence(many, small, {}, kNever)->recurrence.x_inside);
  // It needs no workspace, and no more launches.
  other = many;
  other.launches = 0;
  EXPECT_EQ(why_no_block(other, kH200), "");
  EXPECT_TRUE(is_inside(other));
  EXPECT_EQ(estimate(*chosen(other), other, kH200)->us, estimate(*chosen(other), many, kH200)->us);
  other.input_in_pairs = false;
  EXPECT_EQ(why_no_block(other, kH200), "has no workspace for a step of 4096 rows");
}

TEST(RecurrencePlan, MultipliesTheInputOfSmallStatesInside) {
  const auto is_inside = [](int64_t rows, int64_t state_size) {
    return choose_recurrence(shape_of(256, rows, state_size), kH200, {}, kNever)
        ->recurrence.x_inside;
  };
  EXPECT_TRUE(is_inside(1000, 32));
  EXPECT_FALSE(is_inside(1000, 33));
  Shape wide = shape_of(256, 1000, 32);
  wide.input_features = 33;
  EXPECT_FALSE(choose_recurrence(wide, kH200, {}, kNever)->recurrence.x_inside);
}

TEST(RecurrencePlan, HidesThePrologueBehindASmallProduct) {
  const auto is_small = [](int64_t rows, int64_t input_features, int64_t state_size) {
    const InputProductPlan plan = plan_input_product({.arithmetic = Arithmetic::kFloat32,
                                                      .batch = rows,
                                                      .input_features = input_features,
                                                      .state_size = state_size},
                                                     kA100);
    return plan.kernel == InputProductKernel::kSmall;
  };
  EXPECT_TRUE(is_small(100, 32, 32));
  EXPECT_FALSE(is_small(int64_t{1} << 40, 0, 1));
  EXPECT_FALSE(is_small(1, 10'000, 10'000));
  // The first product that is not small takes a launch longer than the last one that is.
  const Candidate& candidate = candidates(Work::kSequence).front();
  int64_t steps = 1;
  while (is_small(steps, 32, 32)) {
    ++steps;
  }
  const auto time = [&](int64_t count) {
    return estimate(candidate, shape_of(count, 1, 32), kA100)->us;
  };
  EXPECT_GT(time(steps) - time(steps - 1), 2 * (time(steps + 1) - time(steps)));
}

TEST(RecurrencePlan, MultipliesLargeInputsInFloat32ByThreeTf32Products) {
  const auto plan = [](int64_t rows,
                       int64_t input_features,
                       int64_t state_size,
                       Arithmetic arithmetic = Arithmetic::kFloat32,
                       const DeviceFacts& device = kH200) {
    return plan_input_product({.arithmetic = arithmetic,
                               .batch = rows,
                               .input_features = input_features,
                               .state_size = state_size},
                              device);
  };
  EXPECT_EQ(plan(8192, 512, 512).kernel, InputProductKernel::kWgmmaFloat32);
  EXPECT_EQ(plan(8192, 512, 512).tile_rows, 128);
  EXPECT_TRUE(plan(3000, 511, 511).is_own());
  EXPECT_FALSE(plan(8192, 511, 511).is_own());  // a copy of the input would not fit the workspace
  for (const Arithmetic other : {Arithmetic::kTf32, Arithmetic::kFloat16, Arithmetic::kBFloat16}) {
    EXPECT_FALSE(plan(8192, 512, 512, other).is_own());
  }
  EXPECT_FALSE(plan(8192, 512, 512, Arithmetic::kFloat32, kA100).is_own());
  EXPECT_FALSE(plan(100'000, 0, 512).is_own());
  EXPECT_FALSE(plan(int64_t{1} << 31, 512, 512).is_own());  // TMA counts in 32 bits
  // Nor would one of the weights.
  EXPECT_TRUE(plan(8192, 2048, 512).is_own());
  EXPECT_TRUE(plan(8192, 1000, 511).is_own());
  EXPECT_FALSE(plan(8192, 2048, 511).is_own());
}

/// The products over all steps of an LLTM's backward.
Shape products_of(int64_t rows, int64_t input_features, int64_t state_size) {
  return {.batch = rows, .input_features = input_features, .state_size = state_size};
}

TEST(RecurrencePlan, TakesItsOwnProductsOfGradientsWhereTheseAreSmall) {
  EXPECT_TRUE(are_small_gradient_products(products_of(17 * 43, 78, 78)));
  EXPECT_TRUE(are_small_gradient_products(products_of(290 * 20, 16, 16)));
  EXPECT_TRUE(are_small_gradient_products(products_of(1, 0, 1)));
  EXPECT_FALSE(are_small_gradient_products(products_of(128 * 128, 128, 128)));
  EXPECT_FALSE(are_small_gradient_products(products_of(1, 10'000, 10'000)));
  EXPECT_FALSE(are_small_gradient_products(products_of(int64_t{1} << 59, 0, 1)));
  EXPECT_FALSE(are_small_gradient_products(products_of(1000, int64_t{1} << 30, 512)));
}

TEST(RecurrencePlan, DividesTheGradientOfWeightsIntoParts) {
  // No part has to be added where a sum is short.
  EXPECT_EQ(parts_of_weight_gradient(products_of(20, 47, 47), kH200).count, 1);
  EXPECT_GT(parts_of_weight_gradient(products_of(17 * 43, 78, 78), kH200).count, 1);
  std::mt19937_64 random(1);
  int small = 0;
  for (int i = 0; i < 5000; ++i) {
    const int64_t rows = test::log_uniform(random, 1, 1e5),
                  input_features = test::log_uniform(random, 1, 2000),
                  state_size = test::log_uniform(random, 1, 512);
    const Shape products = products_of(rows, input_features, state_size);
    if (!are_small_gradient_products(products)) {
      continue;
    }
    ++small;
    for (const DeviceFacts& device : {kA100, kH200, test::kEighthOfAnH200}) {
      const GradientParts parts = parts_of_weight_gradient(products, device);
      ASSERT_EQ(parts.rows % kGradientChunk, 0);
      ASSERT_GE(parts.rows * parts.count, rows);
      ASSERT_LT(parts.rows * (parts.count - 1), rows);  // none is empty
      if (parts.count > 1) {
        ASSERT_LE(parts.count * products.gates() * products.width() * 4, 16 << 20);
      }
    }
  }
  EXPECT_GT(small, 1000);
}

TEST(RecurrencePlan, LeavesStepsToTheirKernelsWhereTheseAreSelected) {
  const auto shape = shape_of(100, 16, 64);
  for (const char* const path : {"steps", "few_rows", "hopper", "tiles", "library"}) {
    EXPECT_EQ(choose_recurrence(shape, kH200, *parse_selection(path), kNever), nullptr) << path;
  }
  EXPECT_NE(choose_recurrence(shape, kH200, *parse_selection("auto"), kNever), nullptr);
  // Even where steps would take no time.
  EXPECT_NE(choose_recurrence(shape, kH200, *parse_selection("block"), 0), nullptr);
  const auto* const by_name =
      choose_recurrence(shape, kH200, *parse_selection("recurrence_fma_64x4"), 0);
  ASSERT_NE(by_name, nullptr);
  EXPECT_EQ(by_name->name, "recurrence_fma_64x4");
  const auto too_small = *parse_selection("recurrence_fma_32x1");
  EXPECT_EQ(choose_recurrence(shape, kH200, too_small, kNever), nullptr);
}

TEST(RecurrencePlan, NamesTheLimit) {
  EXPECT_EQ(why_no_block(shape_of(27, 3, 128), kH200), "");
  EXPECT_EQ(why_no_block(shape_of(27, 3, 128), kA100), "");
  EXPECT_EQ(why_no_block(shape_of(27, 3, 633), kH200),
            "takes a state_size of at most 128, got 633");
  EXPECT_EQ(why_no_block(shape_of(int64_t{1} << 30, 3, 8), kH200),
            "takes fewer than 2^30 steps and rows, got 1073741824 and 3");
  DeviceFacts small = kA100;
  small.shared_bytes_a_block = 99 * 1024;
  Shape in_16_bits = shape_of(27, 3, 97);
  in_16_bits.arithmetic = Arithmetic::kFloat16;
  EXPECT_EQ(why_no_block(in_16_bits, kA100), "");
  EXPECT_EQ(why_no_block(in_16_bits, small),
            "needs 150 KiB of shared memory a block for a 16-bit state_size of more than 96, and "
            "the GPU has 99");
  in_16_bits.state_size = 96;
  EXPECT_EQ(why_no_block(in_16_bits, small), "");
  EXPECT_EQ(choose_recurrence(in_16_bits, small, {}, kNever)->recurrence.state_size, 96);
  DeviceFacts old = kA100;
  old.tiles = false;
  EXPECT_EQ(why_no_block(shape_of(27, 3, 8), old),
            "needs a GPU of compute capability 8.0 or newer");
  Shape other = shape_of(27, 3, 8);
  other.arithmetic = std::nullopt;
  EXPECT_EQ(why_no_block(other, kH200), "has no kernel for float64");
  other = shape_of(27, 1 << 28, 40);
  other.launches = 0;
  EXPECT_EQ(why_no_block(other, kH200), "has no workspace for a step of 268435456 rows");
}

TEST(RecurrencePlan, SpreadsRowsOverTheClustersThatAreResident) {
  const RecurrenceTile tile{.state_size = 512, .rows = 16, .cluster = 8};
  const int resident = kH200.resident_in_clusters_of(8) / 8;
  ASSERT_EQ(resident, 15);
  EXPECT_EQ(rows_of_group(tile, 1, kH200), 1);
  EXPECT_EQ(rows_of_group(tile, 15, kH200), 1);
  EXPECT_EQ(rows_of_group(tile, 16, kH200), 2);
  EXPECT_EQ(rows_of_group(tile, 240, kH200), 16);
  EXPECT_EQ(rows_of_group(tile, 241, kH200), 9);  // twice 15 clusters
  EXPECT_EQ(rows_of_group({.state_size = 128, .rows = 8}, 2, kH200), 8);
}

TEST(RecurrencePlan, NamesTheLimitOfClusters) {
  const auto in_16_bits = [](int64_t state_size) {
    return shape_of(27, 3, state_size, /*backward=*/false, Arithmetic::kFloat16);
  };
  EXPECT_EQ(why_no_cluster(in_16_bits(20), kH200), "");
  EXPECT_EQ(why_no_cluster(in_16_bits(512), kH200), "");
  EXPECT_EQ(why_no_cluster(in_16_bits(633), kH200), "takes a state_size of at most 512, got 633");
  EXPECT_EQ(why_no_cluster(in_16_bits(200), kA100),
            "needs a cluster of 4 blocks, which is not resident on this GPU");
  EXPECT_EQ(why_no_cluster(in_16_bits(200), test::kSliceOfSmallClusters), "");
  EXPECT_EQ(why_no_cluster(in_16_bits(300), test::kSliceOfSmallClusters),
            "needs a cluster of 6 blocks, which is not resident on this GPU");
  EXPECT_EQ(why_no_cluster(in_16_bits(512), test::kEighthOfAnH200),
            "needs a cluster of 8 blocks, which is not resident on this GPU");
  EXPECT_EQ(why_no_cluster(shape_of(27, 3, 200), kH200), "");
  EXPECT_EQ(why_no_cluster(shape_of(27, 3, 633), kH200),
            "takes a state_size of at most 512, got 633");
  EXPECT_EQ(why_no_cluster(shape_of(27, 3, 300), test::kSliceOfSmallClusters),
            "needs a cluster of 16 blocks, which is not resident on this GPU");
  Shape other = in_16_bits(200);
  other.arithmetic = std::nullopt;
  EXPECT_EQ(why_no_cluster(other, kH200), "has no kernel for float64");
  other = in_16_bits(200);
  other.launches = 0;
  EXPECT_EQ(why_no_cluster(other, kH200), "has no workspace for a step of 3 rows");
  // A cluster that is not resident is not chosen either.
  const auto group_on = [&](const DeviceFacts& device) {
    return choose_recurrence(in_16_bits(512), device, {}, kNever)->group;
  };
  for (const DeviceFacts& device : {kA100, test::kSliceOfSmallClusters, test::kEighthOfAnH200}) {
    EXPECT_EQ(group_on(device), Group::kGrid);
  }
  EXPECT_EQ(group_on(kH200), Group::kCluster);
}

TEST(RecurrencePlan, TakesClustersWhereTheyAreSelected) {
  const auto shape = shape_of(100, 16, 64, /*backward=*/true, Arithmetic::kBFloat16);
  for (const Group group : {Group::kBlock, Group::kCluster}) {
    EXPECT_EQ(choose_recurrence(shape, kH200, {.group = group}, 0)->group, group);
  }
}

}  // namespace
}  // namespace lltm::cuda
