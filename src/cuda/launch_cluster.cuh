// Launching a tile kernel: with as much shared memory as it asks for, its blocks in clusters, and
// overlapping the kernel before it where it was compiled to wait for that one itself.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace lltm::cuda {

/// The largest cluster that every Hopper GPU takes.
constexpr int kMaxSplit = 8;

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

/// `split` blocks for each tile. Rows of tiles, in groups of row_group that stay together, go on in
/// z where y cannot count them: row y + gridDim.y * z, which may be beyond the last.
inline dim3 grid_of_tiles(int64_t row_tiles, int64_t column_tiles, int split, int row_group = 1) {
  constexpr int64_t kMaxY = 65535;
  const int64_t y = std::min(row_tiles, kMaxY / row_group * row_group);
  return dim3(static_cast<unsigned>(column_tiles * split),
              static_cast<unsigned>(y),
              static_cast<unsigned>((row_tiles + y - 1) / y));
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
  // More than 48 KiB of shared memory has to be asked for, once a device.
  static std::atomic<uint64_t> devices_set{0};
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((devices_set.load(std::memory_order_relaxed) & bit) == 0) {
    const cudaError_t error = cudaFuncSetAttribute(kKernel,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   clusters ? kClusterBytes : kBlockBytes);
    if (error != cudaSuccess) {
      return error;
    }
    devices_set.fetch_or(bit, std::memory_order_relaxed);
  }
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster.x;
  attributes[1].val.clusterDim.y = cluster.y;
  attributes[1].val.clusterDim.z = cluster.z;
  const bool alone = cluster.x * cluster.y * cluster.z == 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(alone ? kBlockBytes : kClusterBytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !clusters ? 0 : alone ? 1 : 2;
  return cudaLaunchKernelEx(&config, kKernel, params);
}

}  // namespace lltm::cuda
