// Trains lltm::LLTM, lltm::LSTM and torch::nn::LSTM on the adding problem, in C++, and prints times
// and losses.
//
//   train [UPDATES]
//
// Each step of a sequence gives a number between 0 and 1 and a mark. Two steps are marked, and the
// model has to answer with the sum of their numbers after the last step. Always answering 1 has a
// loss (mean squared error) of 1/6. All models have about the same number of parameters and see the
// same sequences. Both LSTMs begin with the same parameters, and learn the same. Times are
// processor times of one thread.

#include <lltm/nn.h>

#include <torch/torch.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kSteps = 40;
constexpr int64_t kBatch = 32;
constexpr int64_t kFeatures = 2;
constexpr int64_t kHidden = 64;
constexpr int64_t kReports = 8;
constexpr double kLearningRate = 4e-3;

struct Examples {
  torch::Tensor input;    // (T, N, 2): the number and the mark of each step
  torch::Tensor answers;  // (N)
};

Examples draw_examples() {
  const auto numbers = torch::rand({kSteps, kBatch});
  const auto marked = std::get<1>(torch::rand({kSteps, kBatch}).topk(2, /*dim=*/0));
  const auto marks = torch::zeros({kSteps, kBatch}).scatter_(0, marked, 1.0);
  return {torch::stack({numbers, marks}, 2), (numbers * marks).sum(0)};
}

int64_t count_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

// Trains a layer and a readout of its last output. Returns the loss of the last updates.
template <typename Layer>
double train(const char* name, Layer layer, int64_t updates) {
  torch::manual_seed(1);
  torch::nn::Linear readout(layer->options.hidden_size(), 1);
  std::vector<torch::Tensor> parameters = layer->parameters();
  for (const torch::Tensor& parameter : readout->parameters()) {
    parameters.push_back(parameter);
  }
  torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(kLearningRate));
  std::printf("\n%s, %lld parameters\n%8s %10s %10s\n",
              name,
              static_cast<long long>(count_parameters(*layer)),
              "updates",
              "loss",
              "seconds");

  std::clock_t ticks = 0;
  double mean_loss = 0;
  for (int64_t report = 1, update = 0; report <= kReports; ++report) {
    const int64_t until = updates * report / kReports;
    const int64_t count = until - update;
    double sum = 0;
    for (; update < until; ++update) {
      const Examples examples = draw_examples();
      const std::clock_t start = std::clock();
      const torch::Tensor output = std::get<0>(layer->forward(examples.input));
      const auto loss = torch::mse_loss(readout->forward(output[-1]).squeeze(1), examples.answers);
      optimizer.zero_grad();
      loss.backward();
      torch::nn::utils::clip_grad_norm_(parameters, 1.0);
      optimizer.step();
      sum += loss.template item<double>();
      ticks += std::clock() - start;
    }
    mean_loss = sum / static_cast<double>(count);
    std::printf("%8lld %10.5f %10.2f\n",
                static_cast<long long>(update),
                mean_loss,
                static_cast<double>(ticks) / CLOCKS_PER_SEC);
  }
  return mean_loss;
}

// The hidden size of the widest LSTM that has no more parameters than this.
int64_t hidden_size_of_lstm(int64_t parameters) {
  int64_t hidden_size = 1;
  while (4 * (hidden_size + 1) * (hidden_size + 1 + kFeatures + 2) <= parameters) {
    ++hidden_size;
  }
  return hidden_size;
}

// torch::load takes what a torch::nn::LSTM has saved.
lltm::LSTM convert(const torch::nn::LSTM& lstm) {
  std::stringstream checkpoint;
  torch::save(lstm, checkpoint);
  lltm::LSTM converted(lstm->options);
  torch::load(converted, checkpoint);
  return converted;
}

void run(int64_t updates) {
  torch::set_num_threads(1);  // the tensors are small
  torch::manual_seed(0);
  lltm::LLTM rnn(kFeatures, kHidden);
  torch::nn::LSTM lstm(kFeatures, hidden_size_of_lstm(count_parameters(*rnn)));
  const lltm::LSTM converted = convert(lstm);
  train("lltm::LLTM", rnn, updates);
  train("lltm::LSTM", converted, updates);
  train("torch::nn::LSTM", lstm, updates);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t updates = argc == 2 ? std::stoll(argv[1]) : 1600;
    if (argc > 2 || updates < kReports) {
      std::fprintf(stderr, "usage: %s [UPDATES], 8 or more\n", argv[0]);
      return 2;
    }
    run(updates);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
