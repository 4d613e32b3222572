// d_gates, d_old_cell and d_bias. A block takes a few columns of the state and walks down the
// batch, so that the sums over the batch that make d_bias need no other block, and always add up
// alike. Products in TF32 want the inputs transposed, which further blocks do.
#include "../../cell.h"
#include "../epilogue/math.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "../tile/elements.cuh"
#include "backward_kernels.h"
#include "forward_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace lltm::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlockColumns = 8;  // of the state
constexpr int64_t kMaxRowBlocks = 64;
constexpr int64_t kMaxTransposingRows = 1024;  // of blocks

// [old_h | input] by columns, in boxes.
constexpr int kTransposedColumns = 32, kTransposedRows = 128;

__host__ __device__ int64_t transposed_boxes(const TransposedInputs& p) {
  return (p.columns() + kTransposedColumns - 1) / kTransposedColumns *
         ((p.batch + kTransposedRows - 1) / kTransposedRows);
}

/// Where column c is: in each group of 16 they are dealt so that wgmma leaves a thread the sums of
/// four columns that follow each other.
__device__ __forceinline__ int64_t row_of_transposed_column(int64_t c) {
  return c / 16 * 16 + c / 2 % 2 * 8 + c % 16 / 4 * 2 + c % 2;
}

/// What one of `blocks` blocks does of it: every so manyth box of 128 rows and 32 columns.
__device__ __forceinline__ void transpose_inputs(const TransposedInputs& p,
                                                 int64_t block,
                                                 int64_t blocks) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float box[kTransposedRows][kTransposedColumns + 1];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row_boxes = (p.batch + kTransposedRows - 1) / kTransposedRows;
  for (; block < transposed_boxes(p); block += blocks) {
    const int64_t first_row = block % row_boxes * kTransposedRows;
    const int64_t first_column = block / row_boxes * kTransposedColumns;
    const int64_t column = first_column + lane;
    const bool of_h = column < p.state_size, inside = column < p.state_size + p.input_features;
    const float* const from =
        of_h ? static_cast<const float*>(p.old_h.data) + column
             : static_cast<const float*>(p.input.data) + (column - p.state_size);
    const int64_t stride = of_h ? p.old_h.stride : p.input.stride;
    const int rows = at_most(p.batch - first_row, kTransposedRows);
#pragma unroll
    for (int row = warp; row < kTransposedRows; row += kWarps) {
      box[row][lane] = inside && row < rows ? from[(first_row + row) * stride] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int c = warp; c < kTransposedColumns; c += kWarps) {
      if (first_column + c < p.columns()) {
        float* const to =
            p.transposed +
            (p.in_order ? first_column + c : row_of_transposed_column(first_column + c)) *
                p.row_stride() +
            first_row;
#pragma unroll
        for (int row = lane; row < kTransposedRows; row += 32) {
          if (row < rows) {
            to[row] = __uint_as_float(round_to_tf32(box[row][c]));
          }
        }
      }
    }
    __syncthreads();
  }
}

// A gate's gradient as it is written.
template <typename scalar_t>
__device__ __forceinline__ scalar_t written(accumulate_t<scalar_t> x, bool rounds_to_tf32) {
  if constexpr (std::is_same_v<scalar_t, float>) {
    return rounds_to_tf32 ? __uint_as_float(round_to_tf32(x)) : x;
  } else {
    return static_cast<scalar_t>(x);
  }
}

template <typename scalar_t>
struct GateGradientsArguments {
  GateGradientsParams<scalar_t> cell;
  int64_t rows_a_block;
  unsigned row_blocks;  // the blocks behind them transpose
};

