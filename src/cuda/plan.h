// Which kernels compute a cell, for which sizes.
//
// Both have candidates, each with what it supports and an estimate of its time, of which the least
// is taken (model.h, plan_backward.h).
//
// The environment variable LLTM_CUDA_PATH selects, for a test or a measurement: a group of
// candidates (`few_rows`, without tiles; `hopper`, by sm_90a's instructions; `tiles`, by those of
// sm_80; `library`, products by ATen and everything pointwise in a kernel of ours) or one candidate
// by its name, which leaves the other direction as it is. Unset, empty or `auto`: all. Another
// value is an error that lists them. What a selection cannot compute tiles do, and what these
// cannot, the library: float64 is the library's.
#pragma once

#include "kernels/forward_kernels.h"
#include "model.h"
#include "plan_backward.h"

#include <c10/core/ScalarType.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <string_view>
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
  int64_t input_lead = 0, input_shift = 0;  // of ForwardProblem

  bool by_library() const { return choice.candidate->group == Group::kLibrary; }
  bool packs() const { return packs_input || packs_weights || packs_old_h; }
};
/// Whether by a plan that packs, or by one that needs none.
enum class Packing { kAllowed, kNone };
ForwardPlan plan_forward(const DeviceFacts& device,
                         std::optional<Arithmetic> arithmetic,
                         const ForwardProblem& problem,
                         Packing packing = Packing::kAllowed);

/// For a plan that is not the library's, and what it packs packed.
template <typename Problem>
cudaError_t launch_forward(const ForwardPlan& plan, const Problem& problem, cudaStream_t stream);

struct BackwardPlan {
  Group group;
  std::optional<Arithmetic> arithmetic;  // nothing for float64
  BackwardTiles tiles;

  bool by_library() const { return group == Group::kLibrary; }
  /// The tiles of one kind, or null.
  template <typename Tile>
  const Tile* tile() const {
    return std::get_if<Tile>(&tiles.tile);
  }
};
BackwardPlan plan_backward(const DeviceFacts& device, const BackwardShape& shape);

}  // namespace lltm::cuda
