// Shared by the C++ tests: random arguments of a cell, and its formula in float64 on the CPU.
#pragma once

#include "lltm/lltm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace lltm::test {

struct Sizes {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
};

inline void PrintTo(const Sizes& sizes, std::ostream* os) {
  *os << "batch " << sizes.batch << ", input_features " << sizes.input_features << ", state_size "
      << sizes.state_size;
}

/// Odd sizes, a state of one, no input features, an empty batch, and more rows than a grid's y
/// limit.
inline const std::vector<Sizes> kSizes = {
    {1, 1, 1}, {3, 5, 7}, {16, 32, 128}, {33, 65, 129}, {4, 0, 5}, {0, 4, 3}, {70000, 3, 2}};

inline const std::vector<at::DeviceType> kDevices = {at::kCPU, at::kCUDA};
inline const std::vector<at::ScalarType> kDtypes = {
    at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};

/// One instance of a test over devices, dtypes and sizes.
using Case = std::tuple<at::DeviceType, at::ScalarType, Sizes>;

inline std::string case_name(const testing::TestParamInfo<Case>& info) {
  const auto& [device, dtype, sizes] = info.param;
  return c10::DeviceTypeName(device) + "_" + c10::toString(dtype) + "_" +
         std::to_string(sizes.batch) + "_" + std::to_string(sizes.input_features) + "_" +
         std::to_string(sizes.state_size);
}

struct Arguments {
  at::Tensor input;
  at::Tensor weights;
  std::optional<at::Tensor> bias;
  at::Tensor old_h;
  at::Tensor old_cell;

  Arguments to(const at::TensorOptions& options) const {
    return {input.to(options),
            weights.to(options),
            bias ? std::optional(bias->to(options)) : std::nullopt,
            old_h.to(options),
            old_cell.to(options)};
  }
};

inline auto call_forward(const Arguments& arguments) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  return forward(input, weights, bias, old_h, old_cell);
}

/// With parameters of `gates` gates: 3, or 4 of an LSTM.
inline Arguments random_arguments(const Sizes& sizes,
                                  const at::TensorOptions& options,
                                  int64_t gates = 3) {
  const auto [batch, input_features, state_size] = sizes;
  const auto random = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  // This scale of the weights keeps z near 1 for any size.
  const double scale = 1 / std::sqrt(static_cast<double>(state_size + input_features));
  return Arguments{random({batch, input_features}),
                   random({gates * state_size, state_size + input_features}) * scale,
                   random({gates * state_size}),
                   random({batch, state_size}),
                   random({batch, state_size})}
      .to(options);
}

/// Calls run(forward, backward, mask, weights...) with the operators of a sequence that these
/// parameters are for: lltm::sequence's, or those of lltm::lstm if they have four gates.
template <typename Run>
auto with_sequence(const Arguments& arguments, const Run& run) {
  const at::Tensor& weights = arguments.weights;
  const int64_t state_size = arguments.old_h.size(1);
  if (weights.size(0) == 3 * state_size) {
    return run(sequence, sequence_backward, std::array<bool, 5>{}, weights);
  }
  return run(lstm,
             lstm_backward,
             std::array<bool, 6>{},
             weights.slice(1, state_size),
             weights.slice(1, 0, state_size));
}

struct Outputs {
  at::Tensor new_h;
  at::Tensor new_cell;
  at::Tensor gates;
};

/// The cell's formula, as in PyTorch's tutorial. Differentiable.
inline Outputs reference_forward(const Arguments& arguments) {
  const Arguments exact = arguments.to(at::TensorOptions(at::kCPU).dtype(at::kDouble));
  at::Tensor z = at::cat({exact.old_h, exact.input}, 1).matmul(exact.weights.t());
  if (exact.bias) {
    z = z + *exact.bias;
  }
  const auto gates = z.chunk(3, 1);
  const at::Tensor new_cell = exact.old_cell + at::elu(gates[2]) * at::sigmoid(gates[0]);
  return {at::tanh(new_cell) * at::sigmoid(gates[1]), new_cell, z};
}

/// The largest difference that rounding can explain, relative to the largest value: a few ulps,
/// times a generous allowance for the order of summation.
inline double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 1e-5;
    case at::kHalf:
      return 5e-3;
    default:
      return 4e-2;
  }
}

inline void expect_close(const at::Tensor& actual,
                         const at::Tensor& expected,
                         const std::string& what,
                         std::optional<double> limit = std::nullopt) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) {
    return;
  }
  const at::Tensor difference = (actual.to(at::kCPU, at::kDouble) - expected).abs();
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  // Elementwise rather than EXPECT_LE of the maximum, so that NaN fails.
  EXPECT_TRUE(
      (difference <= limit.value_or(tolerance(actual.scalar_type())) * scale).all().item<bool>())
      << what << ": largest difference " << difference.max().item<double>() << ", scale " << scale;
}

/// Expects an error of this type with exactly this message.
template <typename Error = c10::Error>
void expect_error(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "no error, expected: " << message;
  } catch (const Error& error) {
    EXPECT_STREQ(error.what_without_backtrace(), message.c_str());
  }
}

}  // namespace lltm::test