/// kRowsAtOnce: how many rows a thread has at a time; as many are on their way.
template <typename scalar_t, int kColumns, int kRowsAtOnce>
__global__ void __launch_bounds__(kThreads, 2)
    gate_gradients_kernel(const __grid_constant__ GateGradientsArguments<scalar_t> arguments) {
  using acc_t = accumulate_t<scalar_t>;
  using Math =
      std::conditional_t<sizeof(scalar_t) == 8,
                         cell::StandardMath,
                         std::conditional_t<sizeof(scalar_t) == 4, DeviceMath, RoundedMath>>;
  constexpr int kLanes = kThreads / kColumns, kStep = kRowsAtOnce * kLanes;
  const GateGradientsParams<scalar_t>& p = arguments.cell;
  const int column_in_block = static_cast<int>(threadIdx.x) % kColumns;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = int64_t(blockIdx.x) * kColumns + column_in_block;
  const int64_t first = int64_t(blockIdx.y) * arguments.rows_a_block;
  const int64_t end =
      p.batch < first + arguments.rows_a_block ? p.batch : first + arguments.rows_a_block;
  wait_for_previous_kernel();
  if constexpr (std::is_same_v<scalar_t, float>) {
    if (blockIdx.y >= arguments.row_blocks) {
      transpose_inputs(p.inputs,
                       (blockIdx.y - arguments.row_blocks) * int64_t(gridDim.x) + blockIdx.x,
                       (gridDim.y - arguments.row_blocks) * int64_t(gridDim.x));
      return;
    }
  }
  // A few blocks leave room for all of the next kernel's; behind many, its first blocks would crowd
  // on the multiprocessors that have none of these: (64,512,512) in float32 takes 25 us then,
  // not 19.
  if (p.starts_next || gridDim.x * gridDim.y <= 16) {
    start_next_kernel();
  }
  acc_t sums[3] = {};
  if (column < p.state_size && first + lane < end) {
    const int64_t h = p.state_size, row0 = first + lane;
    // An absent gradient is read too, somewhere, and left out: a branch would wait for what is
    // loaded in it.
    const bool has_h = p.grad_h != nullptr, has_cell = p.grad_cell != nullptr;
    const int64_t grad_h_stride = has_h ? p.grad_h_strides[0] : h;
    const int64_t grad_cell_stride = has_cell ? p.grad_cell_strides[0] : h;
    const scalar_t* gates = p.gates + row0 * 3 * h + column;
    const scalar_t* new_cell = p.new_cell + row0 * h + column;
    const scalar_t* grad_h =
        has_h ? p.grad_h + row0 * grad_h_stride + column * p.grad_h_strides[1] : new_cell;
    const scalar_t* grad_cell =
        has_cell ? p.grad_cell + row0 * grad_cell_stride + column * p.grad_cell_strides[1]
                 : new_cell;
    scalar_t* d_gates = p.d_gates + row0 * p.d_gates_stride + column;
    scalar_t* d_old_cell = p.d_old_cell + row0 * h + column;
    struct Rows {
      scalar_t z[kRowsAtOnce][3], new_cell[kRowsAtOnce], grad_h[kRowsAtOnce],
          grad_cell[kRowsAtOnce];
    };
    // From the pointers on, of which `left` rows are left; instead of others the first.
    const auto load = [&](Rows& rows, int64_t left) {
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int64_t row = i * kLanes < left ? i * kLanes : 0;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          rows.z[i][gate] = gates[row * 3 * h + gate * h];
        }
        rows.new_cell[i] = new_cell[row * h];
        rows.grad_h[i] = grad_h[row * grad_h_stride];
        rows.grad_cell[i] = grad_cell[row * grad_cell_stride];
      }
    };
    Rows next;
    load(next, end - row0);
