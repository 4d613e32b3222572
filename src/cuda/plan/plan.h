// Chooses the kernels of a call: of the candidates (forward.h, backward.h, sequence.h), those with
// the least estimate, and remembers the last choices. For a test or a measurement, the environment
// variable LLTM_CUDA_PATH selects candidates (docs/cuda-kernels.md). float64 always uses the
// library.
#pragma once

#include "backward.h"
#include "forward.h"
#include "sequence.h"

#include <c10/core/ScalarType.h>

#include <optional>

namespace lltm::cuda {

/// What LLTM_CUDA_PATH selects; all candidates if it is unset or empty. Raises c10::Error for an
/// unknown value.
Selection selection();

/// The arithmetic of a cell's products for a dtype, none for float64. In float32, one of PyTorch's
/// settings decides (operators/tf32.h), and is read once a call.
std::optional<Arithmetic> arithmetic_of(c10::ScalarType dtype, CellType cell);

/// Calls run<scalar_t>() for a dtype that has an arithmetic.
template <typename Run>
void with_scalar(at::ScalarType dtype, const Run& run) {
  switch (dtype) {
    case at::kHalf:
      return run.template operator()<c10::Half>();
    case at::kBFloat16:
      return run.template operator()<c10::BFloat16>();
    default:
      return run.template operator()<float>();
  }
}

/// That of a cell.
ForwardPlan plan_forward(const DeviceFacts& device,
                         Arithmetic arithmetic,
                         const ForwardProblem& problem);

/// Raises c10::Error if LLTM_CUDA_PATH=block or cluster is impossible.
SequencePlan plan_sequence(const DeviceFacts& device, const SequenceShape& shape);

/// The library's products if the batch or the state is empty.
Choice plan_backward(const DeviceFacts& device, const Shape& shape);

}  // namespace lltm::cuda
