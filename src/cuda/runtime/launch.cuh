// Launches a kernel with the shared memory it requests and its blocks in clusters. It overlaps the
// previous kernel if it was compiled to wait for that kernel itself.
#pragma once

#include "driver.h"
#include "per_context.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace lltm::cuda {

/// A grid of so many blocks, which are fewer than 2^31 in x and 2^16 in y.
inline dim3 grid_of(int64_t x, int64_t y = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

/// A kernel's handle in one context.
struct Kernel {
  CUfunction function;
  // Whether the code that runs was compiled for sm_90 or newer: only then does it use clusters and
  // wait for the previous kernel. A build for sm_80 alone also runs on newer GPUs.
  bool clusters;
  int most_bytes;  // of dynamic shared memory that its blocks are allowed
};

/// A kernel as the runtime knows it, and its handles.
struct KernelSymbol {
  const void* symbol;
  PerContext<Kernel>& known;
};

template <auto kKernel>
KernelSymbol symbol_of() {
  static PerContext<Kernel> known;
  return {reinterpret_cast<const void*>(kKernel), known};
}

/// The threads of a block, and the shared memory that it gets by itself, in a cluster, and at most.
struct BlockSize {
  int threads;
  int bytes_alone, bytes_in_cluster, most_bytes;
};

/// Finds a kernel in the current context and allows it most_bytes of shared memory per block and
/// the largest clusters if it can use clusters, else bytes_alone: more than 48 KiB must be
/// requested. A GPU that has less allows what it has.
cudaError_t find_kernel(const KernelSymbol& of, int bytes_alone, int most_bytes, Kernel* kernel);

/// Launches a kernel on `grid` in clusters of `cluster` blocks (one: no clusters). Each block gets
/// least_bytes of shared memory, or what the kernel is allowed, if that is more than it gets
/// anyway.
///
/// cudaLaunchKernelEx is not used because it looks up the kernel and the context each time.
cudaError_t launch_in_clusters(const KernelSymbol& of,
                               const BlockSize& block,
                               const void* params,
                               dim3 grid,
                               dim3 cluster,
                               cudaStream_t stream,
                               int least_bytes);

/// Launches a kernel whose blocks wait for each other, with bytes_alone of shared memory a block:
/// all of them are resident at once, or the launch fails (cudaErrorCooperativeLaunchTooLarge). It
/// does not overlap the previous kernel.
cudaError_t launch_cooperative(const KernelSymbol& of,
                               const BlockSize& block,
                               const void* params,
                               dim3 grid,
                               cudaStream_t stream);

template <auto kKernel,
          int kThreads,
          int kBlockBytes = 0,
          int kClusterBytes = kBlockBytes,
          int kMostBytes = kClusterBytes,
          typename Params>
cudaError_t launch_in_clusters(
    const Params& params, dim3 grid, dim3 cluster, cudaStream_t stream, int least_bytes = 0) {
  static_assert(kMostBytes >= kClusterBytes && kClusterBytes >= kBlockBytes);
  return launch_in_clusters(symbol_of<kKernel>(),
                            BlockSize{kThreads, kBlockBytes, kClusterBytes, kMostBytes},
                            &params,
                            grid,
                            cluster,
                            stream,
                            least_bytes);
}

}  // namespace lltm::cuda
