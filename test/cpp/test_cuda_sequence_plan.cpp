// Which kernels compute the steps of a sequence's backward on CUDA: plain host code, tested without
// a GPU.
#include "cuda/plan/sequence_gradients.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string_view>

namespace lltm::cuda {
namespace {

using test::kA100;
using test::kArithmetics;
using test::kH200;

int64_t blocks(const SequenceGradientPlan& plan, int64_t rows, int64_t state_size) {
  const auto count = [&](int64_t tile_rows, int64_t tile_columns) {
    return int64_t{tiles_of(rows, tile_rows)} * tiles_of(state_size, tile_columns) * plan.split;
  };
  if (const auto* const tile = std::get_if<Float32GradientTile>(&plan.tile)) {
    return count(*tile == Float32GradientTile::k64x96 ? 64 : 128, 96);
  }
  const int side =
      std::get<SequenceGradientTile>(plan.tile) == SequenceGradientTile::k32x32 ? 32 : 64;
  return count(side, side);
}

TEST(SequenceGradientPlan, FitsTheDevice) {
  std::mt19937_64 random(1);
  int fused = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t rows = test::log_uniform(random, 1, 1e6);
    const int64_t state_size = test::log_uniform(random, 1, 5000);
    const Arithmetic arithmetic = kArithmetics[i % 4];
    for (const DeviceFacts& device : {kH200, kA100}) {
      const auto plan = plan_sequence_gradients({arithmetic, 100, rows, state_size}, device);
      if (!plan) {
        continue;
      }
      ++fused;
      ASSERT_GE(plan->split, 1) << rows << " " << state_size;
      // Every rank has something to multiply, and clusters of this size exist.
      ASSERT_LE(plan->split, tiles_of(3 * state_size, 128 / element_size(arithmetic)));
      ASSERT_GT(device.resident_in_clusters_of(plan->split), 0) << rows << " " << state_size;
    }
  }
  EXPECT_GT(fused, 10000);
}

TEST(SequenceGradientPlan, ReadsTheWeightsByManyMultiprocessors) {
  for (const Arithmetic arithmetic : kArithmetics) {
    const auto plan = plan_sequence_gradients({arithmetic, 100, 32, 512}, kH200);
    ASSERT_TRUE(plan.has_value());
    EXPECT_GE(blocks(*plan, 32, 512), 96);
  }
}

TEST(SequenceGradientPlan, LeavesToTheLibraryWhatTilesCannot) {
  const auto is_fused = [](const DeviceFacts& device,
                           std::optional<Arithmetic> arithmetic,
                           std::optional<Group> group = std::nullopt) {
    return plan_sequence_gradients({arithmetic, 100, 16, 128}, device, {.group = group})
        .has_value();
  };
  EXPECT_TRUE(is_fused(kH200, Arithmetic::kFloat32));
  EXPECT_FALSE(is_fused(kH200, std::nullopt)) << "float64";
  EXPECT_FALSE(is_fused({.multiprocessors = 80, .resident = {80}, .resident_by_two = {160}},
                        Arithmetic::kFloat16));
  EXPECT_FALSE(is_fused(kH200, Arithmetic::kFloat32, Group::kLibrary));
}

TEST(SequenceGradientPlan, LeavesLargeProductsToTheLibrary) {
  for (const Arithmetic arithmetic : {Arithmetic::kTf32, Arithmetic::kBFloat16}) {
    EXPECT_TRUE(plan_sequence_gradients({arithmetic, 100, 32, 512}, kH200).has_value());
    EXPECT_FALSE(plan_sequence_gradients({arithmetic, 100, 128, 2048}, kH200).has_value());
  }
}

TEST(SequenceGradientPlan, TakesHoppersInstructionsInFloat32) {
  const auto by_wgmma = [](const SequenceGradientShape& shape,
                           const DeviceFacts& device,
                           std::optional<Group> group = std::nullopt) {
    const auto plan = plan_sequence_gradients(shape, device, {.group = group});
    return plan && std::holds_alternative<Float32GradientTile>(plan->tile);
  };
  EXPECT_TRUE(by_wgmma({Arithmetic::kFloat32, 128, 128, 2048}, kH200));
  EXPECT_FALSE(by_wgmma({Arithmetic::kFloat32, 128, 128, 2048}, kA100));
  EXPECT_FALSE(by_wgmma({Arithmetic::kFloat32, 128, 128, 2048}, kH200, Group::kTiles));
  EXPECT_FALSE(by_wgmma({Arithmetic::kTf32, 128, 128, 2048}, kH200));
  EXPECT_FALSE(by_wgmma({Arithmetic::kFloat32, 1 << 20, 1 << 20, 2048}, kH200))
      << "more rows than TMA counts";
}

TEST(SequenceGradientPlan, TakesACandidateByItsNameAndRanks) {
  const SequenceGradientShape float32{Arithmetic::kFloat32, 100, 64, 1024};
  const auto plan = [](const SequenceGradientShape& shape, std::string_view name, int ranks = 0) {
    return plan_sequence_gradients(shape, kH200, {.name = name, .ranks = ranks});
  };
  for (const SequenceGradientCandidate& candidate : sequence_gradient_candidates()) {
    const auto found = plan(float32, candidate.name);
    ASSERT_EQ(found.has_value(), candidate.group != Group::kLibrary);
    if (found) {
      EXPECT_EQ(found->tile, candidate.tile);
      EXPECT_EQ(found->split, estimate(candidate, float32, kH200).ranks);
    }
  }
  EXPECT_EQ(plan(float32, "sequence_backward_tiles_32x32", 5)->split, 5);
  // Not supported: wgmma in TF32, ranks of the library, and more ranks than chunks.
  const SequenceGradientShape tf32{Arithmetic::kTf32, 100, 128, 2048};
  const SequenceGradientShape small{Arithmetic::kFloat32, 100, 64, 8};
  for (const auto& found : {plan(tf32, "sequence_backward_wgmma_float32_64x96"),
                            plan(tf32, "sequence_backward_library", 1),
                            plan(small, "sequence_backward_wgmma_float32_64x96", 2)}) {
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(std::holds_alternative<SequenceGradientTile>(found->tile));
  }
  // The names of other directions select nothing.
  EXPECT_FALSE(plan(tf32, "backward_tiles").has_value());
  EXPECT_FALSE(plan(tf32, "forward_tiles_64x8", 2).has_value());
}

TEST(SequenceGradientPlan, TakesTilesForAnyOtherGroup) {
  for (const Group group : {Group::kFewRows, Group::kHopper, Group::kTiles}) {
    EXPECT_TRUE(
        plan_sequence_gradients({Arithmetic::kTf32, 100, 4096, 4096}, kH200, {.group = group})
            .has_value());
  }
}

}  // namespace
}  // namespace lltm::cuda
