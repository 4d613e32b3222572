// The whole backward in one launch, for a batch that is one tile of rows and elements of 16 bits. A
// block takes some columns of [h | x] and some hidden columns. It forms d_gates of the latter, all
// three gates, in shared memory, where they are an operand of two products: with the rows of
// weights (a part of d_old_h or d_input, whose K, the gates, a cluster shares), and with old_h or
// input (d_weights). Blocks of other columns form the same d_gates again: that costs less than to
// write them, and to begin another kernel that reads them.
#pragma once

#include "../cell.h"
#include "device_math.cuh"
#include "kernels.h"
#include "launch_cluster.cuh"
#include "overlap.cuh"
#include "tile_product.cuh"
#include "write_tile.cuh"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {

// What d_gates are formed of beside the gates, or null.
struct CellOperand {
  const void* data;
  int64_t row_stride, column_stride;
  bool vectors;
};

template <typename scalar_t>
struct FusedBackwardArguments {
  BackwardParams<scalar_t> cell;
  BackwardProductsParams products;
  KSplit split;               // of the groups of hidden columns
  unsigned h_tiles, x_tiles;  // of columns
  CellOperand operands[3];    // new_cell, grad_h, grad_cell
  // Whether rows start at multiples of 16 bytes; cell: those of the gates and d_old_cell.
  bool cell_vectors, old_h_vectors, input_vectors, weights_h_vectors, weights_input_vectors;
  bool d_weights_vectors;
  bool d_old_h_fours, d_input_fours;
};

/// kRows of the batch, kHidden columns of the state at a time, 64 columns of [h | x].
template <typename Element_,
          int kRows_,
          int kHidden_,
          int kThreads_ = kRows_ * kHidden_ < 2048 ? 256 : 512>
struct FusedBackwardTileOf {
  using Element = Element_;
  static constexpr int kRows = kRows_, kHidden = kHidden_, kColumns = 64,
                       kGateColumns = 3 * kHidden;
  static constexpr int kThreads = kThreads_, kWarps = kThreads / 32;
  static constexpr int kBlocksPerSm = 512 / kThreads;

  // A vector is what a thread takes of a row of the cell at once.
  static constexpr int kVector = kRows * kHidden / kThreads;
  static constexpr int kVectorsARow = kHidden / kVector;
  static_assert(kVector * kThreads == kRows * kHidden && kVectorsARow <= 32);

  // Padded rows, so that ldmatrix meets no bank twice.
  static constexpr int kGatesPitch = kGateColumns + 8, kCellPitch = kHidden + 8;
  static constexpr int kPitch = kColumns + 8;

  /// The part of d_old_h or d_input, as ClusterSums wants it.
  struct StateProduct {
    static constexpr int kTileM = kRows, kPitchC = kColumns + 8;
    static constexpr int kSharedBytes = kTileM * kPitchC * 4;
    static constexpr int kWarpsM = kRows == 16 ? 1 : kWarps / 4, kWarpsN = kWarps / kWarpsM;
    static constexpr int kFragmentsM = kRows / kWarpsM / 16;
    static constexpr int kFragmentsN = kColumns / kWarpsN / 8;
    float sum[kFragmentsM][kFragmentsN][4];

    __device__ __forceinline__ int first_row() const { return warp() % kWarpsM * kFragmentsM * 16; }
    __device__ __forceinline__ int first_column() const {
      return warp() / kWarpsM * kFragmentsN * 8;
    }
    __device__ __forceinline__ void store(float* result) const {
      const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
      for (int m = 0; m < kFragmentsM; ++m) {
#pragma unroll
        for (int n = 0; n < kFragmentsN; ++n) {
          float* const to = result + (first_row() + m * 16 + lane / 4) * kPitchC + first_column() +
                            n * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(to) = make_float2(sum[m][n][0], sum[m][n][1]);
          *reinterpret_cast<float2*>(to + 8 * kPitchC) = make_float2(sum[m][n][2], sum[m][n][3]);
        }
      }
    }
  };

  // The tile of d_weights: warps of 48 rows.
  static constexpr int kWarpsM = kHidden / 16, kWarpsN = kWarps / kWarpsM;
  static constexpr int kFragmentsM = 3, kFragmentsN = kColumns / kWarpsN / 8;
  static_assert(kWarpsM * kWarpsN == kWarps && kFragmentsN >= 1);

