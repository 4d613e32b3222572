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

/// The results and gradients of a sequence of three equal steps, and of the cell if it is an LLTM.
std::vector<at::Tensor> call(const Arguments& arguments) {
  const std::vector<at::Tensor> leaves{
      arguments.input, arguments.weights, *arguments.bias, arguments.old_h, arguments.old_cell};
  const auto results_of = [&](const auto& results) {
    std::vector<at::Tensor> all = torch::autograd::grad(
        {std::get<0>(results).sum() + std::get<1>(results).sin().sum()}, leaves);
    std::apply([&](const auto&... result) { (all.push_back(result.detach()), ...); }, results);
    return all;
  };
  std::vector<at::Tensor> results =
      with_sequence(arguments, [&](auto forward, auto, auto, const auto&... weights) {
        return results_of(forward(arguments.input.unsqueeze(0).expand({3, -1, -1}),
                                  weights...,
                                  arguments.bias,
                                  arguments.old_h,
                                  arguments.old_cell,
                                  /*lengths=*/{},
                                  /*reset=*/{},
                                  /*reverse=*/false,
                                  /*keep=*/false));
      });
  if (arguments.weights.size(0) == 3 * arguments.old_h.size(1)) {
    const std::vector<at::Tensor> of_cell = results_of(call_forward(arguments));
    results.insert(results.end(), of_cell.begin(), of_cell.end());
  }
  return results;
}

TEST(Threads, ThatShareTheirArgumentsGetTheSameBits) {
  // This may be the first test to run, and makes no calls before those of the threads.
  std::vector<Arguments> arguments;
  for (const at::ScalarType dtype : kDtypes) {
    for (const Sizes& sizes : {Sizes{3, 5, 7}, Sizes{33, 65, 129}}) {
      for (const int64_t gates : {3, 4}) {
        arguments.push_back(random_arguments(sizes, at::dtype(dtype), gates));
        const Arguments& made = arguments.back();
        for (const at::Tensor& leaf :
             {made.input, made.weights, *made.bias, made.old_h, made.old_cell}) {
          leaf.requires_grad_();
        }
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
