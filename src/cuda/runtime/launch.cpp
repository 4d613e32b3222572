#include "launch.cuh"

#include <algorithm>

namespace lltm::cuda {

cudaError_t find_kernel(const KernelSymbol& of, int bytes_alone, int most_bytes, Kernel* kernel) {
  uint64_t context = 0;
  if (const cudaError_t error = current_context(&context); error != cudaSuccess) {
    return error;
  }
  return of.known.get(context, kernel, [&](Kernel* found) {
    cudaFuncAttributes attributes{};
    cudaError_t error = cudaFuncGetAttributes(&attributes, of.symbol);
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
      found->most_bytes = std::min(found->clusters ? most_bytes : bytes_alone, most);
      error = cudaFuncSetAttribute(
          of.symbol, cudaFuncAttributeMaxDynamicSharedMemorySize, found->most_bytes);
    }
    if (error == cudaSuccess && found->clusters) {
      error = cudaFuncSetAttribute(of.symbol, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error == cudaSuccess) {
      error = cudaGetFuncBySymbol(&found->function, of.symbol);
    }
    return error;
  });
}

namespace {

cudaError_t launch_driver(const CUlaunchConfig& config, const Kernel& kernel, const void* params) {
  static DriverFunction<decltype(&cuLaunchKernelEx)> launch_kernel("cuLaunchKernelEx");
  const auto launch = launch_kernel.get();
  if (launch == nullptr) {
    return cudaErrorInsufficientDriver;
  }
  void* all_params[] = {const_cast<void*>(params)};
  // The driver's errors have the same values as the runtime's.
  return static_cast<cudaError_t>(launch(&config, kernel.function, all_params, /*extra=*/nullptr));
}

CUlaunchConfig config_of(dim3 grid, int threads, int bytes, cudaStream_t stream) {
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = static_cast<unsigned>(threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(bytes);
  config.hStream = stream;
  return config;
}

}  // namespace

cudaError_t launch_in_clusters(const KernelSymbol& of,
                               const BlockSize& block,
                               const void* params,
                               dim3 grid,
                               dim3 cluster,
                               cudaStream_t stream,
                               int least_bytes) {
  Kernel kernel{};
  if (const cudaError_t error = find_kernel(of, block.bytes_alone, block.most_bytes, &kernel);
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
  CUlaunchConfig config = config_of(grid,
                                    block.threads,
                                    std::max(alone ? block.bytes_alone : block.bytes_in_cluster,
                                             std::min(least_bytes, kernel.most_bytes)),
                                    stream);
  config.attrs = attributes;
  config.numAttrs = !kernel.clusters ? 0 : alone ? 1 : 2;
  return launch_driver(config, kernel, params);
}

cudaError_t launch_cooperative(const KernelSymbol& of,
                               const BlockSize& block,
                               const void* params,
                               dim3 grid,
                               cudaStream_t stream) {
  Kernel kernel{};
  if (const cudaError_t error = find_kernel(of, block.most_bytes, block.most_bytes, &kernel);
      error != cudaSuccess) {
    return error;
  }
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  CUlaunchConfig config = config_of(grid, block.threads, block.bytes_alone, stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return launch_driver(config, kernel, params);
}

}  // namespace lltm::cuda
