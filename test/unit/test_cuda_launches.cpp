// The host code of launches with TMA, without a GPU: for any sizes, alignments and wanted
// gradients, the tensor map of every matrix and all grids and clusters are valid.
#include "cell/with_cell.h"
#include "cuda/kernels/pack.h"
#include "cuda/kernels/sequence/kernels.h"
#include "cuda/launch_forward.h"
#include "cuda/plan/backward.h"
#include "cuda/runtime/device_facts.h"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/tensor_maps.h"
#include "device_facts.h"
#include "fake_cuda.h"
#include "launch_problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lltm::cuda {
namespace {

using test::fake_cuda;
using test::kH200;

/// Launches what is wanted of a problem by every candidate for its shape. Returns the launches.
template <Arithmetic kArithmetic>
int expect_described(const BackwardProblem& p, const Shape& shape) {
  int launched = 0;
  for (const Candidate& candidate : hopper_candidates(shape)) {
    const GradientPlan plan = estimate(candidate, shape, kH200)->plan;
    fake_cuda() = {};
    const cudaError_t error = launch<kArithmetic>(p, plan);
    const auto& violations = fake_cuda().violations;
    EXPECT_TRUE(violations.empty() && error == cudaSuccess)
        << candidate.name << " (" << p.batch << "," << p.input_features << "," << p.state_size
        << ") wanted " << (p.d_old_h != nullptr) << (p.d_input != nullptr)
        << p.d_weights.any_wanted() << ", error " << error << ", expected "
        << (violations.empty() ? "" : violations[0]);
    const bool any = p.d_old_h != nullptr || p.d_input != nullptr || p.d_weights.any_wanted();
    EXPECT_EQ(fake_cuda().launches > 0, any) << candidate.name;
    launched += fake_cuda().launches;
  }
  return launched;
}

template <Arithmetic kArithmetic>
void expect_described() {
  if (!is_built(kArithmetic)) {
    GTEST_SKIP() << "built without its kernels";
  }
  Random random;
  int launched = 0;
  for (int i = 0; i < 6000 && !testing::Test::HasFailure(); ++i) {
    const bool vectors = i % 2 == 0;
    const BackwardProblem p =
        random_problem(random, element_size(kArithmetic), vectors, random.below(8));
    launched += expect_described<kArithmetic>(p, shape_of(kArithmetic, p, vectors));
  }
  EXPECT_GT(launched, 1000);
}

TEST(Launches, DescribeTheBackwardsMatricesInFloat32) {
  expect_described<Arithmetic::kFloat32>();
}
TEST(Launches, DescribeTheProductsOfAnLstmInFloat32) {
  Random random;
  int launched = 0;
  for (int i = 0; i < 6000 && !HasFailure(); ++i) {
    const bool vectors = i % 2 == 0;
    const BackwardProblem p = random_products_of_lstm(random, vectors, random.below(16));
    Shape shape = shape_of(Arithmetic::kFloat32, p, vectors);
    shape.cell = CellType::kLstm;
    shape.forms_d_old_h = false;
    launched += expect_described<Arithmetic::kFloat32>(p, shape);
  }
  EXPECT_GT(launched, 1000);
}
TEST(Launches, DescribeTheBackwardsMatricesInTf32) {
  expect_described<Arithmetic::kTf32>();
}
TEST(Launches, DescribeTheBackwardsMatricesInFloat16) {
  expect_described<Arithmetic::kFloat16>();
}
TEST(Launches, DescribeTheBackwardsMatricesInBFloat16) {
  expect_described<Arithmetic::kBFloat16>();
}

TEST(Launches, DescribeTheForwardsMatrices) {
  Random random;
  for (int i = 0; i < 5000; ++i) {
    ForwardProblem p{};
    p.batch = random.log_uniform(1, 5000);
    p.input_features = random.below(16) == 0 ? 0 : random.log_uniform(1, 2500);
    p.state_size = random.log_uniform(1, 2500);
    for (const Arithmetic arithmetic : {Arithmetic::kTf32, Arithmetic::kBFloat16}) {
      const int size = element_size(arithmetic);
      // Packed as plan.cpp requires it.
      p.input_lead = p.input_features == 0 ? 0 : p.state_size * size % 16 / size;
      p.input = {memory(0), packed_stride(p.input_lead + p.input_features, size)};
      p.weights = {memory(1), packed_stride(p.state_size + p.input_features, size)};
      p.weights_input = p.weights.from(p.state_size, size);
      p.old_h = {memory(2), packed_stride(p.state_size, size)};
      fake_cuda() = {};
      ForwardMaps maps;
      EXPECT_TRUE(describe_forward(&maps, p, arithmetic, /*rows=*/128, /*hidden=*/32, /*gates=*/3));
      ASSERT_TRUE(fake_cuda().violations.empty()) << fake_cuda().violations[0];
    }
  }
}

template <typename Cell, Arithmetic kArithmetic>
void expect_steps_launched(Group group) {
  if (!is_built(kArithmetic)) {
    return;
  }
  Random random;
  for (int i = 0; i < 2000; ++i) {
    SequenceGradientsParams<TensorElement<kArithmetic>> params{};
    const int64_t steps = random.log_uniform(1, 1000);
    params.steps = steps;
    params.rows = random.log_uniform(1, 1e6);
    params.state_size = random.log_uniform(1, 5000);
    params.last_t = random.below(steps);
    const int64_t gates = Cell::kGates * params.state_size;
    const auto [candidate, estimate, is_selected] = choose(Shape{.work = Work::kStepBackward,
                                                                 .arithmetic = kArithmetic,
                                                                 .steps = steps,
                                                                 .batch = params.rows,
                                                                 .state_size = params.state_size,
                                                                 .columns = gates},
                                                           kH200,
                                                           {.group = group});
    fake_cuda() = {};
    const int size = element_size(kArithmetic);
    const bool hopper = candidate->group == Group::kHopper;
    const Matrix weights{memory(0), packed_stride(hopper ? gates : params.state_size, size)};
    params.d_gates = reinterpret_cast<TensorElement<kArithmetic>*>(memory(1));
    params.d_gates_stride = packed_stride(gates, size);
    cudaError_t error = cudaSuccess;
    if (hopper) {
      params.follows_a_product = random.below(2) == 1;
      error = launch_sequence_gradient_wgmma<Cell, kArithmetic>(
          params, weights, candidate->tile, estimate.ranks, nullptr);
    } else {
      ASSERT_EQ(candidate->group, Group::kTiles);
      error = launch_sequence_gradient_tiles<kArithmetic>(
          params, weights, candidate->tile, estimate.ranks, nullptr);
    }
    const auto& violations = fake_cuda().violations;
    ASSERT_TRUE(violations.empty() && error == cudaSuccess && fake_cuda().launches == 1)
        << params.rows << " " << params.state_size << ", error " << error << ", expected "
        << (violations.empty() ? "" : violations[0]);
  }
}

TEST(Launches, OfAStepOfASequencesGradientsFitTheGrid) {
  const auto expect_all_launched = []<typename Cell>(Group group) {
    expect_steps_launched<Cell, Arithmetic::kFloat32>(group);
    expect_steps_launched<Cell, Arithmetic::kTf32>(group);
    expect_steps_launched<Cell, Arithmetic::kFloat16>(group);
    expect_steps_launched<Cell, Arithmetic::kBFloat16>(group);
  };
  expect_all_launched.template operator()<cell::Lltm>(Group::kHopper);
  expect_all_launched.template operator()<cell::Lstm>(Group::kHopper);
  expect_all_launched.template operator()<cell::Combined<cell::Gru>>(Group::kHopper);
  expect_all_launched.template operator()<cell::Lltm>(Group::kTiles);
}

template <Arithmetic kArithmetic, CellType kCell>
void expect_steps_described() {
  if (!is_built(kArithmetic)) {
    GTEST_SKIP() << "built without its kernels";
  }
  Random random;
  int launched = 0;
  for (int i = 0; i < 2000; ++i) {
    const StepProblem step = random_step(random, element_size(kArithmetic));
    const Shape shape = shape_of(kArithmetic, step, kCell);
    for (const Candidate& candidate : hopper_candidates(shape)) {
      fake_cuda() = {};
      const auto with_ranks = estimate(candidate, shape, kH200, i % candidate.most_ranks + 1);
      const int ranks = (with_ranks ? with_ranks : estimate(candidate, shape, kH200))->ranks;
      const cudaError_t error = launch_forward(
          {.arithmetic = kArithmetic, .cell = kCell, .choice = {&candidate, {.ranks = ranks}}},
          step,
          nullptr);
      const auto& violations = fake_cuda().violations;
      ASSERT_TRUE(violations.empty() && error == cudaSuccess)
          << candidate.name << " (" << step.batch << "," << step.input_features << ","
          << step.state_size << "), error " << error << ", expected "
          << (violations.empty() ? "" : violations[0]);
      ASSERT_EQ(fake_cuda().launches, 1) << candidate.name;
      ++launched;
    }
  }
  EXPECT_GT(launched, 1000);
}

TEST(Launches, DescribeAStepsMatricesInFloat32) {
  expect_steps_described<Arithmetic::kFloat32, CellType::kLltm>();
  expect_steps_described<Arithmetic::kFloat32, CellType::kLstm>();
  expect_steps_described<Arithmetic::kFloat32, CellType::kGru>();
}
TEST(Launches, DescribeAStepsMatricesInTf32) {
  expect_steps_described<Arithmetic::kTf32, CellType::kLltm>();
  expect_steps_described<Arithmetic::kTf32, CellType::kLstm>();
  expect_steps_described<Arithmetic::kTf32, CellType::kGru>();
}
TEST(Launches, DescribeAStepsMatricesInFloat16) {
  expect_steps_described<Arithmetic::kFloat16, CellType::kLltm>();
  expect_steps_described<Arithmetic::kFloat16, CellType::kLstm>();
  expect_steps_described<Arithmetic::kFloat16, CellType::kGru>();
}
TEST(Launches, DescribeAStepsMatricesInBFloat16) {
  expect_steps_described<Arithmetic::kBFloat16, CellType::kLltm>();
  expect_steps_described<Arithmetic::kBFloat16, CellType::kLstm>();
  expect_steps_described<Arithmetic::kBFloat16, CellType::kGru>();
}

TEST(Launches, SpreadBlocksOnlyWhereTheyCanStartEarly) {
  static const char symbol = 0;
  constexpr int kKib = 1024, kParams = 0;
  constexpr BlockSize kBlock{.threads = 128,
                             .bytes_alone = 20 * kKib,
                             .bytes_in_cluster = 30 * kKib,
                             .most_bytes = 116 * kKib};
  unsigned long long context = 1000;
  for (const int ptx_version : {80, 90, 120}) {
    for (const int device_kib : {99, 163, 227}) {
      ++context;
      PerContext<Kernel> known;
      for (const int least_kib : {0, 10, 50, 82, 114}) {
        for (const unsigned cluster : {1, 2, 16}) {
          fake_cuda() = {.context = context,
                         .ptx_version = ptx_version,
                         .shared_bytes_a_block = device_kib * kKib};
          const cudaError_t error = launch_in_clusters({&symbol, known},
                                                       kBlock,
                                                       &kParams,
                                                       grid_of(cluster),
                                                       cluster,
                                                       nullptr,
                                                       least_kib * kKib);
          const bool early = ptx_version >= 90, launches = early || cluster == 1;
          const int own_kib = cluster == 1 ? 20 : 30;
          EXPECT_EQ(error, launches ? cudaSuccess : cudaErrorInvalidClusterSize);
          EXPECT_EQ(fake_cuda().launches, launches ? 1 : 0);
          EXPECT_EQ(fake_cuda().violations, std::vector<std::string>());
          if (launches) {
            const int kib = early ? std::max(own_kib, std::min(least_kib, device_kib)) : own_kib;
            EXPECT_EQ(fake_cuda().shared_bytes, unsigned(kib * kKib))
                << "PTX " << ptx_version << ", " << least_kib << " KiB, clusters of " << cluster;
          }
        }
      }
    }
  }
}

/// The facts of a GPU of 9.0 or newer, which depend on the code that runs on it.
DeviceFacts facts_with(int capability,
                       int ptx_version,
                       int most_threads,
                       unsigned multiprocessors_of_context = 0) {
  static unsigned long long context = 2000;
  cudaDeviceProp properties{};
  properties.major = capability / 10;
  properties.minor = capability % 10;
  properties.multiProcessorCount = 132;
  properties.sharedMemPerBlockOptin = 227 * 1024;
  properties.sharedMemPerMultiprocessor = 228 * 1024;
  properties.reservedSharedMemPerBlock = 1024;
  fake_cuda() = {.context = ++context,
                 .ptx_version = ptx_version,
                 .most_threads = most_threads,
                 .multiprocessors = multiprocessors_of_context};
  DeviceFacts facts;
  EXPECT_EQ(device_facts(properties, &facts), cudaSuccess);
  EXPECT_EQ(fake_cuda().violations, std::vector<std::string>());
  return facts;
}

TEST(Launches, HaveWgmmaAndClustersOnlyInCodeThatDoes) {
  for (const int capability : {90, 100, 120}) {
    // The PTX of 80, that of 90, and the machine code of 90a, which runs only on 9.0.
    const DeviceFacts old = facts_with(capability, 80, kThreadsWithWgmma / 2);
    const DeviceFacts with_clusters = facts_with(capability, 90, kThreadsWithWgmma / 2);
    EXPECT_TRUE(old.tiles && !old.clusters() && !old.wgmma);
    EXPECT_TRUE(with_clusters.tiles && with_clusters.clusters() && !with_clusters.wgmma);
  }
  const DeviceFacts hopper = facts_with(90, 90, kThreadsWithWgmma);
  EXPECT_TRUE(hopper.tiles && hopper.clusters() && hopper.wgmma);
  EXPECT_EQ(hopper.clock, 1755);
  EXPECT_EQ(hopper.bandwidth, 2039);
}

TEST(Launches, AreForTheMultiprocessorsOfTheContext) {
  // Those of the device, for a driver that cannot tell them, and of a green context.
  EXPECT_EQ(facts_with(90, 90, kThreadsWithWgmma).multiprocessors, 132);
  EXPECT_EQ(facts_with(90, 90, kThreadsWithWgmma, 48).multiprocessors, 48);
}

TEST(Launches, AreRefusedWhereTmaCannotDescribeAMatrix) {
  CUtensorMap map;
  for (const Matrix& matrix : {Matrix{memory(0) + 2, 64},
                               Matrix{memory(0), 65},
                               Matrix{memory(0), 32},
                               Matrix{memory(0), int64_t{1} << 40}}) {
    fake_cuda() = {};
    EXPECT_FALSE(is_describable(matrix, 64, 2));
    EXPECT_FALSE(describe(&map,
                          {.arithmetic = Arithmetic::kFloat16,
                           .matrix = matrix,
                           .rows = 100,
                           .columns = 64,
                           .box_rows = 64,
                           .box_columns = 64}));
    EXPECT_EQ(fake_cuda().violations.size(), 1u);
  }
  EXPECT_TRUE(is_describable({memory(0), 64}, 64, 2));
}

}  // namespace
}  // namespace lltm::cuda
