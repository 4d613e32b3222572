// The products of the backward in float32 without TF32 on Hopper, by wgmma_three_tf32.cuh, in one
// launch. Each block computes its share of the units of both products (gradient_schedule.h). A
// cluster may share the K of a tile of d_old_h or d_input. For a long batch, d_weights are computed
// in parts of the batch, which another kernel adds. Nothing here depends on the number of gates, so
// an LSTM's sequences have their products here, too.
#include "../../epilogue/dealt_columns.cuh"
#include "../../epilogue/write_tile.cuh"
#include "../../problem.h"
#include "../../products/wgmma_three_tf32.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../reduction/cluster_sums.cuh"
#include "../../reduction/sum_parts.cuh"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/schedule_gradients.h"
#include "../../scheduler/split_of_k.h"
#include "../../tile/elements.h"
#include "kernels.h"

namespace lltm::cuda {
namespace {

// A product reads and writes the columns of h and those of x as matrices of their own.
constexpr int kSegments = 2;

struct Float32GradientArguments {
  CUtensorMap gate_rows, gate_columns;  // the left operands of the state and the weight product
  CUtensorMap weights[kSegments], inputs[kSegments];  // the right ones
  BackwardProblem cell;
  GradientSchedule schedule;
  KSplit split;  // of the state product
  // d_weights or, if they are computed in parts, the first of these, which follow each other.
  WeightGradients<float> weights_to;
  // As TileOfResult has it: of d_old_h and d_input, and of both blocks of d_weights.
  bool state_at_vectors[kSegments], weights_at_vectors[kSegments];
};

#if defined(LLTM_HOPPER)
/// Where a unit's tile of the results is.
LLTM_DEVICE TileOfResult result_of(const Float32GradientArguments& arguments,
                                   const GradientUnit& unit) {
  const BackwardProblem& p = arguments.cell;
  const int64_t width = unit.second_segment ? p.input_features : p.state_size;
  if (!unit.of_weights) {
    float* const result = static_cast<float*>(unit.second_segment ? p.d_input : p.d_old_h);
    return {.data = result + unit.row * width + unit.column,
            .stride = width,
            .rows = p.batch - unit.row,
            .columns = width - unit.column,
            .at_vectors = arguments.state_at_vectors[unit.second_segment]};
  }
  const WeightGradients<float>& to = arguments.weights_to;
  float* const block = unit.second_segment ? to.of_input : to.of_h;
  const int64_t stride = unit.second_segment ? to.input_stride : to.h_stride;
  return {.data = block + (unit.part * p.gates + unit.row) * stride + unit.column,
          .stride = stride,
          .rows = block == nullptr ? 0 : p.gates - unit.row,
          .columns = width - unit.column,
          .at_vectors = arguments.weights_at_vectors[unit.second_segment]};
}
#endif

template <typename Product>
__global__ void __launch_bounds__(Product::kThreads, 1)
    backward_wgmma_float32_kernel(const __grid_constant__ Float32GradientArguments arguments) {
#if defined(LLTM_HOPPER)
  constexpr int kTileM = Product::kTileM, kTileN = Product::kTileN;
  constexpr int kChunkK = Product::kChunkK;
  // The name differs from that in tiles.cuh, whose alignment is smaller.
  extern __shared__ __align__(1024) unsigned char shared_stages[];
  unsigned char* const shared = shared_stages;
  const GradientSchedule& schedule = arguments.schedule;
  const int cluster = static_cast<int>(cluster_index()), rank = cluster_rank();
  // Then its last unit is one that its ranks share.
  const bool shares_k = schedule.weights_first && schedule.shares.states_of(cluster) > 0;
  Product::prepare(shared);
  KSplit split = arguments.split;
  split.ranks = shares_k ? split.ranks : 1;
  ClusterSums<Product> sums(shared, split);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    prefetch_map(&arguments.gate_rows);
    prefetch_map(&arguments.gate_columns);
  }
  __syncthreads();
  const BiasParts& bias = arguments.cell.bias;
  if (thread < Product::kMultipliers && bias.parts != nullptr) {
    // While the first operands are being copied.
    wait_for_previous_kernel();
    sum_parts<Product::kMultipliers>(bias.parts,
                                     bias.count,
                                     arguments.cell.gates,
                                     SumsInOrder<float>{static_cast<float*>(bias.d_bias)});
  }

