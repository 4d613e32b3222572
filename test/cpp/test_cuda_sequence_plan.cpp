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

int64_t blocks(const SequenceGradientChoice& plan, int64_t rows, int64_t state_size) {
  const TileShape& tile = plan.candidate->tile;
  return int64_t{tiles_of(rows, tile.rows)} * tiles_of(state_size, tile.columns) *
         plan.estimate.ranks;
}

bool is_fused(const SequenceGradientChoice& plan) {
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
      const auto plan = choose_sequence_gradients({arithmetic, 100, rows, state_size}, device);
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
    const auto plan = choose_sequence_gradients({arithmetic, 100, 32, 512}, kH200);
    ASSERT_TRUE(is_fused(plan));
    EXPECT_GE(blocks(plan, 32, 512), 96);
  }
}

TEST(SequenceGradientPlan, LeavesToTheLibraryWhatTilesCannot) {
  const auto fuses = [](const DeviceFacts& device,
                        std::optional<Arithmetic> arithmetic,
                        std::optional<Group> group = std::nullopt) {
    return is_fused(
        choose_sequence_gradients({arithmetic, 100, 16, 128}, device, {.group = group}));
  };
  EXPECT_TRUE(fuses(kH200, Arithmetic::kFloat32));
  EXPECT_FALSE(fuses(kH200, std::nullopt)) << "float64";
  EXPECT_FALSE(fuses(kH200, std::nullopt, Group::kTiles)) << "float64";
  EXPECT_FALSE(fuses({.multiprocessors = 80, .resident = {80}, .resident_by_two = {160}},
                     Arithmetic::kFloat16));
  EXPECT_FALSE(fuses(kH200, Arithmetic::kFloat32, Group::kLibrary));
}

TEST(SequenceGradientPlan, LeavesLargeProductsToTheLibrary) {
  for (const Arithmetic arithmetic : {Arithmetic::kTf32, Arithmetic::kBFloat16}) {
    EXPECT_TRUE(is_fused(choose_sequence_gradients({arithmetic, 100, 32, 512}, kH200)));
    EXPECT_FALSE(is_fused(choose_sequence_gradients({arithmetic, 100, 128, 2048}, kH200)));
  }
}

TEST(SequenceGradientPlan, TakesHoppersInstructionsInFloat32) {
  const auto by_wgmma = [](const SequenceGradientShape& shape,
                           const DeviceFacts& device,
                           std::optional<Group> group = std::nullopt) {
    return choose_sequence_gradients(shape, device, {.group = group}).candidate->group ==
           Group::kHopper;
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
    return choose_sequence_gradients(shape, kH200, {.name = name, .ranks = ranks});
  };
  for (const SequenceGradientCandidate& candidate : sequence_gradient_candidates()) {
    const auto found = plan(float32, candidate.name);
    EXPECT_EQ(found.candidate, &candidate);
    EXPECT_EQ(found.estimate.ranks, estimate(candidate, float32, kH200).ranks);
  }
  EXPECT_EQ(plan(float32, "sequence_backward_tiles_32x32", 5).estimate.ranks, 5);
  // Not supported: wgmma in TF32, ranks of the library, and more ranks than chunks.
  const SequenceGradientShape tf32{Arithmetic::kTf32, 100, 128, 2048};
  const SequenceGradientShape small{Arithmetic::kFloat32, 100, 64, 8};
  for (const auto& found : {plan(tf32, "sequence_backward_wgmma_float32_64x96"),
                            plan(tf32, "sequence_backward_library", 1),
                            plan(small, "sequence_backward_wgmma_float32_64x96", 2)}) {
    EXPECT_EQ(found.candidate->group, Group::kTiles);
  }
  // The names of other directions select nothing.
  EXPECT_FALSE(is_fused(plan(tf32, "backward_tiles")));
  EXPECT_FALSE(is_fused(plan(tf32, "forward_tiles_64x8", 2)));
}

TEST(SequenceGradientPlan, TakesTilesForAnyOtherGroup) {
  for (const Group group : {Group::kFewRows, Group::kHopper, Group::kTiles}) {
    EXPECT_TRUE(is_fused(
        choose_sequence_gradients({Arithmetic::kTf32, 100, 4096, 4096}, kH200, {.group = group})));
  }
}

}  // namespace
}  // namespace lltm::cuda
