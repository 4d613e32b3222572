#include "device_facts.h"
#include "launch.cuh"

#include <cstdint>

namespace lltm::cuda {
namespace {

// Serves to query how many blocks are resident at once, and what code runs on this GPU: of code for
// 90a, the only one with wgmma, a block has more threads.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__global__ void __launch_bounds__(kThreadsWithWgmma) filling_kernel() {}
#else
__global__ void __launch_bounds__(kThreadsWithWgmma / 2) filling_kernel() {}
#endif

// The number of blocks with `bytes` of shared memory that are resident at once, by cluster size
// from two.
cudaError_t ask_resident(int bytes, std::array<int, kLargestClusterOfAny>* resident) {
  for (int size = 2; size <= kLargestClusterOfAny; ++size) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(size);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(size));
    config.blockDim = dim3(kThreadsWithWgmma / 2);
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, &filling_kernel, &config);
    if (error == cudaErrorInvalidClusterSize) {
      cudaGetLastError();  // a slice of a GPU may be smaller than such a cluster
      clusters = 0;
    } else if (error != cudaSuccess) {
      return error;
    }
    (*resident)[static_cast<size_t>(size - 1)] = clusters * size;
  }
  return cudaSuccess;
}

// The clock and the bandwidth of the memory, if the driver tells them.
cudaError_t ask_speed(DeviceFacts* facts) {
  constexpr cudaDeviceAttr kAttributes[] = {
      cudaDevAttrClockRate, cudaDevAttrMemoryClockRate, cudaDevAttrGlobalMemoryBusWidth};
  int device = 0, values[3]{};  // kHz, and bits
  cudaError_t error = cudaGetDevice(&device);
  for (int i = 0; i < 3 && error == cudaSuccess; ++i) {
    error = cudaDeviceGetAttribute(&values[i], kAttributes[i], device);
  }
  const auto [clock, memory_clock, bits] = values;
  const int64_t bandwidth = 2 * int64_t{memory_clock} * bits / 8 / 1'000'000;
  facts->clock = clock >= 1000 ? clock / 1000 : facts->clock;
  facts->bandwidth = bandwidth > 0 ? static_cast<int>(bandwidth) : facts->bandwidth;
  return error;
}

// The multiprocessors that the current context has, if the driver tells them. A green context has
// some of the device's.
cudaError_t ask_multiprocessors(DeviceFacts* facts) {
  static DriverFunction<decltype(&cuCtxGetCurrent)> current("cuCtxGetCurrent");
  static DriverFunction<decltype(&cuCtxGetDevResource)> resource_of("cuCtxGetDevResource", 12040);
  const auto get_current = current.get();
  const auto get_resource = resource_of.get();
  if (get_current == nullptr || get_resource == nullptr) {
    return cudaSuccess;
  }
  CUcontext context = nullptr;
  CUdevResource resource{};
  CUresult result = get_current(&context);
  if (result == CUDA_SUCCESS) {
    result = get_resource(context, &resource, CU_DEV_RESOURCE_TYPE_SM);
  }
  if (result == CUDA_SUCCESS) {
    facts->multiprocessors = static_cast<int>(resource.sm.smCount);
  }
  // The driver's errors have the same values as the runtime's.
  return result == CUDA_ERROR_NOT_SUPPORTED ? cudaSuccess : static_cast<cudaError_t>(result);
}

cudaError_t ask(const cudaDeviceProp& properties, DeviceFacts* facts) {
  *facts = {};
  facts->multiprocessors = properties.multiProcessorCount;
  if (const cudaError_t error = ask_multiprocessors(facts); error != cudaSuccess) {
    return error;
  }
  facts->shared_bytes_a_block = static_cast<int>(properties.sharedMemPerBlockOptin);
  facts->tiles = properties.major >= 8;
  facts->resident[0] = facts->multiprocessors;
  facts->resident_by_two[0] = 2 * facts->multiprocessors;
  Kernel kernel{};
  const int bytes = facts->shared_bytes_a_block;
  cudaError_t error = ask_speed(facts);
  if (error == cudaSuccess) {
    error = find_kernel(symbol_of<&filling_kernel>(), bytes, bytes, &kernel);
  }
  cudaFuncAttributes attributes{};
  if (error == cudaSuccess) {
    error = cudaFuncGetAttributes(&attributes, &filling_kernel);
  }
  if (error != cudaSuccess || !kernel.clusters) {
    return error;
  }
  facts->wgmma = attributes.maxThreadsPerBlock == kThreadsWithWgmma;
  const auto half = static_cast<int>(properties.sharedMemPerMultiprocessor / 2 -
                                     properties.reservedSharedMemPerBlock);
  if (const cudaError_t failed = ask_resident(half, &facts->resident_by_two);
      failed != cudaSuccess) {
    return failed;
  }
  return ask_resident(bytes, &facts->resident);
}

}  // namespace

cudaError_t device_facts(const cudaDeviceProp& properties, DeviceFacts* facts) {
  static PerContext<DeviceFacts> known;
  uint64_t context = 0;
  if (const cudaError_t error = current_context(&context); error != cudaSuccess) {
    return error;
  }
  return known.get(context, facts, [&](DeviceFacts* found) { return ask(properties, found); });
}

}  // namespace lltm::cuda