  // Shared memory: the cluster's sums; the gates, then d_gates; weights, then the tile of
  // d_weights; old_h or input; new_cell, grad_h and grad_cell; the warps' parts of d_bias.
  using Sums = ClusterSums<StateProduct>;
  static constexpr int kGatesOffset = Sums::kSharedBytes;
  static constexpr int kWeightsOffset = kGatesOffset + kRows * kGatesPitch * 2;
  static constexpr int kStateOffset = kWeightsOffset + kGateColumns * kPitch * 2;
  static constexpr int kCellOffset = kStateOffset + kRows * kPitch * 2;
  static constexpr int kBiasOffset = kCellOffset + 3 * kRows * kCellPitch * 2;
  static constexpr int kSharedBytes = kBiasOffset + kWarps * kGateColumns * 4;

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
};

// sum += a * b, where b's rows are K. a's rows are M, or with kTransposed, K. first_m, first_n:
// where this warp's fragments begin.
template <bool kTransposed,
          int kPitchA,
          int kPitchB,
          int kSteps,
          typename Element,
          int kFragmentsM,
          int kFragmentsN>
__device__ __forceinline__ void multiply_resident(float (&sum)[kFragmentsM][kFragmentsN][4],
                                                  const Element* a,
                                                  int first_m,
                                                  const Element* b,
                                                  int first_n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int matrix = lane / 8, r = lane % 8;
  const uint32_t from_a =
      shared_address(kTransposed ? a + (matrix / 2 * 8 + r) * kPitchA + first_m + matrix % 2 * 8
                                 : a + (first_m + matrix % 2 * 8 + r) * kPitchA + matrix / 2 * 8);
  const uint32_t from_b =
      shared_address(b + (matrix % 2 * 8 + r) * kPitchB + first_n + matrix / 2 * 8);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t b_fragments[kFragmentsN][2];
#pragma unroll
    for (int n = 0; n + 1 < kFragmentsN; n += 2) {
      uint32_t pair[4];
      load_matrices_x4_transposed(pair, from_b + (step * 16 * kPitchB + n * 8) * 2);
      b_fragments[n][0] = pair[0];
      b_fragments[n][1] = pair[1];
      b_fragments[n + 1][0] = pair[2];
      b_fragments[n + 1][1] = pair[3];
    }
    if constexpr (kFragmentsN == 1) {
      // Lanes from 16 on address what is not read.
      load_matrices_x2_transposed(b_fragments[0],
                                  shared_address(b + (step * 16 + lane % 16) * kPitchB + first_n));
    }
#pragma unroll
    for (int m = 0; m < kFragmentsM; ++m) {
      uint32_t a_fragment[4];
      if constexpr (kTransposed) {
        load_matrices_x4_transposed(a_fragment, from_a + (step * 16 * kPitchA + m * 16) * 2);
      } else {
        load_matrices_x4(a_fragment, from_a + (m * 16 * kPitchA + step * 16) * 2);
      }
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
        multiply_add<Element>(sum[m][n], a_fragment, b_fragments[n]);
      }
    }
  }
}

// Copies what the cell's gradients are formed of to shared memory: kRows rows of kHidden columns.
template <typename Tile>
__device__ __forceinline__ void copy_of_cell(typename Tile::Element* to,
                                             const Box<typename Tile::Element>& box,
                                             int64_t column_stride,
                                             int columns) {
  using Element = typename Tile::Element;
  constexpr int kHidden = Tile::kHidden;
  if (column_stride == 1) {
    BoxCopier<Tile::kRows, kHidden, Tile::kCellPitch, Tile::kThreads, Element, Box<Element>> copier;
    copier.start(box);
    copier.copy(to, columns, 0);
    return;
  }
  // Expanded from less, or transposed.
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * kHidden; i += Tile::kThreads) {
    const int row = i / kHidden, column = i % kHidden;
    Element value;
    assign(value, 0.0f);
    if (box.has(row) && column < columns) {
      value = box.data[box.offset(row) + column * column_stride];
    }
    to[row * Tile::kCellPitch + column] = value;
  }
}

