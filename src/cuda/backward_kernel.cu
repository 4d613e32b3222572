// d_gates, d_old_cell and d_bias. A block takes a few columns of the state and walks down the
// batch, so that the sums over the batch that make d_bias need no other block, and always add up
// alike.
#include "../cell.h"
#include "kernels.h"
#include "launch_cluster.cuh"
#include "overlap.cuh"
#include "tile_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kMaxRowBlocks = 64;
constexpr int64_t kLeastRowsABlock = 1024;

template <typename scalar_t>
struct BackwardArguments {
  BackwardParams<scalar_t> cell;
  int64_t rows_a_block;
};

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(const __grid_constant__ BackwardArguments<scalar_t> arguments) {
  using acc_t = accumulate_t<scalar_t>;
  // 32 bytes of a row, the unit of the caches.
  constexpr int kColumns = 32 / sizeof(scalar_t);
  constexpr int kLanes = kThreads / kColumns;
  const BackwardParams<scalar_t>& p = arguments.cell;
  const int column_in_block = static_cast<int>(threadIdx.x) % kColumns;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = int64_t(blockIdx.x) * kColumns + column_in_block;
  const int64_t first = int64_t(blockIdx.y) * arguments.rows_a_block;
  const int64_t end =
      p.batch < first + arguments.rows_a_block ? p.batch : first + arguments.rows_a_block;
  wait_for_previous_kernel();
  acc_t sums[3] = {};
  if (column < p.state_size) {
#pragma unroll 2
    for (int64_t row = first + lane; row < end; row += kLanes) {
      const int64_t index = row * p.state_size + column;
      const int64_t gate_index = row * 3 * p.state_size + column;
      const scalar_t* gates = p.gates + gate_index;
      const cell::Gates<acc_t> z{static_cast<acc_t>(gates[0]),
                                 static_cast<acc_t>(gates[p.state_size]),
                                 static_cast<acc_t>(gates[2 * p.state_size])};
      acc_t grad_h = 0, grad_cell = 0;
      if (p.grad_h != nullptr) {
        grad_h =
            static_cast<acc_t>(p.grad_h[row * p.grad_h_strides[0] + column * p.grad_h_strides[1]]);
      }
      if (p.grad_cell != nullptr) {
        grad_cell = static_cast<acc_t>(
            p.grad_cell[row * p.grad_cell_strides[0] + column * p.grad_cell_strides[1]]);
      }
      const auto gradients = cell::backward<cell::StandardMath>(
          z, static_cast<acc_t>(p.new_cell[index]), grad_h, grad_cell);
      if (p.d_gates != nullptr) {
        scalar_t* d_gates = p.d_gates + gate_index;
        d_gates[0] = static_cast<scalar_t>(gradients.gates.input_gate);
        d_gates[p.state_size] = static_cast<scalar_t>(gradients.gates.output_gate);
        d_gates[2 * p.state_size] = static_cast<scalar_t>(gradients.gates.candidate);
      }
      if (p.d_old_cell != nullptr) {
        p.d_old_cell[index] = static_cast<scalar_t>(gradients.old_cell);
      }
      sums[0] += gradients.gates.input_gate;
      sums[1] += gradients.gates.output_gate;
      sums[2] += gradients.gates.candidate;
    }
  }
  // A few blocks leave room for all of the next kernel's; behind many, its first blocks would crowd
  // on the multiprocessors that have none of these: (64,512,512) in float32 takes 25 us then,
  // not 19.
  if (gridDim.x * gridDim.y <= 16) {
    start_next_kernel();
  }
  if (p.d_bias == nullptr) {
    return;
  }
  __shared__ acc_t parts[3][kLanes][kColumns];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    parts[gate][lane][column_in_block] = sums[gate];
  }
  __syncthreads();
#pragma unroll 1
  for (int half = kLanes / 2; half > 0; half /= 2) {
    if (lane < half) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        parts[gate][lane][column_in_block] += parts[gate][lane + half][column_in_block];
      }
    }
    __syncthreads();
  }
  if (lane < 3 && column < p.state_size) {
    const acc_t sum = parts[lane][0][column_in_block];
    const int64_t index = lane * p.state_size + column;
    if (p.workspace != nullptr) {
      static_cast<acc_t*>(p.workspace)[blockIdx.y * 3 * p.state_size + index] = sum;
    } else {
      p.d_bias[index] = static_cast<scalar_t>(sum);
    }
  }
}

/// d_bias = the sum of the row blocks' parts, in their order.
template <typename scalar_t>
struct BiasSumArguments {
  const accumulate_t<scalar_t>* parts;
  int64_t count;
  int64_t size;
  scalar_t* d_bias;
};

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads, 2)
    bias_sum_kernel(const __grid_constant__ BiasSumArguments<scalar_t> arguments) {
  wait_for_previous_kernel();
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= arguments.size) {
    return;
  }
  accumulate_t<scalar_t> sum = 0;
  for (int64_t part = 0; part < arguments.count; ++part) {
    sum += arguments.parts[part * arguments.size + index];
  }
  arguments.d_bias[index] = static_cast<scalar_t>(sum);
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t rows_a_block(int64_t batch) {
  const int64_t rows = ceil_div(batch, kMaxRowBlocks);
  return rows < kLeastRowsABlock ? kLeastRowsABlock : rows;
}

}  // namespace

bool clusters_available() {
  return compiled_for_clusters<&backward_kernel<float>>();
}

int64_t backward_workspace(int64_t batch, int64_t state_size) {
  const int64_t row_blocks = ceil_div(batch, rows_a_block(batch));
  return row_blocks > 1 ? row_blocks * 3 * state_size : 0;
}

template <typename scalar_t>
cudaError_t launch_backward(const BackwardParams<scalar_t>& params, cudaStream_t stream) {
  constexpr int64_t kColumns = 32 / sizeof(scalar_t);
  const int64_t rows = rows_a_block(params.batch);
  const int64_t row_blocks = ceil_div(params.batch, rows);
  const dim3 grid(static_cast<unsigned>(ceil_div(params.state_size, kColumns)),
                  static_cast<unsigned>(row_blocks));
  const cudaError_t error = launch_in_clusters<&backward_kernel<scalar_t>, kThreads, 0, 0>(
      BackwardArguments<scalar_t>{params, rows}, grid, 1, stream);
  if (error != cudaSuccess || params.d_bias == nullptr || params.workspace == nullptr) {
    return error;
  }
  const BiasSumArguments<scalar_t> sum{static_cast<const accumulate_t<scalar_t>*>(params.workspace),
                                       row_blocks,
                                       3 * params.state_size,
                                       params.d_bias};
  return launch_in_clusters<&bias_sum_kernel<scalar_t>, kThreads, 0, 0>(
      sum, dim3(static_cast<unsigned>(ceil_div(sum.size, kThreads))), 1, stream);
}

template cudaError_t launch_backward(const BackwardParams<double>&, cudaStream_t);
template cudaError_t launch_backward(const BackwardParams<float>&, cudaStream_t);
template cudaError_t launch_backward(const BackwardParams<c10::Half>&, cudaStream_t);
template cudaError_t launch_backward(const BackwardParams<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
