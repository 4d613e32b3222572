// Computes d_gates, d_old_cell and d_bias. A block has a few columns of the state and walks down a
// part of the batch. The parts of d_bias are added in a fixed order: by the kernel of the products
// if it does that (bias_in_parts), otherwise by a cluster that has all of the batch, or, if the
// batch is long or not all clusters would be resident, by a kernel of their own. For products in
// TF32, more blocks transpose the inputs.
#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../../cell/sides.h"
#include "../../epilogue/dealt_columns.cuh"
#include "../../epilogue/math.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/mma.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../reduction/sum_parts.cuh"
#include "../../runtime/launch.cuh"
#include "../../tile/elements.h"
#include "../../tile/vectors.cuh"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace lltm::cuda {
namespace {

// A warp has eight neighboring vectors in each of four rows: whole sectors of the cache.
constexpr int kThreads = 512, kAcross = 8, kLanes = kThreads / kAcross, kWarps = kThreads / 32;
constexpr int64_t kMaxParts = 64;
constexpr int64_t kMaxTransposingRows = 1024;  // of blocks

// The boxes in which [old_h | input] is transposed.
constexpr int kTransposedColumns = 32, kTransposedRows = 128;

__host__ __device__ int64_t transposed_boxes(const TransposedInputs& p) {
  return (p.columns() + kTransposedColumns - 1) / kTransposedColumns *
         ((p.batch + kTransposedRows - 1) / kTransposedRows);
}

/// The share of block `block` of `blocks`: every `blocks`-th box of 128 rows and 32 columns.
LLTM_DEVICE void transpose_inputs(const TransposedInputs& p, int64_t block, int64_t blocks) {
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
    for (int n = warp; n < kTransposedColumns; n += kWarps) {
      if (first_column + n < p.columns()) {
        const int c = p.in_order ? n : dealt_column(n);
        float* const to = p.transposed + (first_column + n) * p.row_stride() + first_row;
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

template <typename scalar_t>
struct GateGradientsArguments {
  GateGradientsParams<scalar_t> cell;
  int64_t rows_a_block;
  unsigned ranks;       // of a cluster, which share the rows of a part
  unsigned row_blocks;  // the blocks behind these transpose
};

/// The sums for d_bias over the rows of a warp, and over those of a rank.
template <typename acc_t, int kSaved, int kColumns>
struct BiasSums {
  acc_t warps[kSaved][kWarps][kColumns];
  acc_t ranks[kLargestCluster][kSaved * kColumns];
};

/// kVector: the neighbors per thread, as alignment allows. kRows: the rows at a time.
template <typename Cell, typename scalar_t, int kVector, int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    gate_gradients_kernel(const __grid_constant__ GateGradientsArguments<scalar_t> arguments) {
  constexpr int kSaved = Cell::kSaved;
  using acc_t = accumulate_t<scalar_t>;
  using Math = TensorMath<scalar_t>;
  using Several = Vector<scalar_t, kVector>;
  constexpr int kColumns = kVector * kAcross;
  const GateGradientsParams<scalar_t>& p = arguments.cell;
  const int across = static_cast<int>(threadIdx.x) % kAcross;
  const int lane = static_cast<int>(threadIdx.x) / kAcross;
  const int64_t first_column = int64_t(blockIdx.x) * kColumns;
  const int64_t column = first_column + across * kVector;
  const int64_t first = int64_t(blockIdx.y) * arguments.rows_a_block;
  const int64_t end = min(p.batch, first + arguments.rows_a_block);
  if (arguments.ranks > 1) {
    cluster_arrive();
  }
  wait_for_previous_kernel();
  // A few blocks leave room for all blocks of the next kernel. After many, its first blocks would
  // crowd onto the multiprocessors that have none of these: (64,512,512) in float32 then takes 25
  // us instead of 19.
  if (p.starts_next || gridDim.x * gridDim.y <= 16) {
    start_next_kernel();
  }
  if constexpr (std::is_same_v<scalar_t, float>) {
    if (blockIdx.y >= arguments.row_blocks) {
      transpose_inputs(p.inputs,
                       (blockIdx.y - arguments.row_blocks) * int64_t(gridDim.x) + blockIdx.x,
                       (gridDim.y - arguments.row_blocks) * int64_t(gridDim.x));
      return;
    }
  }
  acc_t sums[kSaved][kVector] = {};
  // With vectors, state_size is a multiple of kVector.
  if (column < p.state_size) {
    const int64_t h = p.state_size;
    // In place of what is absent something else is read and ignored: a branch would wait for what
    // is loaded in it.
    const bool has_h = p.grad_h.data != nullptr, has_cell = p.grad_cell.data != nullptr;
    const bool has_old_cell = Cell::kReadsOldCell && p.old_cell.data != nullptr;
    const int64_t grad_h_stride = has_h ? p.grad_h.strides[1] : h;
    const int64_t grad_cell_stride = has_cell ? p.grad_cell.strides[1] : h;
    const int64_t old_cell_stride = has_old_cell ? p.old_cell.strides[1] : h;
    const scalar_t* const gates = p.gates + column;
    const scalar_t* const new_cell = p.new_cell + column;
    const scalar_t* const grad_h = has_h ? &p.grad_h.at(0, 0, column) : new_cell;
    const scalar_t* const grad_cell = has_cell ? &p.grad_cell.at(0, 0, column) : new_cell;
    const scalar_t* const old_cell = has_old_cell ? &p.old_cell.at(0, 0, column) : new_cell;
#pragma unroll 1
    for (int64_t row0 = first + lane; row0 < end; row0 += kRows * kLanes) {
      Several z[kRows][kSaved], new_cells[kRows], grads_h[kRows], grads_cell[kRows];
      Several old_cells[kRows] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        // Past the last row, the first one is read again.
        const int64_t row = row0 + i * kLanes < end ? row0 + i * kLanes : row0;
#pragma unroll
        for (int gate = 0; gate < kSaved; ++gate) {
          z[i][gate] = read_vector<kVector>(gates + (row * kSaved + gate) * h);
        }
        if constexpr (Cell::kReadsOldCell) {
          old_cells[i] = read_vector<kVector>(old_cell + row * old_cell_stride);
        }
        new_cells[i] = read_vector<kVector>(new_cell + row * h);
        grads_h[i] = read_vector<kVector>(grad_h + row * grad_h_stride);
        grads_cell[i] = read_vector<kVector>(grad_cell + row * grad_cell_stride);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t row = row0 + i * kLanes;
        if (row >= end) {
          break;
        }
        Several d_gates[kSaved], d_old_cell;
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          acc_t z_of_element[kSaved];
#pragma unroll
          for (int gate = 0; gate < kSaved; ++gate) {
            z_of_element[gate] = static_cast<acc_t>(z[i][gate].values[v]);
          }
          const auto by = Cell::template derivatives<Math>(
              z_of_element,
              has_old_cell ? static_cast<acc_t>(old_cells[i].values[v]) : acc_t(0),
              static_cast<acc_t>(new_cells[i].values[v]));
          acc_t of_gates[kSaved];
          const acc_t of_old_cell =
              Cell::backward(by,
                             has_h ? static_cast<acc_t>(grads_h[i].values[v]) : acc_t(0),
                             has_cell ? static_cast<acc_t>(grads_cell[i].values[v]) : acc_t(0),
                             of_gates);
#pragma unroll
          for (int gate = 0; gate < kSaved; ++gate) {
            d_gates[gate].values[v] = static_cast<scalar_t>(of_gates[gate]);
            sums[gate][v] += of_gates[gate];
          }
          d_old_cell.values[v] = static_cast<scalar_t>(of_old_cell);
        }
        // `place` is where a side has a gradient, if it takes that.
        const auto write = [&](scalar_t* to, const Several& gradient, int place) {
          if (place >= 0) {
            write_vector(to + row * p.d_gates_stride + place * h + column, gradient);
          }
        };
        if (p.d_gates != nullptr) {
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            write(p.d_gates, d_gates[k], cell::input_at<Cell>(k));
          }
        }
        if (!Cell::kAdds && p.d_gates_of_h != nullptr) {
#pragma unroll
          for (int k = 0; k < kSaved; ++k) {
            write(p.d_gates_of_h, d_gates[k], cell::gate_at<Cell>(k));
          }
        }
        if (p.d_old_cell != nullptr) {
          write_vector(p.d_old_cell + row * h + column, d_old_cell);
        }
      }
    }
  }
  const auto d_bias = p.template biases<Cell>();
  if (!d_bias.wanted()) {
    return;
  }
  __shared__ BiasSums<acc_t, kSaved, kColumns> shared;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int gate = 0; gate < kSaved; ++gate) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      acc_t sum = sums[gate][v];
#pragma unroll
      for (int distance = 16; distance >= kAcross; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
      }
      if (threadIdx.x % 32 < kAcross) {
        shared.warps[gate][warp][across * kVector + v] = sum;
      }
    }
  }
  __syncthreads();
  const int index = static_cast<int>(threadIdx.x);
  const int rank = cluster_rank(), ranks = static_cast<int>(arguments.ranks);
  const int gate = index / kColumns, column_in_block = index % kColumns;
  acc_t sum = 0;
  if (gate < kSaved) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum += shared.warps[gate][w][column_in_block];
    }
  }
  if (ranks > 1) {
    // Sends the sums to the first rank once it runs. The others do not wait for it. All threads of
    // a warp execute the instructions of the cluster's barrier together, but gate may differ.
    __syncwarp();
    cluster_wait();
    if (gate < kSaved) {
      store_in_block(shared_address(&shared.ranks[rank][index]), 0, sum);
    }
    __syncwarp();
    cluster_arrive_with_stores();
    if (rank > 0) {
      return;
    }
    cluster_wait();
    sum = 0;
    for (int r = 0; r < ranks && gate < kSaved; ++r) {
      sum += shared.ranks[r][index];
    }
  }
  if (gate < kSaved && first_column + column_in_block < p.state_size) {
    const int64_t to = gate * p.state_size + first_column + column_in_block;
    if (p.workspace != nullptr) {
      static_cast<acc_t*>(p.workspace)[blockIdx.y / arguments.ranks * kSaved * p.state_size + to] =
          sum;
    } else {
      d_bias.store(to, sum);
    }
  }
}

