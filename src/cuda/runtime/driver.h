// Functions of the CUDA driver, looked up at run time: a library linked against the driver could
// not be loaded on a machine without one.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace lltm::cuda {

/// A function of the driver, looked up on first use, and again until it is found.
template <typename Function>
class DriverFunction {
 public:
  /// The version of CUDA that the function is asked for is that of its type.
  constexpr explicit DriverFunction(const char* name, unsigned version = 12000)
      : name_(name), version_(version) {}

  /// Null if the driver does not have it.
  Function get() {
    Function function = function_.load(std::memory_order_relaxed);
    if (function == nullptr) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result;
      if (cudaGetDriverEntryPointByVersion(name_, &found, version_, cudaEnableDefault, &result) ==
              cudaSuccess &&
          result == cudaDriverEntryPointSuccess) {
        function = reinterpret_cast<Function>(found);
        function_.store(function, std::memory_order_relaxed);
      }
    }
    return function;
  }

 private:
  const char* name_;
  unsigned version_;
  std::atomic<Function> function_{nullptr};
};

/// The ID of the context that is current for the driver. A thread that has no current context gets
/// that of the current device. This happens on the default device, where PyTorch's allocator may
/// have memory at hand before the thread's first runtime call that needs a context. A context that
/// the caller made current, such as a green context, stays current. (Setting the device that is
/// already set is allowed during graph capture.)
inline cudaError_t current_context(uint64_t* number) {
  static DriverFunction<decltype(&cuCtxGetCurrent)> current("cuCtxGetCurrent");
  static DriverFunction<decltype(&cuCtxGetId)> id_of("cuCtxGetId");
  const auto get_current = current.get();
  const auto get_number = id_of.get();
  if (get_current == nullptr || get_number == nullptr) {
    return cudaErrorInsufficientDriver;
  }
  CUcontext context = nullptr;
  // The driver's errors have the same values as the runtime's.
  auto error = static_cast<cudaError_t>(get_current(&context));
  if (error == cudaSuccess && context == nullptr) {
    int device = 0;
    error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      error = cudaSetDevice(device);
    }
    if (error == cudaSuccess) {
      error = static_cast<cudaError_t>(get_current(&context));
    }
  }
  unsigned long long id = 0;
  if (error == cudaSuccess) {
    error = static_cast<cudaError_t>(get_number(context, &id));
  }
  *number = id;
  return error;
}

}  // namespace lltm::cuda
