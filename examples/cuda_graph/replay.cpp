// Captures a model in a CUDA graph, and replays it on new inputs.
//
//   replay [STEPS BATCH]
//
// Launching the kernels of a small model takes the CPU longer than the GPU takes to run them. A
// graph launches all of them at once. The program compares the replayed outputs with those of
// ordinary calls, and prints the time of a call of each kind.

#include <lltm/nn.h>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <tuple>

namespace {

constexpr int64_t kFeatures = 64;
constexpr int64_t kHidden = 128;
constexpr int64_t kClasses = 10;
constexpr int kInputs = 5;
constexpr int kWarmUpCalls = 3;
constexpr int kTimedCalls = 1000;
constexpr double kTolerance = 1e-5;

// Two layers, and a readout of the last step.
class Model {
 public:
  Model() : rnn_(lltm::LLTMOptions(kFeatures, kHidden).num_layers(2)), readout_(kHidden, kClasses) {
    rnn_->to(at::kCUDA);
    readout_->to(at::kCUDA);
    rnn_->eval();
  }

  // The logits (N, 10) of an input (T, N, 64).
  at::Tensor operator()(const at::Tensor& input) {
    const auto [output, state] = rnn_->forward(input);
    return readout_->forward(output[-1]);
  }

 private:
  lltm::LLTM rnn_;
  torch::nn::Linear readout_;
};

// The model for inputs of one shape. A graph reads and writes the same memory in each replay.
class CapturedModel {
 public:
  CapturedModel(Model& model, const at::Tensor& example) : input_(example.clone()) {
    c10::cuda::device_synchronize();  // the clone is made on another stream than the capture
    // A capture must not be on the default stream.
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    // The first calls load kernels and allocate workspaces, which a capture must not do.
    for (int call = 0; call < kWarmUpCalls; ++call) {
      model(input_);
    }
    graph_.capture_begin();
    output_ = model(input_);
    graph_.capture_end();
    c10::cuda::device_synchronize();
  }

  // The same as of the model. The next call overwrites the result.
  at::Tensor operator()(const at::Tensor& input) {
    input_.copy_(input);
    graph_.replay();
    return output_;
  }

 private:
  at::cuda::CUDAGraph graph_;
  at::Tensor input_;
  at::Tensor output_;
};

// The mean time of a call in microseconds. Calls do not wait for the GPU, except after the last.
template <typename AnyModel>
double time_calls(AnyModel& model, const at::Tensor& input) {
  for (int call = 0; call < kWarmUpCalls; ++call) {
    model(input);
  }
  c10::cuda::device_synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < kTimedCalls; ++call) {
    model(input);
  }
  c10::cuda::device_synchronize();
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count() / kTimedCalls;
}

void run(int64_t steps, int64_t batch) {
  if (c10::cuda::device_count() == 0) {
    throw std::runtime_error("no GPU, or no driver for it");
  }
  Model model;
  const c10::InferenceMode no_gradients;
  const auto random_input = [&] { return at::randn({steps, batch, kFeatures}, at::kCUDA); };
  CapturedModel captured(model, random_input());

  at::Tensor differences = at::zeros({}, at::kCUDA);
  for (int count = 0; count < kInputs; ++count) {
    const at::Tensor input = random_input();
    const at::Tensor expected = model(input);
    differences = at::maximum(differences, (captured(input) - expected).abs().max());
  }
  const auto difference = differences.item<double>();
  std::printf("largest difference of a replayed logit, for %d inputs: %.2g\n", kInputs, difference);
  if (!(difference <= kTolerance)) {
    throw std::runtime_error("the replayed model has other logits than the model");
  }

  const at::Tensor input = random_input();
  std::printf("%lld steps, batch %lld, microseconds per call:\n",
              static_cast<long long>(steps),
              static_cast<long long>(batch));
  std::printf("  eager     %8.1f\n", time_calls(model, input));
  std::printf("  replayed  %8.1f  (with the copy of the input)\n", time_calls(captured, input));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t steps = argc == 3 ? std::stoll(argv[1]) : 16;
    const int64_t batch = argc == 3 ? std::stoll(argv[2]) : 1;
    if ((argc != 1 && argc != 3) || steps < 1 || batch < 1) {
      std::fprintf(stderr, "usage: %s [STEPS BATCH], 1 or more\n", argv[0]);
      return 2;
    }
    run(steps, batch);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
