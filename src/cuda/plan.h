// Which kernels compute a cell, for which sizes.
//
// A forward has candidates, each with what it supports and an estimate of its time (model.h); the
// least estimate is taken. A backward still goes by the rules of plan_backward.cpp.
//
// The environment variable LLTM_CUDA_PATH selects, for a test or a measurement: a group of
// candidates
// (`few_rows`, without tiles; `hopper`, by sm_90a's instructions; `tiles`, by those of sm_80;
// `library`, products by ATen and everything pointwise in a kernel of ours) or one candidate by its
// name. Unset, empty or `auto`: all. Another value is an error that lists them. What a selection
// cannot compute tiles do, and what these cannot, the library: float64 is the library's.
#pragma once

#include "../checks.h"
#include "kernels/backward_kernels.h"
#include "kernels/forward_kernels.h"
#include "model.h"

#include <c10/core/ScalarType.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <variant>

namespace lltm::cuda {

/// What LLTM_CUDA_PATH selects: a group, a name, or nothing. Raises c10::Error where it is neither.
struct Selection {
  std::optional<Group> group;
  std::string_view name;
};
Selection selection();

/// Everything that LLTM_CUDA_PATH takes, with spaces between.
std::string selectable();

/// The arithmetic of our own kernels for a dtype; nothing for float64. PyTorch's own switch decides
/// about TF32, as for its matrix products.
std::optional<Arithmetic> arithmetic_of(c10::ScalarType dtype);

struct ForwardPlan {
  std::optional<Arithmetic> arithmetic;  // nothing for float64
  ForwardChoice choice{};
  // What has to be packed before.
  bool packs_input = false, packs_weights = false, packs_old_h = false;
  int64_t input_lead = 0;  // columns of zeros that input gets in front (ForwardProblem)

  bool by_library() const { return choice.candidate->group == Group::kLibrary; }
  bool packs() const { return packs_input || packs_weights || packs_old_h; }
};
ForwardPlan plan_forward(const DeviceFacts& device,
                         std::optional<Arithmetic> arithmetic,
                         const ForwardProblem& problem);

/// For a plan that is not the library's, and what it packs packed.
cudaError_t launch_forward(const ForwardPlan& plan,
                           const ForwardProblem& problem,
                           cudaStream_t stream);

/// Products in TF32 by wgmma, by as many pairs of blocks.
struct Tf32BackwardPairs {
  Tf32BatchTile tile;
  int count;
};

/// Hopper's products in 16 bits, in small tiles.
struct HopperSmallTiles {};

/// The backward for few rows in one launch, whose strips are all alike.
struct FewRowsStrips {};

struct BackwardPath {
  Arithmetic arithmetic;
  std::variant<FewRowsStrips,
               GradientPlan,
               HopperSmallTiles,
               ProductTile,
               SplitProductTile,
               Tf32BackwardPairs>
      tile;
  int split;
};

/// How our own kernels are to run, or nothing: then it is the library's turn.
/// rows_at_16_bytes: every row of input, old_h and both column ranges of weights starts there.
std::optional<BackwardPath> plan_backward(const DeviceFacts& device,
                                          c10::ScalarType dtype,
                                          const CellSizes<int64_t>& sizes,
                                          bool rows_at_16_bytes);

}  // namespace lltm::cuda