  const auto right_of = [&](const GradientUnit& unit) {
    return &(unit.of_weights ? arguments.inputs : arguments.weights)[unit.second_segment];
  };
  const auto writes_sums = [&](const GradientUnit& unit) { return unit.of_weights || !shares_k; };
  Product product;
  product.run_units(
      shared,
      [&](const auto& work) { schedule.for_each_unit(cluster, rank, work); },
      [](const GradientUnit& unit) { return unit.of_weights; },
      [&](uint32_t a, uint32_t b, uint32_t barrier, const GradientUnit& unit, int chunk) {
        const int k = chunk * kChunkK;
        arrive_expecting(barrier, Product::kBytesA + Product::kBytesB);
        copy_box_2d(b, right_of(unit), unit.column, k, barrier);
        if (unit.of_weights) {
#pragma unroll
          for (int m = 0; m < kTileM; m += 32) {
            copy_box_2d(a + m / 32 * Product::kBoxBytesA,
                        &arguments.gate_columns,
                        unit.row + m,
                        k,
                        barrier);
          }
        } else {
          copy_box_2d(a, &arguments.gate_rows, k, unit.row, barrier);
        }
      },
      [&](const GradientUnit& unit, int n) { return writes_sums(unit) ? dealt_column(n) : n; },
      [&](const GradientUnit& unit) {
        if (!writes_sums(unit)) {
          return;
        }
        const TileOfResult to = result_of(arguments, unit);
        const int warp = thread / 32;
        write_dealt_columns(
            to,
            [&](int r) {
              return unit.of_weights ? Product::template row_of<Major::kOther>(warp, r)
                                     : Product::template row_of<Major::kK>(warp, r);
            },
            product.sum);
      });
  if (shares_k) {
    sums.exchange(product);
    const TileOfResult to = result_of(arguments, schedule.state.unit(cluster, rank));
    write_tile<Product::kThreads, kTileN>(
        to.data + sums.first_row() * to.stride,
        to.stride,
        min(sums.rows(), at_most(to.rows, kTileM) - sums.first_row()),
        at_most(to.columns, kTileN),
        to.at_vectors,
        [&](float(&values)[4], int r, int column) { sums.template read<4, 1>(values, r, column); });
    sums.finish();
  }
#else
  trap_wrong_image();
#endif
}

/// Creates the maps of all wanted products' operands.
template <typename Product>
bool describe_operands(Float32GradientArguments* to, const BackwardProblem& p) {
  const int64_t state = p.state_size, features = p.input_features, gates = p.gates;
  const auto describe_d_gates = [&](CUtensorMap* map, int box_rows, int box_columns) {
    return describe(map,
                    {Arithmetic::kFloat32,
                     {p.d_gates, p.d_gates_stride},
                     p.batch,
                     gates,
                     box_rows,
                     box_columns});
  };
  const auto describe_right =
      [](CUtensorMap* map, const Matrix& matrix, int64_t rows, int64_t columns) {
        return describe(
            map, {Arithmetic::kFloat32, matrix, rows, columns, Product::kChunkK, Product::kTileN});
      };
  bool done = true;
  if (to->schedule.state.units > 0) {
    done =
        describe_d_gates(&to->gate_rows, Product::kTileM, Product::kChunkK) &&
        (p.d_old_h == nullptr || describe_right(&to->weights[0], p.weights, gates, state)) &&
        (p.d_input == nullptr || describe_right(&to->weights[1], p.weights_input, gates, features));
  }
  if (to->schedule.weights.units > 0) {
    done = done && describe_d_gates(&to->gate_columns, Product::kChunkK, 32) &&
           describe_right(&to->inputs[0], p.old_h, p.batch, state) &&
           describe_right(&to->inputs[1], p.input, p.batch, features);
  }
  return done;
}

/// Whether rows of so many columns start at, and end before, multiples of four elements.
bool in_fours(const Matrix& matrix, int64_t columns) {
  return columns % 4 == 0 && matrix.starts_at_vectors(sizeof(float));
}

/// Adds parts of `size` elements, four at a time if no four belong to several rows or blocks.
cudaError_t add_weight_parts(const float* parts,
                             int64_t count,
                             int64_t size,
                             const WeightGradientSums<float>& sums,
                             cudaStream_t stream) {
  const WeightGradients<float>& to = sums.result;
  if (!in_fours({to.of_h, to.h_stride}, sums.state_size) ||
      !in_fours({to.of_input, to.input_stride}, sums.input_features)) {
    return launch_sum_parts(parts, count, size, sums, stream);
  }
  const WeightGradientSums<float4> of_fours{{.of_h = reinterpret_cast<float4*>(to.of_h),
                                             .of_input = reinterpret_cast<float4*>(to.of_input),
                                             .h_stride = to.h_stride / 4,
                                             .input_stride = to.input_stride / 4},
                                            sums.state_size / 4,
                                            sums.input_features / 4};
  return launch_sum_parts(
      reinterpret_cast<const float4*>(parts), count, size / 4, of_fours, stream);
}

template <typename Product>
cudaError_t launch_tile(const BackwardProblem& p,
                        const GradientPlan& plan,
                        float* workspace,
                        cudaStream_t stream) {
  const int64_t state = p.state_size, features = p.input_features, gates = p.gates;
  const int64_t width = state + features;
  Float32GradientArguments arguments{};
  arguments.schedule = schedule_gradients(Arithmetic::kFloat32, p, plan);
  const int parts = arguments.schedule.weights.parts;
  const int blocks = arguments.schedule.shares.clusters * plan.ranks;
  if (blocks == 0) {
    return cudaSuccess;
  }
  arguments.cell = p;
  arguments.split = split_of_k(plan.ranks, tiles_of(gates, Product::kChunkK), Product::kTileM);
  const auto d_weights = p.d_weights.as<float>();
  arguments.weights_to =
      parts > 1 ? blocks_of(workspace, state, width, sizeof(float)).as<float>() : d_weights;
  arguments.state_at_vectors[0] = Matrix{p.d_old_h, state}.starts_at_vectors(sizeof(float));
  arguments.state_at_vectors[1] = Matrix{p.d_input, features}.starts_at_vectors(sizeof(float));
  const WeightGradients<float>& to = arguments.weights_to;
  arguments.weights_at_vectors[0] = in_fours({to.of_h, to.h_stride}, state);
  arguments.weights_at_vectors[1] = in_fours({to.of_input, to.input_stride}, features);
  if (!describe_operands<Product>(&arguments, p)) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = launch_in_clusters<&backward_wgmma_float32_kernel<Product>,
                                               Product::kThreads,
                                               Product::kSharedBytes,
                                               ClusterSums<Product>::kSharedBytes>(
      arguments, grid_of(blocks), plan.ranks, stream);
  if (error != cudaSuccess || arguments.schedule.weights.units == 0 || parts == 1) {
    return error;
  }
  return add_weight_parts(workspace, parts, gates * width, {d_weights, state, features}, stream);
}

}  // namespace

template <>
cudaError_t launch_backward_wgmma<Arithmetic::kFloat32>(const BackwardProblem& params,
                                                        const GradientPlan& plan,
                                                        float* workspace,
                                                        cudaStream_t stream) {
  // With as many stages as fit: a chunk takes a microsecond from memory to its products.
  using Small = ThreeTf32Product<Major::kOther, 1, 2, 5>;
  using Large = ThreeTf32Product<Major::kOther, 2, 2, 4>;
  return plan.rows == Small::kTileM ? launch_tile<Small>(params, plan, workspace, stream)
                                    : launch_tile<Large>(params, plan, workspace, stream);
}

}  // namespace lltm::cuda
