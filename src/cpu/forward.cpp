// lltm::forward on the CPU.
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "cell.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor> forward(const ForwardArguments& arguments) {
  const auto sizes = check<int64_t>(arguments);
  const auto empty = [&](int64_t columns) -> Tensor {
    return at::detail::empty_cpu({sizes.batch, columns}, arguments.input.scalar_type());
  };
  Tensor new_h = empty(sizes.state_size), new_cell = empty(sizes.state_size),
         gates = empty(sizes.gates);
  if (new_h.numel() > 0) {
    cell_out({new_h, new_cell, gates}, arguments, sizes);
  }
  return {new_h, new_cell, gates};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  op::Forward::implement<forward>(m);
}

}  // namespace lltm::cpu
