// How the backward's products by wgmma are divided: into tiles, and into parts of K.
#pragma once

#include "../tile/shapes.h"
#include "facts.h"

namespace lltm::cuda {

struct BackwardShape;  // backward.h

struct GradientPlan {
  // Columns of a tile of the state product and of the weight product (gradient_units.h): 64 and 64;
  // or 64, 128 or 256 and 256.
  int state_columns, weight_columns;
  int ranks = 1;                          // of a cluster, for 64 columns: 1, 2, 4 or 8
  bool shares_state = false;              // whether the ranks share the K of the state product
  bool shares_weights = false;            // whether they share the K of the weight product
  int state_parts = 1, weight_parts = 1;  // of K, for 256 columns: another kernel adds the parts
  int blocks;                             // at most, except where each tile needs a cluster

  /// In TF32, with large tiles the inputs are transposed so that a thread has the sums of four
  /// neighboring elements of a row of d_weights, and rows of weights may start anywhere.
  bool has_large_tiles() const { return weight_columns == 256; }
};

/// The plan with the least estimated time, and that time in microseconds, without d_gates. The
/// plan, and so the order of all sums, depends only on the sizes, not on which gradients are
/// wanted. The arithmetic is kTf32, kFloat16 or kBFloat16.
struct GradientChoice {
  GradientPlan plan;
  double us;
};
GradientChoice choose_gradient_plan(const BackwardShape& shape, const DeviceFacts& device);

/// How the products in float32 by wgmma are divided.
struct Float32GradientPlan {
  Float32GradientTile tile;
  int ranks = 1;         // of a cluster, which share the K of d_old_h and d_input
  int weight_parts = 1;  // of the batch, which is the K of d_weights: another kernel adds them
  int blocks;            // at most, except where each tile needs a cluster
};

}  // namespace lltm::cuda
