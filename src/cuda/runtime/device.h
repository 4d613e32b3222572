// The device of a call.
#pragma once

#include "device_facts.h"
#include "launch_check.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

namespace lltm::cuda {

/// Makes a tensor's device current while this object lives, and provides what the cost model knows
/// about it, its stream and memory on it. at::empty and c10's guard and streams each look up the
/// current device again; together they take as long as the kernel of a small cell.
class Device {
 public:
  explicit Device(const at::Tensor& tensor)
      : index_(tensor.get_device()), previous_(c10::cuda::ExchangeDevice(index_)) {}
  ~Device() {
    if (previous_ != index_) {
      C10_CUDA_CHECK_WARN(c10::cuda::MaybeSetDevice(previous_));
    }
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceFacts& facts() const {
    if (!facts_) {
      DeviceFacts facts;
      check_launch(device_facts(*at::cuda::getDeviceProperties(index_), &facts));
      facts_ = facts;
    }
    return *facts_;
  }
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(index_); }
  at::Tensor empty(at::IntArrayRef shape, c10::ScalarType dtype) const {
    return at::detail::empty_generic(shape,
                                     at::cuda::getCUDADeviceAllocator(),
                                     c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                     dtype,
                                     /*memory_format_opt=*/std::nullopt);
  }

 private:
  c10::DeviceIndex index_;
  c10::DeviceIndex previous_;
  mutable std::optional<DeviceFacts> facts_;  // as soon as they are asked for
};

}  // namespace lltm::cuda
