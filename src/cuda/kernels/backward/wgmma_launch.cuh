// Launches the products of the backward by wgmma: the schedule, the tensor maps and the tiles.
#pragma once

#include "../../runtime/dispatch.h"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/schedule_gradients.h"
#include "kernels.h"
#include "wgmma.cuh"

namespace lltm::cuda {

/// Creates the tensor maps of the operands of all wanted products, and of the results that TMA
/// writes. TMA may not support the other results.
template <typename Tile>
bool describe_gradients(GradientArguments* arguments, Matrix transposed_inputs) {
  using Product = typename Tile::Product;
  constexpr int kSize = Product::kElementSize, kBox = Product::kBoxColumns;
  constexpr int kChunk = Product::kChunkK;
  const GradientResults& p = arguments->results;
  const int64_t h = p.state_size, x = p.input_features, gates = 3 * h, width = h + x;
  // The columns of d_weights' segments.
  const int64_t first = p.one_segment ? width : h, second = width - first;
  bool done = true;
  constexpr Arithmetic kOperand = Tile::kArithmetic;
  GradientOperandMaps& operands = arguments->operands;
  const Matrix d_gates{p.d_gates, p.d_gates_stride};
  if (arguments->schedule.state.units > 0) {
    const int rows = Tile::Copies::rows_b(arguments->schedule.state.tile_columns);
    done = describe(&operands.weights, {kOperand, p.weights, gates, width, kBox, kBox}) &&
           describe(&operands.gate_rows, {kOperand, d_gates, p.batch, gates, rows, kChunk});
  }
  if (arguments->schedule.weights.units > 0) {
    done =
        done && describe(&operands.gate_columns, {kOperand, d_gates, p.batch, gates, kBox, kBox});
    if constexpr (Product::kWeightRowsOfK) {
      done = done &&
             describe(&operands.inputs[0], {kOperand, p.old_h, p.batch, first, kBox, kBox}) &&
             describe(&operands.inputs[1], {kOperand, p.input, p.batch, second, kBox, kBox});
    } else {
      const int rows = Tile::Copies::rows_b(Tile::kWeightColumns);
      const int64_t columns = ceil_div(width, 16) * 16;
      done = done && describe(&operands.inputs[0],
                              {kOperand, transposed_inputs, columns, p.batch, rows, kChunk});
    }
  }
  // TMA rounds what it reads to TF32, and must not change what it writes.
  constexpr Arithmetic kResult = kSize == 4 ? Arithmetic::kFloat32 : kOperand;
  GradientResultMaps& results = arguments->result_maps;
  if (p.state_alignment == 16) {
    done = done && describe(&results.d_old_h, {kResult, {p.d_old_h, h}, p.batch, h, kBox, kBox}) &&
           describe(&results.d_input, {kResult, {p.d_input, x}, p.batch, x, kBox, kBox});
  }
  if (!Tile::kDealsColumns && p.weight_alignment == 16 && p.d_weights.any_wanted()) {
    constexpr int kColumns = Tile::Staging::kColumns;
    const Matrix all{p.d_weights.of_h, width};
    const Matrix rest = all.from(first, kSize);
    done = done && describe(&results.d_weights_h, {kResult, all, gates, first, 64, kColumns}) &&
           describe(&results.d_weights_input, {kResult, rest, gates, second, 64, kColumns});
  }
  return done;
}

/// Computes all wanted products. `workspace` has the floats_of_parts() of the schedule.
template <typename Tile>
cudaError_t launch_gradient_tiles(const BackwardProblem& p,
                                  const GradientPlan& plan,
                                  Matrix transposed_inputs,
                                  float* workspace,
                                  cudaStream_t stream) {
  using Product = typename Tile::Product;
  constexpr int kSize = Product::kElementSize;
  GradientArguments arguments{};
  arguments.schedule = schedule_gradients(Tile::kArithmetic, p, plan);
  const GradientSchedule& schedule = arguments.schedule;
  if (schedule.shares.clusters == 0) {
    return cudaSuccess;
  }
  const auto alignment = [](const Matrix& a, const Matrix& b) {
    const auto starts_at = [&](int bytes) {
      return a.starts_at_neighbors(bytes / kSize, kSize) &&
             b.starts_at_neighbors(bytes / kSize, kSize);
    };
    return starts_at(16) ? 16 : starts_at(4) ? 4 : kSize;
  };
  const int64_t width = p.state_size + p.input_features;
  GradientResults& results = arguments.results;
  static_cast<BackwardProblem&>(results) = p;
  results.one_segment = has_one_segment(Tile::kArithmetic, p);
  results.state_alignment = alignment({p.d_old_h, p.state_size}, {p.d_input, p.input_features});
  results.weight_alignment = alignment(
      {p.d_weights.of_h, width}, {p.d_weights.of_h, results.one_segment ? width : p.state_size});
  results.state_first = static_cast<int>(p.d_old_h != nullptr ? 0 : p.state_size);
  results.state_end = static_cast<int>(p.d_input != nullptr ? width : p.state_size);
  arguments.parts = reinterpret_cast<float4*>(workspace);
  if (!describe_gradients<Tile>(&arguments, transposed_inputs)) {
    return cudaErrorInvalidValue;
  }
  const int ranks = schedule.weights.ranks;
  const cudaError_t error =
      launch_in_clusters<&backward_wgmma_kernel<Tile>, Tile::kThreads, Tile::kSharedBytes>(
          arguments, grid_of(ranks * schedule.shares.clusters), ranks, stream);
  if constexpr (!Tile::kSharesK) {
    const auto blocks_of = [](const GradientTiles& tiles) {
      return tiles.tiles_in_parts() * (tiles.tile_columns / kSumColumns);
    };
    const int blocks = blocks_of(schedule.state) + blocks_of(schedule.weights);
    if (error == cudaSuccess && blocks > 0) {
      using Sums = GradientTiling<Tile::kArithmetic, 256, 256>;
      return launch_in_clusters<&backward_wgmma_sums_kernel<Sums>, kGradientThreads>(
          arguments, grid_of(blocks), 1, stream);
    }
  }
  return error;
}

/// The columns of the tiles of both products.
struct GradientColumns {
  int state, weights;

  bool operator==(const GradientColumns&) const = default;
};
inline constexpr GradientColumns kGradientColumns[] = {{64, 64}, {64, 256}, {128, 256}, {256, 256}};

template <Arithmetic kArithmetic>
cudaError_t launch_backward_wgmma(const BackwardProblem& problem,
                                  const GradientPlan& plan,
                                  float* workspace,
                                  cudaStream_t stream) {
  Matrix transposed{};
  if constexpr (kArithmetic == Arithmetic::kTf32) {
    const TransposedInputs inputs = transposed_inputs(problem, workspace, !plan.has_large_tiles());
    transposed = {inputs.transposed, inputs.row_stride()};
    workspace += transposed_floats(problem);
  }
  const GradientColumns columns{plan.state_columns, plan.weight_columns};
  return dispatch<kGradientColumns>(columns, [&](auto instance) {
    constexpr GradientColumns kColumns = instance;
    return launch_gradient_tiles<GradientTiling<kArithmetic, kColumns.state, kColumns.weights>>(
        problem, plan, transposed, workspace, stream);
  });
}

}  // namespace lltm::cuda
