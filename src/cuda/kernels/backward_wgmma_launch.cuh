// Launching the products of the backward by wgmma: their units, what TMA has to know, and the
// tiles.
#pragma once

#include "../runtime/launch.cuh"
#include "../runtime/tensor_maps.h"
#include "backward_kernels.h"
#include "backward_wgmma.cuh"

#include <initializer_list>

namespace lltm::cuda {

/// Whether [old_h | input] is one matrix as the weight product reads it.
template <typename Product>
bool has_one_segment(const BackwardProblem& p) {
  return !Product::kWeightRowsOfK || p.input_features == 0 ||
         (p.input.stride == p.old_h.stride &&
          p.input.data ==
              static_cast<const char*>(p.old_h.data) + p.state_size * Product::kElementSize);
}

inline GradientSchedule schedule_gradients(const BackwardProblem& p,
                                           const GradientPlan& plan,
                                           int chunk_k,
                                           bool one_segment) {
  const bool shares = plan.weight_columns == 64;
  const int ranks = shares ? plan.ranks : 2;
  const int64_t gates = 3 * p.state_size, width = p.state_size + p.input_features;
  // Whole tiles, so that a gradient has the same bits by itself.
  const int64_t first_row = p.d_old_h != nullptr ? 0 : p.state_size / kGradientRows * kGradientRows;
  const int64_t end_row = p.d_input != nullptr   ? width
                          : p.d_old_h != nullptr ? p.state_size
                                                 : first_row;
  const int batch_tiles = tiles_of(p.batch, plan.state_columns);
  const int state_chunks = tiles_of(gates, chunk_k), weight_chunks = tiles_of(p.batch, chunk_k);
  GradientTiles state = gradient_tiles(shares,
                                       ranks,
                                       tiles_of(end_row - first_row, kGradientRows),
                                       batch_tiles,
                                       batch_tiles,
                                       state_chunks,
                                       shares ? 1 : plan.state_parts);
  state.first_row = static_cast<int>(first_row);
  const int first_columns = tiles_of(one_segment ? width : p.state_size, plan.weight_columns);
  const bool shares_weights = shares && plan.shares_weights;
  const GradientTiles weights = gradient_tiles(
      shares_weights,
      ranks,
      p.d_weights != nullptr ? tiles_of(gates, kGradientRows) : 0,
      first_columns,
      first_columns + (one_segment ? 0 : tiles_of(p.input_features, plan.weight_columns)),
      weight_chunks,
      shares ? 1 : plan.weight_parts);
  int clusters = plan.blocks / ranks;
  if (shares && ranks > 1) {
    // One tile of shared K a cluster.
    clusters = std::max(clusters, state.units + (shares_weights ? weights.units : 0));
  }
  // In chunks, what is spent on a unit, its end included; tiles of shared K are not dealt out.
  const double state_cost = double(state_chunks) / (shares ? ranks : state.parts) *
                                (plan.state_columns == plan.weight_columns ? 1 : 0.75) +
                            2;
  const double weight_cost =
      shares_weights && ranks > 1
          ? 1e6
          : double(weight_chunks) / weights.parts + (plan.state_columns == 256 ? 3 : 1.5);
  return deal_out(state, weights, clusters, state_cost, weight_cost);
}

/// In floats.
template <typename Tile>
int64_t gradient_workspace(const GradientSchedule& s) {
  return 4 * (Tile::first_four(s, true) +
              int64_t(s.weights.tiles_in_parts()) * s.weights.parts * Tile::fours(true));
}

template <typename Tile>
bool describe_gradients(GradientArguments* arguments,
                        const BackwardProblem& p,
                        Matrix transposed_inputs,
                        bool one_segment) {
  using Product = typename Tile::Product;
  constexpr int kSize = Product::kElementSize, kBox = Product::kBoxColumns;
  const int64_t gates = 3 * p.state_size, width = p.state_size + p.input_features;
  const auto describe_boxes = [&](CUtensorMap* map,
                                  Matrix matrix,
                                  int64_t rows,
                                  int64_t columns,
                                  int box_rows,
                                  int box_columns) {
    return matrix.data == nullptr || columns == 0 || rows == 0 ||
           describe(map,
                    BoxesOf{.arithmetic = Tile::kArithmetic,
                            .matrix = matrix,
                            .rows = rows,
                            .columns = columns,
                            .box_rows = box_rows,
                            .box_columns = box_columns});
  };
  GradientOperandMaps& operands = arguments->operands;
  // Of a product that is not wanted, operands may be such that TMA does not take them.
  const bool state = arguments->schedule.state.units > 0;
  const bool of_weights = arguments->schedule.weights.units > 0;
  const Matrix d_gates{p.d_gates, p.d_gates_stride};
  bool done = true;
  if (state) {
    done = describe_boxes(&operands.weights, p.weights, gates, width, kBox, kBox) &&
           describe_boxes(&operands.gate_rows,
                          d_gates,
                          p.batch,
                          gates,
                          Tile::StateCopies::kRowsB,
                          Product::kChunkK);
  }
  if (of_weights) {
    done = done && describe_boxes(&operands.gate_columns, d_gates, p.batch, gates, kBox, kBox);
  }
  if constexpr (Product::kWeightRowsOfK) {
    if (of_weights) {
      done = done && describe_boxes(&operands.inputs[0],
                                    p.old_h,
                                    p.batch,
                                    one_segment ? width : p.state_size,
                                    kBox,
                                    kBox);
    }
    if (of_weights && !one_segment) {
      done = done &&
             describe_boxes(&operands.inputs[1], p.input, p.batch, p.input_features, kBox, kBox);
    }
  } else if (of_weights) {
    done = done && describe_boxes(&operands.inputs[0],
                                  transposed_inputs,
                                  width,
                                  p.batch,
                                  Tile::WeightCopies::kRowsB,
                                  Product::kChunkK);
  }
  GradientResultMaps& results = arguments->result_maps;
  if (arguments->state_by_tma) {
    done =
        done &&
        describe_boxes(
            &results.d_old_h, {p.d_old_h, p.state_size}, p.batch, p.state_size, kBox, kBox) &&
        describe_boxes(
            &results.d_input, {p.d_input, p.input_features}, p.batch, p.input_features, kBox, kBox);
  }
  if (arguments->weights_by_tma) {
    const auto segment = [&](CUtensorMap* map, int64_t first, int64_t columns) {
      return describe_boxes(map,
                            {static_cast<const char*>(p.d_weights) + first * kSize, width},
                            gates,
                            columns,
                            64,
                            Tile::Staging::kColumns);
    };
    done = done &&
           (one_segment ? segment(&results.d_weights_h, 0, width)
                        : segment(&results.d_weights_h, 0, p.state_size) &&
                              segment(&results.d_weights_input, p.state_size, p.input_features));
  }
  return done;
}

/// All wanted products. `workspace` has gradient_workspace floats.
template <typename Tile>
cudaError_t launch_gradient_tiles(const BackwardProblem& p,
                                  const GradientPlan& plan,
                                  Matrix transposed_inputs,
                                  float* workspace,
                                  cudaStream_t stream) {
  using Product = typename Tile::Product;
  constexpr int kSize = Product::kElementSize;
  const bool one_segment = has_one_segment<Product>(p);
  GradientArguments arguments{};
  arguments.schedule = schedule_gradients(p, plan, Product::kChunkK, one_segment);
  const GradientSchedule& schedule = arguments.schedule;
  if (schedule.clusters == 0) {
    return cudaSuccess;
  }
  const auto alignment = [](std::initializer_list<const void*> pointers,
                            std::initializer_list<int64_t> sizes) {
    int64_t bits = 16;
    for (const void* const pointer : pointers) {
      bits |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) % 16);
    }
    for (const int64_t size : sizes) {
      bits |= size * kSize;
    }
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : kSize;
  };
  const int64_t width = p.state_size + p.input_features;
  GradientResults& results = arguments.results;
  results = {.batch = p.batch,
             .state_size = p.state_size,
             .input_features = p.input_features,
             .d_old_h = p.d_old_h,
             .d_input = p.d_input,
             .d_weights = p.d_weights,
             .state_alignment = alignment({p.d_old_h, p.d_input}, {p.state_size, p.input_features}),
             .weight_alignment = one_segment ? alignment({p.d_weights}, {width})
                                             : alignment({p.d_weights}, {width, p.state_size}),
             .state_first = static_cast<int>(p.d_old_h != nullptr ? 0 : p.state_size),
             .state_end = static_cast<int>(p.d_input != nullptr ? width : p.state_size),
             .one_segment = one_segment};
  arguments.weights_are_there = true;
  arguments.inputs_are_there = Product::kWeightRowsOfK;  // and not transposed by that kernel
  arguments.state_by_tma = results.state_alignment == 16;
  arguments.weights_by_tma = results.weight_alignment == 16;
  arguments.parts = reinterpret_cast<float4*>(workspace);
  if (!describe_gradients<Tile>(&arguments, p, transposed_inputs, one_segment)) {
    return cudaErrorInvalidValue;
  }
  const int ranks = schedule.weights.ranks;
  const cudaError_t error =
      launch_in_clusters<&backward_wgmma_kernel<Tile>,
                         Tile::kThreads,
                         Tile::kSharedBytes,
                         Tile::kSharedBytes>(arguments,
                                             dim3(static_cast<unsigned>(ranks * schedule.clusters)),
                                             static_cast<unsigned>(ranks),
                                             stream);
  const int blocks = (schedule.state.tiles_in_parts() * Tile::kStateColumns +
                      schedule.weights.tiles_in_parts() * Tile::kWeightColumns) /
                     kSumColumns;
  if (error != cudaSuccess || blocks == 0) {
    return error;
  }
  return launch_in_clusters<&backward_wgmma_sums_kernel<Tile>, kGradientThreads, 0, 0>(
      arguments, dim3(static_cast<unsigned>(blocks)), 1, stream);
}

