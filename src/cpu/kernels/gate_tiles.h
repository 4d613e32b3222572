// Columns of d_gates, packed as operands of tiles of rows of d_weights.
#pragma once

#if defined(LLTM_AMX)
#include "gate_tiles_amx.h"
#else
#include "packing.h"

namespace lltm::cpu {
namespace {

template <typename scalar_t>
class GateTiles {
  using O = Operand<scalar_t>;
  using real = typename O::real;

 public:
  static constexpr int64_t kHeight = kRows;
  // A task should read whole cache lines of each row of d_gates.
  static constexpr int64_t kGatesPerTask = 8 * kRows;
  // A panel's depth is a multiple of this.
  static constexpr int64_t kOperandsAtOnce = 1;

  LLTM_INLINE void pack(const WeightGradientParams<scalar_t>& params,
                        int64_t first_gate,
                        int64_t gate_count) {
    depth_ = depth_of<scalar_t>(params.row_count);
    for (int64_t k = 0; k < depth_; ++k) {
      real operands[kGatesPerTask] = {};
      const scalar_t* rows[O::kTerms];
      next_rows([&](int64_t r) { return params.rows[r].d_gates + first_gate; },
                k * O::kTerms,
                params.row_count,
                rows);
      pack_across(rows, gate_count, operands);
      for (int64_t tile = 0; tile * kHeight < gate_count; ++tile) {
        std::memcpy(tiles_[tile] + k * kHeight, operands + tile * kHeight, kHeight * sizeof(real));
      }
    }
  }

  /// Multiplies a tile by a panel, and sums over all rows.
  LLTM_INLINE void multiply(int64_t tile,
                            const real* panel,
                            VectorOf<scalar_t> (&sums)[kHeight][kMaxVectors]) const {
    multiply_block(tile, panel, 0, sums);
    if (depth_ > kDepth) {  // kWeightDepth, the maximum, is 2 * kDepth.
      VectorOf<scalar_t> more[kHeight][kMaxVectors];
      multiply_block(tile, panel, kDepth, more);
      for (int r = 0; r < kHeight; ++r) {
        for (int v = 0; v < kMaxVectors; ++v) {
          sums[r][v] += more[r][v];
        }
      }
    }
  }

 private:
  LLTM_INLINE void multiply_block(int64_t tile,
                                  const real* panel,
                                  int64_t k,
                                  VectorOf<scalar_t> (&sums)[kHeight][kMaxVectors]) const {
    using Scalar = typename O::Scalar;
    const Scalar* gates[kHeight];
    for (int r = 0; r < kHeight; ++r) {
      gates[r] = reinterpret_cast<const Scalar*>(tiles_[tile] + k * kHeight + r);
    }
    lltm::cpu::multiply<scalar_t, kHeight>(smaller(kDepth, depth_ - k),
                                           gates,
                                           panel + k * kPanelWidth<scalar_t>,
                                           kPanelWidth<scalar_t>,
                                           sums);
  }

  int64_t depth_;
  alignas(64) real tiles_[kGatesPerTask / kHeight][kWeightDepth * kHeight];
};

}  // namespace
}  // namespace lltm::cpu

#endif
