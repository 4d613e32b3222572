// The CUDA dispatch key of a build without CUDA: raises an error of our own instead of the
// dispatcher's table of registered kernels.
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
  m.impl("forward", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("backward", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("sequence", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("sequence_plan", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("sequence_backward", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("lstm_plan", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("lstm", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("lstm_backward", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("gru", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("gru_backward", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("_gru_gate_gradients", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("_lstm_gate_gradients", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
  m.impl("_sequence_gate_gradients", torch::CppFunction::makeFromBoxedFunction<&unavailable>());
}
