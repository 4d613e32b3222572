// Rows times a packed panel: the products of a sequence, whose weights are packed once per call.
#pragma once

#if defined(LLTM_AMX)
#include "panel_product_amx.h"
#else
#include "packing.h"
#include "panel_sums.h"

namespace lltm::cpu {
namespace {

/// Empty except with AMX: see panel_product_amx.h.
template <typename scalar_t>
struct ProductRegisters {
  LLTM_INLINE explicit ProductRegisters(int64_t /*rows*/) {}
};

/// Multiplies `rows` rows of `terms` terms, row_of(r) each, by a panel of `vectors` vectors, and
/// gives the sums to `sums_of_rows` (PanelSums). Without terms they are zeros. The order of a sum
/// does not depend on the number of rows.
template <typename scalar_t, int vectors, typename RowOf, typename Sums>
LLTM_INLINE void multiply_by_panel(int64_t rows,
                                   int64_t terms,
                                   const accumulate_t<scalar_t>* panel,
                                   const RowOf& row_of,
                                   const Sums& sums_of_rows) {
  using O = Operand<scalar_t>;
  using V = Simd<typename O::real>;
  constexpr int max_rows = kAccumulators / vectors;
  constexpr int64_t width = vectors * V::kLanes;
  const int64_t tiles = ceil_div(rows, max_rows);
  int64_t term = 0;
  do {
    const int64_t terms_here = smaller(kTermsPerBlock<scalar_t>, terms - term);
    const auto* block = panel + depth_of<scalar_t>(term) * width;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      // All tiles have about the same height: a low tile would not keep the multipliers busy.
      const int64_t first = rows * tile / tiles;
      const int64_t count = rows * (tile + 1) / tiles - first;
      alignas(64) typename O::Vector sums[max_rows * vectors];
      with_constant<max_rows>(count, [&]<int height>() __attribute__((always_inline)) {
        const scalar_t* from[height];
        for (int r = 0; r < height; ++r) {
          from[r] = row_of(first + r) + term;
        }
        alignas(64) typename O::real scratch[height][kDepth];
        const typename O::Scalar* scalars[height];
        scalars_of_rows<scalar_t>(from, terms_here, scratch, scalars);
        // Each tile prefetches a vector of the next block, because a large panel is not in a near
        // cache. A low tile reads about as much as it multiplies, and cannot hide a prefetch.
        const auto* next = 2 * height > max_rows ? block + depth_of<scalar_t>(terms_here) * width +
                                                       tile % vectors * V::kLanes
                                                 : nullptr;
        typename O::Vector block_sums[height][vectors];
        multiply<scalar_t, 1>(
            depth_of<scalar_t>(terms_here), scalars, block, width, block_sums, next);
        for (int r = 0; r < height; ++r) {
          for (int v = 0; v < vectors; ++v) {
            sums[r * vectors + v] = block_sums[r][v];
          }
        }
      });
      sums_of_rows.template add<vectors>(first, count, sums, term == 0, term + terms_here == terms);
    }
    term += kTermsPerBlock<scalar_t>;
  } while (term < terms);
}

}  // namespace
}  // namespace lltm::cpu

#endif
