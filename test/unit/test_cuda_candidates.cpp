// All candidates of the CUDA kernels by their names: what LLTM_CUDA_PATH takes, and what programs
// that fit the model's constants see. Plain host code, tested without a GPU.
#include "cuda/plan/backward.h"
#include "cuda/plan/candidates.h"
#include "cuda/plan/sequence.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <regex>
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
            9 + candidates(Work::kForward).size() + candidates(Work::kBackward).size() +
                candidates(Work::kStepBackward).size() + candidates(Work::kSequence).size());
  for (const std::string& path : all) {
    const auto selection = parse_selection(path);
    ASSERT_TRUE(selection.has_value()) << path;
    const bool is_name = path != "auto" && !selection->group;
    EXPECT_EQ(selection->name, is_name ? path : "");
    EXPECT_EQ(selection->ranks, 0);
  }
  EXPECT_EQ(parse_selection(""), Selection{});
  EXPECT_EQ(parse_selection("few_rows"), Selection{.group = Group::kFewRows});
  EXPECT_EQ(parse_selection("block"), Selection{.group = Group::kBlock});
  EXPECT_EQ(parse_selection("cluster"), Selection{.group = Group::kCluster});
  EXPECT_EQ(parse_selection("grid"), Selection{.group = Group::kGrid});
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

Shape half_shape(int64_t batch, int64_t input_features, int64_t state_size) {
  return {.arithmetic = Arithmetic::kBFloat16,
          .batch = batch,
          .input_features = input_features,
          .state_size = state_size};
}

TEST(Ranks, AreTakenOrAnotherCandidateIs) {
  for (const DeviceFacts& device : {kH200, kEighthOfAnH200, kA100}) {
    for (const bool is_step : {false, true}) {
      for (const int64_t size : {64, 128, 512, 2048}) {
        Shape shape = half_shape(64, size, size);
        shape.work = is_step ? Work::kStep : Work::kForward;
        for (const Candidate& candidate : candidates(Work::kForward)) {
          double least = std::numeric_limits<double>::infinity();
          for (int ranks = 1; ranks <= kLargestCluster; ++ranks) {
            const auto choice = choose(shape, device, {.name = candidate.name, .ranks = ranks});
            const bool can = estimate(candidate, shape, device, ranks).has_value();
            if (can) {
              EXPECT_EQ(choice.candidate->name, candidate.name);
              EXPECT_EQ(choice.estimate.ranks, ranks);
              least = std::min(least, choice.estimate.us);
            } else {
              EXPECT_EQ(choice.candidate->group, Group::kTiles);
            }
          }
          if (candidate.has_ranks() && supports(candidate, shape, device)) {
            EXPECT_EQ(least, estimate(candidate, shape, device)->us) << candidate.name;
          }
        }
      }
    }
  }
}

TEST(Ranks, AreNotForCandidatesWithoutThem) {
  const Shape shape = half_shape(4, 512, 512);
  const auto forward = [&](std::string_view name, int ranks) {
    return choose(shape, kH200, {.name = name, .ranks = ranks}).candidate->name;
  };
  EXPECT_EQ(forward("forward_wgmma_64x8", 8), "forward_tiles_16x8") << "16 chunks are too few";
  EXPECT_EQ(forward("forward_wgmma_128x32_pairs", 2), "forward_tiles_16x8") << "ranks are pairs";
  EXPECT_EQ(forward("forward_library", 1), "forward_tiles_16x8");
  const Shape backward{.work = Work::kBackward,
                       .arithmetic = Arithmetic::kBFloat16,
                       .batch = 64,
                       .input_features = 512,
                       .state_size = 512};
  for (const Candidate& candidate : candidates(Work::kBackward)) {
    EXPECT_EQ(choose(backward, kH200, {.name = candidate.name, .ranks = 2}).candidate->name,
              "backward_tiles");
  }
}

TEST(Ranks, OfAnotherDirectionChangeNothing) {
  const Shape shape = half_shape(64, 512, 512);
  const auto by_default = choose(shape, kH200);
  for (const char* const name : {"backward_tiles", "sequence_backward_tiles_32x32"}) {
    const auto choice = choose(shape, kH200, {.name = name, .ranks = 2});
    EXPECT_EQ(choice.candidate, by_default.candidate);
    EXPECT_EQ(choice.estimate.ranks, by_default.estimate.ranks);
  }
}

std::vector<double> numbers_of(const std::string& text) {
  const std::regex number(R"([=,{]\s*(-?\d[\d.e-]*))");
  std::vector<double> numbers;
  for (std::sregex_iterator i(text.begin(), text.end(), number), end; i != end; ++i) {
    numbers.push_back(std::stod((*i)[1]));
  }
  return numbers;
}

