// How a sequence and its backward are computed on CUDA, and which kernels compute the steps of the
// latter: plain host code, tested without a GPU.
#include "cuda/plan/candidates.h"
#include "cuda/plan/sequence.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string_view>

namespace lltm::cuda {
namespace {

using test::kA100;
using test::kArithmetics;
using test::kH200;

Shape shape_of(std::optional<Arithmetic> arithmetic,
               int64_t rows,
               int64_t state_size,
               int64_t gates = 3) {
  return {.work = Work::kStepBackward,
          .cell = gates == 3 ? CellType::kLltm : CellType::kLstm,
          .arithmetic = arithmetic,
          .steps = 100,
          .batch = rows,
          .state_size = state_size,
          .columns = gates * state_size};
}

Choice choose(std::optional<Arithmetic> arithmetic,
              int64_t rows,
              int64_t state_size,
              const DeviceFacts& device = kH200,
              const Selection& selection = {}) {
  return choose(shape_of(arithmetic, rows, state_size), device, selection);
}

int64_t blocks(const Choice& plan, int64_t rows, int64_t state_size) {
  const TileShape& tile = plan.candidate->tile;
  return int64_t{tiles_of(rows, tile.rows)} * tiles_of(state_size, tile.columns) *
         plan.estimate.ranks;
}

bool is_fused(const Choice& plan) {
  return plan.candidate->group != Group::kLibrary;
}

TEST(SequenceGradientPlan, FitsTheDevice) {
  std::mt19937_64 random(1);
  int fused = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t rows = test::log_uniform(random, 1, 1e6);
    const int64_t state_size = test::log_uniform(random, 1, 5000);
    const Arithmetic arithmetic = kArithmetics[i % 4];
    for (const DeviceFacts& device : {kH200, kA100}) {
      const auto plan = choose(arithmetic, rows, state_size, device);
      if (!is_fused(plan)) {
        continue;
      }
      ++fused;
      const int ranks = plan.estimate.ranks;
      ASSERT_GE(ranks, 1) << rows << " " << state_size;
      // Every rank has something to multiply, and clusters of this size exist.
      ASSERT_LE(ranks, tiles_of(3 * state_size, 128 / element_size(arithmetic)));
      ASSERT_GT(device.resident_in_clusters_of(ranks), 0) << rows << " " << state_size;
    }
  }
  EXPECT_GT(fused, 10000);
}

TEST(SequenceGradientPlan, ReadsTheWeightsByManyMultiprocessors) {
  for (const Arithmetic arithmetic : kArithmetics) {
    const auto plan = choose(arithmetic, 32, 512);
    ASSERT_TRUE(is_fused(plan));
    EXPECT_GE(blocks(plan, 32, 512), 96);
  }
}

TEST(SequenceGradientPlan, LeavesToTheLibraryWhatTilesCannot) {
  const auto fuses = [](const DeviceFacts& device,
                        std::optional<Arithmetic> arithmetic,
                        std::optional<Group> group = std::nullopt) {
    return is_fused(choose(arithmetic, 16, 128, device, {.group = group}));
  };
  EXPECT_TRUE(fuses(kH200, Arithmetic::kFloat32));
  EXPECT_FALSE(fuses(kH200, std::nullopt)) << "float64";
  EXPECT_FALSE(fuses(kH200, std::nullopt, Group::kTiles)) << "float64";
  EXPECT_FALSE(fuses({.multiprocessors = 80, .resident = {80}, .resident_by_two = {160}},
                     Arithmetic::kFloat16));
  EXPECT_FALSE(fuses(kH200, Arithmetic::kFloat32, Group::kLibrary));
}

TEST(SequenceGradientPlan, TakesHoppersInstructionsForLargeProducts) {
  const auto by_wgmma = [](Arithmetic arithmetic,
                           const DeviceFacts& device,
                           std::optional<Group> group = std::nullopt) {
    return choose(arithmetic, 128, 2048, device, {.group = group}).candidate->group ==
           Group::kHopper;
  };
  for (const Arithmetic arithmetic : kArithmetics) {
    EXPECT_TRUE(by_wgmma(arithmetic, kH200));
    EXPECT_FALSE(by_wgmma(arithmetic, kA100));
    EXPECT_FALSE(by_wgmma(arithmetic, kH200, Group::kTiles));
  }
  for (const Arithmetic arithmetic : {Arithmetic::kTf32, Arithmetic::kBFloat16}) {
    EXPECT_FALSE(is_fused(choose(arithmetic, 128, 2048, kA100)));
  }
  Shape shape = shape_of(Arithmetic::kFloat32, 1 << 20, 2048);
  shape.steps = 1 << 20;
  EXPECT_NE(choose(shape, kH200).candidate->group, Group::kHopper) << "more rows than TMA counts";
}

TEST(SequenceGradientPlan, CountsTransposingTheWeightsOnce) {
  Shape shape = shape_of(Arithmetic::kBFloat16, 64, 1024);
  const Candidate& candidate = *choose(shape, kH200).candidate;
  ASSERT_EQ(candidate.group, Group::kHopper);
  const double many = estimate(candidate, shape, kH200)->us;
  shape.steps = 1;
  // Reading and writing 6 MiB takes microseconds.
  EXPECT_GT(estimate(candidate, shape, kH200)->us, many + 3);
}

TEST(SequenceGradientPlan, TakesHoppersInstructionsForAnyStateSize) {
  for (const Arithmetic arithmetic : kArithmetics) {
    for (const int64_t state_size : {1021, 1022, 1023}) {
      const auto plan = choose(arithmetic, 64, state_size);
      EXPECT_EQ(plan.candidate->group, Group::kHopper);
      EXPECT_TRUE(plan.candidate->any_state_size);
    }
  }
}

TEST(SequenceGradientPlan, HasMmaSyncOnlyForThreeGates) {
  for (const DeviceFacts& device : {kH200, kA100}) {
    const Shape shape = shape_of(Arithmetic::kBFloat16, 64, 1024, /*gates=*/4);
    EXPECT_EQ(choose(shape, device).candidate->group,
              device.wgmma ? Group::kHopper : Group::kLibrary);
    EXPECT_EQ(choose(shape, device, {.group = Group::kTiles}).candidate->group, Group::kLibrary);
  }
}

TEST(SequenceGradientPlan, TakesACandidateByItsNameAndRanks) {
  const Shape float32 = shape_of(Arithmetic::kFloat32, 64, 1024);
  const auto plan = [](const Shape& shape, std::string_view name, int ranks = 0) {
    return choose(shape, kH200, {.name = name, .ranks = ranks});
  };
  const Shape tf32 = shape_of(Arithmetic::kTf32, 128, 2048);
  for (const Candidate& candidate : candidates(Work::kStepBackward)) {
    const bool of_float32 = supports(candidate, float32, kH200);
    const Shape& shape = of_float32 ? float32 : tf32;
    const auto found = plan(shape, candidate.name);
    EXPECT_EQ(found.candidate, &candidate);
    EXPECT_EQ(found.estimate.ranks, estimate(candidate, shape, kH200)->ranks);
  }
  EXPECT_EQ(plan(float32, "sequence_backward_tiles_32x32", 5).estimate.ranks, 5);
  // Not supported: float32's in TF32 and the reverse, ranks of the library, and more ranks than
  // chunks.
  const Shape small = shape_of(Arithmetic::kFloat32, 64, 8);
  for (const auto& found : {plan(tf32, "sequence_backward_wgmma_float32_64x96"),
                            plan(float32, "sequence_backward_wgmma_64x64"),
                            plan(tf32, "sequence_backward_library", 1),
                            plan(small, "sequence_backward_wgmma_float32_64x96", 2)}) {
    EXPECT_EQ(found.candidate->group, Group::kTiles);
  }
  // The names of other directions select nothing.
  for (const auto& found : {plan(tf32, "backward_tiles"), plan(tf32, "forward_tiles_64x8", 2)}) {
    EXPECT_EQ(found.candidate->group, Group::kHopper);
  }
}

TEST(SequenceGradientPlan, TakesTilesForAnyOtherGroup) {
  for (const Group group : {Group::kFewRows, Group::kHopper, Group::kTiles}) {
    EXPECT_TRUE(is_fused(choose(Arithmetic::kTf32, 4096, 4096, kH200, {.group = group})));
  }
}

/// A forward on contiguous tensors, which keeps nothing.
SequenceShape forward_of(CellType cell, Arithmetic arithmetic, int64_t rows, int64_t size) {
  SequenceShape shape;
  shape.cell = cell;
  shape.arithmetic = arithmetic;
  shape.steps = 100;
  shape.batch = rows;
  shape.input_features = shape.state_size = size;
  StepsLayout& of = shape.layout;
  of.size = element_size(arithmetic);
  of.steps = shape.steps;
  of.batch = rows;
  of.gates = shape.gates();
  of.input_features = of.state_size = size;
  const bool describable = size * of.size % 16 == 0;
  of.choose_copies(describable, describable, describable);
  shape.input = {nullptr, size};
  shape.weights = shape.weights_input = {nullptr, cell == CellType::kLltm ? 2 * size : size};
  return shape;
}

TEST(SequencePlan, IsTheWayWithTheLeastTime) {
  std::mt19937_64 random(1);
  int recurrences = 0, kernels = 0, libraries = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto shape = forward_of(i / 4 % 2 == 0 ? CellType::kLltm : CellType::kLstm,
                                  kArithmetics[i % 4],
                                  test::log_uniform(random, 1, 5000),
                                  test::log_uniform(random, 1, 2000));
    for (const DeviceFacts& device : {kH200, kA100}) {
      const SequencePlan plan = choose_sequence(shape, device, {});
      const SequencePlan steps = choose_sequence(shape, device, {.group = Group::kSteps});
      ASSERT_EQ(steps.recurrence, nullptr);
      const double time_of_steps = steps.steps.time();
      const Choice least = choose(shape, device);
      if (plan.recurrence != nullptr) {
        ++recurrences;
        ASSERT_EQ(plan.recurrence, least.candidate);
        ASSERT_LT(least.estimate.us, time_of_steps);
      } else {
        ++(plan.steps.by_library() ? libraries : kernels);
        ASSERT_TRUE(least.candidate == nullptr || least.estimate.us >= time_of_steps);
      }
    }
  }
  EXPECT_GT(std::min({recurrences, kernels, libraries}), 500);
}

