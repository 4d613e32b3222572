// Every group of CUDA kernels of a sequence, forced, around the tiles of a step, and of the single
// step that the LSTM and the GRU have as a cell. The reference is the same call in float64, which
// has its own kernels and is compared with the formula elsewhere.
#include "forced_path.h"
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"
#include "lltm_testing/devices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace lltm::test {
namespace {

constexpr int64_t kPathSteps = 4;

enum class Cell { kLltm, kLstm, kGru };

using SequenceCase = std::tuple<Cell, std::string, at::ScalarType, Sizes>;

std::string sequence_case_name(const testing::TestParamInfo<SequenceCase>& info) {
  const auto& [cell, path, dtype, sizes] = info.param;
  const std::string name = cell == Cell::kLltm ? "Lltm_" : cell == Cell::kLstm ? "Lstm_" : "Gru_";
  return name + case_name(path, dtype, sizes);
}

using Tensors = std::vector<at::Tensor>;

/// Which gradients are computed: all of them, or those of the initial states.
enum class Wanted { kAll, kStates };

template <typename... Each>
Tensors as_vector(const std::tuple<Each...>& tensors) {
  return std::apply([](const auto&... t) { return Tensors{t...}; }, tensors);
}

/// A call on the GPU.
struct SequenceCall {
  Cell cell;
  Arguments arguments;
  std::optional<at::Tensor> lengths, reset;

  int64_t state_size() const { return arguments.old_h.size(1); }
  at::Tensor of_h() const { return arguments.weights.slice(1, 0, state_size()); }
  at::Tensor of_input() const { return arguments.weights.slice(1, state_size()); }
  at::Tensor second_bias() const { return arguments.bias->flip(0); }

