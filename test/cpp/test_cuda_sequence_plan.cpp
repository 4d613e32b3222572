// What computes the steps of a sequence's backward on CUDA: plain host code, tested without a GPU.
#include "cuda/plan_sequence_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>

namespace lltm::cuda {
namespace {

constexpr Arithmetic kArithmetics[] = {
    Arithmetic::kFloat32, Arithmetic::kTf32, Arithmetic::kFloat16, Arithmetic::kBFloat16};

constexpr DeviceFacts kH200{.multiprocessors = 132,
                            .shared_bytes_a_block = 227 * 1024,
                            .tiles = true,
                            .wgmma = true,
                            .resident = {132, 132, 126, 120, 100, 126, 98, 120}};
constexpr DeviceFacts kA100{.multiprocessors = 108,
                            .shared_bytes_a_block = 163 * 1024,
                            .tiles = true,
                            .wgmma = false,
                            .resident = {108}};

int side(SequenceGradientTile tile) {
  return tile == SequenceGradientTile::k32x32 ? 32 : 64;
}

TEST(SequenceGradientPlan, FitsTheDevice) {
  std::mt19937_64 random(1);
  const auto size = [&](double most) {
    return static_cast<int64_t>(
        std::exp(std::uniform_real_distribution(0.0, std::log(most))(random)));
  };
  int tiled = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t rows = size(1e6), state_size = size(5000);
    const Arithmetic arithmetic = kArithmetics[i % 4];
    for (const DeviceFacts& device : {kH200, kA100}) {
      const auto plan = plan_sequence_gradients(device, arithmetic, std::nullopt, rows, state_size);
      if (!plan) {
        continue;
      }
      ++tiled;
      const int64_t tile = side(plan->tile);
      const int64_t blocks =
          tiles_of(rows, tile) * int64_t{tiles_of(state_size, tile)} * plan->split;
      ASSERT_GE(plan->split, 1) << rows << " " << state_size;
      // A rank has something to multiply, and does not wait for another that is not resident.
      ASSERT_LE(plan->split, tiles_of(3 * state_size, 128 / element_size(arithmetic)));
      if (plan->split > 1) {
        ASSERT_LE(blocks, 2 * device.resident_in_clusters_of(plan->split))
            << rows << " " << state_size;
      }
    }
  }
  EXPECT_GT(tiled, 10000);
}

TEST(SequenceGradientPlan, ReadsTheWeightsByManyMultiprocessors) {
  for (const Arithmetic arithmetic : kArithmetics) {
    const auto plan = plan_sequence_gradients(kH200, arithmetic, std::nullopt, 32, 512);
    ASSERT_TRUE(plan.has_value());
    const int64_t tile = side(plan->tile);
    EXPECT_GE(tiles_of(32, tile) * tiles_of(512, tile) * plan->split, 96);
  }
}

TEST(SequenceGradientPlan, LeavesToTheLibraryWhatTilesCannot) {
  const auto plan = [](const DeviceFacts& device,
                       std::optional<Arithmetic> arithmetic,
                       std::optional<Group> group) {
    return plan_sequence_gradients(device, arithmetic, group, 16, 128).has_value();
  };
  EXPECT_TRUE(plan(kH200, Arithmetic::kFloat32, std::nullopt));
  EXPECT_FALSE(plan(kH200, std::nullopt, std::nullopt)) << "float64";
  EXPECT_FALSE(plan({.multiprocessors = 80, .resident = {80}}, Arithmetic::kFloat16, std::nullopt));
  EXPECT_FALSE(plan(kH200, Arithmetic::kFloat32, Group::kLibrary));
}

TEST(SequenceGradientPlan, LeavesLargeProductsToTheLibrary) {
  for (const Arithmetic arithmetic : kArithmetics) {
    EXPECT_TRUE(plan_sequence_gradients(kH200, arithmetic, std::nullopt, 64, 1024).has_value());
    EXPECT_FALSE(plan_sequence_gradients(kH200, arithmetic, std::nullopt, 128, 2048).has_value());
  }
}

TEST(SequenceGradientPlan, TakesTilesForAnyOtherGroup) {
  for (const Group group : {Group::kFewRows, Group::kHopper, Group::kTiles}) {
    EXPECT_TRUE(plan_sequence_gradients(kH200, Arithmetic::kTf32, group, 4096, 4096).has_value());
  }
}

}  // namespace
}  // namespace lltm::cuda
