// The candidates of the forward, and of the steps of a sequence: what each supports, and its time,
// estimated from the sizes of a problem and what is known about a GPU (docs/cuda-kernels.md). Plain
// host code that queries no device.
#pragma once

#include "../problem.h"
#include "choice.h"

namespace lltm::cuda {

/// The shape of a problem, of which only sizes, strides and alignment count.
Shape forward_shape(Arithmetic arithmetic,
                    const ForwardProblem& problem,
                    bool is_step,
                    CellType cell = CellType::kLltm);

/// What a launch needs to know of a choice.
struct ForwardPlan {
  Arithmetic arithmetic{};
  CellType cell{};
  Choice choice{};
  ForwardPacks packs{};
  int multiprocessors = 0;  // of the device

  bool by_library() const { return choice.candidate->group == Group::kLibrary; }
};
ForwardPlan choose_forward(const Shape& shape,
                           const DeviceFacts& device,
                           const Selection& selection);

}  // namespace lltm::cuda
