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

namespace lltm::cuda {

/// The product of a step: (rows, gates) by (gates, state_size). Gates are all saved numbers.
struct SequenceGradientShape {
  using Tile = TileShape;
  /// A chunk of K, to finish a full tile by itself, to exchange the sums of a cluster, and how many
  /// times as long a chunk takes if two blocks share a multiprocessor. Zero: none do.
  struct Times {
    ByArithmetic<double> chunk{};
    double finish, exchange, shared;

    static constexpr const char* kNames[] = {
        "chunk.float32", "chunk.tf32", "chunk.half", "finish", "exchange", "shared"};
  };

  std::optional<Arithmetic> arithmetic;    // none for float64
  int64_t steps, rows, state_size, gates;  // gates: of all elements of a row
};

/// One way to compute a step: in one launch, by mma.sync, or by wgmma with W_h transposed once for
/// all steps; or a product by ATen and a pointwise kernel.
using SequenceGradientCandidate = Candidate<SequenceGradientShape>;
using SequenceGradientChoice = Choice<SequenceGradientShape>;
template <>
std::span<const SequenceGradientCandidate> candidates();

}  // namespace lltm::cuda
