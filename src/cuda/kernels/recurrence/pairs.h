// Whether the kernels of the recurrence in 16 bits can read and write two neighboring columns at
// once: state_size is even, and pairs of elements start at multiples of 4 bytes in all tensors with
// steps. Those that cannot take at most 8 rows a block.
#pragma once

#include "recurrence.h"

#include <cstdint>

namespace lltm::cuda {

template <typename Element>
bool is_in_pairs(const RecurrenceForward<Element>& problem) {
  const auto start = [](const Element* data) { return reinterpret_cast<uintptr_t>(data) % 4 == 0; };
  return problem.state_size % 2 == 0 && start(problem.z_x) && start(problem.output) &&
         start(problem.cells) && start(problem.gates) && problem.input.starts_at_neighbors(2);
}

template <typename Element>
bool is_in_pairs(const RecurrenceBackward<Element>& problem) {
  const auto start = [](const Element* data) { return reinterpret_cast<uintptr_t>(data) % 4 == 0; };
  return problem.state_size % 2 == 0 && start(problem.gates) && start(problem.cells) &&
         start(problem.d_gates) && problem.d_gates_stride % 2 == 0 &&
         problem.grad_output.starts_at_neighbors(2) && problem.grad_cells.starts_at_neighbors(2);
}

}  // namespace lltm::cuda