template <typename Tile, typename scalar_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    fused_backward_kernel(const __grid_constant__ FusedBackwardArguments<scalar_t> arguments) {
  using Element = typename Tile::Element;
  constexpr int kRows = Tile::kRows, kHidden = Tile::kHidden, kColumns = Tile::kColumns;
  constexpr int kGateColumns = Tile::kGateColumns, kThreads = Tile::kThreads;
  constexpr int kVector = Tile::kVector;
  extern __shared__ __align__(16) unsigned char shared[];
  const BackwardParams<scalar_t>& cell = arguments.cell;
  const BackwardProductsParams& p = arguments.products;
  const int64_t state_size = p.state_size;
  const auto* gates = reinterpret_cast<const Element*>(cell.gates);
  auto* const d_old_cell = reinterpret_cast<Element*>(cell.d_old_cell);

  const unsigned column_tile = cluster_index();
  const bool of_h = column_tile < arguments.h_tiles;
  const int64_t first_column =
      int64_t(of_h ? column_tile : column_tile - arguments.h_tiles) * kColumns;
  const int64_t width_of_part = of_h ? state_size : p.input_features;
  const int columns = at_most(width_of_part - first_column, kColumns);
  const bool state_wanted = (of_h ? p.d_old_h : p.d_input) != nullptr;
  const bool weights_wanted = p.d_weights != nullptr;
  const bool cell_wanted = column_tile == 0;
  const int rows = static_cast<int>(p.batch);
  const int begin = arguments.split.first_chunk(cluster_rank());
  const int end = arguments.split.first_chunk(cluster_rank() + 1);

  typename Tile::Sums sums(shared, arguments.split);
  typename Tile::StateProduct state_product;
  clear(state_product.sum);
  auto* const d_gates = reinterpret_cast<Element*>(shared + Tile::kGatesOffset);
  auto* const weights = reinterpret_cast<Element*>(shared + Tile::kWeightsOffset);
  auto* const states = reinterpret_cast<Element*>(shared + Tile::kStateOffset);
  auto* const of_cell = reinterpret_cast<Element*>(shared + Tile::kCellOffset);
  auto* const bias_parts = reinterpret_cast<float*>(shared + Tile::kBiasOffset);

  const bool bias_wanted = cell_wanted && cell.d_bias != nullptr;
  // From the gates to d_gates, in place; d_old_cell and d_bias with them.
  const auto form_d_gates = [&](int64_t first_hidden, int hidden) {
    const int row = static_cast<int>(threadIdx.x) / Tile::kVectorsARow;
    const int column = static_cast<int>(threadIdx.x) % Tile::kVectorsARow * kVector;
    Vector<Element, kVector> z[3], c[3], d_cell;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      z[i] = read_vector<kVector>(&d_gates[row * Tile::kGatesPitch + i * kHidden + column]);
      if (arguments.operands[i].data != nullptr) {
        c[i] = read_vector<kVector>(&of_cell[(i * kRows + row) * Tile::kCellPitch + column]);
      } else {
#pragma unroll
        for (Element& value : c[i].values) {
          assign(value, 0.0f);
        }
      }
    }
    float bias[3][kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const auto gradients = cell::backward<RoundedMath>(
          cell::Gates<float>{
              to_float(z[0].values[i]), to_float(z[1].values[i]), to_float(z[2].values[i])},
          to_float(c[0].values[i]),
          to_float(c[1].values[i]),
          to_float(c[2].values[i]));
      bias[0][i] = gradients.gates.input_gate;
      bias[1][i] = gradients.gates.output_gate;
      bias[2][i] = gradients.gates.candidate;
      assign(d_cell.values[i], gradients.old_cell);
    }
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        assign(z[gate].values[i], bias[gate][i]);
      }
      write_vector(&d_gates[row * Tile::kGatesPitch + gate * kHidden + column], z[gate]);
    }
    if (cell_wanted && d_old_cell != nullptr && row < rows) {
      Element* const to = d_old_cell + row * state_size + first_hidden + column;
      if (arguments.cell_vectors && column + kVector <= hidden) {
        write_global_vector(to, d_cell);
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (column + i < hidden) {
            to[i] = d_cell.values[i];
          }
        }
      }
    }
    if (bias_wanted) {
      // Over the rows of a warp, then over the warps.
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          float sum = bias[gate][i];  // of rows that do not exist it is zero
#pragma unroll
          for (int distance = 16; distance >= Tile::kVectorsARow; distance /= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, distance);
          }
          const int lane = static_cast<int>(threadIdx.x) % 32;
          if (lane < Tile::kVectorsARow) {
            bias_parts[Tile::warp() * kGateColumns + gate * kHidden + lane * kVector + i] = sum;
          }
        }
      }
    }
  };

  wait_for_previous_kernel();
