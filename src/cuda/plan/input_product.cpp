#include "input_product.h"

#include "../tile/shapes.h"

#include <algorithm>
#include <limits>

namespace lltm::cuda {
namespace {

// Microseconds of the launch of a product of the library.
constexpr double kLibraryLaunch = 4;
// Bytes per microsecond at which z_x is written and a recurrence reads it.
constexpr double kTraffic = 2.5e6;

/// Multiply-adds of a large product of the library, per microsecond.
double library_rate(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFloat32:
      return 23e6;
    case Arithmetic::kTf32:
      return 190e6;
    default:
      return 380e6;
  }
}

/// Whether input_product.cu takes about three microseconds, as long as the launch of another
/// kernel.
bool is_small(int64_t rows, int64_t input_features, int64_t columns) {
  // An element counts for as many multiply-adds as its bias and its way to memory take.
  constexpr int64_t kMultiplyAdds = 24'000'000, kOfElement = 16;
  return rows <= kMultiplyAdds / ((input_features + kOfElement) * columns);
}

double library_time(Arithmetic arithmetic, int64_t rows, int64_t input_features, int64_t columns) {
  return kLibraryLaunch + static_cast<double>(rows) * static_cast<double>(columns) *
                              (static_cast<double>(input_features) / library_rate(arithmetic) +
                               element_size(arithmetic) / kTraffic);
}

/// Tiles of 96 columns and 64 or 128 rows. Microseconds of the launch, a chunk of K, and the rest
/// of a tile, which is written meanwhile. Measured on an H100.
struct Float32Tile {
  int rows;
  double launch, chunk, rest;
};
constexpr Float32Tile kFloat32Tiles[] = {{64, 3.5, 0.52, 1.3}, {128, 3.5, 0.755, 2.5}};
constexpr int kFloat32Columns = 96, kFloat32Chunk = 32;

double time_of(const Float32Tile& of,
               int64_t rows,
               int64_t input_features,
               int64_t columns,
               const DeviceFacts& device) {
  const int64_t tiles = ceil_div(rows, of.rows) * ceil_div(columns, kFloat32Columns);
  const auto chunks = static_cast<double>(ceil_div(input_features, kFloat32Chunk));
  return of.launch + static_cast<double>(ceil_div(tiles, device.multiprocessors)) *
                         (chunks * of.chunk + of.rest);
}

}  // namespace

InputProductPlan plan_input_product(Arithmetic arithmetic,
                                    int64_t rows,
                                    int64_t input_features,
                                    int64_t state_size,
                                    const DeviceFacts& device) {
  const int64_t columns = 3 * state_size;
  InputProductPlan best{.kernel = is_small(rows, input_features, columns)
                                      ? InputProductKernel::kSmall
                                      : InputProductKernel::kLibrary,
                        .tile_rows = 0,
                        .us = library_time(arithmetic, rows, input_features, columns)};
  // TMA counts rows in 32 bits, and copies of operands that it cannot describe must be small.
  constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max() - 128;
  constexpr int64_t kMostCopied = int64_t{8} << 20;
  const int64_t width = state_size + input_features, size = element_size(arithmetic);
  const bool copies_input = input_features * size % 16 != 0;
  const bool copies_weights = state_size * size % 16 != 0 || width * size % 16 != 0;
  if (best.kernel == InputProductKernel::kLibrary && arithmetic == Arithmetic::kFloat32 &&
      device.wgmma && input_features > 0 && rows <= kMostRows &&
      (!copies_weights || columns * input_features * size <= kMostCopied)) {
    const auto& packing = device.costs->packing;
    const double copies =
        (copies_input ? packing.time(static_cast<double>(rows * input_features * size)) : 0) +
        (copies_weights ? packing.time(static_cast<double>(columns * input_features * size)) : 0);
    for (const Float32Tile& tile : kFloat32Tiles) {
      const double us = copies + time_of(tile, rows, input_features, columns, device);
      if (us < best.us) {
        best = {InputProductKernel::kWgmmaFloat32, tile.rows, us};
      }
    }
  }
  return best;
}

}  // namespace lltm::cuda
