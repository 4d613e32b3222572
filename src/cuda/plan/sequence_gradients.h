// Which kernels compute the steps of a sequence's backward. Plain host code that queries no device.
#pragma once

#include "../problem.h"
#include "../tile/shapes.h"
#include "choice.h"
#include "costs.h"
#include "facts.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

namespace lltm::cuda {

/// The tiles of a step in one launch, by mma.sync or in float32 by wgmma, and how many blocks share
/// the K of a tile.
struct SequenceGradientPlan {
  std::variant<SequenceGradientTile, Float32GradientTile> tile;
  int split;
};

/// The product of a step: (rows, 3*state_size) by (3*state_size, state_size).
struct SequenceGradientShape {
  std::optional<Arithmetic> arithmetic;  // none for float64
  int64_t steps, rows, state_size;
};

/// One way to compute a step: tiles of rows x columns in one launch, or the library.
struct SequenceGradientCandidate {
  std::string_view name;
  Group group;
  std::variant<SequenceGradientTile, Float32GradientTile> tile{};
  int64_t rows = 0, columns = 0;
  MemberOf<SequenceBackwardCosts, SequenceBackwardCosts::Tile> costs = nullptr;
};
std::span<const SequenceGradientCandidate> sequence_gradient_candidates();

/// Whether a candidate computes a step correctly, even if slowly.
bool supports(const SequenceGradientCandidate& candidate,
              const SequenceGradientShape& shape,
              const DeviceFacts& device);

/// As for the forward (forward.h). Not for float64.
Estimate estimate(const SequenceGradientCandidate& candidate,
                  const SequenceGradientShape& shape,
                  const DeviceFacts& device,
                  int ranks = 0);

/// Returns nothing if a step should be a product by ATen and a pointwise kernel: for float64, on
/// devices without tiles, if the library is selected, and for large products.
std::optional<SequenceGradientPlan> plan_sequence_gradients(const SequenceGradientShape& shape,
                                                            const DeviceFacts& device,
                                                            const Selection& selection = {});

}  // namespace lltm::cuda
