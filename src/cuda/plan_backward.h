// Which kernels compute a backward: plain host code, which asks no device. Of the candidates that
// support a problem, that with the least estimate of its time wins.
#pragma once

#include "model.h"
#include "scheduler/gradient_plan.h"
#include "tile/shapes.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

namespace lltm::cuda {

/// A backward as its candidates see it.
struct BackwardShape {
  std::optional<Arithmetic> arithmetic;  // none for float64
  int64_t batch, input_features, state_size;
  // Every row of input, old_h and both column ranges of weights starts at a multiple of 16 bytes,
  // and none overlaps the next.
  bool vector_rows = true;
  // Else only d_weights and d_input: those of all steps of a sequence.
  bool forms_d_old_h = true;

  bool operator==(const BackwardShape&) const = default;
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return 3 * state_size; }
  int element_bytes() const { return arithmetic ? element_size(*arithmetic) : 8; }
};

/// Products in TF32 by wgmma, by as many pairs of blocks.
struct Tf32BackwardPairs {
  Tf32BatchTile tile;
  int count;
};

/// Products in 16 bits by wgmma in small tiles.
struct SmallGradientTiles {};

/// The backward for few rows in one launch, whose strips are all alike.
struct FewRowsStrips {};

/// ATen's products.
struct LibraryProducts {};

struct BackwardTiles {
  std::variant<LibraryProducts,
               FewRowsStrips,
               GradientPlan,
               SmallGradientTiles,
               ProductTile,
               Float32GradientPlan,
               Tf32BackwardPairs>
      tile;
  int split = 1;
};

/// How a candidate forms the products, and microseconds that all of the backward takes then.
struct BackwardEstimate {
  BackwardTiles tiles;
  double us;
};

/// One way to compute a backward. LLTM_CUDA_PATH takes its group and its name.
struct BackwardCandidate {
  std::string_view name;
  Group group;
  /// Whether it can compute a problem, right though perhaps slow.
  bool (*supports)(const BackwardShape& shape, const DeviceFacts& device);
  /// For what it supports.
  BackwardEstimate (*estimate)(const BackwardShape& shape, const DeviceFacts& device);
};
std::span<const BackwardCandidate> backward_candidates();

struct BackwardChoice {
  const BackwardCandidate* candidate;
  BackwardEstimate estimate;
};

/// The candidate with the least estimate, of all, of a group, or of one name. What the group or the
/// name cannot compute goes to tiles, and what these cannot, to the library. There is a state.
BackwardChoice choose_backward(const BackwardShape& shape,
                               const DeviceFacts& device,
                               std::optional<Group> group = std::nullopt,
                               std::string_view name = {});

}  // namespace lltm::cuda
