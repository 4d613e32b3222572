// Every group of CUDA kernels of a sequence, forced, around the tiles of a step. The reference is
// the same call in float64, which has its own kernels and is compared with the formula elsewhere.
#include "cuda/plan/candidates.h"
#include "forced_path.h"
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"
#include "lltm_testing/devices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

namespace lltm::test {
namespace {

constexpr int64_t kPathSteps = 4;

enum class Cell { kLltm, kLstm };

using SequenceCase = std::tuple<Cell, std::string, at::ScalarType, Sizes>;

class CudaSequencePath : public testing::TestWithParam<SequenceCase> {};

std::string sequence_case_name(const testing::TestParamInfo<SequenceCase>& info) {
  const auto& [cell, path, dtype, sizes] = info.param;
  return (cell == Cell::kLltm ? "Lltm_" : "Lstm_") + case_name(path, dtype, sizes);
}

/// Whether the GPU, and the code that the library has for it, run a path.
bool is_runnable(const std::string& path) {
  cuda::DeviceFacts device;
  EXPECT_EQ(lltm_cuda_device_facts(&device), 0);
  return path != "cluster" || (device.clusters() && device.shared_bytes_a_block >= 227 * 1024);
}

struct SequenceResults {
  std::vector<at::Tensor> forward, gradients;
};

enum class Wanted { kAll, kStates };

template <typename... Tensors>
std::vector<at::Tensor> as_vector(const std::tuple<Tensors...>& tensors) {
  return std::apply([](const auto&... t) { return std::vector<at::Tensor>{t...}; }, tensors);
}

/// Rows have lengths of 0 to kPathSteps and some resets. The forward's results are also the
/// gradients of the backward.
SequenceResults results_of(Cell cell,
                           const Arguments& arguments,
                           at::ScalarType dtype,
                           Wanted wanted) {
  const Arguments a = arguments.to(at::TensorOptions(at::kCUDA).dtype(dtype));
  const int64_t batch = a.input.size(1), state_size = a.old_h.size(1);
  const at::TensorOptions device(at::kCUDA);
  const at::Tensor lengths = at::arange(batch, device.dtype(at::kLong)).remainder_(kPathSteps + 1);
  const at::Tensor reset = at::arange(kPathSteps * batch, device)
                               .remainder_(5)
                               .eq_(0)
                               .to(at::kBool)
                               .view({kPathSteps, batch});
  constexpr bool kReverse = false, kKeep = true;
  const auto run = [&](auto forward, auto backward, auto mask, const auto&... weights) {
    const auto results =
        forward(a.input, weights..., a.bias, a.old_h, a.old_cell, lengths, reset, kReverse, kKeep);
    const auto& [output, h_n, c_n, cells, gates] = results;
    const auto gradients = backward(output,
                                    h_n,
                                    c_n,
                                    cells,
                                    output,
                                    cells,
                                    gates,
                                    a.input,
                                    weights...,
                                    a.bias,
                                    a.old_h,
                                    a.old_cell,
                                    lengths,
                                    reset,
                                    kReverse,
                                    mask);
    return SequenceResults{as_vector(results), as_vector(gradients)};
  };
  const bool all = wanted == Wanted::kAll;
  if (cell == Cell::kLltm) {
    return run(sequence, sequence_backward, std::array{all, all, all, true, true}, a.weights);
  }
  return run(lstm,
             lstm_backward,
             std::array{all, all, all, all, true, true},
             a.weights.slice(1, state_size),
             a.weights.slice(1, 0, state_size));
}

/// Rounded to the dtype, also for float64.
Arguments sequence_arguments(Cell cell, const Sizes& sizes, at::ScalarType dtype) {
  at::manual_seed(1);
  Arguments arguments = random_arguments(sizes, dtype, cell == Cell::kLltm ? 3 : 4);
  arguments.input = at::randn({kPathSteps, sizes.batch, sizes.input_features}, at::kDouble)
                        .to(at::kFloat)
                        .to(dtype);
  return arguments;
}

/// `factor` times the dtype's tolerance bounds the errors.
void expect_all_close(const std::vector<at::Tensor>& actual,
                      const std::vector<at::Tensor>& expected,
                      const std::string& kind,
                      at::ScalarType dtype,
                      double factor) {
  for (size_t k = 0; k < actual.size(); ++k) {
    ASSERT_EQ(actual[k].defined(), expected[k].defined());
    if (actual[k].defined()) {
      expect_close(
          actual[k], expected[k].cpu(), kind + std::to_string(k), factor * tolerance(dtype));
    }
  }
}

TEST_P(CudaSequencePath, IsWhatFloat64Gives) {
  const auto& [cell, path, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  if (!is_runnable(path)) {
    GTEST_SKIP() << "needs clusters of blocks with 227 KiB of shared memory each";
  }
  const Arguments arguments = sequence_arguments(cell, sizes, dtype);
  const SequenceResults expected = results_of(cell, arguments, at::kDouble, Wanted::kAll);
  const ForcedPath forced(path);
  const SequenceResults actual = results_of(cell, arguments, dtype, Wanted::kAll);
  expect_all_close(actual.forward, expected.forward, "result ", dtype, 2);
  // A sum over steps and rows of gradients that are rounded at each step.
  expect_all_close(actual.gradients, expected.gradients, "gradient ", dtype, 4);
  const SequenceResults again = results_of(cell, arguments, dtype, Wanted::kAll);
  for (size_t k = 0; k < actual.forward.size(); ++k) {
    EXPECT_TRUE(at::equal(again.forward[k], actual.forward[k])) << "result " << k;
  }
  for (size_t k = 0; k < actual.gradients.size(); ++k) {
    EXPECT_TRUE(at::equal(again.gradients[k], actual.gradients[k])) << "gradient " << k;
  }
}

/// The steps alone, without the products over all steps, which are cuBLAS's in 16 bits.
TEST_P(CudaSequencePath, GivesTheGradientsOfStatesAlone) {
  const auto& [cell, path, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  if (!is_runnable(path)) {
    GTEST_SKIP() << "needs clusters of blocks with 227 KiB of shared memory each";
  }
  const Arguments arguments = sequence_arguments(cell, sizes, dtype);
  const SequenceResults expected = results_of(cell, arguments, at::kDouble, Wanted::kStates);
  const ForcedPath forced(path);
  const SequenceResults actual = results_of(cell, arguments, dtype, Wanted::kStates);
  expect_all_close(actual.gradients, expected.gradients, "gradient ", dtype, 4);
}

INSTANTIATE_TEST_SUITE_P(AtTheEdges,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLltm, Cell::kLstm),
                                          testing::Values("few_rows", "hopper", "tiles", "library"),
                                          testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                                          testing::Values(Sizes{5, 7, 4},
                                                          Sizes{16, 128, 128},
                                                          Sizes{1, 512, 512},
                                                          Sizes{3, 60, 64},
                                                          Sizes{8, 1000, 40},
                                                          Sizes{70, 33, 65},
                                                          Sizes{130, 72, 264},
                                                          Sizes{300, 0, 248},
                                                          Sizes{257, 16, 1044},
                                                          Sizes{500, 257, 8},
                                                          Sizes{64, 8, 730})),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(InABlock,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLltm, Cell::kLstm),
                                          testing::Values("block"),
                                          testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                                          testing::Values(Sizes{5, 7, 4},
                                                          Sizes{9, 12, 32},
                                                          Sizes{40, 33, 65},
                                                          Sizes{3, 96, 96})),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(InACluster,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLltm, Cell::kLstm),
                                          testing::Values("cluster"),
                                          testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                                          testing::Values(Sizes{16, 40, 200}, Sizes{150, 0, 250})),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(InALargeCluster,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLltm, Cell::kLstm),
                                          testing::Values("cluster"),
                                          testing::Values(at::kHalf, at::kBFloat16),
                                          testing::Values(Sizes{20, 16, 384}, Sizes{9, 10, 510})),
                         sequence_case_name);

