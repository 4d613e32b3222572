// Overlapping the kernels of a stream (programmatic dependent launch, sm_90 on).
#pragma once

namespace lltm::cuda {

// Programmatic dependent launch: lets the next kernel of the stream start, and waits until the one
// before has finished and its writes are visible.
//
// A kernel may start the next one before it waits itself. What comes next is either launched
// without this attribute, and then begins when this kernel is done; or it waits too before it
// touches memory that another kernel may write or read, as ours do and whoever asks for the
// attribute has to, and then goes on when this kernel is done, which is not before its own wait is
// over: so everything before is done as well, however far back, foreign kernels included. A block
// that leaves without waiting changes nothing, since others of its grid wait. Blocks that wait
// early cannot keep those of this kernel from starting either: the next kernel starts when all of
// these have called, and so are resident.
//
// Therefore nothing may touch global memory before the wait, but where it is known what the kernel
// before that one waited for (backward_wgmma_small.cu).
__device__ __forceinline__ void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

}  // namespace lltm::cuda
