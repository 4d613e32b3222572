// Launching a tile kernel: with as much shared memory as it asks for, its blocks in clusters, and
// overlapping the kernel before it where it was compiled to wait for that one itself.
#pragma once

#include "driver.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace lltm::cuda {

/// Whether the code that runs on `device`, the current one, was compiled for sm_90 or newer: only
/// that has clusters, and waits for the kernel before it. A build for 80 alone also runs on newer
/// GPUs.
template <auto kKernel>
bool compiled_for_clusters(int device) {
  static std::atomic<uint64_t> known{0}, yes{0};
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((known.load(std::memory_order_acquire) & bit) == 0) {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, kKernel) == cudaSuccess && attributes.ptxVersion >= 90) {
      yes.fetch_or(bit, std::memory_order_relaxed);
    }
    known.fetch_or(bit, std::memory_order_release);
  }
  return (yes.load(std::memory_order_relaxed) & bit) != 0;
}

/// Launches a kernel of one parameter. Not cudaLaunchKernelEx, which looks the kernel and the
/// context up each time: 0.3 us of the 2.8 that it takes on an H200's host.
inline cudaError_t launch_by_driver(const CUlaunchConfig& config,
                                    CUfunction kernel,
                                    const void* params) {
  static const auto launch = driver_function<decltype(&cuLaunchKernelEx)>("cuLaunchKernelEx");
  if (launch == nullptr) {
    return cudaErrorInsufficientDriver;
  }
  if (const cudaError_t error = bind_context(); error != cudaSuccess) {
    return error;
  }
  void* all_params[] = {const_cast<void*>(params)};
  // The driver's errors have the numbers of the runtime's.
  return static_cast<cudaError_t>(launch(&config, kernel, all_params, /*extra=*/nullptr));
}

/// kKernel as the driver knows it on `device`, the current one, allowed so many bytes of shared
/// memory a block: more than 48 KiB have to be asked for.
template <auto kKernel>
cudaError_t find_kernel(int device, int bytes, CUfunction* found) {
  constexpr int kDevices = 64;
  static std::atomic<CUfunction> known[kDevices];
  if (device < kDevices) {
    *found = known[device].load(std::memory_order_acquire);
    if (*found != nullptr) {
      return cudaSuccess;
    }
  }
  cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) {
    error = cudaGetFuncBySymbol(found, reinterpret_cast<const void*>(kKernel));
  }
  if (error == cudaSuccess && device < kDevices) {
    known[device].store(*found, std::memory_order_release);
  }
  return error;
}

/// Launches kKernel on `grid`, in clusters of `cluster` blocks (one: none). A cluster
/// needs kClusterBytes of shared memory a block, a block by itself kBlockBytes.
template <auto kKernel, int kThreads, int kBlockBytes, int kClusterBytes, typename Params>
cudaError_t launch_in_clusters(const Params& params, dim3 grid, dim3 cluster, cudaStream_t stream) {
  static_assert(kClusterBytes >= kBlockBytes);
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error;
  }
  const bool clusters = compiled_for_clusters<kKernel>(device);
  CUfunction kernel = nullptr;
  if (const cudaError_t error =
          find_kernel<kKernel>(device, clusters ? kClusterBytes : kBlockBytes, &kernel);
      error != cudaSuccess) {
    return error;
  }
  CUlaunchAttribute attributes[2]{};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[0].value.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[1].value.clusterDim.x = cluster.x;
  attributes[1].value.clusterDim.y = cluster.y;
  attributes[1].value.clusterDim.z = cluster.z;
  const bool alone = cluster.x * cluster.y * cluster.z == 1;
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = kThreads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = alone ? kBlockBytes : kClusterBytes;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = !clusters ? 0 : alone ? 1 : 2;
  return launch_by_driver(config, kernel, &params);
}

}  // namespace lltm::cuda
