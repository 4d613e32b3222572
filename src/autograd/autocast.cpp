// The forward operators under autocast. All floating-point arguments except float64 ones are cast
// to the autocast dtype, including old_cell of the cell, so the results have that dtype. c0 of a
// sequence is not cast: with 16-bit tensors, a stream of calls carries its cell state in float32.
// The backward operators need no kernel here, because autograd calls them with the cast tensors.
#include "autocast.h"

#include "../dispatch/dispatcher_kernel.h"
#include "../operators/checks.h"
#include "lltm/lltm.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor> forward_autocast(const ForwardArguments& arguments) {
  check_defined(arguments);
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = autocast_on(device);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  return lltm::forward(cast(input), cast(weights), cast(bias), cast(old_h), cast(old_cell));
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_autocast(
    const SequenceArguments& arguments, bool reverse, bool keep) {
  check_defined(arguments);
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = autocast_on(device);
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  return lltm::sequence(
      cast(input), cast(weights), cast(bias), cast(h0), c0, lengths, reset, reverse, keep);
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lstm_autocast(const LstmArguments& arguments,
                                                                 bool reverse,
                                                                 bool keep) {
  check_defined(arguments);
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = autocast_on(device);
  const auto& [input, weight_ih, weight_hh, bias, h0, c0, lengths, reset] = arguments;
  return lltm::lstm(cast(input),
                    cast(weight_ih),
                    cast(weight_hh),
                    cast(bias),
                    cast(h0),
                    c0,
                    lengths,
                    reset,
                    reverse,
                    keep);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, AutocastCPU, m) {
  m.impl("forward", dispatcher_kernel<forward_autocast<c10::DeviceType::CPU>, lltm::forward>());
  m.impl("sequence", dispatcher_kernel<sequence_autocast<c10::DeviceType::CPU>, lltm::sequence>());
  m.impl("lstm", dispatcher_kernel<lstm_autocast<c10::DeviceType::CPU>, lltm::lstm>());
}

TORCH_LIBRARY_IMPL(lltm, AutocastCUDA, m) {
  m.impl("forward", dispatcher_kernel<forward_autocast<c10::DeviceType::CUDA>, lltm::forward>());
  m.impl("sequence", dispatcher_kernel<sequence_autocast<c10::DeviceType::CUDA>, lltm::sequence>());
  m.impl("lstm", dispatcher_kernel<lstm_autocast<c10::DeviceType::CUDA>, lltm::lstm>());
}

}  // namespace lltm