TEST(SequencePlan, OfAGruHoistsItsInputForTheLibrary) {
  for (const DeviceFacts& device : {kH200, kA100}) {
    SequenceShape shape = forward_of(CellType::kGru, Arithmetic::kBFloat16, 64, 128);
    EXPECT_NE(choose_sequence(shape, device, {}).recurrence, nullptr);
    shape = forward_of(CellType::kGru, Arithmetic::kBFloat16, 64, 1024);
    for (const Group group : {Group::kHopper, Group::kTiles, Group::kFewRows}) {
      const bool of_hopper = group == Group::kHopper && device.wgmma;
      const StepsPlan steps = choose_sequence(shape, device, {.group = group}).steps;
      EXPECT_EQ(steps.by_library(), !of_hopper);
      EXPECT_EQ(steps.layout.hoists_input(), !of_hopper);
      shape.backward = true;
      EXPECT_EQ(choose_sequence(shape, device, {.group = group}).gradients.candidate->group,
                of_hopper ? Group::kHopper : Group::kLibrary);
      shape.backward = false;
    }
  }
}

TEST(SequencePlan, HoistsTheInputOfWeightsThatL2HasNoRoomFor) {
  const auto hoists = [](CellType cell, Arithmetic arithmetic, int64_t rows, int64_t size) {
    const auto shape = forward_of(cell, arithmetic, rows, size);
    const StepsPlan steps = choose_sequence(shape, kH200, {.group = Group::kSteps}).steps;
    EXPECT_FALSE(steps.by_library());
    return steps.layout.hoists_input();
  };
  for (const CellType cell : {CellType::kLltm, CellType::kLstm, CellType::kGru}) {
    EXPECT_FALSE(hoists(cell, Arithmetic::kBFloat16, 512, 640));
    EXPECT_FALSE(hoists(cell, Arithmetic::kFloat32, 512, 640));
    EXPECT_FALSE(hoists(cell, Arithmetic::kTf32, 4096, 128));
    EXPECT_TRUE(hoists(cell, Arithmetic::kBFloat16, 128, 2048));
  }
  EXPECT_TRUE(hoists(CellType::kLstm, Arithmetic::kTf32, 128, 2048)) << "not the library";
}