/// How the batch is divided: among the ranks of a cluster, and among `parts` clusters, whose sums
/// for d_bias another kernel adds.
struct SharesOfRows {
  int64_t rows_a_block;
  int64_t ranks, parts;

  int64_t blocks() const { return ranks * parts; }
};

/// Some 160 rows per block: with fewer, too few threads of a block have work; with more,
/// multiprocessors are idle. A cluster adds the sums for d_bias without another kernel, but if
/// clusters are not all resident at once, they cost more than the kernel that adds parts.
///
/// If the kernel of the products adds the parts, which takes no extra time, there are as many
/// blocks as are resident at once, of at least 32 rows each, for a batch of more than 128.
template <typename scalar_t>
SharesOfRows shares_of_rows(const GateGradientsParams<scalar_t>& p, int64_t column_blocks) {
  const int64_t wanted = ceil_div(p.batch, 160);
  int64_t parts = std::max(ceil_div(p.batch, 1024), std::min(wanted, int64_t{16}));
  if (p.bias_in_parts && p.batch > 128) {
    parts = std::max(parts, std::min(p.blocks_at_once / column_blocks, ceil_div(p.batch, 32)));
  } else if (!p.bias_in_parts && wanted > 1) {
    int64_t ranks = 2;
    while (ranks < wanted && ranks < kLargestCluster) {
      ranks *= 2;
    }
    if (wanted <= 13 && column_blocks * ranks <= p.blocks_in_clusters) {
      return {ceil_div(p.batch, ranks), ranks, 1};
    }
  }
  parts = std::min(parts, kMaxParts);
  return {ceil_div(p.batch, parts), 1, parts};
}

