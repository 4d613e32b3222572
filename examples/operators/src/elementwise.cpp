// The host function of the elementwise operators. The order of its steps is worth keeping in every
// host function: each step is there because something breaks without it.
#include "elementwise_host.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

namespace example_ops {
namespace {

// Fewer elements than this are not worth a second thread.
constexpr int64_t kGrain = 32768;

void run_on_cpu(const ElementwiseParams& params) {
  visit_types(params, [&](const auto& function, auto element) {
    using Element = Pack<decltype(element), 1>;
    // at::parallel_for uses PyTorch's own threads, so torch.set_num_threads holds here too.
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
  // 1. The device guard. A kernel runs on the current device, whatever device its tensors are on;
  //    without this, a tensor on cuda:1 is an illegal memory access, or silently slow.
  const c10::DeviceGuard guard(a.device());

  // 2. Allocation. Every element is written below, so empty, not zeros.
  at::Tensor out = at::empty(a.sizes(), a.options());

  // 3. Nothing to do. A grid of no blocks is a launch error.
  if (out.numel() == 0) {
    return out;
  }

  // 4. Contiguous copies, which cost nothing where the tensor is contiguous already. The loop walks
  //    memory in order; an expanded or transposed tensor is not in order. The trailing underscore
  //    says: use this one. The copy lives to the end of this function, and on a GPU that is enough:
  //    the allocator hands its memory to later work of the same stream only.
  const at::Tensor a_ = a.contiguous();
  const at::Tensor b_ = b.defined() ? b.contiguous() : b;

  // 5. Dispatch on type and launch.
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
