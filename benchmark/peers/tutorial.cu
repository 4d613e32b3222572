// The tutorial's CUDA path, as a peer: products by ATen, and one thread per element for the rest.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <tuple>
#include <type_traits>

namespace {

using at::Tensor;

constexpr int kThreads = 1024;  // the tutorial's block size

template <typename scalar_t>
using accumulate_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

template <typename real>
__device__ real sigmoid(real z) {
  return real(1) / (real(1) + exp(-z));
}

template <typename scalar_t>
__global__ void forward_kernel(int64_t batch,
                               int64_t state_size,
                               const scalar_t* z,
                               const scalar_t* old_cell,
                               scalar_t* new_h,
                               scalar_t* new_cell,
                               scalar_t* input_gate,
                               scalar_t* output_gate,
                               scalar_t* candidate) {
  using real = accumulate_t<scalar_t>;
  const int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= batch * state_size) {
    return;
  }
  const int64_t row = index / state_size;
  const scalar_t* gates = z + row * 3 * state_size + index % state_size;
  const real i = sigmoid(real(gates[0]));
  const real o = sigmoid(real(gates[state_size]));
  const real z_g = gates[2 * state_size];
  const real g = z_g > 0 ? z_g : expm1(z_g);
  const real cell = real(old_cell[index]) + g * i;
  input_gate[index] = i;
  output_gate[index] = o;
  candidate[index] = g;
  new_cell[index] = cell;
  new_h[index] = tanh(cell) * o;
}

template <typename scalar_t>
__global__ void backward_kernel(int64_t batch,
                                int64_t state_size,
                                const scalar_t* grad_h,
                                const scalar_t* grad_cell,
                                const scalar_t* new_cell,
                                const scalar_t* input_gate,
                                const scalar_t* output_gate,
                                const scalar_t* candidate,
                                const scalar_t* z,
                                scalar_t* d_z,
                                scalar_t* d_old_cell) {
  using real = accumulate_t<scalar_t>;
  const int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= batch * state_size) {
    return;
  }
  const int64_t gate_index = index / state_size * 3 * state_size + index % state_size;
  const real t = tanh(real(new_cell[index]));
  const real i = input_gate[index];
  const real o = output_gate[index];
  const real g = candidate[index];
  const real d_h = grad_h[index];
  const real d_cell = real(grad_cell[index]) + d_h * o * (1 - t * t);
  const real z_g = z[gate_index + 2 * state_size];
  d_old_cell[index] = d_cell;
  d_z[gate_index] = d_cell * g * i * (1 - i);
  d_z[gate_index + state_size] = d_h * t * o * (1 - o);
  d_z[gate_index + 2 * state_size] = d_cell * i * (z_g > 0 ? real(1) : exp(z_g));
}

unsigned blocks_for(int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward(const Tensor& input,
                                                                           const Tensor& weights,
                                                                           const Tensor& bias,
                                                                           const Tensor& old_h,
                                                                           const Tensor& old_cell) {
  const c10::cuda::CUDAGuard guard(input.device());
  const Tensor x = at::cat({old_h, input}, 1);
  const Tensor z = at::addmm(bias, x, weights.t());
  Tensor new_h = at::empty_like(old_cell);
  Tensor new_cell = at::empty_like(old_cell);
  Tensor input_gate = at::empty_like(old_cell);
  Tensor output_gate = at::empty_like(old_cell);
  Tensor candidate = at::empty_like(old_cell);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "tutorial_forward", [&] {
        forward_kernel<<<blocks_for(new_h.numel()),
                         kThreads,
                         0,
                         at::cuda::getCurrentCUDAStream()>>>(
            old_cell.size(0),
            old_cell.size(1),
            z.const_data_ptr<scalar_t>(),
            old_cell.const_data_ptr<scalar_t>(),
            new_h.mutable_data_ptr<scalar_t>(),
            new_cell.mutable_data_ptr<scalar_t>(),
            input_gate.mutable_data_ptr<scalar_t>(),
            output_gate.mutable_data_ptr<scalar_t>(),
            candidate.mutable_data_ptr<scalar_t>());
      });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {new_h, new_cell, input_gate, output_gate, candidate, x, z};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_h,
                                                            const Tensor& grad_cell,
                                                            const Tensor& new_cell,
                                                            const Tensor& input_gate,
                                                            const Tensor& output_gate,
                                                            const Tensor& candidate,
                                                            const Tensor& x,
                                                            const Tensor& z,
                                                            const Tensor& weights) {
  const c10::cuda::CUDAGuard guard(grad_h.device());
  const int64_t state_size = grad_h.size(1);
  const Tensor d_z = at::empty_like(z);
  const Tensor d_old_cell = at::empty_like(new_cell);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad_h.scalar_type(), "tutorial_backward", [&] {
        backward_kernel<<<blocks_for(grad_h.numel()),
                          kThreads,
                          0,
                          at::cuda::getCurrentCUDAStream()>>>(
            grad_h.size(0),
            state_size,
            grad_h.const_data_ptr<scalar_t>(),
            grad_cell.const_data_ptr<scalar_t>(),
            new_cell.const_data_ptr<scalar_t>(),
            input_gate.const_data_ptr<scalar_t>(),
            output_gate.const_data_ptr<scalar_t>(),
            candidate.const_data_ptr<scalar_t>(),
            z.const_data_ptr<scalar_t>(),
            d_z.mutable_data_ptr<scalar_t>(),
            d_old_cell.mutable_data_ptr<scalar_t>());
      });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const Tensor d_weights = d_z.t().mm(x);
  const Tensor d_bias = d_z.sum(0);
  const Tensor d_x = d_z.mm(weights);
  return {d_x.narrow(1, 0, state_size),
          d_x.narrow(1, state_size, d_x.size(1) - state_size),
          d_weights,
          d_bias,
          d_old_cell};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm_peers, CUDA, m) {
  m.impl("tutorial_forward", TORCH_FN(forward));
  m.impl("tutorial_backward", TORCH_FN(backward));
}
