// Launches a kernel with the shared memory it requests and its blocks in clusters. It overlaps the
// previous kernel if it was compiled to wait for that kernel itself.
#pragma once

#include "driver.h"
#include "per_context.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// A kernel's handle in one context.
struct Kernel {
  CUfunction function;
  // Whether the code that runs was compiled for sm_90 or newer: only then does it use clusters and
  // wait for the previous kernel. A build for sm_80 alone also runs on newer GPUs.
  bool clusters;
};

/// Finds kKernel in the current context and allows it cluster_bytes of shared memory per block and
/// the largest clusters if it can use clusters, else block_bytes: more than 48 KiB must be
/// requested. A GPU that has less allows what it has.
template <auto kKernel>
cudaError_t find_kernel(int block_bytes, int cluster_bytes, Kernel* kernel) {
  static PerContext<Kernel> known;
  uint64_t context = 0;
  if (const cudaError_t error = current_context(&context); error != cudaSuccess) {
    return error;
  }
  return known.get(context, kernel, [&](Kernel* found) {
    cudaFuncAttributes attributes{};
    cudaError_t error = cudaFuncGetAttributes(&attributes, kKernel);
    int device = 0, most = 0;
    if (error == cudaSuccess) {
      error = cudaGetDevice(&device);
    }
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    if (error == cudaSuccess) {
      found->clusters = attributes.ptxVersion >= 90;
      most -= static_cast<int>(attributes.sharedSizeBytes);
      error = cudaFuncSetAttribute(kKernel,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   std::min(found->clusters ? cluster_bytes : block_bytes, most));
    }
    if (error == cudaSuccess && found->clusters) {
      error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error == cudaSuccess) {
      error = cudaGetFuncBySymbol(&found->function, reinterpret_cast<const void*>(kKernel));
    }
    return error;
  });
}

/// Launches kKernel on `grid` in clusters of `cluster` blocks (one: no clusters). Each block of a
/// cluster gets kClusterBytes of shared memory, a block by itself kBlockBytes; either gets
/// least_bytes if that is more, which may be at most kMostBytes.
///
/// cudaLaunchKernelEx is not used because it looks up the kernel and the context each time.
template <auto kKernel,
          int kThreads,
          int kBlockBytes = 0,
          int kClusterBytes = kBlockBytes,
          int kMostBytes = kClusterBytes,
          typename Params>
cudaError_t launch_in_clusters(
    const Params& params, dim3 grid, dim3 cluster, cudaStream_t stream, int least_bytes = 0) {
  static_assert(kMostBytes >= kClusterBytes && kClusterBytes >= kBlockBytes);
  static DriverFunction<decltype(&cuLaunchKernelEx)> launch_kernel("cuLaunchKernelEx");
  const auto launch = launch_kernel.get();
  if (launch == nullptr) {
    return cudaErrorInsufficientDriver;
  }
  Kernel kernel{};
  if (const cudaError_t error = find_kernel<kKernel>(kBlockBytes, kMostBytes, &kernel);
      error != cudaSuccess) {
    return error;
  }
  const bool alone = cluster.x * cluster.y * cluster.z == 1;
  if (!alone && !kernel.clusters) {
    return cudaErrorInvalidClusterSize;  // blocks would wait for others that do not exist
  }
  CUlaunchAttribute attributes[2]{};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[0].value.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[1].value.clusterDim.x = cluster.x;
  attributes[1].value.clusterDim.y = cluster.y;
  attributes[1].value.clusterDim.z = cluster.z;
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = kThreads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes =
      static_cast<unsigned>(std::max(alone ? kBlockBytes : kClusterBytes, least_bytes));
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = !kernel.clusters ? 0 : alone ? 1 : 2;
  void* all_params[] = {const_cast<Params*>(&params)};
  // The driver's errors have the same values as the runtime's.
  return static_cast<cudaError_t>(launch(&config, kernel.function, all_params, /*extra=*/nullptr));
}

}  // namespace lltm::cuda
