// Concurrent calls from several threads, including the first calls of the process. Run under
// ThreadSanitizer by make sanitize SANITIZER=thread.
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>
#include <vector>

namespace lltm::test {
namespace {

constexpr int kThreads = 4;
constexpr int kRepetitions = 5;

/// The gradients and results of the cell, and of a sequence of three equal steps.
std::vector<at::Tensor> call(const Arguments& arguments) {
  const auto [new_h, new_cell, gates] = call_forward(arguments);
  const auto [output, h_n, c_n, cells, all_gates] =
      sequence(arguments.input.unsqueeze(0).expand({3, -1, -1}),
               arguments.weights,
               arguments.bias,
               arguments.old_h,
               arguments.old_cell);
  const std::vector<at::Tensor> leaves{
      arguments.input, arguments.weights, *arguments.bias, arguments.old_h, arguments.old_cell};
  std::vector<at::Tensor> results = torch::autograd::grad({new_h.sum() + new_cell.sum()}, leaves);
  const std::vector<at::Tensor> of_sequence =
      torch::autograd::grad({output.sum() + c_n.sum()}, leaves);
  results.insert(results.end(), of_sequence.begin(), of_sequence.end());
  for (const at::Tensor& result : {new_h, new_cell, gates, output, h_n, c_n}) {
    results.push_back(result.detach());
  }
  return results;
}

TEST(Threads, ThatShareTheirArgumentsGetTheSameBits) {
  // This may be the first test to run, and makes no calls before those of the threads.
  std::vector<Arguments> arguments;
  for (const at::ScalarType dtype : kDtypes) {
    for (const Sizes& sizes : {Sizes{3, 5, 7}, Sizes{33, 65, 129}}) {
      arguments.push_back(random_arguments(sizes, at::dtype(dtype)));
      const Arguments& made = arguments.back();
      for (const at::Tensor& leaf :
           {made.input, made.weights, *made.bias, made.old_h, made.old_cell}) {
        leaf.requires_grad_();
      }
    }
  }
  using Results = std::vector<std::vector<at::Tensor>>;
  std::vector<Results> of_thread(kThreads);
  std::vector<std::thread> threads;
  for (Results& results : of_thread) {
    threads.emplace_back([&arguments, &results] {
      for (int repetition = 0; repetition < kRepetitions; ++repetition) {
        for (const Arguments& shared : arguments) {
          results.push_back(call(shared));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::vector<at::Tensor> expected = call(arguments[i]);
    for (const Results& results : of_thread) {
      ASSERT_EQ(results.size(), arguments.size() * kRepetitions);
      for (size_t repetition = 0; repetition < kRepetitions; ++repetition) {
        const auto& actual = results[repetition * arguments.size() + i];
        for (size_t result = 0; result < expected.size(); ++result) {
          EXPECT_TRUE(at::equal(actual[result], expected[result])) << i << ", result " << result;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lltm::test