TEST(Costs, AreTheNumbersOfTheirText) {
  using Numbers = std::array<double, sizeof(Costs) / sizeof(double)>;
  const auto numbers = std::bit_cast<Numbers>(kCosts);
  EXPECT_EQ(numbers_of(lltm_cuda_costs()), std::vector(numbers.begin(), numbers.end()));
}

std::vector<ContiguousEstimate> estimates_of(std::string_view name,
                                             bool of_steps,
                                             const DeviceFacts& device,
                                             const std::vector<ContiguousProblem>& problems,
                                             bool of_lstm = false) {
  std::vector<ContiguousEstimate> found(problems.size());
  EXPECT_TRUE(lltm_cuda_estimates(std::string(name).c_str(),
                                  of_lstm,
                                  of_steps,
                                  &device,
                                  /*times=*/nullptr,
                                  problems.data(),
                                  static_cast<int64_t>(problems.size()),
                                  found.data()));
  return found;
}

std::vector<ContiguousProblem> many_problems(int64_t ranks = 0) {
  std::vector<ContiguousProblem> problems;
  for (const int64_t arithmetic : {0, 1, 2, 3}) {
    for (const int64_t batch : {1, 7, 64, 500, 4096}) {
      for (const int64_t input : {0, 1, 32, 500, 1024}) {
        for (const int64_t state : {8, 128, 300, 1024}) {
          problems.push_back({arithmetic, batch, input, state, ranks});
        }
      }
    }
  }
  return problems;
}

/// The least estimate of what may be chosen without being selected.
std::vector<double> least(Work work,
                          bool of_steps,
                          const DeviceFacts& device,
                          const std::vector<ContiguousProblem>& problems,
                          bool of_lstm = false) {
  std::vector<double> us(problems.size(), std::numeric_limits<double>::infinity());
  for (const Candidate& candidate : candidates(work)) {
    const auto found = estimates_of(candidate.name, of_steps, device, problems, of_lstm);
    for (size_t i = 0; i < found.size(); ++i) {
      if (!std::isnan(found[i].us) && found[i].by_default) {
        us[i] = std::min(us[i], found[i].us);
      }
    }
  }
  return us;
}

constexpr DeviceFacts kDevices[] = {kH200, kEighthOfAnH200, kA100};

TEST(ContiguousEstimates, AreThoseOfTheForwardsPlan) {
  const auto problems = many_problems();
  for (const DeviceFacts& device : kDevices) {
    const auto found = least(Work::kForward, false, device, problems);
    const auto of_lstm = least(Work::kForward, false, device, problems, /*of_lstm=*/true);
    for (size_t i = 0; i < problems.size(); ++i) {
      const auto& [arithmetic, batch, input, state, ranks] = problems[i];
      ForwardProblem problem{};
      problem.batch = batch;
      problem.input_features = input;
      problem.state_size = state;
      problem.input.stride = input;
      const auto in = static_cast<Arithmetic>(arithmetic);
      problem.weights = {reinterpret_cast<const void*>(4096), input + state};
      problem.weights_input = problem.weights.from(state, element_size(in));
      problem.old_h.stride = state;
      const Shape shape = forward_shape(in, problem, /*is_step=*/false);
      ASSERT_EQ(found[i], choose(shape, device).estimate.us);
      problem.weights = {nullptr, state};
      problem.weights_input = {nullptr, input};
      ASSERT_EQ(of_lstm[i],
                choose(forward_shape(in, problem, /*is_step=*/false, CellType::kLstm), device)
                    .estimate.us);
    }
  }
}

TEST(ContiguousEstimates, AreThoseOfTheBackwardsPlans) {
  const auto problems = many_problems();
  for (const DeviceFacts& device : kDevices) {
    const auto found = least(Work::kBackward, false, device, problems);
    for (size_t i = 0; i < problems.size(); ++i) {
      const auto& [arithmetic, batch, input, state, ranks] = problems[i];
      const int size = element_size(static_cast<Arithmetic>(arithmetic));
      const Shape shape{.work = Work::kBackward,
                        .arithmetic = static_cast<Arithmetic>(arithmetic),
                        .batch = batch,
                        .input_features = input,
                        .state_size = state,
                        .vector_rows = Matrix{nullptr, input}.starts_at_vectors(size) &&
                                       Matrix{nullptr, state}.starts_at_vectors(size)};
      ASSERT_EQ(found[i], choose(shape, device).estimate.us);
    }
  }
}

