// All steps of a sequence in one launch, by all multiprocessors: blocks of a team share the weights
// of h, and exchange h, or in the backward the gradients of all gates, through L2 (exchange.cuh).
// sm_80 and newer. The problems are those of kernels/recurrence.
//
// Blocks of a team wait for each other, so all blocks of a launch have to be resident at once. A
// cooperative launch guarantees that, or returns cudaErrorCooperativeLaunchTooLarge.
//
// Every launch function enqueues on `stream` of the current device, needs at least one row, one
// column of the state and one step, and returns the error of its launch.
#pragma once

#include "../recurrence/recurrence.h"
#include "tile.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace lltm::cuda {

/// Memory that the launches of a call share: the weights of h as the threads take them to
/// registers, and the slots of V.
struct GridWorkspace {
  uint4* weights;
  // By powers of two, in float32: what the products with each row of the weights, and with each
  // row of h0, are to be multiplied by.
  float *of_weights, *of_h0;
  unsigned char* slots;
};

/// The parts of a workspace, of which `of` says where they start.
inline GridWorkspace parts_of(void* workspace, const GridWorkspaceSizes& of) {
  auto* const first = static_cast<unsigned char*>(workspace);
  return {reinterpret_cast<uint4*>(first),
          reinterpret_cast<float*>(first + of.of_weights),
          reinterpret_cast<float*>(first + of.of_h0),
          first + of.slots};
}

/// A problem and how it is divided.
template <typename Problem>
struct OfGrid : Problem {
  GridTeams grid;
  GridWorkspace workspace;
};

/// Whether the weights are in the workspace already, from an earlier launch of the same call.
template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_recurrence_grid(
    const OfGrid<RecurrenceForward<TensorElement<kArithmetic>>>& problem,
    const GridTile& tile,
    bool has_weights,
    cudaStream_t stream);
template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_recurrence_grid(
    const OfGrid<RecurrenceBackward<TensorElement<kArithmetic>>>& problem,
    const GridTile& tile,
    cudaStream_t stream);

}  // namespace lltm::cuda
