// Overlapping the kernels of a stream (programmatic dependent launch, sm_90 and newer).
#pragma once

#include "device_function.h"

namespace lltm::cuda {

// start_next_kernel lets the next kernel of the stream start. wait_for_previous_kernel waits until
// the previous kernel has finished and its writes are visible.
//
// A kernel may start the next one before its own wait:
// - A next kernel that was launched without the attribute begins only when this kernel is complete.
// - A kernel that was launched with it must wait, as ours do, before it touches memory that another
//   kernel may read or write. Its wait ends when this kernel is complete, which is after this
//   kernel's own wait. By then all earlier kernels are complete, however far back, including those
//   of other libraries.
// - A block that exits without waiting changes nothing, since others of its grid wait.
// - Blocks that start early and wait cannot keep blocks of this kernel from starting: the next
//   kernel starts only when all of these have called start_next_kernel, and are therefore resident.
//
// So a kernel must not touch global memory before its wait, unless it is known what the previous
// kernel waited for (kernels/forward/wgmma.cuh).
LLTM_DEVICE void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}
LLTM_DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

}  // namespace lltm::cuda
