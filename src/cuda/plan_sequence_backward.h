// Which kernels compute the steps of a sequence's backward. Plain host code that queries no device.
#pragma once

#include "model.h"
#include "tile/shapes.h"

#include <cstdint>
#include <optional>
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

/// Returns nothing if a step should be a product by ATen and a pointwise kernel: for float64, on
/// devices without tiles, if `group` is the library, and for large products.
std::optional<SequenceGradientPlan> plan_sequence_gradients(
    const SequenceGradientShape& shape,
    const DeviceFacts& device,
    std::optional<Group> group = std::nullopt);

}  // namespace lltm::cuda