/// Whether all rows start at multiples of `vector` elements. Those of gates do if those of new_cell
/// and their first one do.
template <typename scalar_t>
bool takes_vectors(const GateGradientsParams<scalar_t>& p, int vector) {
  const auto aligned = [&](const scalar_t* rows, int64_t stride) {
    return Matrix{rows, stride}.starts_at_neighbors(vector, sizeof(scalar_t));
  };
  return aligned(p.gates, 0) && aligned(p.new_cell, p.state_size) &&
         aligned(p.d_gates, p.d_gates_stride) && aligned(p.d_old_cell, p.state_size) &&
         p.grad_h.starts_at_neighbors(vector) && p.grad_cell.starts_at_neighbors(vector) &&
         p.old_cell.starts_at_neighbors(vector) && aligned(p.d_gates_of_h, p.d_gates_stride);
}

/// Columns of the state per thread.
template <typename scalar_t>
int neighbors(const GateGradientsParams<scalar_t>& p) {
  return sizeof(scalar_t) < 8 && takes_vectors(p, 2) ? 2 : 1;
}

template <typename Cell, typename scalar_t, int kVector, int kRows>
cudaError_t launch_instance(const GateGradientsParams<scalar_t>& params,
                            const SharesOfRows& shares,
                            int64_t column_blocks,
                            cudaStream_t stream) {
  int64_t transposing = 0;
  if (params.inputs.transposed != nullptr) {
    transposing =
        std::min(ceil_div(transposed_boxes(params.inputs), column_blocks), kMaxTransposingRows);
  }
  const int64_t row_blocks = shares.blocks() + ceil_div(transposing, shares.ranks) * shares.ranks;
  const auto ranks = static_cast<unsigned>(shares.ranks);
  return launch_in_clusters<&gate_gradients_kernel<Cell, scalar_t, kVector, kRows>, kThreads>(
      GateGradientsArguments<scalar_t>{
          params, shares.rows_a_block, ranks, static_cast<unsigned>(shares.blocks())},
      grid_of(column_blocks, row_blocks),
      dim3(1, ranks),
      stream);
}

}  // namespace

