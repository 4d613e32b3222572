// The CUDA dispatch key of a build without CUDA: raises an error of our own instead of the
// dispatcher's table of registered kernels.
#include "../operators/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace {

void unavailable(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK(false,
              "lltm was built without CUDA: ",
              op.schema().name(),
              " cannot take CUDA tensors. Move them to the CPU, or rebuild lltm with CUDA:"
              " `CMAKE_ARGS=-DLLTM_CUDA=ON pip install --no-build-isolation .` in a checkout, or"
              " cmake with -DLLTM_CUDA=ON."
              " This needs the CUDA Toolkit and a CUDA build of PyTorch.");
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  const auto raise = [&](const char* name) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  };
  raise(lltm::op::Forward::kName);
  raise(lltm::op::Backward::kName);
  lltm::for_each_cell([&]<typename Cell>() {
    raise(Cell::Forward::kName);
    raise(Cell::Plan::kName);
    raise(Cell::Backward::kName);
    raise(Cell::GateGradients::kName);
  });
}
