// The operators inside TorchScript, compiled, saved and loaded without Python.
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"
#include "lltm_testing/devices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <sstream>

namespace lltm::test {
namespace {

/// A module whose forward is one step of the cell, with its weights as parameters. It is built from
/// IR, because the frontend that compiles `torch.ops.lltm.forward` from source lives in Python.
torch::jit::Module scripted_cell(const Arguments& arguments) {
  torch::jit::Module module("ScriptedCell");
  module.register_parameter("weights", arguments.weights, /*is_buffer=*/false);
  module.register_parameter("bias", *arguments.bias, /*is_buffer=*/false);
  const auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"IR(
graph(%self, %input : Tensor, %old_h : Tensor, %old_cell : Tensor):
  %weights : Tensor = prim::GetAttr[name="weights"](%self)
  %bias : Tensor = prim::GetAttr[name="bias"](%self)
  %new_h : Tensor, %new_cell : Tensor, %gates : Tensor = lltm::forward(%input, %weights, %bias, %old_h, %old_cell)
  %state : (Tensor, Tensor) = prim::TupleConstruct(%new_h, %new_cell)
  return (%state))IR",
                      graph.get());
  graph->inputs()[0]->setType(module.type());
  const c10::QualifiedName name(*module.type()->name(), "forward");
  module.type()->addMethod(module._ivalue()->compilation_unit()->create_function(name, graph));
  return module;
}

class TorchScript : public testing::TestWithParam<at::DeviceType> {};

TEST_P(TorchScript, SavedAndLoadedGivesWhatTheApiGives) {
  const at::DeviceType device = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(device);
  const Arguments arguments =
      random_arguments({5, 4, 3}, at::TensorOptions(device).dtype(at::kFloat));
  std::stringstream file;
  scripted_cell(arguments).save(file);
  torch::jit::Module loaded = torch::jit::load(file);

  const auto outputs =
      loaded.forward({arguments.input, arguments.old_h, arguments.old_cell}).toTuple();
  const auto [new_h, new_cell, gates] = forward(
      arguments.input, arguments.weights, arguments.bias, arguments.old_h, arguments.old_cell);
  EXPECT_TRUE(at::equal(outputs->elements()[0].toTensor(), new_h));
  EXPECT_TRUE(at::equal(outputs->elements()[1].toTensor(), new_cell));
}

TEST_P(TorchScript, CarriesGradients) {
  const at::DeviceType device = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(device);
  Arguments arguments = random_arguments({5, 4, 3}, at::TensorOptions(device).dtype(at::kDouble));
  arguments.weights.requires_grad_();
  torch::jit::Module module = scripted_cell(arguments);
  // The profiling executor optimizes from the second call on.
  for (int call = 0; call < 3; ++call) {
    const auto scripted =
        module.forward({arguments.input, arguments.old_h, arguments.old_cell}).toTuple();
    const auto direct = forward(
        arguments.input, arguments.weights, arguments.bias, arguments.old_h, arguments.old_cell);
    const auto gradient_of = [&](const at::Tensor& new_h) {
      return torch::autograd::grad({new_h.sum()}, {arguments.weights})[0];
    };
    EXPECT_TRUE(at::equal(gradient_of(scripted->elements()[0].toTensor()),
                          gradient_of(std::get<0>(direct))));
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere,
                         TorchScript,
                         testing::ValuesIn(kDevices),
                         [](const auto& info) { return c10::DeviceTypeName(info.param); });

}  // namespace
}  // namespace lltm::test
