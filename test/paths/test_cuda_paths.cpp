// Every path of the CUDA kernels, forced, at the edges of every tile, and every candidate by its
// name.
#include "cuda/plan/candidates.h"
#include "cuda/problem.h"
#include "forced_path.h"
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"
#include "lltm_testing/devices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lltm::test {
namespace {

/// Sizes around tiles of 16, 64 and 128 rows, of 8, 16, 24, 32, 40 and 64 hidden columns, and of
/// 64, 96, 128 and 256 columns of a gradient, and around chunks of 32 and 64 of K. Rows start at 16
/// bytes or do not. There are pairs without a second tile, K shorter and longer than the pipeline,
/// and batches of one to eight rows.
const std::vector<Sizes> kTileEdges = {
    {1, 8, 8},         {15, 31, 7},    {16, 32, 8},      {17, 33, 9},     {16, 64, 64},
    {5, 1, 200},       {37, 77, 200},  {63, 64, 31},     {64, 128, 64},   {65, 63, 65},
    {64, 0, 96},       {127, 40, 33},  {129, 65, 1100},  {257, 16, 2088}, {1100, 8, 24},
    {2100, 24, 40},    {63, 72, 96},   {66, 40, 520},    {200, 136, 168}, {64, 8, 264},
    {33, 1200, 288},   {40, 512, 800}, {100, 1000, 320}, {300, 8, 544},   {520, 40, 384},
    {65, 100, 196},    {129, 96, 100}, {300, 4, 36},     {128, 264, 264}, {256, 0, 248},
    {300, 520, 256},   {2, 4, 12},     {3, 60, 64},      {4, 68, 72},     {5, 0, 136},
    {6, 128, 520},     {7, 132, 1040}, {8, 1000, 1000},  {1, 8, 4240},    {120, 1304, 1032},
    {200, 1064, 1000}, {300, 8, 1544}, {600, 40, 133},   {2048, 24, 72},  {100, 300, 700},
    {1493, 9, 85},     {567, 8, 138},  {130, 30, 10},
};

/// Every batch of a few rows, of which the forward takes more than eight in two groups, in vectors
/// of eight, of four and of one element. Of the latter, rows of weights start at words or do not,
/// and so do the rows of each gate.
std::vector<Sizes> few_rows_sizes() {
  std::vector<Sizes> all;
  for (int64_t batch = 1; batch <= 16; ++batch) {
    for (const auto& [input_features, state_size] :
         {std::pair{40, 136}, {68, 132}, {30, 70}, {99, 270}, {342, 175}}) {
      all.push_back({batch, input_features, state_size});
    }
  }
  return all;
}

class CudaPath : public testing::TestWithParam<PathCase> {};

using Gradients = std::vector<at::Tensor>;

Gradients backward_of(const at::Tensor& grad_h,
                      const at::Tensor& grad_cell,
                      const Outputs& outputs,
                      const Arguments& arguments,
                      std::array<bool, 5> mask) {
  const auto [d_input, d_weights, d_bias, d_old_h, d_old_cell] = backward(grad_h,
                                                                          grad_cell,
                                                                          outputs.new_cell,
                                                                          outputs.gates,
                                                                          arguments.input,
                                                                          arguments.weights,
                                                                          arguments.bias,
                                                                          arguments.old_h,
                                                                          mask);
  return {d_input, d_weights, d_bias, d_old_h, d_old_cell};
}

Outputs forward_of(const Arguments& arguments) {
  const auto [new_h, new_cell, gates] = call_forward(arguments);
  return {new_h, new_cell, gates};
}

/// A cell's arguments, and what the forward under test gives.
struct Calls {
  Arguments arguments;
  Outputs outputs;
  std::optional<double> limit;  // of the products' errors; by default the type's tolerance
};

Calls call_forward(const Sizes& sizes, at::ScalarType dtype, std::optional<double> limit) {
  at::manual_seed(1);
  const Arguments arguments = random_arguments(sizes, at::TensorOptions(at::kCUDA).dtype(dtype));
  return {arguments, forward_of(arguments), limit};
}

void expect_the_formula_forward(const Calls& calls) {
  const auto& [arguments, outputs, limit] = calls;
  const Outputs expected = reference_forward(arguments);
  expect_close(outputs.new_h, expected.new_h, "new_h", limit);
  expect_close(outputs.new_cell, expected.new_cell, "new_cell", limit);
  expect_close(outputs.gates, expected.gates, "gates", limit);

  // A second call gives the same bits.
  const Outputs again = forward_of(arguments);
  EXPECT_TRUE(at::equal(again.new_h, outputs.new_h));
  EXPECT_TRUE(at::equal(again.gates, outputs.gates));
}

void expect_the_formula_backward(const Calls& calls) {
  const auto& [arguments, outputs, limit] = calls;
  // Uses the gates and new_cell of the forward, so that only the backward's own rounding counts.
  const at::Tensor grad_h = at::randn_like(outputs.new_h);
  const at::Tensor grad_cell = at::randn({1, 1}, outputs.new_cell.options()).expand_as(grad_h);
  const Gradients gradients = backward_of(grad_h, grad_cell, outputs, arguments, {1, 1, 1, 1, 1});
  const auto exact = [](const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble); };
  const auto z = exact(outputs.gates).chunk(3, 1);
  const at::Tensor i = z[0].sigmoid(), o = z[1].sigmoid(), g = at::elu(z[2]);
  const at::Tensor t = exact(outputs.new_cell).tanh();
  const at::Tensor d_cell = exact(grad_cell) + exact(grad_h) * o * (1 - t * t);
  const at::Tensor d_gates =
      at::cat({d_cell * g * i * (1 - i),
               exact(grad_h) * t * o * (1 - o),
               d_cell * i * at::where(z[2] > 0, at::ones_like(z[2]), z[2].exp())},
              1);
  const at::Tensor h_and_input = at::cat({exact(arguments.old_h), exact(arguments.input)}, 1);
  const at::Tensor d_h_and_input = d_gates.matmul(exact(arguments.weights));
  const int64_t state_size = grad_h.size(1), input_features = arguments.input.size(1);
  expect_close(gradients[0], d_h_and_input.narrow(1, state_size, input_features), "d_input", limit);
  expect_close(gradients[1], d_gates.t().matmul(h_and_input), "d_weights", limit);
  expect_close(gradients[2], d_gates.sum(0), "d_bias");
  expect_close(gradients[3], d_h_and_input.narrow(1, 0, state_size), "d_old_h", limit);
  expect_close(gradients[4], d_cell, "d_old_cell");

