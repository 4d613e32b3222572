#include "fake_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

namespace lltm::test {

FakeCuda& fake_cuda() {
  static FakeCuda fake;
  return fake;
}

namespace {

void expect(bool allowed, const std::string& what) {
  if (!allowed) {
    fake_cuda().violations.push_back(what);
  }
}

/// What a kernel is allowed in a context.
struct Allowed {
  int shared_bytes = 48 * 1024;
  bool large_clusters = false;
};
Allowed& allowed(const void* kernel) {
  static std::map<std::pair<unsigned long long, const void*>, Allowed> all;
  return all[{fake_cuda().context, kernel}];
}

/// The names of kernels as the assembler knows them.
std::map<const void*, std::string>& names() {
  static std::map<const void*, std::string> all;
  return all;
}

/// As in tools/kernels.py: without lltm::cuda and the name of an anonymous namespace.
std::string short_name(std::string_view mangled) {
  constexpr std::string_view kPrefix = "_ZN4lltm4cuda", kAnonymous = "_GLOBAL__N_";
  mangled.remove_prefix(mangled.starts_with(kPrefix) ? kPrefix.size() : 0);
  const size_t digits = mangled.find_first_not_of("0123456789");
  if (mangled.substr(digits).starts_with(kAnonymous)) {
    mangled.remove_prefix(digits + std::stoul(std::string(mangled.substr(0, digits))));
  }
  return std::string(mangled);
}

const KernelCode* code_of(const void* kernel) {
  const auto* const code = fake_cuda().code;
  if (code == nullptr) {
    return nullptr;
  }
  const auto found = code->find(names()[kernel]);
  expect(found != code->end(),
         "tools/kernels.py writes unit/kernels.txt, which lacks " + names()[kernel]);
  return found == code->end() ? nullptr : &found->second;
}

/// A launch fits the device, with registers as they are allocated: in eights, to four warps at a
/// time.
void expect_fits(const KernelCode& code, int threads, int dynamic_bytes) {
  expect(threads <= code.threads, "at most the threads of the launch bounds");
  expect((code.registers + 7) / 8 * 8 * ((threads + 127) / 128 * 128) <= 65536,
         "at most 65,536 registers");
  expect(code.static_bytes + dynamic_bytes <= fake_cuda().shared_bytes_a_block,
         "at most the shared memory of the device");
}

/// Whether this call is the one that fails.
bool fails() {
  FakeCuda& fake = fake_cuda();
  if (fake.calls_before_failure < 0 || fake.calls_before_failure-- > 0) {
    return false;
  }
  return fake.has_failed = true;
}

int bytes_of(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2
                                                                                             : 4;
}

CUresult encode(CUtensorMap* map,
                CUtensorMapDataType type,
                cuuint32_t rank,
                void* address,
                const cuuint64_t* sizes,
                const cuuint64_t* strides,
                const cuuint32_t* box,
                const cuuint32_t* steps,
                CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill) {
  if (fails()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  FakeCuda& fake = fake_cuda();
  const size_t before = fake.violations.size();
  ++fake.maps;
  const auto start = reinterpret_cast<uintptr_t>(address);
  const auto size = static_cast<uint64_t>(bytes_of(type));
  expect(reinterpret_cast<uintptr_t>(map) % 64 == 0, "the map lies at a multiple of 64 bytes");
  expect(rank == 2 || rank == 3, "two or three dimensions");
  // The matrices of the tests are above this address; below it is a null pointer with an offset.
  expect(start >= 1 << 20, "there is a matrix");
  expect(start % 16 == 0, "it starts at a multiple of 16 bytes");
  for (cuuint32_t i = 0; i < rank; ++i) {
    expect(sizes[i] >= 1 && sizes[i] <= uint64_t{1} << 32, "1 to 2^32 elements of a dimension");
    expect(box[i] >= 1 && box[i] <= 256, "1 to 256 elements of a box");
    expect(steps[i] == 1, "every element");
  }
  for (cuuint32_t i = 0; i + 1 < rank; ++i) {
    expect(strides[i] % 16 == 0, "strides are multiples of 16 bytes");
    expect(strides[i] < uint64_t{1} << 40, "strides are below 2^40");
    const uint64_t inner = i == 0 ? sizes[0] * size : strides[i - 1] * sizes[i];
    expect(strides[i] >= inner, "rows do not overlap");
  }
  expect(box[0] * size % 16 == 0, "a box's rows are multiples of 16 bytes");
  expect(swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * size <= 128,
         "a swizzled box's rows have 128 bytes at most");
  expect(interleave == CU_TENSOR_MAP_INTERLEAVE_NONE, "not interleaved");
  std::memset(map, 0, sizeof(*map));
  return fake.violations.size() == before ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult launch(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  if (fails()) {
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  FakeCuda& fake = fake_cuda();
  ++fake.launches;
  fake.shared_bytes = config->sharedMemBytes;
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const auto& dim = config->attrs[i].value.clusterDim;
      cluster = dim.x * dim.y * dim.z;
      expect(dim.x > 0 && config->gridDimX % dim.x == 0 && config->gridDimY % dim.y == 0 &&
                 config->gridDimZ % dim.z == 0,
             "whole clusters");
    }
  }
  expect(function != nullptr && params[0] != nullptr, "a kernel and its parameters");
  const Allowed& kernel = allowed(function);
  expect(cluster >= 1 && cluster <= fake.largest_cluster, "clusters that the device has");
  expect(cluster == 1 || fake.ptx_version >= 90, "clusters only of code for sm_90 or newer");
  expect(cluster <= 8 || kernel.large_clusters, "at most the 8 blocks that a cluster is allowed");
  expect(config->gridDimX >= 1 && config->gridDimX < 1u << 31, "1 to 2^31 - 1 blocks in x");
  expect(config->gridDimY >= 1 && config->gridDimY < 1 << 16, "1 to 2^16 - 1 blocks in y");
  expect(config->gridDimZ >= 1 && config->gridDimZ < 1 << 16, "1 to 2^16 - 1 blocks in z");
  expect(config->blockDimX >= 1 && config->blockDimX <= 1024, "1 to 1024 threads");
  expect(static_cast<int>(config->sharedMemBytes) <= kernel.shared_bytes,
         "at most the shared memory that the kernel is allowed");
  if (const KernelCode* const code = code_of(function)) {
    expect_fits(
        *code, static_cast<int>(config->blockDimX), static_cast<int>(config->sharedMemBytes));
    expect(fake.has_wgmma || names()[function].find("wgmma") == std::string::npos,
           "wgmma only where the code has it, not " + names()[function]);
  }
  return CUDA_SUCCESS;
}

CUresult current_context(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(uintptr_t{1});
  return fails() ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

CUresult context_number(CUcontext, unsigned long long* number) {
  *number = fake_cuda().context;
  return fails() ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

CUresult resource_of(CUcontext, CUdevResource* resource, CUdevResourceType type) {
  resource->sm.smCount = fake_cuda().multiprocessors;
  return type == CU_DEV_RESOURCE_TYPE_SM && !fails() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace
}  // namespace lltm::test

// The functions of the runtime that the objects of kernels call.
extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name,
                                             void** function,
                                             unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  using namespace lltm::test;
  const std::string_view wanted = name;
  // Without what older drivers do not have, the facts are those of the device.
  if (wanted != "cuCtxGetDevResource" && fails()) {
    return cudaErrorInsufficientDriver;
  }
  *function =
      wanted == "cuTensorMapEncodeTiled" ? reinterpret_cast<void*>(&encode)
      : wanted == "cuLaunchKernelEx"     ? reinterpret_cast<void*>(&launch)
      : wanted == "cuCtxGetCurrent"      ? reinterpret_cast<void*>(&current_context)
      : wanted == "cuCtxGetId"           ? reinterpret_cast<void*>(&context_number)
      : wanted == "cuCtxGetDevResource" && version >= 12040 && fake_cuda().multiprocessors > 0
          ? reinterpret_cast<void*>(&resource_of)
          : nullptr;
  *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrClockRate         ? 1'755'000
           : attribute == cudaDevAttrMemoryClockRate ? 1'593'000
           : attribute == cudaDevAttrGlobalMemoryBusWidth
               ? 5120
               : lltm::test::fake_cuda().shared_bytes_a_block;
  return lltm::test::fails() ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  if (lltm::test::fails()) {
    return cudaErrorMemoryAllocation;
  }
  attributes->ptxVersion = lltm::test::fake_cuda().ptx_version;
  attributes->maxThreadsPerBlock = lltm::test::fake_cuda().most_threads;
  if (const lltm::test::KernelCode* const code = lltm::test::code_of(kernel)) {
    attributes->sharedSizeBytes = static_cast<size_t>(code->static_bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  using namespace lltm::test;
  if (fails()) {
    return cudaErrorMemoryAllocation;
  }
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    expect(value >= 0 && value <= fake_cuda().shared_bytes_a_block,
           "no more shared memory is allowed than the device has");
    allowed(kernel).shared_bytes = value;
  } else {
    expect(attribute == cudaFuncAttributeNonPortableClusterSizeAllowed &&
               fake_cuda().ptx_version >= 90,
           "large clusters are allowed to code for sm_90 or newer");
    allowed(kernel).large_clusters = value != 0;
  }
  return cudaSuccess;
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  if (lltm::test::fails()) {
    return cudaErrorMemoryAllocation;
  }
  *function = static_cast<cudaFunction_t>(const_cast<void*>(symbol));
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters,
                                           const void*,
                                           const cudaLaunchConfig_t* config) {
  if (lltm::test::fails()) {
    return cudaErrorMemoryAllocation;
  }
  const int size = static_cast<int>(config->attrs[0].val.clusterDim.x);
  const int a_multiprocessor = config->dynamicSmemBytes > 113 * 1024 ? 1 : 2;
  *clusters = size > 4 ? 0 : a_multiprocessor * (100 / size);
  return size > 4 ? cudaErrorInvalidClusterSize : cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

// The functions that nvcc's code around kernels calls: kernels are registered when the program
// starts, and never run.
void** __cudaRegisterFatBinary(void*) {
  return nullptr;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 0;
}
void __cudaRegisterFunction(
    void**, const char* symbol, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  lltm::test::names()[symbol] = lltm::test::short_name(name);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) {
  return cudaErrorNotSupported;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) {
  return 1;
}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
}
