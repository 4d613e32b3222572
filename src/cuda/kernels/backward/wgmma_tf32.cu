// Launches wgmma_tf32.cuh: the schedule, the tensor maps and the tiles.
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "kernels.h"
#include "wgmma_tf32.cuh"

#include <algorithm>
#include <tuple>

namespace lltm::cuda {
namespace {

template <typename Tile>
Tf32Schedule schedule_tf32(const BackwardProblem& p, int parts, int pairs) {
  Tf32Schedule s{};
  const int64_t state =
      (p.d_old_h != nullptr ? p.state_size : 0) + (p.d_input != nullptr ? p.input_features : 0);
  s.state_rows = tiles_of(state, 2 * Tile::kTileM);
  s.state_columns = tiles_of(p.batch, Tile::kBatchTile);
  s.state_chunks = tiles_of(3 * p.state_size, Tile::kChunkK);
  s.parts = parts;
  s.state_units = s.state_rows * s.state_columns * parts;
  s.weight_columns = tiles_of(p.state_size + p.input_features, Tile::kWeightTile);
  s.weight_chunks = tiles_of(p.batch, Tile::kChunkK);
  s.weight_units =
      p.d_weights != nullptr ? s.weight_columns * tiles_of(3 * p.state_size, 2 * Tile::kTileM) : 0;
  s.pairs = std::min(s.state_units + s.weight_units, pairs);
  // The cost of a unit in chunks of 256 columns, epilogue included.
  const double state_cost =
      double(s.state_chunks) / parts * (Tile::kBatchTile == 256 ? 1 : 0.75) + 1.5;
  std::tie(s.busy, s.weights_of_busy) =
      share_of_busy(s.state_units, s.weight_units, s.pairs, state_cost, s.weight_chunks + 2);
  return s;
}

template <typename Tile>
int64_t parts_floats(const BackwardProblem& p, int parts) {
  const Tf32Schedule s = schedule_tf32<Tile>(p, parts, 1);
  return int64_t(s.state_units) * 2 * Tile::kTileM * Tile::kBatchTile;
}

template <typename Tile>
cudaError_t launch_tf32_tile(
    const BackwardProblem& p, int parts, int pairs, float* workspace, cudaStream_t stream) {
  Tf32GradientArguments arguments{};
  arguments.schedule = schedule_tf32<Tile>(p, parts, pairs);
  const Tf32Schedule& schedule = arguments.schedule;
  if (schedule.pairs == 0) {
    return cudaSuccess;
  }
  const int64_t gates = 3 * p.state_size;
  const int64_t h = p.d_old_h != nullptr ? p.state_size : 0;
  const int64_t input = p.d_input != nullptr ? p.input_features : 0;
  arguments.parts = reinterpret_cast<float4*>(workspace + transposed_floats(p));
  arguments.d_weights = static_cast<float*>(p.d_weights);
  arguments.d_weights_rows = gates;
  arguments.d_weights_columns = p.state_size + p.input_features;
  constexpr Arithmetic kTf32 = Arithmetic::kTf32;
  constexpr int kChunkK = Tile::kChunkK, kStateRows = Tile::kBatchTile / 4,
                kInputRows = Tile::kWeightTile / 4;
  const Matrix d_gates{p.d_gates, gates};
  bool done = true;
  if (schedule.state_units > 0) {
    const Matrix weights = p.weights.from(h > 0 ? 0 : p.state_size, 4);
    done = describe(&arguments.weights, {kTf32, weights, gates, h + input, kChunkK, kChunkK}) &&
           describe(&arguments.gate_rows, {kTf32, d_gates, p.batch, gates, kStateRows, kChunkK});
  }
  if (schedule.weight_units > 0) {
    const TransposedInputs of = transposed_inputs(p, workspace);
    const Matrix inputs{of.transposed, of.row_stride()};
    done = done &&
           describe(&arguments.gate_columns, {kTf32, d_gates, p.batch, gates, kChunkK, kChunkK}) &&
           describe(&arguments.inputs, {kTf32, inputs, of.columns(), p.batch, kInputRows, kChunkK});
  }
  if (!done) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error =
      launch_in_clusters<&backward_wgmma_tf32_kernel<Tile>, Tile::kThreads, Tile::kSharedBytes>(
          arguments, dim3(static_cast<unsigned>(2 * schedule.pairs)), 2, stream);
  if (error != cudaSuccess || schedule.state_units == 0) {
    return error;
  }
  const Tf32PartsArguments sums{arguments.parts,
                                parts,
                                schedule.state_columns,
                                p.batch,
                                h,
                                input,
                                static_cast<float*>(p.d_old_h),
                                static_cast<float*>(p.d_input)};
  const int tiles = 2 * schedule.state_rows * schedule.state_columns;
  return launch_in_clusters<&add_tf32_parts_kernel<Tile>, Tile::kMultipliers>(
      sums, dim3(static_cast<unsigned>(tiles * (Tile::kBatchTile / 16))), 1, stream);
}

// Calls `run` with the tile as a type.
template <typename Run>
auto with_tile(Tf32BatchTile tile, const Run& run) {
  switch (tile) {
    case Tf32BatchTile::k64:
      return run(Tf32GradientTile<64>());
    case Tf32BatchTile::k128:
      return run(Tf32GradientTile<128>());
    default:
      return run(Tf32GradientTile<256>());
  }
}

}  // namespace

cudaError_t launch_backward_wgmma_tf32(const BackwardProblem& params,
                                       Tf32BatchTile tile,
                                       int parts,
                                       int pairs,
                                       float* workspace,
                                       cudaStream_t stream) {
  return with_tile(tile, [&](auto of) {
    return launch_tf32_tile<decltype(of)>(params, parts, pairs, workspace, stream);
  });
}

int64_t backward_wgmma_tf32_workspace(const BackwardProblem& params,
                                      Tf32BatchTile tile,
                                      int parts) {
  return with_tile(tile, [&](auto of) {
    return transposed_floats(params) + parts_floats<decltype(of)>(params, parts);
  });
}

TransposedInputs transposed_inputs(const BackwardProblem& p, float* workspace, bool in_order) {
  return {
      .batch = p.batch,
      .input_features = p.input_features,
      .state_size = p.state_size,
      .input = p.input,
      .old_h = p.old_h,
      .transposed = p.d_weights != nullptr ? workspace : nullptr,
      .in_order = in_order,
  };
}

int64_t transposed_floats(const BackwardProblem& p) {
  const TransposedInputs inputs = transposed_inputs(p, nullptr);
  return p.d_weights != nullptr ? inputs.columns() * inputs.row_stride() : 0;
}

}  // namespace lltm::cuda
