// The forward operators under autocast. All floating-point arguments except float64 ones are cast
// to the autocast dtype, including old_cell of the cell, so the results have that dtype. c0 of a
// sequence, and h0 of a GRU, are not cast: with 16-bit tensors, a stream of calls carries its state
// in float32.
// The backward operators need no kernel here, because autograd calls them with the cast tensors.
#include "autocast.h"

#include "../operators/checks.h"
#include "../operators/operators.h"

#include <torch/library.h>

namespace lltm {
namespace {

template <typename Op, c10::DeviceType device, typename... Rest>
typename Op::Results autocast(const typename Op::Arguments& arguments, Rest... rest) {
  check_defined(arguments);
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto list = cast_arguments<Op>(arguments, device);
  return Op::call(pack_arguments<typename Op::Arguments>(list), rest...);
}

template <c10::DeviceType device>
void register_kernels(torch::Library& m) {
  op::Forward::implement<autocast<op::Forward, device>>(m);
  for_each_cell([&]<typename Cell>() {
    using Op = typename Cell::Forward;
    Op::template implement<autocast<Op, device>>(m);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, AutocastCPU, m) {
  register_kernels<c10::DeviceType::CPU>(m);
}

TORCH_LIBRARY_IMPL(lltm, AutocastCUDA, m) {
  register_kernels<c10::DeviceType::CUDA>(m);
}

}  // namespace lltm
