// The host function of the elementwise operators. Its steps, in this order, suit any host function;
// something breaks if one is missing.
#include "elementwise_host.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

namespace example_ops {
namespace {

// Fewer elements than this do not justify a second thread.
constexpr int64_t kGrain = 32768;

void run_on_cpu(const ElementwiseParams& params) {
  visit_types(params, [&](const auto& function, auto element) {
    using Element = Pack<decltype(element), 1>;
    // at::parallel_for uses PyTorch's threads, so torch.set_num_threads applies.
    at::parallel_for(0, params.count, kGrain, [&](int64_t begin, int64_t end) {
      elementwise_loop(function,
                       begin,
                       end,
                       /*step=*/1,
                       static_cast<Element*>(params.out),
                       static_cast<const Element*>(params.a),
                       static_cast<const Element*>(params.b));
    });
  });
}

}  // namespace

at::Tensor elementwise(const ScalarFunction& function, const at::Tensor& a, const at::Tensor& b) {
  // 1. Set the device. A kernel runs on the current device, whatever device its tensors are on.
  //    Without the guard, a tensor on cuda:1 causes an illegal memory access or is silently slow.
  const c10::DeviceGuard guard(a.device());

  // 2. Allocation. Every element is written below, so empty, not zeros.
  at::Tensor out = at::empty(a.sizes(), a.options());

  // 3. Return early if there is nothing to do: a launch without blocks is an error.
  if (out.numel() == 0) {
    return out;
  }

  // 4. Make the inputs contiguous, which is free if they are already. The loop reads memory in
  //    order, which expanded and transposed tensors are not. From here on, use the names with the
  //    trailing underscore. The copies live until the end of this function. On a GPU that suffices,
  //    because the allocator reuses their memory only for later work on the same stream.
  const at::Tensor a_ = a.contiguous();
  const at::Tensor b_ = b.defined() ? b.contiguous() : b;

  // 5. Dispatch on the dtype and launch.
  const ElementwiseParams params{function,
                                 a_.scalar_type(),
                                 a_.numel(),
                                 out.mutable_data_ptr(),
                                 a_.const_data_ptr(),
                                 b_.defined() ? b_.const_data_ptr() : nullptr};
  if (out.is_cuda()) {
    launch_on_cuda(params);
  } else {
    run_on_cpu(params);
  }
  return out;
}

at::Tensor elementwise_meta(const at::Tensor& a) {
  return at::empty_symint(a.sym_sizes(), a.options());
}

}  // namespace example_ops