TEST(SequencePlan, HoistsTheInputOfAFewRowsToo) {
  for (const CellType cell : {CellType::kLltm, CellType::kLstm, CellType::kGru}) {
    for (const int64_t size : {512, 2048}) {
      const auto shape = forward_of(cell, Arithmetic::kTf32, 4, size);
      const StepsPlan steps = choose_sequence(shape, kH200, {.group = Group::kSteps}).steps;
      EXPECT_EQ(steps.layout.hoists_input(), size == 2048);
    }
  }
}

TEST(SequencePlan, OfAGruWithoutInputHoistsIt) {
  SequenceShape shape = forward_of(CellType::kGru, Arithmetic::kFloat32, 4096, 128);
  shape.input_features = shape.layout.input_features = 0;
  const StepsPlan steps = choose_sequence(shape, kH200, {.group = Group::kSteps}).steps;
  EXPECT_FALSE(steps.by_library());
  EXPECT_TRUE(steps.layout.hoists_input());
}

// A few rows more than the workspace has room for take little longer, in tiles of their own.
TEST(SequencePlan, CountsThePartsOfTheRows) {
  StepsPlan plan{.layout = forward_of(CellType::kLstm, Arithmetic::kBFloat16, 1040, 2048).layout};
  plan.layout.hoisted_row = plan.layout.gates;
  plan.rows_at_a_time = plan.layout.rows_at_a_time();
  EXPECT_EQ(plan.rows_at_a_time, 1024) << "16 MiB of z_x";
  EXPECT_NEAR(plan.parts(), 1.016, 0.001);
}

