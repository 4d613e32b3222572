// The cost model of the CUDA kernels, which needs no GPU: what it chooses for which shapes and
// devices.
#include "cuda/plan/forward.h"
#include "cuda/runtime/per_context.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace lltm::cuda {
namespace {

using test::kArithmetics;
using test::kH200;

/// For contiguous matrices.
Shape shape_of(Arithmetic arithmetic, int64_t batch, int64_t input_features, int64_t state_size) {
  Shape shape{.arithmetic = arithmetic,
              .batch = batch,
              .input_features = input_features,
              .state_size = state_size};
  const int size = element_size(arithmetic);
  shape.weights_in_lines = shape.width() * size % 16 != 0 || shape.width() * size % 128 == 0;
  for (const auto& [rows, columns] : {std::pair{batch, input_features},
                                      std::pair{batch, state_size},
                                      std::pair{shape.gates(), shape.width()}}) {
    if (columns * size % 16 != 0) {
      shape.pack_bytes += rows * columns * size;
      shape.vector_rows = false;
    }
  }
  return shape;
}

std::vector<Shape> many_shapes() {
  std::vector<Shape> shapes;
  for (const Arithmetic arithmetic : kArithmetics) {
    for (const int64_t batch : {1, 7, 16, 64, 130, 1000, 70000}) {
      for (const int64_t input : {0, 1, 32, 500, 2048}) {
        for (const int64_t state : {1, 8, 128, 1000, 4096}) {
          shapes.push_back(shape_of(arithmetic, batch, input, state));
        }
      }
    }
  }
  return shapes;
}

// A plan is made for an alignment, which says nothing about where matrices lie to each other.
TEST(ForwardShapeOfAnLstm, HasMatricesOfItsOwn) {
  constexpr int64_t kSize = 17;
  for (const Arithmetic arithmetic : kArithmetics) {
    ForwardProblem problem{.batch = 9, .input_features = kSize, .state_size = kSize};
    problem.weights = problem.weights_input = {nullptr, kSize};
    EXPECT_EQ(
        forward_shape(arithmetic, problem, /*is_step=*/false, CellType::kLstm).packs.input_lead, 0);
    // The columns of h and those of input, copied.
    problem.weights = problem.weights_input = {nullptr, 32};
    problem.input = problem.old_h = {nullptr, 32};
    for (const CellType cell : {CellType::kLltm, CellType::kLstm}) {
      EXPECT_EQ(forward_shape(arithmetic, problem, /*is_step=*/true, cell).pack_bytes, 0);
    }
  }
}

/// The candidates for a shape.
std::set<std::string_view> names_for(const Shape& shape) {
  std::set<std::string_view> names;
  for (const Candidate& candidate : candidates(Work::kForward)) {
    if (supports(candidate, shape, kH200)) {
      names.insert(candidate.name);
    }
  }
  return names;
}

// Which sum x and h in accumulators of their own, where they multiply both.
TEST(ModelOfAGru, HasKernelsOfItsOwnThatMultiplyX) {
  using Names = std::set<std::string_view>;
  for (const Arithmetic arithmetic : kArithmetics) {
    Shape shape = shape_of(arithmetic, 64, 512, 512);
    shape.cell = CellType::kGru;
    const Names own = arithmetic == Arithmetic::kFloat32 ? Names({"gru_wgmma_float32_64x8",
                                                                  "gru_wgmma_float32_64x32",
                                                                  "gru_wgmma_float32_128x32",
                                                                  "forward_library"})
                                                         : Names({"gru_wgmma_64x8",
                                                                  "gru_wgmma_64x24",
                                                                  "gru_wgmma_128x32",
                                                                  "gru_wgmma_128x32_pairs",
                                                                  "forward_library"});
    EXPECT_EQ(names_for(shape), own);
    shape.work = Work::kStep;
    EXPECT_EQ(names_for(shape), own);
    shape.input_features = 0;
    const Names of_steps = names_for(shape);
    shape.cell = CellType::kLltm;
    for (const std::string_view name : of_steps) {
      EXPECT_TRUE(names_for(shape).contains(name)) << name;
    }
    EXPECT_GT(of_steps.size(), 3u);
    shape = shape_of(arithmetic, 16, 500, 500);
    shape.cell = CellType::kGru;
    EXPECT_TRUE(names_for(shape).contains("forward_few_rows"));
  }
}

TEST(ModelOfAGru, LeavesNoSingleStepOfThisSizeToTheLibrary) {
  for (const Arithmetic arithmetic : kArithmetics) {
    for (const auto& [batch, input_features, state_size] :
         {std::tuple{1, 128, 512}, {4, 300, 256}, {64, 256, 256}, {256, 512, 512}}) {
      Shape shape = shape_of(arithmetic, batch, input_features, state_size);
      shape.cell = CellType::kGru;
      EXPECT_NE(choose(shape, kH200).candidate->group, Group::kLibrary)
          << batch << " " << input_features << " " << state_size;
    }
  }
}

TEST(ModelChoice, HasTheLeastEstimateOfWhatIsSupported) {
  for (const Shape& shape : many_shapes()) {
    const auto choice = choose(shape, kH200);
    for (const Candidate& other : candidates(Work::kForward)) {
      if (const auto found = estimate(other, shape, kH200); found && is_exact(other, shape)) {
        EXPECT_LE(choice.estimate.us, found->us) << choice.candidate->name << " " << other.name;
      }
    }
  }
}

// Whatever the constants of a GPU, a large product needs the instructions for matrices.
TEST(ModelChoice, TakesHoppersInstructionsForLargeProducts) {
  for (const Arithmetic arithmetic : kArithmetics) {
    EXPECT_EQ(choose(shape_of(arithmetic, 256, 2048, 2048), kH200).candidate->group,
              Group::kHopper);
  }
}

// Facts of smaller GPUs and of slices of one, among them Hopper GPUs with 114 and with 78
// multiprocessors.
const std::vector<DeviceFacts>& small_devices() {
  static const std::vector<DeviceFacts> devices = [] {
    std::vector<DeviceFacts> all{kH200, kH200, test::kEighthOfAnH200, test::kA100};
    all[0].multiprocessors = 114;
    all[0].resident = {114, 114, 108, 104, 85, 108, 84, 104};
    all[0].resident_by_two = {228, 228, 216, 208, 200, 216, 189, 208};
    all[1].multiprocessors = 78;
    all[1].resident = {78, 78, 75, 72, 60, 72, 56, 72};
    all[1].resident_by_two = {156, 156, 150, 144, 140, 144, 133, 144};
    return all;
  }();
  return devices;
}

TEST(Model, NeverSharesKAmongBlocksThatAreNotResidentAtOnce) {
  for (const DeviceFacts& device : small_devices()) {
    for (const Shape& shape : many_shapes()) {
      for (const Candidate& candidate : candidates(Work::kForward)) {
        if (!supports(candidate, shape, device)) {
          continue;
        }
        const Estimate found = *estimate(candidate, shape, device);
        ASSERT_GE(found.ranks, 1) << candidate.name;
        ASSERT_GT(found.us, 0) << candidate.name;
        const int cluster = found.ranks * candidate.tile.row_tiles;
        ASSERT_LE(cluster, kLargestCluster) << candidate.name;
        if (cluster > 1) {
          ASSERT_GE(device.resident_in_clusters_of(cluster), cluster) << candidate.name;
        }
      }
    }
  }
}

TEST(Model, AlwaysChoosesWhatIsSupported) {
  for (const DeviceFacts& device : small_devices()) {
    for (const Shape& shape : many_shapes()) {
      const auto choice = choose(shape, device);
      ASSERT_NE(choice.candidate, nullptr);
      EXPECT_TRUE(supports(*choice.candidate, shape, device)) << choice.candidate->name;
    }
  }
}

TEST(Model, HasNoUseForHoppersInstructionsElsewhere) {
  DeviceFacts device = kH200;
  device.wgmma = false;
  for (const Shape& shape : many_shapes()) {
    EXPECT_NE(choose(shape, device, {.group = Group::kHopper}).candidate->group, Group::kHopper);
  }
}

TEST(Model, GivesATileLessRanksWhereFewerBlocksAreResident) {
  const auto ranks_on = [](const DeviceFacts& device) {
    return choose(shape_of(Arithmetic::kBFloat16, 64, 1024, 128),
                  device,
                  {.name = "forward_wgmma_64x8"})
        .estimate.ranks;
  };
  EXPECT_EQ(ranks_on(kH200), 6);
  EXPECT_LT(ranks_on(small_devices()[1]), 6);
  EXPECT_EQ(ranks_on(small_devices()[2]), 1);
}

TEST(Model, LeavesNoMoreRowsToTheLibraryThanItCounts) {
  const auto group_of = [](int64_t batch) {
    return choose(shape_of(Arithmetic::kBFloat16, batch, 1, 1), kH200).candidate->group;
  };
  EXPECT_EQ(group_of(INT32_MAX), Group::kLibrary);
  EXPECT_EQ(group_of(int64_t{1} << 31), Group::kTiles);
}

TEST(Model, TakesACandidateByItsName) {
  std::set<std::string_view> names;
  for (const Candidate& candidate : candidates(Work::kForward)) {
    EXPECT_TRUE(names.insert(candidate.name).second) << candidate.name;
    for (const Arithmetic arithmetic : kArithmetics) {
      const Shape shape = shape_of(arithmetic, 4, 64, 64);
      const auto choice = choose(shape, kH200, {.name = candidate.name});
      if (supports(candidate, shape, kH200)) {
        EXPECT_EQ(choice.candidate->name, candidate.name);
      } else {
        EXPECT_EQ(choice.candidate->group, Group::kTiles) << candidate.name;
      }
    }
  }
}

TEST(Model, ScalesWhatWasMeasuredToTheGpu) {
  DeviceFacts slow = kH200, few = kH200, narrow = kH200, wide = kH200;
  slow.clock /= 2;
  few.multiprocessors /= 4;
  narrow.bandwidth /= 10;
  wide.bandwidth *= 2;
  // How many times as long a candidate takes.
  const auto times = [](std::string_view name, int64_t batch, const DeviceFacts& device) {
    const Shape shape = shape_of(Arithmetic::kBFloat16, batch, 4096, 4096);
    const auto time = [&](const DeviceFacts& of) {
      return choose(shape, of, {.name = name}).estimate.us;
    };
    return time(device) / time(kH200);
  };
  for (const std::string_view name : {"forward_library", "forward_wgmma_128x64_pairs"}) {
    EXPECT_NEAR(times(name, 4096, slow), 2, 0.15) << name;
    EXPECT_EQ(times(name, 4096, narrow), 1) << name;
    EXPECT_GT(times(name, 1, narrow), 4) << name;
    EXPECT_EQ(times(name, 1, wide), 1) << name;  // no GPU with more was measured
  }
  EXPECT_NEAR(times("forward_library", 4096, few), 4, 0.5);
  EXPECT_LT(times("forward_library", 1, few), 1.1);
}

TEST(Model, AddsWhatPackingTakes) {
  const auto time = [](int64_t pack_bytes) {
    Shape shape = shape_of(Arithmetic::kBFloat16, 64, 512, 512);
    shape.pack_bytes = pack_bytes;
    return choose(shape, kH200, {.group = Group::kHopper}).estimate.us;
  };
  EXPECT_GT(time(1), time(0));
  EXPECT_GT(time(100'000'000), time(1) + 10);
}

// With few rows, the blocks of two steps share a multiprocessor, and input is multiplied ahead.
TEST(Model, ChoosesForStepsOfASequenceWhatOverlaps) {
  const auto name = [](Arithmetic arithmetic, int64_t batch, int64_t size) {
    const Shape step{.work = Work::kStep,
                     .arithmetic = arithmetic,
                     .batch = batch,
                     .input_features = size,
                     .state_size = size};
    return choose(step, kH200).candidate->name;
  };
  EXPECT_EQ(name(Arithmetic::kBFloat16, 32, 512), "forward_wgmma_64x8");
  EXPECT_EQ(name(Arithmetic::kBFloat16, 1, 512), "forward_wgmma_64x8");
  EXPECT_EQ(name(Arithmetic::kBFloat16, 64, 1024), "forward_wgmma_64x40");
  EXPECT_EQ(name(Arithmetic::kTf32, 1, 512), "forward_few_rows");
}

TEST(Model, LeavesStepsOfAFewRowsIn16BitsToOthers) {
  for (const Arithmetic arithmetic : kArithmetics) {
    const Shape step{.work = Work::kStep,
                     .arithmetic = arithmetic,
                     .batch = 1,
                     .input_features = 512,
                     .state_size = 512};
    EXPECT_EQ(choose(step, kH200, {.group = Group::kFewRows}).candidate->group,
              is_float(arithmetic) ? Group::kFewRows : Group::kTiles);
  }
}

// What is multiplied while the previous step runs costs little.
TEST(Model, MultipliesTheInputOfStepsAhead) {
  const auto time = [](Arithmetic arithmetic, int64_t input_features) {
    const Shape step{.work = Work::kStep,
                     .arithmetic = arithmetic,
                     .batch = 64,
                     .input_features = input_features,
                     .state_size = 64};
    return choose(step, kH200, {.group = Group::kHopper}).estimate.us;
  };
  for (const Arithmetic arithmetic : {Arithmetic::kFloat32, Arithmetic::kBFloat16}) {
    EXPECT_LT(time(arithmetic, 512), time(arithmetic, 64) + 0.5);
    EXPECT_GT(time(arithmetic, 1'000'000), time(arithmetic, 64) + 3);
  }
}

TEST(Model, LeavesStepsThatMayNotBePackedToTheLibrary) {
  Shape shape = shape_of(Arithmetic::kBFloat16, 64, 500, 500);
  ASSERT_GT(shape.pack_bytes, 0);
  EXPECT_EQ(choose(shape, kH200).candidate->group, Group::kHopper);
  shape.work = Work::kStep;
  for (const auto group : {std::optional<Group>(), std::optional(Group::kHopper)}) {
    EXPECT_EQ(choose(shape, kH200, {.group = group}).candidate->group, Group::kLibrary);
  }
  shape.pack_bytes = 0;
  EXPECT_EQ(choose(shape, kH200).candidate->group, Group::kHopper);
}

int choices = 0;

/// One for each test, because recent_choice() keeps the answers of each function until the end.
template <int test>
Choice choose_and_count(const Shape& shape, const DeviceFacts& device, const Selection& selection) {
  ++choices;
  return choose(shape, device, selection);
}

TEST(RecentChoice, IsMadeOnceForTheSameQuestion) {
  const Shape shape = shape_of(Arithmetic::kBFloat16, 64, 512, 512);
  Shape step = shape, more_rows = shape;
  step.work = Work::kStep;
  more_rows.batch = 65;
  constexpr std::string_view name = "forward_tiles_64x8";
  choices = 0;
  const auto ask = [&](const Shape& of, const DeviceFacts& device, const Selection& selection) {
    const auto recent = recent_choice<choose_and_count<1>>(of, device, selection);
    const Choice choice = choose(of, device, selection);
    EXPECT_EQ(recent.candidate, choice.candidate);
    EXPECT_EQ(recent.estimate.ranks, choice.estimate.ranks);
  };
  int expected = 0;
  for (const Shape& of : {shape, step, more_rows}) {
    for (const DeviceFacts& device : {kH200, test::kA100}) {
      for (const Selection& selection : {Selection{},
                                         Selection{.group = Group::kLibrary},
                                         Selection{.name = name},
                                         Selection{.name = name, .ranks = 2}}) {
        ask(of, device, selection);
        ask(of, device, selection);
        EXPECT_EQ(choices, ++expected);
      }
    }
  }
}

// Sizes as in a model with several layers: multiples of 16, which must not share an entry.
TEST(RecentChoice, KeepsSeveralRoundSizes) {
  choices = 0;
  for (int call = 0; call < 10; ++call) {
    for (const int64_t input_features : {64, 128, 512, 1024}) {
      recent_choice<choose_and_count<2>>(
          shape_of(Arithmetic::kBFloat16, 64, input_features, 512), kH200, {});
    }
  }
  EXPECT_LT(choices, 10);
}

TEST(PerContext, AsksAgainAfterAFailure) {
  PerContext<int> known;
  int asked = 0, value = 0;
  const auto fail = [&](int*) {
    ++asked;
    return 2;
  };
  const auto succeed = [&](int* found) {
    ++asked;
    *found = 7;
    return 0;
  };
  EXPECT_EQ(known.get(1, &value, fail), 2);
  EXPECT_EQ(known.get(1, &value, fail), 2);
  EXPECT_EQ(known.get(1, &value, succeed), 0);
  EXPECT_EQ(value, 7);
  value = 0;
  EXPECT_EQ(known.get(1, &value, fail), 0);
  EXPECT_EQ(value, 7);
  EXPECT_EQ(asked, 3);
}

TEST(PerContext, KnowsEachContextByItself) {
  PerContext<int> known;
  int value = 0;
  for (int context = 1; context <= 3; ++context) {
    EXPECT_EQ(known.get(context, &value, [&](int* found) { return *found = 10 * context, 0; }), 0);
  }
  for (int context = 1; context <= 3; ++context) {
    EXPECT_EQ(known.get(context, &value, [](int*) { return 1; }), 0);
    EXPECT_EQ(value, 10 * context);
  }
}

}  // namespace
}  // namespace lltm::cuda
