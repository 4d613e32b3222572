// Chooses, once a call, which kernels run it: those of kernels/kernels.h or ATen's matrix products.
#pragma once

#include "../operators/recurrent.h"

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace lltm::cpu {

enum class Path {
  kFused,    // the kernels of kernels/kernels.h
  kLibrary,  // ATen's matrix products, and pointwise kernels
};

enum class Pass { kForward, kBackward };

/// The fused kernels or the library's products. The environment variable LLTM_CPU_GEMM (auto, own
/// or aten) overrides the choice.
/// @throws c10::Error if LLTM_CPU_GEMM has any other value.
Path plan_cell(at::ScalarType dtype, Pass pass, const CellSizes<int64_t>& sizes);

/// Whether a sequence has a single step that runs without packing the weights, as lltm::forward
/// does. Arguments are those of a sequence. Throws as plan_cell() does.
template <typename Arguments>
bool runs_as_cell(const Arguments& arguments, const SequenceSizes<int64_t>& sizes);

/// Without LLTM_CPU_GEMM, the fused kernels only run a sequence if its packed weights fit the
/// workspace that a call may take. Throws as plan_cell() does.
Path plan_sequence(const RecurrentArguments& arguments, const SequenceSizes<int64_t>& sizes);

}  // namespace lltm::cpu