  SequenceCall to(at::ScalarType dtype) const {
    return {cell, arguments.to(dtype), lengths, reset};
  }
};

/// Arguments that the dtype has, for a call in any other. The rows of a sequence have lengths of 0
/// to kPathSteps and some resets; of one step they have none, and it is that of a cell.
SequenceCall make_sequence_call(Cell cell,
                                const Sizes& sizes,
                                at::ScalarType dtype,
                                int64_t steps) {
  at::manual_seed(1);
  Arguments arguments = random_arguments(sizes, dtype, cell == Cell::kLstm ? 4 : 3);
  arguments.input =
      at::randn({steps, sizes.batch, sizes.input_features}, at::kDouble).to(at::kFloat).to(dtype);
  SequenceCall call{cell, arguments.to(at::kCUDA), std::nullopt, std::nullopt};
  if (steps > 1) {
    const at::TensorOptions device(at::kCUDA);
    call.lengths = at::arange(sizes.batch, device.dtype(at::kLong)).remainder_(steps + 1);
    call.reset = at::arange(steps * sizes.batch, device)
                     .remainder_(5)
                     .eq_(0)
                     .to(at::kBool)
                     .view({steps, sizes.batch});
  }
  return call;
}

/// Output, the last states and, kept for the backward, cells and gates; of a GRU no cell states.
Tensors forward_of(const SequenceCall& call) {
  const Arguments& a = call.arguments;
  constexpr bool kReverse = false, kKeep = true;
  switch (call.cell) {
    case Cell::kLltm:
      return as_vector(sequence(a.input,
                                a.weights,
                                a.bias,
                                a.old_h,
                                a.old_cell,
                                call.lengths,
                                call.reset,
                                kReverse,
                                kKeep));
    case Cell::kLstm:
      return as_vector(lstm(a.input,
                            call.of_input(),
                            call.of_h(),
                            a.bias,
                            a.old_h,
                            a.old_cell,
                            call.lengths,
                            call.reset,
                            kReverse,
                            kKeep));
    case Cell::kGru:
      break;
  }
  Tensors results = as_vector(gru(a.input,
                                  call.of_input(),
                                  call.of_h(),
                                  a.bias,
                                  call.second_bias(),
                                  a.old_h,
                                  call.lengths,
                                  call.reset,
                                  kReverse,
                                  kKeep));
  if (call.lengths) {  // beyond which its gates are unspecified
    const at::Tensor steps = at::arange(a.input.size(0), call.lengths->options()).unsqueeze(1);
    results[2].masked_fill_(steps.ge(*call.lengths).unsqueeze(2), 0);
  }
  return results;
}

/// The results of a forward are also the gradients that come in. One of each state does for one
/// step, as a cell has.
Tensors gradients_of(const SequenceCall& call, const Tensors& results, Wanted wanted) {
  const Arguments& a = call.arguments;
  const bool all = wanted == Wanted::kAll, one_step = a.input.size(0) == 1;
  constexpr bool kReverse = false;
  const auto unless_one_step = [&](const at::Tensor& gradient) {
    return one_step ? std::nullopt : std::optional(gradient);
  };
  if (call.cell == Cell::kGru) {
    return as_vector(gru_backward(results[0],
                                  unless_one_step(results[1]),
                                  results[0],
                                  results[2],
                                  a.input,
                                  call.of_input(),
                                  call.of_h(),
                                  a.bias,
                                  call.second_bias(),
                                  a.old_h,
                                  call.lengths,
                                  call.reset,
                                  kReverse,
                                  {all, all, all, all, all, true}));
  }
  const auto run = [&](auto backward, auto mask, const auto&... weights) {
    return as_vector(backward(results[0],
                              unless_one_step(results[1]),
                              results[2],
                              unless_one_step(results[3]),
                              results[0],
                              results[3],
                              results[4],
                              a.input,
                              weights...,
                              a.bias,
                              a.old_h,
                              a.old_cell,
                              call.lengths,
                              call.reset,
                              kReverse,
                              mask));
  };
  return call.cell == Cell::kLltm
             ? run(sequence_backward, std::array{all, all, all, true, true}, a.weights)
             : run(lstm_backward,
                   std::array{all, all, all, all, true, true},
                   call.of_input(),
                   call.of_h());
}

/// `factor` times the dtype's tolerance bounds the errors.
void expect_all_close(const Tensors& actual,
                      const Tensors& expected,
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

void expect_the_same_bits(const Tensors& again, const Tensors& first, const std::string& kind) {
  for (size_t k = 0; k < first.size(); ++k) {
    EXPECT_TRUE(!first[k].defined() || at::equal(again[k], first[k])) << kind << k;
  }
}

/// The base of the tests, whose calls have so many steps.
template <int64_t kSteps>
class Path : public testing::TestWithParam<SequenceCase> {
 protected:
  const Cell cell_ = std::get<0>(GetParam());
  const at::ScalarType dtype_ = std::get<2>(GetParam());

  /// Skips what the path has no kernel for on this GPU, by the code that the library has for it.
  template <typename Run>
  void on_the_path(const Run& run) {
    const ForcedPath forced(std::get<1>(GetParam()));
    try {
      run();
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      if (why.find("resident on this GPU") == std::string::npos &&
          why.find("on which all its blocks have to be resident") == std::string::npos &&
          why.find("KiB of shared memory a block") == std::string::npos) {
        throw;
      }
      GTEST_SKIP() << why;
    }
  }

  SequenceCall call() const {
    return make_sequence_call(cell_, std::get<3>(GetParam()), dtype_, kSteps);
  }

  void expect_the_forward_of_float64() {
    const SequenceCall own = call();
    const Tensors expected = forward_of(own.to(at::kDouble));
    on_the_path([&] {
      const Tensors results = forward_of(own);
      expect_all_close(results, expected, "result ", dtype_, 2);
      expect_the_same_bits(forward_of(own), results, "result ");
    });
  }

  /// From what the forward in float64 has kept, so that no other kernels of this dtype run.
  void expect_the_gradients_of_float64(Wanted wanted) {
    const SequenceCall own = call(), exact = own.to(at::kDouble);
    const Tensors kept = forward_of(exact);
    const Tensors expected = gradients_of(exact, kept, wanted);
    Tensors rounded;
    for (const at::Tensor& tensor : kept) {
      rounded.push_back(tensor.to(dtype_));
    }
    on_the_path([&] {
      const Tensors gradients = gradients_of(own, rounded, wanted);
      // A sum over steps and rows of gradients that are rounded at each step.
      expect_all_close(gradients, expected, "gradient ", dtype_, 4);
      expect_the_same_bits(gradients_of(own, rounded, wanted), gradients, "gradient ");
    });
  }
};

using CudaSequencePath = Path<kPathSteps>;
using CudaOneStepPath = Path<1>;

TEST_P(CudaSequencePath, GivesTheResultsOfFloat64) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  expect_the_forward_of_float64();
}

TEST_P(CudaSequencePath, GivesTheGradientsOfFloat64) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  expect_the_gradients_of_float64(Wanted::kAll);
}

