// The forward operators under autocast. All floating-point arguments except float64 ones are cast
// to the autocast dtype, including old_cell of the cell, so the results have that dtype. c0 of a
// sequence is not cast: with 16-bit tensors, a stream of calls carries its cell state in float32.
// The backward operators need no kernel here, because autograd calls them with the cast tensors.
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

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_autocast(
    const Tensor& input,
    const Tensor& weights,
    const std::optional<Tensor>& bias,
    const std::optional<Tensor>& h0,
    const std::optional<Tensor>& c0,
    const std::optional<Tensor>& lengths,
    const std::optional<Tensor>& reset,
    bool reverse,
    bool keep) {
  check_defined(SequenceArguments{input, weights, bias, h0, c0, lengths, reset});
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = autocast_on(device);
  return lltm::sequence(
      cast(input), cast(weights), cast(bias), cast(h0), c0, lengths, reset, reverse, keep);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, AutocastCPU, m) {
  m.impl("forward", TORCH_FN(forward_autocast<c10::DeviceType::CPU>));
  m.impl("sequence", TORCH_FN(sequence_autocast<c10::DeviceType::CPU>));
}

TORCH_LIBRARY_IMPL(lltm, AutocastCUDA, m) {
  m.impl("forward", TORCH_FN(forward_autocast<c10::DeviceType::CUDA>));
  m.impl("sequence", TORCH_FN(sequence_autocast<c10::DeviceType::CUDA>));
}

}  // namespace lltm
