// Which kernels compute a backward: of the candidates that support a problem, the one with the
// least estimated time. Plain host code that queries no device.
#pragma once

#include "../problem.h"
#include "choice.h"
#include "facts.h"
#include "gradient_plan.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lltm::cuda {

/// What the candidates know of a problem.
struct BackwardShape {
  std::optional<Arithmetic> arithmetic;  // none for float64
  int64_t batch, input_features, state_size;
  // Whether TMA can describe input, old_h, both column ranges of weights, and contiguous rows of
  // state_size elements in place.
  bool vector_rows = true;
  // If false, only d_weights and d_input: those of all steps of a sequence.
  bool forms_d_old_h = true;

  bool operator==(const BackwardShape&) const = default;
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return 3 * state_size; }
  int element_bytes() const { return arithmetic ? element_size(*arithmetic) : 8; }
  /// The size of weights, and of d_weights.
  double weights_bytes() const { return static_cast<double>(gates() * width()) * element_bytes(); }
  /// Chunks of K. Not for float64.
  int64_t chunks(int64_t k) const { return ceil_div(k, chunk_columns(*arithmetic)); }
  /// Tiles across the columns of [h | x]. No tile contains columns of both.
  int64_t column_tiles(int64_t columns) const {
    return ceil_div(state_size, columns) + ceil_div(input_features, columns);
  }
  /// The same for d_old_h and d_input, counting only what is computed.
  int64_t state_column_tiles(int64_t columns) const {
    return forms_d_old_h ? column_tiles(columns) : ceil_div(input_features, columns);
  }
};

/// The plan that a candidate would use, and the microseconds that the backward would take.
struct BackwardEstimate {
  GradientPlan plan;
  double us;
};

/// The time to pack what TMA cannot describe of contiguous operands, if there is anything.
/// Not for products by wgmma in TF32.
inline double packing_time(const BackwardShape& s, bool by_wgmma, const DeviceFacts& device) {
  if (s.vector_rows) {
    return 0;
  }
  const auto is_whole = [&](int64_t columns) { return columns * s.element_bytes() % 16 == 0; };
  const bool in_halves = has_weights_in_halves(*s.arithmetic, by_wgmma);
  const int64_t columns = !is_whole(s.width())                   ? s.width()
                          : in_halves && !is_whole(s.state_size) ? s.input_features
                                                                 : 0;
  return device.costs->packing.time(static_cast<double>(s.batch * s.width() + s.gates() * columns) *
                                    s.element_bytes());
}

/// The plan of the products by wgmma with the least estimated time, without that of d_gates: in 16
/// bits and TF32, and in float32. The plan, and so the order of all sums, depends only on the
/// sizes, not on which gradients are wanted.
BackwardEstimate choose_gradient_plan(const BackwardShape& shape, const DeviceFacts& device);
BackwardEstimate choose_float32_gradient_plan(const BackwardShape& shape,
                                              const DeviceFacts& device);

/// What computes a backward (kernels/backward/kernels.h): kFewRows all of it, the others the
/// products.
enum class BackwardKernel { kFewRows, kWgmma, kTiles, kLibrary };

/// One way to compute a backward. LLTM_CUDA_PATH can select it by its group or its name.
struct BackwardCandidate {
  std::string_view name;
  Group group;
  BackwardKernel kernel;
  /// Whether it computes the problem correctly, even if slowly.
  bool (*supports)(const BackwardShape& shape, const DeviceFacts& device);
  /// Only for problems that it supports. Without the kernel of d_gates, if there is one.
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
