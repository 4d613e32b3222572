// Functions of the CUDA driver, from the one that is loaded anyway: linking with it would need it
// where nothing is launched.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace lltm::cuda {

/// A function of the driver, looked up until it is found.
template <typename Function>
class DriverFunction {
 public:
  constexpr explicit DriverFunction(const char* name) : name_(name) {}

  /// Null where the driver does not have it.
  Function get() {
    Function function = function_.load(std::memory_order_relaxed);
    if (function == nullptr) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result;
      if (cudaGetDriverEntryPointByVersion(name_, &found, 12000, cudaEnableDefault, &result) ==
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
  std::atomic<Function> function_{nullptr};
};

/// The number of the context that is current for the driver. A thread that has none gets the
/// current device's: its first call of the runtime that needs one may be still to come, where the
/// device is the default one and PyTorch's allocator has memory at hand. A context of the caller's
/// own, a green one for instance, stays. (Setting the device that is set is allowed while a graph
/// is captured.)
inline cudaError_t current_context(uint64_t* number) {
  static DriverFunction<decltype(&cuCtxGetCurrent)> current("cuCtxGetCurrent");
  static DriverFunction<decltype(&cuCtxGetId)> id_of("cuCtxGetId");
  const auto get_current = current.get();
  const auto get_number = id_of.get();
  if (get_current == nullptr || get_number == nullptr) {
    return cudaErrorInsufficientDriver;
  }
  CUcontext context = nullptr;
  // The driver's errors have the numbers of the runtime's.
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
