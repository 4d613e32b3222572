#include "../kernels/recurrence/cell_tiles.h"
#include "sequence.h"
#include "times.h"

#include <algorithm>
#include <array>
#include <list>
#include <sstream>
#include <type_traits>
#include <vector>

namespace lltm::cuda {
namespace {

// Microseconds of a launch that loads the weights; across the grid with one that prepares them, and
// what an element of them takes there, which the backward transposes. Measured on an H200.
constexpr double kPrologue = 5, kClusterPrologue = 11, kGridPrologue = 7;
constexpr double kGridElement = 2e-6, kTransposedGridElement = 4e-6;
// What is hidden of a prologue behind a product of this library.
constexpr double kHidden = 3;
// How much longer a step of several rows takes that reads and writes elements one by one.
constexpr double kOddInBlock = 1.7, kOddInCluster = 1.3;

// The shared memory of the largest blocks by mma.sync, which have 128 columns of the state, and of
// the blocks of clusters.
constexpr int kLargestMmaBytes = 150 * 1024, kClusterBytes = 227 * 1024;
// The largest state of those whose blocks fit every GPU.
constexpr int kSmallMmaState = 96;

// Kernels count steps, and the grid blocks, in 32 bits.
constexpr int64_t kMostSteps = int64_t{1} << 30;

int resident_clusters(int size, const DeviceFacts& device) {
  return device.resident_in_clusters_of(size) / size;
}

/// Whether a candidate is a kernel for a cell of as many gates and its arithmetic.
bool is_for(const Candidate& of, const Shape& shape) {
  return of.cell == shape.cell && (of.group == Group::kGrid || of.float32 == shape.in_floats());
}

/// Whether a candidate that multiplies the input itself, and needs no z_x, can.
bool multiplies_input(const Candidate& of, const Shape& shape, const DeviceFacts& device) {
  if (shape.backward || shape.input_features == 0) {
    return false;
  }
  return of.float32 ? shape.input_features <= of.recurrence.state_size
                    : shape.input_features <= kLargestRecurrentInput && shape.in_pairs &&
                          shape.input_in_pairs &&
                          device.shared_bytes_a_block >= bytes_to_multiply_input(gates_of(of.cell));
}

/// Whether a candidate takes a sequence of a state that fits it. If not, `why` says why, unless it
/// is null or another candidate of the group takes what this one cannot.
bool takes(const Candidate& of, const Shape& shape, const DeviceFacts& device, std::string* why) {
  const auto refuses = [&](const auto&... reason) {
    if (why != nullptr) {
      std::ostringstream text;
      (text << ... << reason);
      *why = text.str();
    }
    return false;
  };
  if (of.group == Group::kCluster && (device.shared_bytes_a_block < kClusterBytes ||
                                      resident_clusters(of.recurrence.cluster, device) == 0)) {
    return refuses(
        "needs a cluster of ", of.recurrence.cluster, " blocks, which is not resident on this GPU");
  }
  if (of.group == Group::kBlock && !of.float32 && of.recurrence.state_size > kSmallMmaState &&
      device.shared_bytes_a_block < kLargestMmaBytes) {
    return refuses("needs ",
                   kLargestMmaBytes / 1024,
                   " KiB of shared memory a block for a 16-bit state_size of more than ",
                   kSmallMmaState,
                   ", and the GPU has ",
                   device.shared_bytes_a_block / 1024);
  }
  if (of.group == Group::kGrid && !plan_grid(shape, device)) {
    return refuses("has no tile for ",
                   shape.batch,
                   " rows of a state_size of ",
                   shape.state_size,
                   " on this GPU, on which all its blocks have to be resident");
  }
  if (shape.steps >= kMostSteps || shape.batch >= kMostSteps) {
    return refuses("takes fewer than 2^30 steps and rows, got ", shape.steps, " and ", shape.batch);
  }
  const bool has_z_x = shape.launches > 0 && (of.group != Group::kGrid || shape.parts() == 1);
  if (of.recurrence.x_inside ? !multiplies_input(of, shape, device) : !has_z_x && shape.steps > 0) {
    return refuses("has no workspace for a step of ", shape.batch, " rows");
  }
  const bool any_pairs = of.float32 || of.group != Group::kBlock || of.recurrence.rows <= 8;
  return shape.steps > 0 && (any_pairs || shape.in_pairs);
}

bool supports_sequence(const Candidate& of, const Shape& shape, const DeviceFacts& device) {
  return is_for(of, shape) && shape.state_size <= of.recurrence.state_size &&
         takes(of, shape, device, /*why=*/nullptr);
}

/// The product with the inputs of each launch.
InputProductPlan input_product_of(const Shape& shape, const DeviceFacts& device) {
  Shape product = shape;
  product.batch = ceil_div(shape.steps * shape.batch, std::max<int64_t>(shape.launches, 1));
  return plan_input_product(product, device);
}

/// All steps of so many rows, without what a launch takes before them.
TiledTime time_of_steps(const Candidate& of,
                        const Shape& shape,
                        int64_t rows,
                        const DeviceFacts& device) {
  const auto steps = static_cast<double>(shape.steps);
  if (of.group == Group::kGrid) {
    return {.chunks = steps, .chunk = plan_grid(shape, device)->us};
  }
  const bool in_clusters = of.group == Group::kCluster;
  const auto& step = shape.backward ? of.times_of_step.backward : of.times_of_step.forward;
  const int group_rows = rows_of_group(of.recurrence, rows, device);
  const int64_t a_multiprocessor = ceil_div(
      ceil_div(rows, group_rows),
      in_clusters ? resident_clusters(of.recurrence.cluster, device) : device.multiprocessors);
  const int64_t resident =
      std::min(a_multiprocessor, static_cast<int64_t>(of.blocks_a_multiprocessor));
  double us = in_clusters ? step.latency + group_rows * step.busy
                          : std::max(step.latency, static_cast<double>(resident) * step.busy);
  if (!of.float32 && of.recurrence.rows > 1 && !shape.in_pairs) {
    us *= in_clusters ? kOddInCluster : kOddInBlock;
  }
  return {.waves = rounds(a_multiprocessor, resident), .chunks = steps, .chunk = us};
}

Time time_of_sequence(const Candidate& of, const Shape& shape, const DeviceFacts& device, int) {
  const bool x_inside = of.recurrence.x_inside, in_grid = of.group == Group::kGrid;
  const auto launches = x_inside ? 1.0 : static_cast<double>(shape.launches);
  const int64_t parts = x_inside ? 1 : shape.parts();
  const double elements =
      static_cast<double>(gates_of(of.cell) * shape.state_size * shape.state_size);
  double prologue =
      in_grid ? kGridPrologue + elements * (shape.backward ? kTransposedGridElement : kGridElement)
      : of.group == Group::kCluster ? kClusterPrologue
                                    : kPrologue;
  double input = 0;
  if (!shape.backward && !x_inside) {
    const InputProductPlan product = input_product_of(shape, device);
    prologue -= product.is_own() && !in_grid ? kHidden : 0;
    input = launches * product.us;
  }
  TiledTime of_part = time_of_steps(of, shape, ceil_div(shape.batch, parts), device);
  of_part.rest = launches / static_cast<double>(parts) * prologue;
  return Estimate{input + static_cast<double>(parts) * of_part.time(device)};
}

// In the order of the tiles, for a cell of three or four gates. Measured on an H100 with the LLTM
// and the LSTM; the first ones stand for the GRU, too.
// Of a forward of three gates at a state of 384, 0.80 was measured: with it, 64 rows tie with the
// grid, which on an H200 takes 1.25 times as long with gradients.
// clang-format off
constexpr RecurrenceTimes kFmaOfThree[] = {
    {{0.21, 0.075}, {0.29, 0.058}}, {{0.33, 0.14}, {0.54, 0.105}}, {{0.65, 0.31}, {1.14, 0.35}},
    {{0.30, 0.056}, {}},
    {{0.24, 0.26}, {0.31, 0.23}}, {{0.32, 0.39}, {0.41, 0.30}}, {{0.53, 0.75}, {0.62, 0.53}},  // state 64
    {{0.46, 0.46}, {0.51, 0.51}}, {{0.68, 0.68}, {0.71, 0.71}}, {{1.30, 1.30}, {1.36, 1.36}},  // 96
    {{0.54, 0.54}, {0.64, 0.64}}, {{0.95, 0.95}, {0.97, 0.97}}, {{1.95, 1.95}, {1.95, 1.95}},  // 128
    {{0.69, 0}, {0.78, 0}}, {{1.17, 0}, {1.35, 0}}, {{1.95, 0}, {2.35, 0}}, {{1.60, 0}, {1.85, 0}},
    {{0.83, 0}, {1.22, 0}}, {{1.41, 0}, {1.87, 0}}, {{1.98, 0}, {2.55, 0}},                    // 512
};
constexpr RecurrenceTimes kFmaOfFour[] = {
    {{0.23, 0.070}, {0.35, 0.078}}, {{0.35, 0.26}, {0.59, 0.43}},
    {{0.31, 0.23}, {0.40, 0.28}}, {{0.38, 0.30}, {0.48, 0.39}}, {{0.65, 0.57}, {0.89, 0.69}},  // 64
    {{0.59, 0.59}, {0.89, 0.89}}, {{1.00, 1.00}, {1.25, 1.25}},                                // 96
    {{0.74, 0}, {0.87, 0}}, {{0.91, 0}, {1.12, 0}}, {{1.45, 0}, {1.69, 0}},                    // 128
    {{1.17, 0}, {1.45, 0}}, {{1.98, 0}, {2.30, 0}},
    {{0.83, 0}, {1.02, 0}}, {{1.02, 0}, {1.35, 0}}, {{1.62, 0}, {2.17, 0}},                    // 256
    {{1.30, 0}, {1.77, 0}}, {{1.97, 0}, {2.52, 0}},
};
constexpr RecurrenceTimes kMmaOfThree[] = {
    {{0.21, 0.068}, {0.19, 0.072}}, {{0.30, 0.26}, {0.42, 0.21}},
    {{0.23, 0.13}, {0.24, 0.17}}, {{0.35, 0.40}, {0.46, 0.44}},                                // 64
    {{0.37, 0.30}, {0.41, 0.30}}, {{0.60, 0.60}, {0.82, 0.82}},                                // 96
    {{0.40, 0.40}, {0.50, 0.50}}, {{0.65, 0.65}, {0.97, 0.97}}, {{3.50, 3.50}, {3.90, 3.90}},  // 128
    {{2.60, 2.60}, {}},
    {{0.55, 0.15}, {0.97, 0.10}}, {{0.78, 0.11}, {1.20, 0.11}}, {{0.55, 0.165}, {1.45, 0.17}},
};
constexpr RecurrenceTimes kMmaOfFour[] = {
    {{0.21, 0.066}, {0.24, 0.094}}, {{0.37, 0.245}, {0.52, 0.245}},
    {{0.285, 0.173}, {0.315, 0.23}}, {{0.43, 0.49}, {0.63, 0.60}},                             // 64
    {{0.425, 0.29}, {0.69, 0.465}}, {{0.75, 0.75}, {1.17, 1.17}},                              // 96
    {{0.49, 0.49}, {0.66, 0.66}}, {{0.90, 0.90}, {1.51, 1.51}}, {{4.20, 4.20}, {}},            // 128
    {{0.72, 0.122}, {1.20, 0.165}},
};
// clang-format on
// The GRU's own.
constexpr RecurrenceTile kGruTiles[] = {{512, 4, false, 16}, {128, 32, true}, {512, 16, false, 8}};
constexpr RecurrenceTimes kOfGruTiles[] = {
    {{2.45, 0}, {3.25, 0}}, {{2.90, 2.90}, {}}, {{0.83, 0.15}, {1.60, 0.165}}};

/// Times of all tiles of a cell, from those of the cell that they were measured with. A tile
/// without times does not compile.
template <typename Cell, size_t kCount, size_t kMeasured>
consteval std::array<RecurrenceTimes, kCount> times_of(
    const std::array<RecurrenceTile, kCount>& tiles,
    const std::array<RecurrenceTile, kMeasured>& measured,
    const RecurrenceTimes (&times)[kMeasured]) {
  std::array<RecurrenceTimes, kCount> found{};
  std::ranges::transform(tiles, found.begin(), [&](const RecurrenceTile& tile) {
    const auto own = std::ranges::find(kGruTiles, tile) - kGruTiles;
    return std::is_same_v<Cell, cell::Gru> && own < std::ssize(kGruTiles)
               ? kOfGruTiles[own]
               : times[std::ranges::find(measured, tile) - measured.begin()];
  });
  return found;
}

/// Named recurrence_[lstm_|gru_]PRODUCT_STATExROWS[_x|_clusterBLOCKS], which is what a kernel is
/// compiled for, or recurrence_[lstm_|gru_]grid. Neither names nor the table are ever destroyed:
/// threads may plan while a program exits.
std::vector<Candidate> all_candidates() {
  std::vector<Candidate> all;
  const auto add = [&](Group group, CellType cell, const std::string& kernel) -> Candidate& {
    // No deque, which needs the libstdc++ of GCC 11: the wheel also runs beside older ones.
    static auto& names = *new std::list<std::string>;
    constexpr const char* kCells[kCellTypes] = {"", "lstm_", "gru_"};
    names.push_back(std::string("recurrence_") + kCells[static_cast<size_t>(cell)] + kernel);
    all.push_back({.name = names.back(),
                   .group = group,
                   .estimate = time_of_sequence,
                   .supports = supports_sequence,
                   .cell = cell});
    return all.back();
  };
  const auto add_tiles = [&](CellType cell, bool float32, const auto& tiles, const auto& times) {
    for (size_t i = 0; i < tiles.size(); ++i) {
      const RecurrenceTile& tile = tiles[i];
      const bool in_clusters = tile.cluster > 1;
      Candidate& of = add(in_clusters ? Group::kCluster : Group::kBlock,
                          cell,
                          (float32 ? "fma_" : "mma_") + std::to_string(tile.state_size) + "x" +
                              std::to_string(tile.rows) + (tile.x_inside ? "_x" : "") +
                              (in_clusters ? "_cluster" + std::to_string(tile.cluster) : ""));
      of.float32 = float32;
      of.recurrence = tile;
      of.times_of_step = times[i];
      of.blocks_a_multiprocessor =
          float32 ? resident_fma_blocks(gates_of(cell), tile) : resident_mma_blocks(tile);
    }
  };
  for (const CellType cell : {CellType::kLltm, CellType::kLstm, CellType::kGru}) {
    with_cell(cell, [&]<typename Cell>() {
      constexpr int kGates = Cell::kGates;
      constexpr const auto &kFma = kFmaTilesOf<kGates, Cell::kSaved>,
                           &kMma = kMmaTilesOf<kGates, Cell::kSaved>;
      if constexpr (kGates == 3) {
        add_tiles(cell, true, kFma, times_of<Cell>(kFma, kFmaTiles<3>, kFmaOfThree));
        add_tiles(cell, false, kMma, times_of<Cell>(kMma, kMmaTiles<3>, kMmaOfThree));
      } else {
        add_tiles(cell, true, kFma, times_of<Cell>(kFma, kFmaTiles<4>, kFmaOfFour));
        add_tiles(cell, false, kMma, times_of<Cell>(kMma, kMmaTiles<4>, kMmaOfFour));
      }
    });
    add(Group::kGrid, cell, "grid").recurrence.state_size = kGridForwardTiles.back().state_size;
  }
  return all;
}

/// The tiles of d_weights, and of d_input.
int64_t tiles_of_weights(const Shape& s) {
  return ceil_div(s.gates(), kGradientTile) * s.column_tiles(kGradientTile);
}
int64_t tiles_of_input(const Shape& s) {
  return ceil_div(s.batch, kGradientTile) * ceil_div(s.input_features, kGradientTile);
}

}  // namespace

std::span<const Candidate> recurrence_candidates() {
  static const auto& all = *new std::vector<Candidate>(all_candidates());
  return all;
}

std::string why_no_recurrence(const Shape& shape, const DeviceFacts& device, Group group) {
  if (!shape.arithmetic) {
    return "has no kernel for float64";
  }
  if (!device.tiles) {
    return "needs a GPU of compute capability 8.0 or newer";
  }
  int largest = 0;
  std::optional<std::string> why;  // of the smallest that the state fits, which is the first
  for (const Candidate& of : recurrence_candidates()) {
    if (of.group != group || !is_for(of, shape)) {
      continue;
    }
    largest = std::max(largest, of.recurrence.state_size);
    std::string refusal;
    if (shape.state_size <= of.recurrence.state_size) {
      if (takes(of, shape, device, &refusal)) {
        return {};
      }
      why = why.value_or(refusal);
    }
  }
  return why ? *why
             : "takes a state_size of at most " + std::to_string(largest) + ", got " +
                   std::to_string(shape.state_size);
}

int rows_of_group(const RecurrenceTile& tile, int64_t rows, const DeviceFacts& device) {
  if (tile.cluster == 1) {
    return tile.rows;
  }
  const int64_t at_once = resident_clusters(tile.cluster, device);
  const int64_t waves = ceil_div(rows, at_once * tile.rows);
  return static_cast<int>(ceil_div(rows, waves * at_once));
}

const Candidate* choose_recurrence(const Shape& shape,
                                   const DeviceFacts& device,
                                   const Selection& selection,
                                   double time_of_steps) {
  const Choice best = choose(shape, device, selection);
  return best.is_selected || (selection == Selection{} && best.estimate.us < time_of_steps)
             ? best.candidate
             : nullptr;
}

bool are_small_gradient_products(const Shape& s) {
  // Of whole tiles, about as many as take as long as the launches of the library. A tile counts for
  // as many more as its way from and to memory takes.
  constexpr int64_t kMultiplyAdds = 80'000'000, kOfTile = 64;
  constexpr int64_t kMost = kMultiplyAdds / (kGradientTile * kGradientTile);
  return s.batch <= kMost &&
         tiles_of_weights(s) * (s.batch + kOfTile) + tiles_of_input(s) * (s.gates() + kOfTile) <=
             kMost;
}

GradientParts parts_of_weight_gradient(const Shape& s, const DeviceFacts& device) {
  // In chunks of tiles. So many in a row take no longer than adding parts would.
  constexpr int64_t kOfAMultiprocessor = 3, kOfOnePart = 3;
  const int64_t of_tile = ceil_div(s.batch, kGradientChunk);
  if (of_tile <= kOfOnePart) {
    return {of_tile * kGradientChunk, 1};
  }
  const int64_t all =
      tiles_of_weights(s) * of_tile + tiles_of_input(s) * ceil_div(s.gates(), kGradientChunk);
  const int64_t of_part = ceil_div(all, kOfAMultiprocessor * device.multiprocessors);
  return {of_part * kGradientChunk, ceil_div(of_tile, of_part)};
}

}  // namespace lltm::cuda
