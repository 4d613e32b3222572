// A correct first CUDA kernel: the lesson of elementwise_mult, whose host side is in
// elementwise_mult.cpp and elementwise.cpp. All elementwise operators share this kernel, because
// the formula is a template argument.
#include "elementwise.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

namespace example_ops {
namespace {

constexpr int kThreads = 256;
// Enough blocks to fill any GPU. Each thread loops over the remaining elements.
constexpr int64_t kMaxBlocks = 1 << 16;
// The widest load of a single thread.
constexpr int kPackBytes = 16;

// Index arithmetic is 64-bit. blockIdx.x * blockDim.x is a product of two 32-bit numbers, which
// overflows beyond 2^31 elements, and the kernel would access memory in front of the tensor. Cast
// before multiplying.
//
// The first loop handles packs of kLanes elements, the second the tail of count % kLanes elements.
// Both use the same loop as the CPU.
template <typename scalar_t, int kLanes, typename Function>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(
    Function function, int64_t count, scalar_t* out, const scalar_t* a, const scalar_t* b) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t packs = count / kLanes;

  using Wide = Pack<scalar_t, kLanes>;
  elementwise_loop(function,
                   thread,
                   packs,
                   threads,
                   reinterpret_cast<Wide*>(out),
                   reinterpret_cast<const Wide*>(a),
                   reinterpret_cast<const Wide*>(b));

  using Single = Pack<scalar_t, 1>;
  elementwise_loop(function,
                   packs * kLanes + thread,
                   count,
                   threads,
                   reinterpret_cast<Single*>(out),
                   reinterpret_cast<const Single*>(a),
                   reinterpret_cast<const Single*>(b));
}

template <int kLanes, typename scalar_t, typename Function>
void launch(const Function& function, const ElementwiseParams& params) {
  const int64_t wanted = (params.count / kLanes + kThreads - 1) / kThreads;
  const int64_t blocks = std::clamp<int64_t>(wanted, 1, kMaxBlocks);
  // The current stream, never the default one: under `with torch.cuda.stream(...)` the tensors of
  // this call are written on that stream, which is not synchronized with the default stream.
  // Results would occasionally be garbage, and a CUDA graph would not capture the launch.
  elementwise_kernel<scalar_t, kLanes>
      <<<blocks, kThreads, /*shared memory=*/0, c10::cuda::getCurrentCUDAStream()>>>(
          function,
          params.count,
          static_cast<scalar_t*>(params.out),
          static_cast<const scalar_t*>(params.a),
          static_cast<const scalar_t*>(params.b));
  // This is the only place where a failed launch is reported. Without the check, out is left
  // uninitialized, and the error appears in a later, unrelated call.
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// A 16-byte load needs an address divisible by 16. PyTorch's allocations are, but x[1:] may not be.
bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0;
}

}  // namespace

void launch_on_cuda(const ElementwiseParams& params) {
  visit_types(params, [&](const auto& function, auto element) {
    using scalar_t = decltype(element);
    if (is_aligned(params.out) && is_aligned(params.a) && is_aligned(params.b)) {
      launch<kPackBytes / sizeof(scalar_t), scalar_t>(function, params);
    } else {
      launch<1, scalar_t>(function, params);
    }
  });
}

}  // namespace example_ops
