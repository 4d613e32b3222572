#include "plan.h"

#include "recent_choice.h"
#include "runtime/tensor_maps.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace lltm::cuda {
namespace {

constexpr Group kGroups[] = {Group::kFewRows, Group::kHopper, Group::kTiles, Group::kLibrary};

const std::vector<std::string_view>& candidate_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const ForwardCandidate& candidate : forward_candidates()) {
      all.push_back(candidate.name);
    }
    for (const BackwardCandidate& candidate : backward_candidates()) {
      all.push_back(candidate.name);
    }
    return all;
  }();
  return names;
}

// The selected name if it is one of `candidates`, else an empty one.
template <typename Candidates>
std::string_view name_among(const Candidates& candidates, const Selection& selected) {
  const auto has_it = [&](const auto& candidate) { return candidate.name == selected.name; };
  return std::ranges::any_of(candidates, has_it) ? selected.name : std::string_view();
}

// A candidate's tile, as an enumerator of its group's tiles.
template <typename Tile>
Tile tile_of(const ForwardCandidate& candidate) {
  return static_cast<Tile>(candidate.tile);
}

template <Arithmetic kArithmetic, typename Problem>
cudaError_t launch_tiles(const ForwardPlan& plan, const Problem& problem, cudaStream_t stream) {
  const auto& [candidate, estimate] = plan.choice;
  return candidate->group == Group::kHopper
             ? launch_forward_wgmma<kArithmetic>(
                   problem, tile_of<WgmmaTile>(*candidate), estimate.ranks, stream)
             : launch_forward_tiles<kArithmetic>(
                   problem, tile_of<ForwardTile>(*candidate), estimate.ranks, stream);
}

}  // namespace

Selection selection() {
  const char* const value = std::getenv("LLTM_CUDA_PATH");
  const std::string_view path = value == nullptr ? "" : value;
  if (path.empty() || path == "auto") {
    return {};
  }
  for (const Group group : kGroups) {
    if (path == name_of(group)) {
      return {group, {}};
    }
  }
  for (const std::string_view name : candidate_names()) {
    if (path == name) {
      return {std::nullopt, name};
    }
  }
  TORCH_CHECK(false,
              "lltm: expected the environment variable LLTM_CUDA_PATH to be one of ",
              selectable(),
              ", got ",
              path);
}

std::string selectable() {
  std::string all = "auto";
  for (const Group group : kGroups) {
    all.append(" ").append(name_of(group));
  }
  for (const std::string_view name : candidate_names()) {
    all.append(" ").append(name);
  }
  return all;
}

std::optional<Arithmetic> arithmetic_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: {
      const bool tf32 =
          at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
          at::Float32Precision::TF32;
      return tf32 ? Arithmetic::kTf32 : Arithmetic::kFloat32;
    }
    case at::kHalf:
      return Arithmetic::kFloat16;
    case at::kBFloat16:
      return Arithmetic::kBFloat16;
    default:
      return std::nullopt;
  }
}

