// How the backward's products are divided into tiles, and their K into shares.
#pragma once

namespace lltm::cuda {

struct GradientPlan {
  // Of a tile; its columns in the state product and in the weight product (gradient_units.h).
  int rows = 0, state_columns = 0, weight_columns = 0;
  int ranks = 1;                          // of a cluster
  bool shares_state = false;              // whether the ranks share the K of the state product
  bool shares_weights = false;            // whether they share the K of the weight product
  int state_parts = 1, weight_parts = 1;  // of K: another kernel adds the parts
  int blocks = 0;                         // at most, except where each tile needs a cluster

  /// By wgmma in 16 bits and TF32. In TF32, the inputs are then transposed so that a thread has the
  /// sums of four neighboring elements of a row of d_weights.
  bool has_large_tiles() const { return weight_columns == 256; }
};

}  // namespace lltm::cuda
