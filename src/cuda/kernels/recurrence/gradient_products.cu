// The products over all steps that follow the backward of a short recurrence, or of a small one:
// d_weights, d_input and d_bias in one launch, or in two where parts of d_weights have to be added.
// The library's products, and the kernels that prepare their operands, would take longer to launch
// than to run.
#include "../../../cell/gru.h"
#include "../../../cell/sides.h"
#include "../../ptx/global.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/packed.cuh"
#include "../../ptx/shared.cuh"
#include "../../runtime/launch.cuh"
#include "../../tile/elements.h"
#include "../../tile/vectors.cuh"
#include "recurrence.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {
namespace {

// A block computes kTile x kTile sums. Each of its warps has all of them, for every kWarps-th row
// of K, and a thread kOwnRows x kOwnColumns of these.
constexpr int kTile = kGradientTile, kChunk = kGradientChunk;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kOwnRows = 8, kOwnColumns = 4;
constexpr int kAtOnce = 4;                         // rows of K in a warp's inner loop
constexpr int kPitch = kTile + 4;                  // keeps vectors of rows aligned
constexpr int kLoads = kChunk * kTile / kThreads;  // of a thread, from each operand's chunk
static_assert(kTile == 32 && kTile * kTile == 32 * kOwnRows * kOwnColumns);
static_assert(kLoads * kWarps == kChunk && kChunk % (kWarps * kAtOnce) == 0);

/// What a block needs in shared memory.
template <typename Element>
struct Shared {
  // A chunk of the left operand and one of the right, whose rows are K. In their place come the
  // sums of the warps, and the parts of d_bias.
  float operands[2 * kChunk][kPitch];
  StridedRow<Element> rows[kChunk];  // where those of the next right operand are

  LLTM_DEVICE float& left(int k, int row) { return operands[k][row]; }
  LLTM_DEVICE float& right(int k, int column) { return operands[kChunk + k][column]; }
  LLTM_DEVICE float& sum(int warp, int row, int column) {
    return operands[warp * kTile + row][column];
  }
};
static_assert(2 * kChunk == kWarps * kTile);

template <typename Element>
LLTM_DEVICE void load(uint32_t& word, const Element* from, bool inside) {
  if constexpr (sizeof(Element) == 2) {
    load_half_once(word, from, inside);
  } else {
    load_once(word, from, inside);
  }
}

/// The blocks of a launch in their order: those of d_bias, of d_input and of d_weights.
template <typename Cell, typename Element>
struct GradientBlocks {
  GradientProducts<Cell, Element> problem;
  int bias_lanes;
  int bias_blocks, input_blocks, weight_blocks;
  // Of d_input, or of the columns of x in d_weights; and of those of h.
  int input_tiles_across, state_tiles_across;
  int weight_tiles;
};

/// d_weights, of parts that are matrices [h | input].
template <typename Element>
struct SumOfWeightParts : WeightGradientSums<Element> {
  const float* parts;  // (count, size)
  int64_t count, size;

