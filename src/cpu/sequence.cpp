// lltm::sequence on the CPU.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../sequence_outputs.h"
#include "aten_sequence.h"
#include "own_sequence.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence(const SequenceArguments& arguments,
                                                            bool reverse,
                                                            bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const SequenceOutputs outputs =
      empty_outputs(arguments, sizes, keep, [](at::IntArrayRef shape, at::ScalarType dtype) {
        return Tensor(at::detail::empty_cpu(shape, dtype));
      });
  if (sizes.batch * sizes.state_size > 0) {
    if (has_own_sequence(arguments.weights)) {
      own_sequence_out(outputs, arguments, reverse);
    } else {
      aten_sequence_out(outputs, arguments, sizes, reverse);
    }
  }
  return outputs.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence", dispatcher_kernel<sequence, lltm::sequence>());
}

}  // namespace lltm::cpu
