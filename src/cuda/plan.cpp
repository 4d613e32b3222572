#include "plan.h"

#include "candidates.h"
#include "recent_choice.h"
#include "runtime/tensor_maps.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

namespace lltm::cuda {
namespace {

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
  const std::optional<Selection> selected = parse_selection(path);
  TORCH_CHECK(selected.has_value(),
              "lltm: expected the environment variable LLTM_CUDA_PATH to be one of ",
              selectable(),
              ", or NAME:RANKS with 1 to ",
              kLargestCluster,
              " ranks, got ",
              path);
  return *selected;
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
  plan.choice = recent_choice<choose_forward>(shape, device, selection());
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
    const auto [candidate, estimate] = recent_choice<choose_backward>(shape, device, selected);
    plan.group = candidate->group;
    plan.tiles = estimate.tiles;
  }
  return plan;
}

}  // namespace lltm::cuda