  LLTM_DEVICE float part(int64_t part, int64_t element) const {
    return parts[part * size + element];
  }
};

/// Adds parts by `lanes` threads for each element, each of which adds every one of that many.
template <typename Sum, typename acc_t>
LLTM_DEVICE void add_parts(const Sum& of, int lanes, int block, acc_t* sums) {
  constexpr int kPartsAtOnce = 8;
  const int columns = kThreads / lanes, thread = static_cast<int>(threadIdx.x);
  const int lane = thread / columns;
  const int64_t column = int64_t{block} * columns + thread % columns;
  acc_t sum = 0;
  if (column < of.size) {
    for (int64_t first = lane; first < of.count; first += kPartsAtOnce * lanes) {
      acc_t some[kPartsAtOnce];
#pragma unroll
      for (int i = 0; i < kPartsAtOnce; ++i) {
        const int64_t part = first + i * lanes;
        some[i] = part < of.count ? of.part(part, column) : acc_t{0};
      }
#pragma unroll
      for (const acc_t part : some) {
        sum += part;
      }
    }
  }
  sums[thread] = sum;
  __syncthreads();
  if (lane == 0 && column < of.size) {
    for (int i = 1; i < lanes; ++i) {
      sum += sums[i * columns + thread];
    }
    of.store(column, sum);
  }
}

/// A tile of one of the products, and the part of K that is summed.
///   d_weights: left is d_gates, right old_h or input, and K are the rows of all steps.
///   d_input: left is d_gates transposed, right the weights of input, and K are columns of d_gates.
template <typename Cell, typename Element>
class PartialGradient {
 public:
  LLTM_DEVICE PartialGradient(const GradientBlocks<Cell, Element>& blocks, int block)
      : p_(blocks.problem), of_weights_(block >= blocks.input_blocks) {
    const int64_t all_rows = p_.old_h.steps * p_.old_h.rows;
    int tile = block, across = blocks.input_tiles_across;
    if (of_weights_) {
      block -= blocks.input_blocks;
      part_ = block / blocks.weight_tiles;
      tile = block - part_ * blocks.weight_tiles;
      across += blocks.state_tiles_across;
    }
    first_row_ = tile / across * kTile;
    first_column_ = tile % across * kTile;
    of_input_ = !of_weights_ || tile % across >= blocks.state_tiles_across;
    if (of_weights_ && of_input_) {
      first_column_ -= blocks.state_tiles_across * kTile;
    }
    rows_ = static_cast<int>(of_weights_ ? p_.columns : all_rows);
    columns_ = static_cast<int>(of_input_ ? p_.input_features : p_.state_size);
    begin_ = of_weights_ ? static_cast<int>(part_ * p_.parts.rows) : 0;
    end_ = of_weights_ ? at_most(begin_ + p_.parts.rows, static_cast<int>(all_rows))
                       : static_cast<int>(p_.columns);

    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    // A warp loads a row of d_gates, or eight columns of four rows, which its threads then write to
    // different banks.
    left_k_ = of_weights_ ? warp : lane % 8;
    left_row_ = of_weights_ ? lane : warp * 4 + lane / 8;
    const int left_row = first_row_ + left_row_;
    has_left_ = left_row < rows_;
    left_stride_ = of_weights_ ? p_.d_gates_stride : 1;
    left_ = p_.d_gates + (begin_ + left_k_) * left_stride_ +
            (of_weights_ ? saved_column(left_row) : left_row * p_.d_gates_stride);
    right_column_ = first_column_ + lane;
    has_right_ = right_column_ < columns_;
  }

  /// Of K.
  LLTM_DEVICE int begin() const { return begin_; }
  LLTM_DEVICE int end() const { return end_; }

  /// Finds the rows of the right operand from `chunk` on. A thread finds one, if any.
  LLTM_DEVICE void find_rows(int chunk, Shared<Element>& shared) const {
    const int of_chunk = static_cast<int>(threadIdx.x), k = chunk + of_chunk;
    if (of_chunk >= kChunk) {
      return;
    }
    StridedRow<Element> found{};
    if (k < end_ && !of_weights_) {
      const auto& weights = p_.input_weights;
      found = {weights.data + k * weights.strides[0], weights.strides[1]};
    } else if (k < end_) {
      const auto [t, row] = step_of(k);
      if (!of_input_) {
        found = p_.old_h.at(t, row);
      } else if (p_.old_h.rows_of_sequence.runs(row, t)) {
        found = {&p_.input.at(t, row, 0), p_.input.strides[2]};
      }
    }
    shared.rows[of_chunk] = found;
  }

  LLTM_DEVICE void load_left(int chunk, uint32_t (&words)[kLoads]) const {
    // Of either product, a thread's elements are eight apart.
    const Element* const from = left_ + (chunk - begin_) * left_stride_;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      load(words[i], from + i * 8 * left_stride_, has_left_ && chunk + left_k_ + i * 8 < end_);
    }
  }
  LLTM_DEVICE void load_right(const Shared<Element>& shared, uint32_t (&words)[kLoads]) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const StridedRow<Element> row = shared.rows[warp + i * 8];
      load(words[i], row.data + right_column_ * row.stride, has_right_ && row.data != nullptr);
    }
  }
  LLTM_DEVICE void store(const uint32_t (&left)[kLoads],
                         const uint32_t (&right)[kLoads],
                         Shared<Element>& shared) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      shared.left(left_k_ + i * 8, left_row_) = value_of_word<Element>(left[i]);
      shared.right(warp + i * 8, lane) = value_of_word<Element>(right[i]);
    }
  }

  /// Writes a sum, whose row and column count from the tile's first.
  LLTM_DEVICE void write(int row_of_tile, int column_of_tile, float sum) const {
    const int row = first_row_ + row_of_tile, column = first_column_ + column_of_tile;
    if (row >= rows_ || column >= columns_) {
      return;
    }
    if (!of_weights_) {
      const auto [t, row_of_step] = step_of(row);
      const bool runs = p_.old_h.rows_of_sequence.runs(row_of_step, t);
      p_.d_input[int64_t{row} * columns_ + column] = static_cast<Element>(runs ? sum : 0.0f);
      return;
    }
    const int64_t of_both = column + (of_input_ ? p_.state_size : 0);
    if (p_.weight_parts != nullptr) {
      const int64_t row_of_parts = int64_t{part_} * rows_ + row;
      p_.weight_parts[row_of_parts * (p_.state_size + p_.input_features) + of_both] = sum;
    } else {
      p_.d_weights.store(row, of_both, p_.state_size, sum);
    }
  }

 private:
  /// Where d_gates have a column of this tile's side.
  LLTM_DEVICE int64_t saved_column(int column) const {
    static_assert(cell::input_at<Cell>(Cell::kInputs - 1) == Cell::kInputs - 1);
    // Only the last gate may be saved elsewhere.
    constexpr int kLast = Cell::kGates - 1;
    static_assert(cell::gate_at<Cell>(kLast - 1) == kLast - 1);
    const bool is_last = column >= kLast * p_.state_size;
    const int64_t moved = (Cell::kSaved - Cell::kGates) * p_.state_size;
    return column + (!of_input_ && is_last ? moved : 0);
  }
  struct Step {
    uint32_t t, row;
  };
  LLTM_DEVICE Step step_of(int row_of_all) const {
    const auto all = static_cast<uint32_t>(row_of_all), rows = static_cast<uint32_t>(p_.old_h.rows);
    return {all / rows, all % rows};
  }

  const GradientProducts<Cell, Element>& p_;
  bool of_weights_;
  int part_ = 0;
  int first_row_, first_column_, rows_, columns_;
  int begin_, end_;
  // Which elements of a chunk a thread loads.
  int left_k_, left_row_, right_column_;
  bool has_left_, has_right_, of_input_;
  const Element* left_;
  int64_t left_stride_;
};