#pragma unroll 1
    for (int64_t left = end - row0; left > 0; left -= kStep) {
      const Rows rows = next;
      if (left > kStep) {
        gates += kStep * 3 * h;
        new_cell += kStep * h;
        grad_h += kStep * grad_h_stride;
        grad_cell += kStep * grad_cell_stride;
        load(next, left - kStep);
      }
      cell::Gradients<acc_t> gradients[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        gradients[i] =
            cell::backward<Math>(cell::Gates<acc_t>{static_cast<acc_t>(rows.z[i][0]),
                                                    static_cast<acc_t>(rows.z[i][1]),
                                                    static_cast<acc_t>(rows.z[i][2])},
                                 static_cast<acc_t>(rows.new_cell[i]),
                                 has_h ? static_cast<acc_t>(rows.grad_h[i]) : acc_t(0),
                                 has_cell ? static_cast<acc_t>(rows.grad_cell[i]) : acc_t(0));
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const acc_t of_gates[3] = {gradients[i].gates.input_gate,
                                   gradients[i].gates.output_gate,
                                   gradients[i].gates.candidate};
        const bool inside = i * kLanes < left;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          if (inside && p.d_gates != nullptr) {
            d_gates[i * kLanes * p.d_gates_stride + gate * h] =
                written<scalar_t>(of_gates[gate], p.rounds_to_tf32);
          }
          sums[gate] += inside ? of_gates[gate] : acc_t(0);
        }
        if (inside && p.d_old_cell != nullptr) {
          d_old_cell[i * kLanes * h] = static_cast<scalar_t>(gradients[i].old_cell);
        }
      }
      d_gates += kStep * p.d_gates_stride;
      d_old_cell += kStep * h;
    }
  }
  if (p.d_bias == nullptr) {
    return;
  }
  // Over the lanes of a warp, then over the warps.
  constexpr int kWarps = kThreads / 32;
  __shared__ acc_t parts[3][kWarps][kColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
    for (int distance = 16; distance >= kColumns; distance /= 2) {
      sums[gate] += __shfl_xor_sync(0xffffffff, sums[gate], distance);
    }
    if (threadIdx.x % 32 < kColumns) {
      parts[gate][warp][column_in_block] = sums[gate];
    }
  }
  __syncthreads();
  if (lane < 3 && column < p.state_size) {
    acc_t sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      sum += parts[lane][i][column_in_block];
    }
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

/// As many as let all multiprocessors take part, where that pays for another kernel that adds up
/// the parts of d_bias: the backward of (1024,32,128) in bfloat16 takes 12.8 us with four blocks of
/// rows, 18 with one.
int64_t rows_a_block(int64_t batch, int64_t state_size) {
  if (batch <= 512) {
    return batch;
  }
  const int64_t rows = ceil_div(batch * ceil_div(state_size, kBlockColumns), 128);
  return std::max(std::clamp<int64_t>(rows, 256, 1024), ceil_div(batch, kMaxRowBlocks));
}

}  // namespace

int64_t gate_gradients_workspace(int64_t batch, int64_t state_size) {
  const int64_t row_blocks = ceil_div(batch, rows_a_block(batch, state_size));
  return row_blocks > 1 ? row_blocks * 3 * state_size : 0;
}

template <typename scalar_t>
cudaError_t launch_gate_gradients(const GateGradientsParams<scalar_t>& params,
                                  cudaStream_t stream) {
  const int64_t rows = rows_a_block(params.batch, params.state_size);
  const int64_t row_blocks = ceil_div(params.batch, rows);
  const auto launch = [&]<int kColumns, int kRowsAtOnce>() {
    const int64_t column_blocks = ceil_div(params.state_size, kColumns);
    const int64_t transposing = params.inputs.transposed == nullptr
                                    ? 0
                                    : ceil_div(transposed_boxes(params.inputs), column_blocks);
    const dim3 grid(static_cast<unsigned>(column_blocks),
                    static_cast<unsigned>(row_blocks + std::min(transposing, kMaxTransposingRows)));
    return launch_in_clusters<&gate_gradients_kernel<scalar_t, kColumns, kRowsAtOnce>,
                              kThreads,
                              0,
                              0>(
        GateGradientsArguments<scalar_t>{params, rows, static_cast<unsigned>(row_blocks)},
        grid,
        1,
        stream);
  };
  cudaError_t error = cudaSuccess;
  if constexpr (sizeof(scalar_t) == 2) {
    // Half of what the caches move at a time, which is better where more multiprocessors take part:
    // (64,512,512) takes 2.0 us, 2.4 with twice the columns; but (256,2048,2048) 7.2 and 5.3.
    const bool wide = ceil_div(params.state_size, kBlockColumns) * row_blocks >= 256;
    error = wide ? launch.template operator()<2 * kBlockColumns, 2>()
                 : launch.template operator()<kBlockColumns, 1>();
  } else {
    error = launch.template operator()<kBlockColumns, 1>();
  }
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

template cudaError_t launch_gate_gradients(const GateGradientsParams<double>&, cudaStream_t);
template cudaError_t launch_gate_gradients(const GateGradientsParams<float>&, cudaStream_t);
template cudaError_t launch_gate_gradients(const GateGradientsParams<c10::Half>&, cudaStream_t);
template cudaError_t launch_gate_gradients(const GateGradientsParams<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