const auto kSizesWithRanks =
    testing::Values(Sizes{70, 33, 65}, Sizes{130, 72, 264}, Sizes{64, 8, 730});

INSTANTIATE_TEST_SUITE_P(OfLltmWithRanks,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLltm),
                                          testing::Values("forward_tiles_64x32:7",
                                                          "forward_wgmma_64x24:3",
                                                          "forward_wgmma_float32_64x32:5"),
                                          testing::Values(at::kFloat, at::kBFloat16),
                                          kSizesWithRanks),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(OfLstmWithRanks,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLstm),
                                          testing::Values("lstm_wgmma_64x8:8",
                                                          "lstm_wgmma_64x24:3",
                                                          "lstm_wgmma_128x32:2",
                                                          "lstm_wgmma_float32_64x24:5",
                                                          "lstm_wgmma_float32_128x16:3"),
                                          testing::Values(at::kFloat, at::kBFloat16),
                                          kSizesWithRanks),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(
    WithRanks,
    CudaSequencePath,
    testing::Combine(testing::Values(Cell::kLltm, Cell::kLstm),
                     testing::Values("sequence_backward_tiles_32x32:5",
                                     "sequence_backward_tiles_64x64:8",
                                     "sequence_backward_wgmma_64x32:3",
                                     "sequence_backward_wgmma_64x64:8",
                                     "sequence_backward_wgmma_128x64:5",
                                     "sequence_backward_wgmma_float32_64x96:3",
                                     "sequence_backward_wgmma_float32_128x96:2"),
                     testing::Values(at::kFloat, at::kBFloat16),
                     kSizesWithRanks),
    sequence_case_name);

}  // namespace
}  // namespace lltm::test
