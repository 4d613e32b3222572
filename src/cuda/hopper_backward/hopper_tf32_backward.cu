#include "../kernels/backward_kernels.h"
#include "../problem.h"
#include "hopper_tf32_backward.cuh"

namespace lltm::cuda {
namespace {

// Calls `run` with the tile as a type.
template <typename Run>
auto with_tile(Tf32BatchTile tile, const Run& run) {
  switch (tile) {
    case Tf32BatchTile::k64:
      return run(Tf32Backward<64>());
    case Tf32BatchTile::k128:
      return run(Tf32Backward<128>());
    default:
      return run(Tf32Backward<256>());
  }
}

}  // namespace

cudaError_t launch_tf32_backward(const BackwardProblem& params,
                                 Tf32BatchTile tile,
                                 int parts,
                                 int pairs,
                                 float* workspace,
                                 cudaStream_t stream) {
  return with_tile(tile, [&](auto of) {
    return launch_tf32_backward_tile<decltype(of)>(params, parts, pairs, workspace, stream);
  });
}

int64_t tf32_backward_workspace(const BackwardProblem& params, Tf32BatchTile tile, int parts) {
  return with_tile(tile, [&](auto of) {
    return transposed_floats(params) + parts_floats<decltype(of)>(params, parts);
  });
}

TransposedInputs transposed_inputs(const BackwardProblem& p, float* workspace) {
  return {
      .batch = p.batch,
      .input_features = p.input_features,
      .state_size = p.state_size,
      .input = p.input,
      .old_h = p.old_h,
      .transposed = p.d_weights != nullptr ? workspace : nullptr,
  };
}

}  // namespace lltm::cuda
