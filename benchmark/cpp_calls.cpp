// The time of one forward call from C++ at the tutorial's small shape, without gradients: through
// the typed API, through a boxed call, and through a scripted LLTMCell that Python saved; and of a
// sequence of one step.
//
// Two parts of these calls are also measured separately: dispatch with the argument checks, by a
// call with Meta tensors, and allocation of the results by PyTorch's allocator. The remaining time
// is the choice of the kernel and its launch on a GPU, and the cell on a CPU.
//
//   lltm_cpp_calls [options of Google Benchmark] CELL.pt
#include <lltm/lltm.h>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <benchmark/benchmark.h>
#include <c10/core/Allocator.h>
#include <torch/cuda.h>
#include <torch/script.h>

#include <cstdio>
#include <functional>
#include <string>

namespace {

constexpr int64_t kBatch = 16;
constexpr int64_t kInputFeatures = 32;
constexpr int64_t kStateSize = 128;

struct Arguments {
  explicit Arguments(const at::Device& device)
      : input(torch::randn({kBatch, kInputFeatures}, device)),
        weights(torch::randn({3 * kStateSize, kStateSize + kInputFeatures}, device) * 0.05),
        bias(torch::randn({3 * kStateSize}, device) * 0.05),
        old_h(torch::randn({kBatch, kStateSize}, device)),
        old_cell(torch::randn({kBatch, kStateSize}, device)) {}

  at::Tensor input;
  at::Tensor weights;
  at::Tensor bias;
  at::Tensor old_h;
  at::Tensor old_cell;
};

/// Calls without waiting for the device, as callers do. The time includes one wait at the end.
void measure(benchmark::State& state, const at::Device& device, const std::function<void()>& call) {
  const c10::InferenceMode no_gradients;
  at::set_num_threads(1);
  const auto synchronize = [&device] {
    if (device.is_cuda()) {
      torch::cuda::synchronize();
    }
  };
  for (int warm_up = 0; warm_up < 20; ++warm_up) {
    call();
  }
  synchronize();
  for (auto iteration : state) {
    call();
  }
  synchronize();
}

void register_benchmarks(const at::Device& device, const std::string& cell_file) {
  const Arguments arguments(device);
  const std::string prefix = device.is_cuda() ? "cuda/" : "cpu/";

  benchmark::RegisterBenchmark((prefix + "typed_API").c_str(), [=](benchmark::State& state) {
    measure(state, device, [&] {
      auto results = lltm::forward(
          arguments.input, arguments.weights, arguments.bias, arguments.old_h, arguments.old_cell);
      benchmark::DoNotOptimize(results);
    });
  });

  benchmark::RegisterBenchmark(
      (prefix + "a_sequence_of_one_step").c_str(), [=](benchmark::State& state) {
        const at::Tensor input = arguments.input.unsqueeze(0);
        measure(state, device, [&] {
          auto results = lltm::sequence(
              input, arguments.weights, arguments.bias, arguments.old_h, arguments.old_cell);
          benchmark::DoNotOptimize(results);
        });
      });

  benchmark::RegisterBenchmark((prefix + "boxed_call").c_str(), [=](benchmark::State& state) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("lltm::forward", "");
    measure(state, device, [&] {
      torch::jit::Stack stack{
          arguments.input, arguments.weights, arguments.bias, arguments.old_h, arguments.old_cell};
      op.callBoxed(&stack);
      benchmark::DoNotOptimize(stack);
    });
  });

  benchmark::RegisterBenchmark(
      (prefix + "part:_dispatch_and_checks").c_str(), [=](benchmark::State& state) {
        const Arguments meta{at::Device(at::kMeta)};
        measure(state, device, [&] {
          auto results =
              lltm::forward(meta.input, meta.weights, meta.bias, meta.old_h, meta.old_cell);
          benchmark::DoNotOptimize(results);
        });
      });

  benchmark::RegisterBenchmark(
      (prefix + "part:_memory_of_three_results").c_str(), [=](benchmark::State& state) {
        c10::Allocator* const allocator = c10::GetAllocator(device.type());
        measure(state, device, [&] {
          for (const int64_t columns : {kStateSize, kStateSize, 3 * kStateSize}) {
            auto memory = allocator->allocate(kBatch * columns * sizeof(float));
            benchmark::DoNotOptimize(memory);
          }
        });
      });

  benchmark::RegisterBenchmark((prefix + "scripted_call").c_str(), [=](benchmark::State& state) {
    auto cell = torch::jit::load(cell_file, device);
    cell.eval();
    cell = torch::jit::freeze(cell);
    const auto old_state = c10::ivalue::Tuple::create(arguments.old_h, arguments.old_cell);
    measure(state, device, [&] {
      auto result = cell.forward({arguments.input, old_state});
      benchmark::DoNotOptimize(result);
    });
  });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s [options of Google Benchmark] CELL.pt\n", argv[0]);
    return 1;
  }
  register_benchmarks(at::kCPU, argv[1]);
  if (torch::cuda::is_available()) {
    register_benchmarks(at::kCUDA, argv[1]);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