template <typename Cell, typename Element>
__global__ void __launch_bounds__(kThreads, 2)
    gradient_products_kernel(const __grid_constant__ GradientBlocks<Cell, Element> blocks) {
  __shared__ __align__(16) Shared<Element> shared;
  const int block = static_cast<int>(blockIdx.x) - blocks.bias_blocks;
  if (block < 0) {
    wait_for_previous_kernel();
    start_next_kernel();
    add_parts(
        blocks.problem.d_bias, blocks.bias_lanes, static_cast<int>(blockIdx.x), &shared.left(0, 0));
    return;
  }
  const PartialGradient<Cell, Element> tile(blocks, block);
  uint32_t left[kLoads], right[kLoads];
  // The recurrence writes d_gates, but nothing that the right operands consist of.
  tile.find_rows(tile.begin(), shared);
  __syncthreads();
  tile.load_right(shared, right);
  wait_for_previous_kernel();
  start_next_kernel();
  tile.load_left(tile.begin(), left);

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int own_row = lane / 8 * kOwnRows, own_column = lane % 8 * kOwnColumns;
  const uint32_t left_at = shared_address(&shared.left(warp, own_row));
  const uint32_t right_at = shared_address(&shared.right(warp, own_column));
  float sums[kOwnRows][kOwnColumns] = {};
  for (int chunk = tile.begin(); chunk < tile.end(); chunk += kChunk) {
    const bool has_next = chunk + kChunk < tile.end();
    __syncthreads();  // the last chunk has been read, and so have the addresses of this one
    tile.store(left, right, shared);
    if (has_next) {
      tile.find_rows(chunk + kChunk, shared);
    }
    __syncthreads();
    if (has_next) {
      tile.load_left(chunk + kChunk, left);
      tile.load_right(shared, right);
    }
    const int depth = min(tile.end() - chunk, kChunk);  // there are zeros beyond
    for (int first = 0; first < depth; first += kWarps * kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t row = (first + i * kWarps) * kPitch * 4;
        uint32_t of_left[2][4], of_right[4];
        load_shared_4(of_left[0], left_at + row);
        load_shared_4(of_left[1], left_at + row + 16);
        load_shared_4(of_right, right_at + row);
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
          for (int c = 0; c < kOwnColumns; ++c) {
            sums[r][c] = fmaf(
                __uint_as_float(of_left[r / 4][r % 4]), __uint_as_float(of_right[c]), sums[r][c]);
          }
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kOwnRows; ++r) {
    *reinterpret_cast<float4*>(&shared.sum(warp, own_row + r, own_column)) = four_of(sums[r]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile / kWarps; ++i) {
    const int row = i * kWarps + warp;
    float sum = shared.sum(0, row, lane);
#pragma unroll
    for (int other = 1; other < kWarps; ++other) {
      sum += shared.sum(other, row, lane);
    }
    tile.write(row, lane, sum);
  }
}

template <typename Sum>
struct AddPartsParams {
  Sum of;
  int lanes;
};

template <typename Sum, typename acc_t>
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const __grid_constant__ AddPartsParams<Sum> params) {
  __shared__ acc_t sums[kThreads];
  wait_for_previous_kernel();
  add_parts(params.of, params.lanes, static_cast<int>(blockIdx.x), sums);
}

/// How many threads share the parts of an element: a power of two. Few parts are added by one.
int lanes_of(int64_t parts) {
  constexpr int64_t kPartsOfALane = 8, kMostLanes = 32;
  return static_cast<int>(
      std::bit_ceil(static_cast<uint64_t>(std::min(ceil_div(parts, kPartsOfALane), kMostLanes))));
}

int64_t blocks_to_add(int64_t size, int lanes) {
  return ceil_div(size, kThreads / lanes);
}

template <typename acc_t = float, typename Sum>
cudaError_t launch_sum(const Sum& sum, cudaStream_t stream) {
  const int lanes = lanes_of(sum.count);
  return launch_in_clusters<&add_parts_kernel<Sum, acc_t>, kThreads>(
      AddPartsParams<Sum>{sum, lanes}, grid_of(blocks_to_add(sum.size, lanes)), 1, stream);
}

}  // namespace

