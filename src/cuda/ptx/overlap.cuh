// Overlapping the kernels of a stream (programmatic dependent launch, sm_90 on).
#pragma once

namespace lltm::cuda {

// Programmatic dependent launch: lets the next kernel of the stream start, and waits until the one
// before has finished and its writes are visible. Nothing may touch global memory before the wait,
// but where it is known what the kernel before that one waited for (hopper_small_backward.cuh).
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