TEST(ContiguousEstimates, OfStepsAreLaidOutLikeTheCopiesOfASequence) {
  // Rows that start anywhere are copied, and nothing is packed.
  const ContiguousProblem anywhere{3, 64, 500, 300, 0}, aligned{3, 64, 504, 304, 0};
  for (const Candidate& candidate : candidates(Work::kForward)) {
    if (candidate.group == Group::kHopper && !candidate.float32 &&
        candidate.cell != CellType::kGru) {
      const bool of_lstm = candidate.cell == CellType::kLstm;
      const auto found = estimates_of(candidate.name, true, kH200, {anywhere, aligned}, of_lstm);
      EXPECT_GT(found[0].us, found[1].us) << candidate.name;
      EXPECT_LT(found[0].us, found[1].us + 3.5) << candidate.name;
    }
  }
}

TEST(ContiguousEstimates, TakeRanksAndTellThem) {
  const std::vector<ContiguousProblem> problems{
      {0, 64, 512, 512, 0}, {0, 64, 512, 512, 3}, {0, 64, 512, 4, 8}, {3, 64, 512, 512, 0}};
  const auto tiles = estimates_of("sequence_backward_tiles_32x32", false, kH200, problems);
  EXPECT_GE(tiles[0].ranks, 1);
  EXPECT_EQ(tiles[1].ranks, 3);
  EXPECT_LE(tiles[0].us, tiles[1].us);
  EXPECT_TRUE(std::isnan(tiles[2].us)) << "more ranks than chunks";
  const auto wgmma = estimates_of("sequence_backward_wgmma_float32_64x96", false, kH200, problems);
  EXPECT_TRUE(std::isnan(wgmma[3].us)) << "bfloat16";
  for (const char* const name :
       {"forward_library", "backward_wgmma_float32", "sequence_backward_library"}) {
    const auto found = estimates_of(name, false, kH200, problems);
    EXPECT_GT(found[0].us, 0);
    EXPECT_EQ(found[0].ranks, 0);
    EXPECT_TRUE(std::isnan(found[1].us));
  }
  ContiguousEstimate unknown{};
  EXPECT_FALSE(
      lltm_cuda_estimates("fastest", false, false, &kH200, nullptr, problems.data(), 1, &unknown));
}

TEST(ContiguousEstimates, UseTheConstantsOfTheDevice) {
  Costs costs = kCosts;
  costs.sequence_backward.launch += 1;
  DeviceFacts device = kH200;
  device.costs = &costs;
  const std::vector<ContiguousProblem> problems{{0, 32, 512, 512, 2}};
  EXPECT_DOUBLE_EQ(estimates_of("sequence_backward_tiles_32x32", false, device, problems)[0].us,
                   estimates_of("sequence_backward_tiles_32x32", false, kH200, problems)[0].us + 1);
}

TEST(ContiguousEstimates, UseTheTimesOfTheProgram) {
  std::istringstream lines(lltm_cuda_times());
  std::vector<double> times;
  std::vector<std::string> names;
  std::string name;
  for (double time; lines >> name >> time;) {
    names.push_back(name);
    times.push_back(time);
  }
  const ContiguousProblem problem{0, 32, 512, 512, 2};
  const auto us = [&](const std::string& candidate, const double* of) {
    ContiguousEstimate found{};
    EXPECT_TRUE(
        lltm_cuda_estimates(candidate.c_str(), false, false, &kH200, of, &problem, 1, &found));
    return found.us;
  };
  for (const std::string candidate : {"forward_tiles_64x32", "sequence_backward_tiles_64x64"}) {
    EXPECT_EQ(us(candidate, times.data()), us(candidate, nullptr));
  }
  // The rest of a block does not depend on anything else.
  const auto block = std::ranges::find(names, "forward_tiles_64x32.cell.block");
  ASSERT_NE(block, names.end());
  times[static_cast<size_t>(block - names.begin())] += 1;
  EXPECT_DOUBLE_EQ(us("forward_tiles_64x32", times.data()), us("forward_tiles_64x32", nullptr) + 1);
  EXPECT_EQ(us("forward_tiles_64x8", times.data()), us("forward_tiles_64x8", nullptr));
  const auto chunk = std::ranges::find(names, "sequence_backward_tiles_64x64.chunk.float32");
  ASSERT_NE(chunk, names.end());
  times[static_cast<size_t>(chunk - names.begin())] *= 2;
  EXPECT_GT(us("sequence_backward_tiles_64x64", times.data()),
            us("sequence_backward_tiles_64x64", nullptr));
}

}  // namespace
}  // namespace lltm::cuda