#pragma unroll 1
  for (int group = begin; group < end; ++group) {
    const int64_t first_hidden = int64_t(group) * kHidden;
    const int hidden = at_most(state_size - first_hidden, kHidden);
    if (group > begin) {
      __syncthreads();  // the tile of d_weights before has been written
    }
    const auto copy_gates = [&] {
      BoxCopier<kRows, kHidden, Tile::kGatesPitch, kThreads, Element, Box<Element>> copier;
      copier.start({gates + first_hidden, 3 * state_size, rows, arguments.cell_vectors});
#pragma unroll 1
      for (int gate = 0; gate < 3; ++gate) {
        copier.copy(d_gates + gate * kHidden, hidden, state_size);
      }
    };
    const auto copy_operands = [&] {
      if (state_wanted) {
        using Rows = GateRows<Element, kHidden>;
        BoxCopier<kGateColumns, kColumns, Tile::kPitch, kThreads, Element, Rows> copier;
        copier.start({static_cast<const Element*>(p.weights) + first_hidden * p.weights_stride +
                          (of_h ? 0 : state_size) + first_column,
                      p.weights_stride,
                      state_size,
                      hidden,
                      of_h ? arguments.weights_h_vectors : arguments.weights_input_vectors});
        copier.copy(weights, columns, 0);
      }
      if (weights_wanted && group == begin) {
        BoxCopier<kRows, kColumns, Tile::kPitch, kThreads, Element, Box<Element>> copier;
        copier.start({static_cast<const Element*>(of_h ? p.old_h : p.input) + first_column,
                      of_h ? p.old_h_stride : p.input_stride,
                      rows,
                      of_h ? arguments.old_h_vectors : arguments.input_vectors});
        copier.copy(states, columns, 0);
      }
    };

    copy_gates();
#pragma unroll 1
    for (int which = 0; which < 3; ++which) {
      const CellOperand& operand = arguments.operands[which];
      if (operand.data != nullptr) {
        copy_of_cell<Tile>(
            of_cell + which * kRows * Tile::kCellPitch,
            {static_cast<const Element*>(operand.data) + first_hidden * operand.column_stride,
             operand.row_stride,
             rows,
             operand.vectors},
            operand.column_stride,
            hidden);
      }
    }
    commit_copies();
    copy_operands();
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    form_d_gates(first_hidden, hidden);
    wait_copies<0>();
    __syncthreads();
    if (bias_wanted && static_cast<int>(threadIdx.x) < kGateColumns) {
      const int gate = static_cast<int>(threadIdx.x) / kHidden;
      const int column = static_cast<int>(threadIdx.x) % kHidden;
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < Tile::kWarps; ++warp) {
        sum += bias_parts[warp * kGateColumns + threadIdx.x];
      }
      if (column < hidden) {
        assign(reinterpret_cast<Element*>(cell.d_bias)[gate * state_size + first_hidden + column],
               sum);
      }
    }

    if (state_wanted) {
      multiply_resident<false, Tile::kGatesPitch, Tile::kPitch, kGateColumns / 16>(
          state_product.sum,
          d_gates,
          state_product.first_row(),
          weights,
          state_product.first_column());
      if (group + 1 == end) {
        sums.send(state_product);
      }
    }
    if (weights_wanted) {
      float sum[Tile::kFragmentsM][Tile::kFragmentsN][4];
      clear(sum);
      const int first_m = Tile::warp() % Tile::kWarpsM * 48;
      const int first_n = Tile::warp() / Tile::kWarpsM * Tile::kFragmentsN * 8;
      multiply_resident<true, Tile::kGatesPitch, Tile::kPitch, kRows / 16>(
          sum, d_gates, first_m, states, first_n);
      __syncthreads();  // weights have been read, and give room to the tile
      const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
      for (int m = 0; m < Tile::kFragmentsM; ++m) {
#pragma unroll
        for (int n = 0; n < Tile::kFragmentsN; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            Vector<Element, 2> two;
            assign(two.values[0], sum[m][n][half * 2]);
            assign(two.values[1], sum[m][n][half * 2 + 1]);
            write_vector(&weights[(first_m + m * 16 + half * 8 + lane / 4) * Tile::kPitch +
                                  first_n + n * 8 + lane % 4 * 2],
                         two);
          }
        }
      }
      __syncthreads();
      const int64_t width = state_size + p.input_features;
      Element* const to = static_cast<Element*>(p.d_weights) + first_hidden * width +
                          (of_h ? 0 : state_size) + first_column;