template <typename Cell, typename scalar_t, typename Term>
cudaError_t launch_bias_sum(const BiasSum<Cell, scalar_t, Term>& sum, cudaStream_t stream) {
  return launch_sum<accumulate_t<scalar_t>>(sum, stream);
}

template <typename Cell, typename Element>
cudaError_t launch_gradient_products(const GradientProducts<Cell, Element>& problem,
                                     cudaStream_t stream) {
  const int64_t rows = problem.old_h.steps * problem.old_h.rows;
  const int64_t inputs = problem.state_size + problem.input_features;
  const auto tiles = [](int64_t size) { return static_cast<int>(ceil_div(size, kTile)); };
  GradientBlocks<Cell, Element> blocks{
      .problem = problem,
      .bias_lanes = lanes_of(problem.d_bias.count),
      .bias_blocks = 0,
      .input_blocks = 0,
      .weight_blocks = 0,
      .input_tiles_across = tiles(problem.input_features),
      .state_tiles_across = tiles(problem.state_size),
      .weight_tiles =
          tiles(problem.columns) * (tiles(problem.state_size) + tiles(problem.input_features))};
  if (problem.d_bias.result.wanted()) {
    blocks.bias_blocks = static_cast<int>(blocks_to_add(problem.d_bias.size, blocks.bias_lanes));
  }
  if (problem.d_input != nullptr) {
    blocks.input_blocks = tiles(rows) * blocks.input_tiles_across;
  }
  if (problem.d_weights.any_wanted()) {
    blocks.weight_blocks = blocks.weight_tiles * static_cast<int>(problem.parts.count);
  }
  const int count = blocks.bias_blocks + blocks.input_blocks + blocks.weight_blocks;
  if (count == 0) {
    return cudaSuccess;
  }
  const cudaError_t error = launch_in_clusters<&gradient_products_kernel<Cell, Element>, kThreads>(
      blocks, grid_of(count), 1, stream);
  if (error != cudaSuccess || problem.weight_parts == nullptr) {
    return error;
  }
  return launch_sum(
      SumOfWeightParts<Element>{
          {problem.d_weights, problem.state_size, problem.input_features},
          problem.weight_parts,
          problem.parts.count,
          problem.columns * inputs,
      },
      stream);
}

#define LLTM_INSTANTIATE(Cell, scalar_t, Term) \
  template cudaError_t launch_bias_sum(const BiasSum<Cell, scalar_t, Term>&, cudaStream_t);
#define LLTM_INSTANTIATE_TERMS(scalar_t, Term) \
  LLTM_INSTANTIATE(cell::Lltm, scalar_t, Term) \
  LLTM_INSTANTIATE(cell::Gru, scalar_t, Term)
LLTM_INSTANTIATE_TERMS(double, double)
LLTM_INSTANTIATE_TERMS(float, float)
LLTM_INSTANTIATE_TERMS(c10::Half, float)
LLTM_INSTANTIATE_TERMS(c10::Half, c10::Half)
LLTM_INSTANTIATE_TERMS(c10::BFloat16, float)
LLTM_INSTANTIATE_TERMS(c10::BFloat16, c10::BFloat16)
#undef LLTM_INSTANTIATE_TERMS
#undef LLTM_INSTANTIATE

#define LLTM_INSTANTIATE(scalar_t)                                                             \
  template cudaError_t launch_gradient_products(const GradientProducts<cell::Lltm, scalar_t>&, \
                                                cudaStream_t);                                 \
  template cudaError_t launch_gradient_products(const GradientProducts<cell::Gru, scalar_t>&,  \
                                                cudaStream_t);
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
