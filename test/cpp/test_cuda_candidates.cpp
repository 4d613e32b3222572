// All candidates of the CUDA kernels by their names, which LLTM_CUDA_PATH takes. Plain host code,
// tested without a GPU.
#include "cuda/candidates.h"
#include "cuda/plan_backward.h"
#include "cuda/plan_sequence_backward.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace lltm::cuda {
namespace {

using test::kA100;
using test::kEighthOfAnH200;
using test::kH200;

std::vector<std::string> paths() {
  std::istringstream words(lltm_cuda_paths());
  return {std::istream_iterator<std::string>(words), {}};
}

TEST(Selection, TakesWhatIsListed) {
  const std::vector<std::string> all = paths();
  EXPECT_EQ(all.size(),
            5 + forward_candidates().size() + backward_candidates().size() +
                sequence_gradient_candidates().size());
  for (const std::string& path : all) {
    const auto selection = parse_selection(path);
    ASSERT_TRUE(selection.has_value()) << path;
    const bool is_name = path != "auto" && !selection->group;
    EXPECT_EQ(selection->name, is_name ? path : "");
    EXPECT_EQ(selection->ranks, 0);
  }
  EXPECT_EQ(parse_selection(""), Selection{});
  EXPECT_EQ(parse_selection("few_rows"), Selection{.group = Group::kFewRows});
}

TEST(Selection, TakesRanksFromOneToEight) {
  for (int ranks = 1; ranks <= kLargestCluster; ++ranks) {
    EXPECT_EQ(parse_selection("forward_wgmma_64x24:" + std::to_string(ranks)),
              (Selection{.name = "forward_wgmma_64x24", .ranks = ranks}));
  }
  for (const char* const path : {"fastest",
                                 "tiles:2",
                                 "auto:2",
                                 "fastest:2",
                                 "forward_wgmma_64x24:",
                                 "forward_wgmma_64x24:0",
                                 "forward_wgmma_64x24:9",
                                 "forward_wgmma_64x24:12",
                                 "forward_wgmma_64x24:-1",
                                 "forward_wgmma_64x24:two",
                                 "forward_wgmma_64x24:2 ",
                                 "forward_wgmma_64x24:2:2"}) {
    EXPECT_EQ(parse_selection(path), std::nullopt) << path;
  }
}

ForwardShape half_shape(int64_t batch, int64_t input_features, int64_t state_size) {
  return {.arithmetic = Arithmetic::kBFloat16,
          .batch = batch,
          .input_features = input_features,
          .state_size = state_size};
}

TEST(Ranks, AreTakenOrAnotherCandidateIs) {
  for (const DeviceFacts& device : {kH200, kEighthOfAnH200, kA100}) {
    for (const bool overlaps : {false, true}) {
      for (const int64_t size : {64, 128, 512, 2048}) {
        ForwardShape shape = half_shape(64, size, size);
        shape.overlaps = overlaps;
        for (const ForwardCandidate& candidate : forward_candidates()) {
          double least = std::numeric_limits<double>::infinity();
          for (int ranks = 1; ranks <= kLargestCluster; ++ranks) {
            const auto choice =
                choose_forward(shape, device, {.name = candidate.name, .ranks = ranks});
            const bool can = supports(candidate, shape, device) &&
                             estimate(candidate, shape, device, ranks).ranks == ranks;
            if (can) {
              EXPECT_EQ(choice.candidate->name, candidate.name);
              EXPECT_EQ(choice.estimate.ranks, ranks);
              least = std::min(least, choice.estimate.us);
            } else {
              EXPECT_EQ(choice.candidate->group, Group::kTiles);
            }
          }
          if (candidate.costs != nullptr && supports(candidate, shape, device)) {
            EXPECT_EQ(least, estimate(candidate, shape, device).us) << candidate.name;
          }
        }
      }
    }
  }
}

TEST(Ranks, AreNotForCandidatesWithoutThem) {
  const ForwardShape shape = half_shape(4, 512, 512);
  const auto forward = [&](std::string_view name, int ranks) {
    return choose_forward(shape, kH200, {.name = name, .ranks = ranks}).candidate->name;
  };
  EXPECT_EQ(forward("forward_wgmma_64x8", 8), "forward_tiles_16x8") << "16 chunks are too few";
  EXPECT_EQ(forward("forward_wgmma_128x32_pairs", 2), "forward_tiles_16x8") << "ranks are pairs";
  EXPECT_EQ(forward("forward_library", 1), "forward_tiles_16x8");
  const BackwardShape backward{
      .arithmetic = Arithmetic::kBFloat16, .batch = 64, .input_features = 512, .state_size = 512};
  for (const BackwardCandidate& candidate : backward_candidates()) {
    EXPECT_EQ(
        choose_backward(backward, kH200, {.name = candidate.name, .ranks = 2}).candidate->name,
        "backward_tiles");
  }
}

TEST(Ranks, OfAnotherDirectionChangeNothing) {
  const ForwardShape shape = half_shape(64, 512, 512);
  const auto by_default = choose_forward(shape, kH200);
  for (const char* const name : {"backward_tiles", "sequence_backward_tiles_32x32"}) {
    const auto choice = choose_forward(shape, kH200, {.name = name, .ranks = 2});
    EXPECT_EQ(choice.candidate, by_default.candidate);
    EXPECT_EQ(choice.estimate.ranks, by_default.estimate.ranks);
  }
}

}  // namespace
}  // namespace lltm::cuda
