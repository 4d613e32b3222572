#include "../tile/shapes.h"
#include "sequence.h"
#include "times.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace lltm::cuda {
namespace {

// Microseconds of the launch of a product of the library.
constexpr double kLibraryLaunch = 4;
// Bytes per microsecond at which z_x is written and a recurrence reads it.
constexpr double kTraffic = 2.5e6;

/// What input_product.cu takes longer for many features, of which a block takes 256 after the
/// other.
double time_of_features(const Shape& shape) {
  constexpr double kFeature = 0.003;
  return kFeature * static_cast<double>(std::max<int64_t>(shape.input_features - 256, 0));
}

/// Whether input_product.cu takes about three microseconds, as long as the launch of another
/// kernel. It reads rows of K whose vectors are not aligned one element at a time.
bool is_small(const Shape& shape) {
  // An element counts for as many multiply-adds as its bias and its way to memory take.
  constexpr int64_t kMultiplyAdds = 44'000'000, kApart = 20'000'000, kOfElement = 16;
  const int64_t most = shape.input_features % 4 == 0 ? kMultiplyAdds : kApart;
  return shape.batch <= most / ((shape.input_features + kOfElement) * shape.gates()) &&
         time_of_features(shape) < kLibraryLaunch;
}

/// Multiply-adds of a large product of the library, per microsecond.
constexpr ByArithmetic<double> kLibraryRate{.float32 = 23e6, .tf32 = 190e6, .half = 380e6};

double time_by_library(const Shape& shape, const DeviceFacts& device) {
  const double elements = static_cast<double>(shape.batch) * static_cast<double>(shape.gates());
  const Product product{kLibraryLaunch,
                        elements * static_cast<double>(shape.input_features),
                        kLibraryRate.of(*shape.arithmetic)};
  return product.time(device) + elements * shape.element_bytes() / kTraffic;
}

/// By three TF32 products: the rows of a tile, and microseconds of the launch, a chunk of K, and
/// the rest of a tile, which is written meanwhile. Measured on an H100.
struct Float32Tile {
  int rows;
  double launch, chunk, rest;

  double time(const Shape& shape, const DeviceFacts& device) const {
    const int64_t tiles = ceil_div(shape.batch, rows) * ceil_div(shape.gates(), kThreeTf32Columns);
    const TiledTime tiled{.waves = rounds(tiles, device.multiprocessors),
                          .chunks = rounds(shape.input_features, kThreeTf32Chunk),
                          .chunk = chunk,
                          .rest = rest};
    return launch + tiled.time(device);
  }
};
constexpr Float32Tile kFloat32Tiles[] = {{64, 3.5, 0.52, 1.3}, {128, 3.5, 0.755, 2.5}};

/// The time of the copies of what TMA cannot describe, even if all rows are contiguous; none if the
/// workspace has no room for them.
std::optional<double> copies_time(const Shape& shape, const DeviceFacts& device) {
  constexpr int64_t kMostBytes = int64_t{6} << 20;  // of each
  const int64_t size = shape.element_bytes();
  const int64_t of_h = shape.state_size * size, of_x = shape.input_features * size;
  double us = 0;
  const auto add = [&](bool copies, int64_t rows) {
    us += copies ? device.costs->packing.time(static_cast<double>(rows * of_x)) : 0;
    return !copies || rows * of_x <= kMostBytes;
  };
  const bool has_room = add(of_x % 16 != 0, shape.batch) &&
                        add(of_h % 16 != 0 || (of_h + of_x) % 16 != 0, shape.gates());
  return has_room ? std::optional(us) : std::nullopt;
}

}  // namespace

InputProductPlan plan_input_product(const Shape& shape, const DeviceFacts& device) {
  const double by_library = time_by_library(shape, device);
  if (is_small(shape)) {
    return {InputProductKernel::kSmall, 0, by_library + time_of_features(shape)};
  }
  constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max() - 128;  // TMA counts in 32 bits
  const bool by_wgmma = shape.arithmetic == Arithmetic::kFloat32 && device.wgmma &&
                        shape.input_features > 0 && shape.batch <= kMostRows;
  InputProductPlan best{InputProductKernel::kLibrary, 0, by_library};
  if (const auto copies = by_wgmma ? copies_time(shape, device) : std::nullopt) {
    for (const Float32Tile& tile : kFloat32Tiles) {
      if (const double us = *copies + tile.time(shape, device); us < best.us) {
        best = {InputProductKernel::kWgmmaFloat32, tile.rows, us};
      }
    }
  }
  return best;
}

}  // namespace lltm::cuda
