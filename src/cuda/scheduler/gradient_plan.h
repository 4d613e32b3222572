// How the products of the backward by wgmma are cut: the tiles, and the parts of K.
#pragma once

#include "../model.h"
#include "../problem.h"
#include "../tile/shapes.h"

#include <cstdint>

namespace lltm::cuda {

struct GradientPlan {
  // Columns of a tile of the state product and of the weight product (gradient_units.h): 64 and 64,
  // or 64, 128 or 256, and 256.
  int state_columns, weight_columns;
  int ranks;                      // of a cluster that shares K, for 64 and 64: 1, 2, 4 or 8
  bool shares_state;              // K of the state product
  bool shares_weights;            // K of the weight product
  int state_parts, weight_parts;  // of K, for 256: a small kernel adds them up
  int blocks;                     // at most, but where each tile needs a cluster

  /// In TF32: whether the inputs are transposed so that a thread has the sums of four neighbours of
  /// a row of d_weights.
  bool deals_columns() const { return weight_columns == 256; }
};

/// The plan with the least estimated time, and that time, microseconds, without d_gates. It depends
/// on the sizes alone, not on which gradients are wanted, as do the orders of all sums.
/// one_segment: whether old_h and input are columns of one matrix. kTf32, kFloat16 or kBFloat16.
struct GradientChoice {
  GradientPlan plan;
  double us;
};
GradientChoice choose_gradient_plan(Arithmetic arithmetic,
                                    int64_t batch,
                                    int64_t input_features,
                                    int64_t state_size,
                                    bool one_segment,
                                    const DeviceFacts& device);

/// How the products in float32 by wgmma are cut.
struct Float32GradientPlan {
  Float32GradientTile tile;
  int weight_parts = 1;  // at most, of the K = batch of d_weights
  // Which a block forms one after the other: the next one while it writes the one before.
  int weight_tiles_a_block = 1;
};

}  // namespace lltm::cuda
