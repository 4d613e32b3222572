// Chooses the kernels of a cell's forward and backward.
//
// Each direction has candidates, which state what they support and estimate their time. The least
// estimate wins (forward.h, backward.h).
//
// The environment variable LLTM_CUDA_PATH selects candidates for a test or a measurement: a group
// (`few_rows`: no tiles; `hopper`: instructions of sm_90a; `tiles`: instructions of sm_80;
// `library`: products by ATen and pointwise kernels of ours) or one candidate by its name, which
// leaves the other directions unchanged. NAME:RANKS also says how many blocks, 1 to 8, share the K
// of a tile, for the candidates whose ranks are chosen by estimate: the forward's and the steps of
// a sequence's backward, by wgmma and by mma.sync. Unset, empty or `auto` selects all. Any other
// value is an error that lists the valid ones. What a selection does not support falls back to
// tiles, then to the library. float64 always uses the library.
#pragma once

#include "../kernels/forward/kernels.h"
#include "backward.h"
#include "forward.h"

#include <c10/core/ScalarType.h>
#include <cuda_runtime_api.h>

#include <optional>

namespace lltm::cuda {

/// What LLTM_CUDA_PATH selects. Raises c10::Error for an unknown value.
Selection selection();

/// The arithmetic of our own kernels for a dtype, none for float64. PyTorch's setting decides about
/// TF32, as it does for its matrix products.
std::optional<Arithmetic> arithmetic_of(c10::ScalarType dtype);

struct ForwardPlan : ForwardPacks {
  Arithmetic arithmetic{};
  ForwardChoice choice{};
  int multiprocessors = 0;  // of the device

  bool by_library() const { return choice.candidate->group == Group::kLibrary; }
};
ForwardPlan plan_forward(const DeviceFacts& device,
                         Arithmetic arithmetic,
                         const ForwardProblem& problem,
                         bool is_step = false);

/// Launches a plan other than the library's. What the plan packs must be packed already.
template <typename Problem>
cudaError_t launch_forward(const ForwardPlan& plan, const Problem& problem, cudaStream_t stream);

/// The library's products if the batch or the state is empty.
BackwardTiles plan_backward(const DeviceFacts& device, const BackwardShape& shape);

}  // namespace lltm::cuda
