// The candidates of the forward, and of the steps of a sequence: what each supports, and its time,
// estimated from the sizes of a problem and what is known about a GPU (docs/cuda-kernels.md). Plain
// host code that queries no device.
#pragma once

#include "../problem.h"
#include "../tile/shapes.h"
#include "choice.h"
#include "facts.h"
#include "shape.h"

#include <cstdint>
#include <span>

namespace lltm::cuda {

/// What the kernels with tiles need packed first, and where the boxes of Hopper's start.
struct ForwardPacks {
  bool input = false, weights = false, weights_input = false, old_h = false;
  int64_t input_lead = 0;  // as in ForwardProblem

  bool operator==(const ForwardPacks&) const = default;
};

/// The times of a tile.
struct ForwardTimes {
  /// As a cell: a chunk of K, and the rest of a block. By mma.sync, the chunk is one of 16 bits.
  struct {
    double chunk, block;
  } cell{};
  /// As a step of a sequence by wgmma: a chunk that waits for the previous step, one of input that
  /// need not, the rest of a block, and what it takes longer if it does not overlap other steps.
  struct {
    double chunk, input_chunk, block, alone;
  } step{};

  static constexpr const char* kNames[] = {
      "cell.chunk", "cell.block", "step.chunk", "step.input_chunk", "step.block", "step.alone"};
};

/// What the candidates know of a problem.
struct ForwardShape : CommonShape {
  using Tile = TileShape;
  using Times = ForwardTimes;

  // Whether it is a step of a sequence, whose kernel starts during the previous one, and whose
  // operands may not be packed.
  bool is_step = false;
  ForwardPacks packs{};            // the matrices that TMA cannot describe
  int64_t pack_bytes = 0;          // of these
  bool weights_in_lines = true;    // rows of weights start at cache lines, as packed rows do
  double states_across_lines = 0;  // the share of the columns of old_h and input whose rows do not
  // Whether all rows, also of weights' columns of input, start at multiples of 16 bytes.
  bool vector_rows = true;

  bool operator==(const ForwardShape&) const = default;
};

/// The shape of a problem, of which only sizes, strides and alignment count.
ForwardShape forward_shape(Arithmetic arithmetic,
                           const ForwardProblem& problem,
                           bool is_step,
                           CellType cell = CellType::kLltm);

/// One way to compute a forward.
using ForwardCandidate = Candidate<ForwardShape>;
using ForwardChoice = Choice<ForwardShape>;
template <>
std::span<const ForwardCandidate> candidates();

/// What a launch needs to know of a choice.
struct ForwardPlan {
  Arithmetic arithmetic{};
  CellType cell{};
  ForwardChoice choice{};
  ForwardPacks packs{};
  int multiprocessors = 0;  // of the device

  bool by_library() const { return choice.candidate->group == Group::kLibrary; }
};
ForwardPlan choose_forward(const ForwardShape& shape,
                           const DeviceFacts& device,
                           const Selection& selection);

}  // namespace lltm::cuda