#pragma unroll 2
      for (int piece = static_cast<int>(threadIdx.x); piece < kGateColumns * (kColumns / 8);
           piece += kThreads) {
        const int r = piece / (kColumns / 8), column = piece % (kColumns / 8) * 8;
        const int gate = r / kHidden, h = r % kHidden;
        if (h >= hidden) {
          continue;
        }
        Element* const target = to + (gate * state_size + h) * width + column;
        const auto eight = read_vector<8>(&weights[r * Tile::kPitch + column]);
        if (arguments.d_weights_vectors && column + 8 <= columns) {
          write_global_vector(target, eight);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (column + i < columns) {
              target[i] = eight.values[i];
            }
          }
        }
      }
    }
  }
  if (state_wanted) {
    sums.receive();
    write_tile<kThreads, kColumns>(
        static_cast<Element*>(of_h ? p.d_old_h : p.d_input) + sums.first_row() * width_of_part +
            first_column,
        width_of_part,
        min(sums.rows(), rows - sums.first_row()),
        columns,
        of_h ? arguments.d_old_h_fours : arguments.d_input_fours,
        [&](float(&values)[4], int r, int column) { sums.template read<4, 1>(values, r, column); });
  }
  sums.finish();
}

template <typename Tile, typename scalar_t>
cudaError_t launch_fused_backward_tile(const BackwardParams<scalar_t>& cell,
                                       const BackwardProductsParams& products,
                                       int split,
                                       cudaStream_t stream) {
  const auto tiles = [](int64_t n) {
    return static_cast<unsigned>((n + Tile::kColumns - 1) / Tile::kColumns);
  };
  const int64_t state = products.state_size, features = products.input_features;
  const auto operand = [](const void* data, int64_t row_stride, int64_t stride) {
    return CellOperand{data, row_stride, stride, starts_at_vectors(data, row_stride, 0, 2)};
  };
  const auto fours = [](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 8 == 0 && stride % 4 == 0;
  };
  const bool all = products.d_weights != nullptr;
  const FusedBackwardArguments<scalar_t> arguments{
      cell,
      products,
      split_of_k(split, static_cast<int>((state + Tile::kHidden - 1) / Tile::kHidden), Tile::kRows),
      all || products.d_old_h != nullptr ? tiles(state) : 0,
      all || products.d_input != nullptr ? tiles(features) : 0,
      {operand(cell.new_cell, state, 1),
       operand(cell.grad_h, cell.grad_h_strides[0], cell.grad_h_strides[1]),
       operand(cell.grad_cell, cell.grad_cell_strides[0], cell.grad_cell_strides[1])},
      starts_at_vectors(cell.gates, state, 0, 2) && starts_at_vectors(cell.d_old_cell, state, 0, 2),
      starts_at_vectors(products.old_h, products.old_h_stride, 0, 2),
      starts_at_vectors(products.input, products.input_stride, 0, 2),
      starts_at_vectors(products.weights, products.weights_stride, 0, 2),
      starts_at_vectors(products.weights, products.weights_stride, state, 2),
      starts_at_vectors(products.d_weights, state + features, 0, 2) && state % 8 == 0,
      fours(products.d_old_h, state),
      fours(products.d_input, features)};
  // d_bias and d_old_cell are the first column tile's, also where no product is wanted.
  const unsigned column_tiles =
      arguments.h_tiles + arguments.x_tiles > 0 ? arguments.h_tiles + arguments.x_tiles : 1;
  return launch_in_clusters<&fused_backward_kernel<Tile, scalar_t>,
                            Tile::kThreads,
                            Tile::kSharedBytes,
                            Tile::kSharedBytes>(
      arguments, dim3(column_tiles * static_cast<unsigned>(split)), split, stream);
}

template <typename scalar_t>
cudaError_t launch_fused_backward(const BackwardParams<scalar_t>& cell,
                                  const BackwardProductsParams& products,
                                  FusedBackwardTile tile,
                                  int split,
                                  cudaStream_t stream) {
  using Element = std::conditional_t<std::is_same_v<scalar_t, c10::Half>, __half, __nv_bfloat16>;
  const auto launch = [&](auto of_tile) {
    return launch_fused_backward_tile<decltype(of_tile)>(cell, products, split, stream);
  };
  switch (tile) {
    case FusedBackwardTile::k16x16:
      return launch(FusedBackwardTileOf<Element, 16, 16>{});
    case FusedBackwardTile::k16x64:
      return launch(FusedBackwardTileOf<Element, 16, 64>{});
    case FusedBackwardTile::k64x32:
      return launch(FusedBackwardTileOf<Element, 64, 32>{});
    case FusedBackwardTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
