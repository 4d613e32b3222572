// The candidates of the forward, and of the steps of a sequence: what each supports, and its time,
// estimated from the sizes of a problem and what is known about a GPU (docs/cuda-kernels.md). Plain
// host code that queries no device.
#pragma once

#include "../problem.h"
#include "../tile/shapes.h"
#include "choice.h"
#include "costs.h"
#include "facts.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace lltm::cuda {

/// What the kernels with tiles need packed first, and where the boxes of Hopper's start.
struct ForwardPacks {
  bool input = false, weights = false, old_h = false;
  int64_t input_lead = 0;  // as in ForwardProblem

  bool operator==(const ForwardPacks&) const = default;
};

/// What the candidates know of a problem.
struct ForwardShape {
  Arithmetic arithmetic;
  int64_t batch, input_features, state_size;
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
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return 3 * state_size; }
};

/// The shape of a problem, of which only sizes, strides and alignment count.
ForwardShape forward_shape(Arithmetic arithmetic, const ForwardProblem& problem, bool is_step);

/// One way to compute a forward.
struct ForwardCandidate {
  std::string_view name;
  Group group;
  TileShape tile;  // the row tiles of a cluster are in addition to the ranks
  int max_ranks;   // limited by the shared memory for their sums
  double blocks_a_multiprocessor;
  MemberOf<ForwardCosts, ForwardCosts::Tile> costs;
  bool float32;  // hopper only: three TF32 products
  // As a step of a sequence, hopper only: its costs, and whether blocks of two steps fit a
  // multiprocessor.
  MemberOf<StepCosts, StepCosts::Tile> step_costs = nullptr;
  bool two_steps_fit = false;
};
std::span<const ForwardCandidate> forward_candidates();

/// Whether a candidate computes a problem correctly, even if slowly.
bool supports(const ForwardCandidate& candidate,
              const ForwardShape& shape,
              const DeviceFacts& device);

/// Whether a candidate's sums are as accurate as others' in float32, so that it is chosen unless
/// another one is selected.
bool is_exact(const ForwardCandidate& candidate, const ForwardShape& shape);

/// The time with `ranks` ranks or, by default, the least time over all numbers of ranks; no ranks
/// if the candidate does not support the number. Only for problems that the candidate supports.
Estimate estimate(const ForwardCandidate& candidate,
                  const ForwardShape& shape,
                  const DeviceFacts& device,
                  int ranks = 0);

using ForwardChoice = Choice<ForwardCandidate, Estimate>;

/// The selected candidate with the least estimate (choice.h).
ForwardChoice choose_forward(const ForwardShape& shape,
                             const DeviceFacts& device,
                             const Selection& selection = {});

}  // namespace lltm::cuda