  // Each gradient requested alone has the same bits.
  const std::string kNames[] = {"d_input", "d_weights", "d_bias", "d_old_h", "d_old_cell"};
  for (size_t which = 0; which < gradients.size(); ++which) {
    std::array<bool, 5> mask{};
    mask[which] = true;
    const Gradients alone = backward_of(grad_h, grad_cell, outputs, arguments, mask);
    for (size_t other = 0; other < alone.size(); ++other) {
      EXPECT_EQ(alone[other].defined(), other == which) << kNames[other];
    }
    EXPECT_TRUE(at::equal(alone[which], gradients[which])) << kNames[which];
  }
}

/// `limit` bounds the errors of the products. It defaults to the type's tolerance.
void expect_the_formula(const Sizes& sizes,
                        at::ScalarType dtype,
                        std::optional<double> limit = std::nullopt) {
  const Calls calls = call_forward(sizes, dtype, limit);
  expect_the_formula_forward(calls);
  expect_the_formula_backward(calls);
}

TEST_P(CudaPath, IsTheFormulaForwardAndBackward) {
  const auto [path, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  const ForcedPath forced(path);
  expect_the_formula(sizes, dtype);
}

INSTANTIATE_TEST_SUITE_P(AtTheEdges,
                         CudaPath,
                         testing::Combine(testing::Values("few_rows", "hopper", "tiles", "library"),
                                          testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                                          testing::ValuesIn(kTileEdges)),
                         path_case_name);

INSTANTIATE_TEST_SUITE_P(OfFewRows,
                         CudaPath,
                         testing::Combine(testing::Values("few_rows"),
                                          testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                                          testing::ValuesIn(few_rows_sizes())),
                         path_case_name);

/// Allows float32 products in TF32 during its lifetime.
class Tf32Allowed {
 public:
  Tf32Allowed() { at::globalContext().setAllowTF32CuBLAS(true); }
  ~Tf32Allowed() { at::globalContext().setAllowTF32CuBLAS(allowed_); }
  Tf32Allowed(const Tf32Allowed&) = delete;
  Tf32Allowed& operator=(const Tf32Allowed&) = delete;

 private:
  const bool allowed_ = at::globalContext().allowTF32CuBLAS();
};

class CudaTf32Path : public CudaPath {};

TEST_P(CudaTf32Path, IsTheFormulaForwardAndBackward) {
  const auto [path, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  const ForcedPath forced(path);
  const Tf32Allowed tf32;
  // TF32 has as many digits as float16.
  expect_the_formula(sizes, dtype, tolerance(at::kHalf));
}

INSTANTIATE_TEST_SUITE_P(AtTheEdges,
                         CudaTf32Path,
                         testing::Combine(testing::Values("hopper", "tiles"),
                                          testing::Values(at::kFloat),
                                          testing::ValuesIn(kTileEdges)),
                         path_case_name);

/// The names of the cell's candidates.
std::vector<std::string> cell_candidates() {
  std::vector<std::string> names;
  std::istringstream paths(lltm_cuda_paths());
  for (std::string name; paths >> name;) {
    if (name.starts_with("forward_") || name.starts_with("backward_")) {
      names.push_back(name);
    }
  }
  return names;
}

/// Rows start at multiples of 16 bytes, of 4, or anywhere. K is longer than the pipelines of most
/// kernels, and has a remainder. Small enough for compute-sanitizer.
const std::vector<Sizes> kCandidateSizes = {
    {7, 40, 72}, {200, 136, 168}, {130, 30, 130}, {129, 65, 131}};

class CudaCandidate : public CudaPath {
 protected:
  static bool is_supported(const std::string& name,
                           cuda::Arithmetic arithmetic,
                           const Sizes& sizes) {
    cuda::DeviceFacts device;
    EXPECT_EQ(lltm_cuda_device_facts(&device), 0);
    const cuda::ContiguousProblem problem{static_cast<int64_t>(arithmetic),
                                          sizes.batch,
                                          sizes.input_features,
                                          sizes.state_size,
                                          /*ranks=*/0};
    cuda::ContiguousEstimate estimate;
    EXPECT_TRUE(lltm_cuda_estimates(
        name.c_str(), false, false, &device, /*times=*/nullptr, &problem, 1, &estimate));
    return !std::isnan(estimate.us);
  }

  /// Skips what would be computed by another candidate.
  static void expect_the_formula_of(const PathCase& of,
                                    cuda::Arithmetic arithmetic,
                                    std::optional<double> limit) {
    const auto& [name, dtype, sizes] = of;
    if (!is_supported(name, arithmetic, sizes)) {
      GTEST_SKIP() << name << " does not support this";
    }
    const ForcedPath forced(name);
    const Calls calls = call_forward(sizes, dtype, limit);
    if (name.starts_with("forward_")) {
      expect_the_formula_forward(calls);
    } else {
      expect_the_formula_backward(calls);
    }
  }
};

TEST_P(CudaCandidate, IsTheFormula) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  const at::ScalarType dtype = std::get<1>(GetParam());
  expect_the_formula_of(GetParam(),
                        dtype == at::kHalf       ? cuda::Arithmetic::kFloat16
                        : dtype == at::kBFloat16 ? cuda::Arithmetic::kBFloat16
                                                 : cuda::Arithmetic::kFloat32,
                        std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(ByName,
                         CudaCandidate,
                         testing::Combine(testing::ValuesIn(cell_candidates()),
                                          testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                                          testing::ValuesIn(kCandidateSizes)),
                         path_case_name);

class CudaTf32Candidate : public CudaCandidate {};

TEST_P(CudaTf32Candidate, IsTheFormula) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  const Tf32Allowed tf32;
  expect_the_formula_of(GetParam(), cuda::Arithmetic::kTf32, tolerance(at::kHalf));
}

INSTANTIATE_TEST_SUITE_P(ByName,
                         CudaTf32Candidate,
                         testing::Combine(testing::ValuesIn(cell_candidates()),
                                          testing::Values(at::kFloat),
                                          testing::ValuesIn(kCandidateSizes)),
                         path_case_name);

class CudaPathChoice : public testing::TestWithParam<at::DeviceType> {};

TEST_P(CudaPathChoice, AnUnknownPathIsAnError) {
  LLTM_SKIP_UNLESS_TESTABLE(GetParam());
  const Arguments arguments = random_arguments({2, 3, 4}, at::kCUDA);
  for (const std::string path : {"fastest", "forward_tiles_64x8:9", "tiles:2"}) {
    const ForcedPath forced(path);
    try {
      forward_of(arguments);
      ADD_FAILURE() << path << " was taken";
    } catch (const c10::Error& error) {
      EXPECT_EQ(error.what_without_backtrace(),
                "lltm: expected the environment variable LLTM_CUDA_PATH to be one of " +
                    std::string(lltm_cuda_paths()) + ", or NAME:RANKS with 1 to 8 ranks, got " +
                    path);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CudaPathChoice, testing::Values(at::kCUDA), [](const auto&) {
  return std::string("CUDA");
});

}  // namespace
}  // namespace lltm::test
