// Which kernels compute the steps of a sequence's backward: plain host code, which asks no device.
#pragma once

#include "model.h"
#include "tile/shapes.h"

#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// The tiles of a step in one launch, and how many blocks share the K of each.
struct SequenceGradientPlan {
  SequenceGradientTile tile;
  int split;
};

/// Nothing where a step is a product of ATen's and a pointwise kernel: for float64 (no arithmetic),
/// on devices without tiles, where `group` is the library's, and for large steps.
std::optional<SequenceGradientPlan> plan_sequence_gradients(const DeviceFacts& device,
                                                            std::optional<Arithmetic> arithmetic,
                                                            std::optional<Group> group,
                                                            int64_t rows,
                                                            int64_t state_size);

}  // namespace lltm::cuda
