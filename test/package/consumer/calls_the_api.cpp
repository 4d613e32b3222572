// Uses the public headers together with PyTorch's two large ones, runs a training step of the cell,
// and one of each module.
#include <lltm/lltm.h>
#include <lltm/nn.h>

#include <torch/script.h>
#include <torch/torch.h>

#include <cstdio>
#include <tuple>

template <typename Module>
bool trains() {
  torch::manual_seed(0);
  Module rnn(3, 4);
  torch::optim::SGD optimizer(rnn->parameters(), torch::optim::SGDOptions(0.01));
  const auto input = torch::ones({5, 2, 3});
  const auto loss = [&] { return std::get<0>(rnn->forward(input)).square().sum(); };
  const auto before = loss();
  before.backward();
  optimizer.step();
  return loss().template item<float>() < before.template item<float>();
}

int main() {
  const auto options = torch::dtype(torch::kFloat64);
  const auto input = torch::ones({2, 3}, options);
  const auto weights = torch::full({12, 7}, 0.1, options).requires_grad_();
  const auto state = torch::zeros({2, 4}, options);
  const auto [new_h, new_cell, gates] = lltm::forward(input, weights, std::nullopt, state, state);
  new_h.sum().backward();

  // Every pre-activation is 3 * 0.1, so the candidate is 0.3 and both gates are sigmoid(0.3).
  const auto gate = torch::full({2, 4}, 0.3, options).sigmoid();
  const bool right = torch::allclose(new_cell, 0.3 * gate) &&
                     torch::allclose(new_h, new_cell.tanh() * gate) && weights.grad().defined() &&
                     weights.grad().abs().sum().item<double>() > 0 && trains<lltm::LLTM>() &&
                     trains<lltm::LSTM>() && trains<lltm::GRU>();
  std::printf("lltm %s: %s\n", lltm::version(), right ? "right" : "wrong");
  return right ? 0 : 1;
}
