// Which kernels compute the steps of a sequence's backward. Plain host code that queries no device.
#pragma once

#include "../tile/shapes.h"
#include "choice.h"
#include "costs.h"
#include "shape.h"

#include <span>

namespace lltm::cuda {

/// The product of a step: (batch, gates) by (gates, state_size). Gates are all saved numbers, and
/// there are no input_features.
struct SequenceGradientShape : CommonShape {
  using Tile = TileShape;
  /// A chunk of K, to finish a full tile by itself, to exchange the sums of a cluster, and how many
  /// times as long a chunk takes if two blocks share a multiprocessor. Zero: none do.
  struct Times {
    ByArithmetic<double> chunk{};
    double finish, exchange, shared;

    static constexpr const char* kNames[] = {
        "chunk.float32", "chunk.tf32", "chunk.half", "finish", "exchange", "shared"};
  };

  bool operator==(const SequenceGradientShape&) const = default;
};

/// That of a step of a sequence's backward.
inline SequenceGradientShape step_gradient_shape(CommonShape sequence) {
  sequence.columns = saved_of(sequence.cell) * sequence.state_size;
  sequence.input_features = 0;
  return {sequence};
}

/// One way to compute a step: in one launch, by mma.sync, or by wgmma with W_h transposed once for
/// all steps; or a product by ATen and a pointwise kernel.
using SequenceGradientCandidate = Candidate<SequenceGradientShape>;
using SequenceGradientChoice = Choice<SequenceGradientShape>;
template <>
std::span<const SequenceGradientCandidate> candidates();

}  // namespace lltm::cuda
