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

namespace lltm::cuda {

/// The product of a step: (rows, gates) by (gates, state_size).
struct SequenceGradientShape {
  std::optional<Arithmetic> arithmetic;    // none for float64
  int64_t steps, rows, state_size, gates;  // gates: of all elements of a row
};

/// One way to compute a step: in one launch, by mma.sync, or by wgmma with W_h transposed once for
/// all steps; or a product by ATen and a pointwise kernel.
struct SequenceGradientCandidate {
  std::string_view name;
  Group group;
  TileShape tile{};
  MemberOf<SequenceBackwardCosts, SequenceBackwardCosts::Tile> costs = nullptr;
  bool float32 = false;         // by three TF32 products
  bool any_state_size = false;  // by wgmma; others need multiples of four
};
std::span<const SequenceGradientCandidate> sequence_gradient_candidates();

/// Whether a candidate computes a step correctly, even if slowly.
bool supports(const SequenceGradientCandidate& candidate,
              const SequenceGradientShape& shape,
              const DeviceFacts& device);

/// As for the forward (forward.h).
Estimate estimate(const SequenceGradientCandidate& candidate,
                  const SequenceGradientShape& shape,
                  const DeviceFacts& device,
                  int ranks = 0);

using SequenceGradientChoice = Choice<SequenceGradientCandidate, Estimate>;

/// The selected candidate with the least estimate (choice.h).
SequenceGradientChoice choose_sequence_gradients(const SequenceGradientShape& shape,
                                                 const DeviceFacts& device,
                                                 const Selection& selection = {});

}  // namespace lltm::cuda
