// lltm::gru and its backward operators on CUDA, which has no kernels for them yet.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace {

void unavailable(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK(false,
              op.schema().name(),
              ": lltm::gru has no CUDA kernels yet. Keep nn.GRU, which "
              "lltm.revert(model) gives back, or move the tensors to the CPU");
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("gru", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("gru_backward", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("_gru_gate_gradients", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
}