/// Calls `run` with the tile of a plan as a type.
template <Arithmetic kArithmetic, typename Run>
auto with_gradient_tile(const GradientPlan& plan, const Run& run) {
  if (plan.weight_columns == 64) {
    return run(GradientTile<kArithmetic, 64, 64>());
  }
  switch (plan.state_columns) {
    case 64:
      return run(GradientTile<kArithmetic, 64, 256>());
    case 128:
      return run(GradientTile<kArithmetic, 128, 256>());
    default:
      return run(GradientTile<kArithmetic, 256, 256>());
  }
}

template <Arithmetic kArithmetic>
int64_t backward_wgmma_workspace(const BackwardProblem& problem, const GradientPlan& plan) {
  return with_gradient_tile<kArithmetic>(plan, [&](auto tile) {
    using Tile = decltype(tile);
    using Product = typename Tile::Product;
    return gradient_workspace<Tile>(
        schedule_gradients(problem, plan, Product::kChunkK, has_one_segment<Product>(problem)));
  });
}

template <Arithmetic kArithmetic>
cudaError_t launch_backward_wgmma(const BackwardProblem& problem,
                                  const GradientPlan& plan,
                                  Matrix transposed_inputs,
                                  float* workspace,
                                  cudaStream_t stream) {
  return with_gradient_tile<kArithmetic>(plan, [&](auto tile) {
    return launch_gradient_tiles<decltype(tile)>(
        problem, plan, transposed_inputs, workspace, stream);
  });
}

}  // namespace lltm::cuda
