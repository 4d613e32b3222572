// lltm::forward under autocast: every floating-point argument but a float64 one is cast to the
// autocast dtype, old_cell too, so the results have it. backward needs no kernel here: autograd
// calls it with the tensors that forward saw after the casts.
#include "autocast.h"

#include "../checks.h"
#include "lltm/lltm.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor> forward_autocast(const Tensor& input,
                                                    const Tensor& weights,
                                                    const std::optional<Tensor>& bias,
                                                    const Tensor& old_h,
                                                    const Tensor& old_cell) {
  check_defined(ForwardArguments{input, weights, bias, old_h, old_cell});
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = autocast_on(device);
  return lltm::forward(cast(input), cast(weights), cast(bias), cast(old_h), cast(old_cell));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, AutocastCPU, m) {
  m.impl("forward", TORCH_FN(forward_autocast<c10::DeviceType::CPU>));
}

TORCH_LIBRARY_IMPL(lltm, AutocastCUDA, m) {
  m.impl("forward", TORCH_FN(forward_autocast<c10::DeviceType::CUDA>));
}

}  // namespace lltm