ForwardPlan plan_forward(const DeviceFacts& device,
                         std::optional<Arithmetic> arithmetic,
                         const ForwardProblem& p,
                         Packing packing) {
  ForwardPlan plan;
  plan.arithmetic = arithmetic;
  ForwardShape shape{.arithmetic = arithmetic,
                     .batch = p.batch,
                     .input_features = p.input_features,
                     .state_size = p.state_size,
                     .may_pack = packing == Packing::kAllowed,
                     .overlaps = packing == Packing::kNone};
  if (arithmetic) {
    const int size = element_size(*arithmetic);
    const auto must_pack = [&](const Matrix& matrix, int64_t rows, int64_t columns, bool anyway) {
      const bool packs = columns > 0 && (anyway || !is_describable(matrix, columns, size));
      shape.pack_bytes += packs ? rows * columns * size : 0;
      return packs;
    };
    plan.input_lead = p.input_features == 0 ? 0 : p.input_column() * size % 16 / size;
    plan.packs_input = must_pack(p.input, p.batch, p.input_features, plan.input_lead > 0);
    plan.packs_old_h = must_pack(p.old_h, p.batch, p.state_size, false);
    plan.packs_weights =
        must_pack(p.weights, shape.gates(), p.input_column() + p.input_features, false);
    shape.weights_in_lines = plan.packs_weights || p.weights.starts_at_lines(size);
    // Boxes of input that start at cache lines stay there, unless input is packed.
    if (packing == Packing::kAllowed && shape.weights_in_lines && p.input_features > 0 &&
        (plan.packs_input || !p.input.starts_at_lines(size))) {
      const int64_t first = p.input_column() - plan.input_lead;
      plan.input_shift = line_shift(first, plan.input_lead + p.input_features, 128 / size);
    }
    shape.input_offset = plan.input_lead + plan.input_shift;
    const int64_t across =
        (plan.packs_old_h || p.old_h.starts_at_lines(size) ? 0 : p.state_size) +
        (plan.packs_input || p.input.starts_at_lines(size) ? 0 : p.input_features);
    shape.states_across_lines =
        static_cast<double>(across) / static_cast<double>(p.state_size + p.input_features);
    shape.vector_rows = p.input.starts_at_vectors(size) && p.old_h.starts_at_vectors(size) &&
                        p.weights.starts_at_vectors(size) &&
                        p.weights.starts_at_vectors(size, p.input_column());
  }
  const Selection selected = selection();
  plan.choice = recent_choice<choose_forward>(
      shape, device, selected.group, name_among(forward_candidates(), selected));
  if (plan.choice.candidate->group != Group::kHopper) {
    plan.packs_input = plan.packs_old_h = plan.packs_weights = false;
  }
  return plan;
}

template <typename Problem>
cudaError_t launch_forward(const ForwardPlan& plan, const Problem& problem, cudaStream_t stream) {
  const Group group = plan.choice.candidate->group;
  if (!plan.arithmetic || group == Group::kLibrary) {
    return cudaErrorInvalidValue;
  }
  if (group == Group::kFewRows) {
    return launch_forward_few_rows(problem, stream);
  }
  switch (*plan.arithmetic) {
    case Arithmetic::kFloat32:
      return launch_tiles<Arithmetic::kFloat32>(plan, problem, stream);
    case Arithmetic::kTf32:
      return launch_tiles<Arithmetic::kTf32>(plan, problem, stream);
    case Arithmetic::kFloat16:
      return launch_tiles<Arithmetic::kFloat16>(plan, problem, stream);
    case Arithmetic::kBFloat16:
      return launch_tiles<Arithmetic::kBFloat16>(plan, problem, stream);
  }
  return cudaErrorInvalidValue;
}

template cudaError_t launch_forward(const ForwardPlan&, const ForwardProblem&, cudaStream_t);
template cudaError_t launch_forward(const ForwardPlan&, const StepProblem&, cudaStream_t);
template cudaError_t launch_forward(const ForwardPlan&, const StepOfRowsProblem&, cudaStream_t);

BackwardPlan plan_backward(const DeviceFacts& device, const BackwardShape& shape) {
  const Selection selected = selection();
  BackwardPlan plan{Group::kLibrary, shape.arithmetic, {}};
  if (shape.batch > 0 && shape.state_size > 0) {
    const auto [candidate, estimate] = recent_choice<choose_backward>(
        shape, device, selected.group, name_among(backward_candidates(), selected));
    plan.group = candidate->group;
    plan.tiles = estimate.tiles;
  }
  return plan;
}

}  // namespace lltm::cuda

/// Everything that LLTM_CUDA_PATH takes, separated by spaces, for programs that measure the
/// candidates.
extern "C" __attribute__((visibility("default"))) const char* lltm_cuda_paths() {
  static const std::string all = lltm::cuda::selectable();
  return all.c_str();
}
