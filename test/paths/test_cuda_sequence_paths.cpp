// Every group of CUDA kernels of a sequence, forced, around the tiles of a step. The reference is
// the same call in float64, which has its own kernels and is compared with the formula elsewhere.
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

class CudaSequencePath : public testing::TestWithParam<PathCase> {};

struct SequenceResults {
  std::vector<at::Tensor> forward, gradients;
};

constexpr std::array<bool, 5> kAll{1, 1, 1, 1, 1}, kStates{0, 0, 0, 1, 1};

/// Rows have lengths of 0 to kPathSteps and some resets. The forward's results are also the
/// gradients of the backward.
SequenceResults results_of(const Arguments& arguments,
                           at::ScalarType dtype,
                           std::array<bool, 5> mask) {
  const Arguments a = arguments.to(at::TensorOptions(at::kCUDA).dtype(dtype));
  const int64_t batch = a.input.size(1);
  const at::TensorOptions device(at::kCUDA);
  const at::Tensor lengths = at::arange(batch, device.dtype(at::kLong)).remainder_(kPathSteps + 1);
  const at::Tensor reset = at::arange(kPathSteps * batch, device)
                               .remainder_(5)
                               .eq_(0)
                               .to(at::kBool)
                               .view({kPathSteps, batch});
  const auto [output, h_n, c_n, cells, gates] = sequence(a.input,
                                                         a.weights,
                                                         a.bias,
                                                         a.old_h,
                                                         a.old_cell,
                                                         lengths,
                                                         reset,
                                                         /*reverse=*/false,
                                                         /*keep=*/true);
  const auto [d_input, d_weights, d_bias, d_h0, d_c0] = sequence_backward(output,
                                                                          h_n,
                                                                          c_n,
                                                                          cells,
                                                                          output,
                                                                          cells,
                                                                          gates,
                                                                          a.input,
                                                                          a.weights,
                                                                          a.bias,
                                                                          a.old_h,
                                                                          a.old_cell,
                                                                          lengths,
                                                                          reset,
                                                                          /*reverse=*/false,
                                                                          mask);
  return {{output, h_n, c_n, cells, gates}, {d_input, d_weights, d_bias, d_h0, d_c0}};
}

/// Rounded to the dtype, also for float64.
Arguments sequence_arguments(const Sizes& sizes, at::ScalarType dtype) {
  at::manual_seed(1);
  Arguments arguments = random_arguments(sizes, dtype);
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
  const auto [path, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  const Arguments arguments = sequence_arguments(sizes, dtype);
  const ForcedPath forced(path);
  const SequenceResults actual = results_of(arguments, dtype, kAll),
                        expected = results_of(arguments, at::kDouble, kAll);
  expect_all_close(actual.forward, expected.forward, "result ", dtype, 2);
  // A sum over steps and rows of gradients that are rounded at each step.
  expect_all_close(actual.gradients, expected.gradients, "gradient ", dtype, 4);
  const SequenceResults again = results_of(arguments, dtype, kAll);
  for (size_t k = 0; k < actual.forward.size(); ++k) {
    EXPECT_TRUE(at::equal(again.forward[k], actual.forward[k])) << "result " << k;
    EXPECT_TRUE(at::equal(again.gradients[k], actual.gradients[k])) << "gradient " << k;
  }
}

/// The steps alone, without the products over all steps, which are cuBLAS's in 16 bits.
TEST_P(CudaSequencePath, GivesTheGradientsOfStatesAlone) {
  const auto [path, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  const Arguments arguments = sequence_arguments(sizes, dtype);
  const ForcedPath forced(path);
  expect_all_close(results_of(arguments, dtype, kStates).gradients,
                   results_of(arguments, at::kDouble, kStates).gradients,
                   "gradient ",
                   dtype,
                   4);
}

INSTANTIATE_TEST_SUITE_P(AtTheEdges,
                         CudaSequencePath,
                         testing::Combine(testing::Values("few_rows", "hopper", "tiles", "library"),
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
                         path_case_name);

INSTANTIATE_TEST_SUITE_P(
    WithRanks,
    CudaSequencePath,
    testing::Combine(testing::Values("forward_tiles_64x32:7",
                                     "forward_wgmma_64x24:3",
                                     "forward_wgmma_float32_64x32:5",
                                     "sequence_backward_tiles_32x32:5",
                                     "sequence_backward_tiles_64x64:8",
                                     "sequence_backward_wgmma_64x32:3",
                                     "sequence_backward_wgmma_64x64:8",
                                     "sequence_backward_wgmma_128x64:5",
                                     "sequence_backward_wgmma_float32_64x96:3",
                                     "sequence_backward_wgmma_float32_128x96:2"),
                     testing::Values(at::kFloat, at::kBFloat16),
                     testing::Values(Sizes{70, 33, 65}, Sizes{130, 72, 264}, Sizes{64, 8, 730})),
    path_case_name);

}  // namespace
}  // namespace lltm::test