template <typename scalar_t>
int64_t bias_parts(const GateGradientsParams<scalar_t>& params) {
  return shares_of_rows(params, ceil_div(params.state_size, neighbors(params) * kAcross)).parts;
}

template <typename Cell, typename scalar_t>
cudaError_t launch_gate_gradients(const GateGradientsParams<scalar_t>& params,
                                  cudaStream_t stream) {
  const int vector = neighbors(params);
  const int64_t column_blocks = ceil_div(params.state_size, vector * kAcross);
  const SharesOfRows shares = shares_of_rows(params, column_blocks);
  const auto launch = [&](auto columns) {
    return shares.rows_a_block <= kLanes
               ? launch_instance<Cell, scalar_t, columns, 1>(params, shares, column_blocks, stream)
               : launch_instance<Cell, scalar_t, columns, 2>(params, shares, column_blocks, stream);
  };
  cudaError_t error = cudaErrorInvalidValue;
  if (vector == 1) {
    error = launch(std::integral_constant<int, 1>());
  } else if constexpr (sizeof(scalar_t) < 8) {
    error = launch(std::integral_constant<int, 2>());
  }
  const auto d_bias = params.template biases<Cell>();
  if (error != cudaSuccess || !d_bias.wanted() || shares.parts == 1 || !params.sums_bias) {
    return error;
  }
  const auto sum_into = [&](const auto& result) {
    return launch_sum_parts(static_cast<const accumulate_t<scalar_t>*>(params.workspace),
                            shares.parts,
                            Cell::kSaved * params.state_size,
                            result,
                            stream);
  };
  if constexpr (Cell::kAdds) {
    return sum_into(SumsInOrder<scalar_t>{params.d_bias});
  } else {
    return sum_into(d_bias);
  }
}

#define LLTM_GATE_GRADIENTS(scalar_t)                                                          \
  template int64_t bias_parts(const GateGradientsParams<scalar_t>&);                           \
  template cudaError_t launch_gate_gradients<cell::Lltm>(const GateGradientsParams<scalar_t>&, \
                                                         cudaStream_t);                        \
  template cudaError_t launch_gate_gradients<cell::Lstm>(const GateGradientsParams<scalar_t>&, \
                                                         cudaStream_t);                        \
  template cudaError_t launch_gate_gradients<cell::Gru>(const GateGradientsParams<scalar_t>&,  \
                                                        cudaStream_t);
LLTM_GATE_GRADIENTS(double)
LLTM_GATE_GRADIENTS(float)
LLTM_GATE_GRADIENTS(c10::Half)
LLTM_GATE_GRADIENTS(c10::BFloat16)
#undef LLTM_GATE_GRADIENTS

}  // namespace lltm::cuda