/// The steps alone, without the products over all steps, which are cuBLAS's in 16 bits.
TEST_P(CudaSequencePath, GivesTheGradientsOfStatesAlone) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  expect_the_gradients_of_float64(Wanted::kStates);
}

TEST_P(CudaOneStepPath, GivesTheResultsOfFloat64) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  expect_the_forward_of_float64();
}

TEST_P(CudaOneStepPath, GivesTheGradientsOfFloat64) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  expect_the_gradients_of_float64(Wanted::kAll);
}

const auto kCells = testing::Values(Cell::kLltm, Cell::kLstm, Cell::kGru);
const auto kDtypes = testing::Values(at::kFloat, at::kHalf, at::kBFloat16);

INSTANTIATE_TEST_SUITE_P(AtTheEdges,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLltm, Cell::kLstm),
                                          testing::Values("few_rows", "hopper", "tiles", "library"),
                                          kDtypes,
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

INSTANTIATE_TEST_SUITE_P(OfAGruAtTheEdges,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kGru),
                                          testing::Values("few_rows", "hopper", "library"),
                                          kDtypes,
                                          testing::Values(Sizes{5, 7, 4},
                                                          Sizes{3, 60, 64},
                                                          Sizes{70, 33, 65},
                                                          Sizes{300, 0, 248})),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(InABlock,
                         CudaSequencePath,
                         testing::Combine(kCells,
                                          testing::Values("block"),
                                          kDtypes,
                                          testing::Values(Sizes{5, 7, 4},
                                                          Sizes{9, 12, 32},
                                                          Sizes{40, 33, 65},
                                                          Sizes{3, 96, 96})),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(InACluster,
                         CudaSequencePath,
                         testing::Combine(kCells,
                                          testing::Values("cluster"),
                                          kDtypes,
                                          testing::Values(Sizes{16, 40, 200}, Sizes{150, 0, 250})),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(InALargeCluster,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kLltm, Cell::kGru),
                                          testing::Values("cluster"),
                                          testing::Values(at::kHalf, at::kBFloat16),
                                          testing::Values(Sizes{20, 16, 384}, Sizes{9, 10, 510})),
                         sequence_case_name);

// Of tiles the largest state or less, and one group of rows or several.
INSTANTIATE_TEST_SUITE_P(AcrossTheGrid,
                         CudaSequencePath,
                         testing::Combine(kCells,
                                          testing::Values("grid"),
                                          kDtypes,
                                          testing::Values(Sizes{5, 7, 4},
                                                          Sizes{20, 0, 250},
                                                          Sizes{37, 16, 384},
                                                          Sizes{9, 0, 512},
                                                          Sizes{3, 0, 765},
                                                          Sizes{16, 8, 1024})),
                         sequence_case_name);

INSTANTIATE_TEST_SUITE_P(AtTheEdges,
                         CudaOneStepPath,
                         testing::Combine(testing::Values(Cell::kLstm, Cell::kGru),
                                          testing::Values("few_rows", "hopper"),
                                          kDtypes,
                                          testing::Values(Sizes{3, 60, 64},
                                                          Sizes{8, 7, 129},
                                                          Sizes{70, 33, 65},
                                                          Sizes{130, 72, 264})),
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

INSTANTIATE_TEST_SUITE_P(OfGruWithRanks,
                         CudaSequencePath,
                         testing::Combine(testing::Values(Cell::kGru),
                                          testing::Values("gru_wgmma_64x8:8",
                                                          "gru_wgmma_64x24:3",
                                                          "gru_wgmma_float32_64x32:5"),
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
