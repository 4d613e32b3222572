// Which kernels compute a backward: of the candidates that support a problem, the one with the
// least estimated time. Plain host code that queries no device.
#pragma once

#include "../problem.h"
#include "../tile/shapes.h"
#include "choice.h"
#include "facts.h"
#include "gradient_plan.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

namespace lltm::cuda {

/// What the candidates know of a problem.
struct BackwardShape {
  std::optional<Arithmetic> arithmetic;  // none for float64
  int64_t batch, input_features, state_size;
  bool vector_rows = true;  // as are_describable() has it
  // If false, only d_weights and d_input: those of all steps of a sequence.
  bool forms_d_old_h = true;

  bool operator==(const BackwardShape&) const = default;
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return 3 * state_size; }
  int element_bytes() const { return arithmetic ? element_size(*arithmetic) : 8; }
};

/// Products in 16 bits by wgmma in small tiles.
struct SmallGradientTiles {};

/// The backward of a few rows in one launch. All its strips have the same size.
struct FewRowsStrips {};

/// ATen's products.
struct LibraryProducts {};

struct BackwardTiles {
  std::variant<LibraryProducts,
               FewRowsStrips,
               GradientPlan,
               SmallGradientTiles,
               ProductTile,
               Float32GradientPlan>
      tile;
  int split = 1;

  bool by_library() const { return get_if<LibraryProducts>() != nullptr; }
  /// The tile if it is of this kind, else null.
  template <typename Tile>
  const Tile* get_if() const {
    return std::get_if<Tile>(&tile);
  }
};

/// The tiles that a candidate would use, and the microseconds that the whole backward would take.
struct BackwardEstimate {
  BackwardTiles tiles;
  double us;
};

/// One way to compute a backward. LLTM_CUDA_PATH can select it by its group or its name.
struct BackwardCandidate {
  std::string_view name;
  Group group;
  /// Whether it computes the problem correctly, even if slowly.
  bool (*supports)(const BackwardShape& shape, const DeviceFacts& device);
  /// Only for problems that it supports.
  BackwardEstimate (*estimate)(const BackwardShape& shape, const DeviceFacts& device);
};
std::span<const BackwardCandidate> backward_candidates();

/// As for the forward (choice.h). No candidate supports a number of ranks.
std::optional<BackwardEstimate> estimate_if_supported(const BackwardCandidate& candidate,
                                                      const BackwardShape& shape,
                                                      const DeviceFacts& device,
                                                      int ranks = 0);

using BackwardChoice = Choice<BackwardCandidate, BackwardEstimate>;

/// The selected candidate with the least estimate (choice.h). The batch and the state are not
/// empty.
BackwardChoice choose_backward(const BackwardShape& shape,
                               const DeviceFacts& device,
                               const Selection& selection = {});

}  // namespace lltm::cuda