TEST(SequencePlan, OfABackwardHasNoStepsOfAForward) {
  SequenceShape shape = forward_of(CellType::kLstm, Arithmetic::kBFloat16, 64, 1024);
  shape.backward = true;
  const SequencePlan plan = choose_sequence(shape, kH200, {});
  EXPECT_EQ(plan.recurrence, nullptr);
  EXPECT_EQ(plan.steps.kernel.choice.candidate, nullptr);
  EXPECT_EQ(plan.gradients.candidate, choose(Arithmetic::kBFloat16, 64, 1024, kH200).candidate);
}

TEST(SequencePlan, IsAskedForOnceWithTheSameSizesAndLayout) {
  static int asked;
  asked = 0;
  constexpr auto counted =
      [](const SequenceShape& shape, const DeviceFacts& device, const Selection& selection) {
        ++asked;
        return choose_sequence(shape, device, selection);
      };
  const auto ask = [&](const SequenceShape& shape) {
    for (int i = 0; i < 3; ++i) {
      const SequencePlan plan = recent_choice<counted>(shape, kH200, {});
      EXPECT_EQ(plan.recurrence, choose_sequence(shape, kH200, {}).recurrence);
    }
  };
  SequenceShape shape = forward_of(CellType::kLstm, Arithmetic::kBFloat16, 64, 128);
  ask(shape);
  EXPECT_EQ(asked, 1);
  shape.layout.own_rows = true;
  ask(shape);
  EXPECT_EQ(asked, 2);
  shape.weights.stride += 8;
  ask(shape);
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace lltm::cuda
