#include "recurrence.h"

#include "../../cell/with_cell.h"
#include "input_product.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace lltm::cuda {
namespace {

using enum CellType;
using enum RecurrenceProduct;

template <CellType kCell>
constexpr RecurrenceCandidate fma(std::string_view name,
                                  RecurrenceTile tile,
                                  RecurrenceStep forward,
                                  RecurrenceStep backward) {
  return {name, kCell, kFma, tile, resident_fma_blocks(gates_of(kCell), tile), forward, backward};
}

template <CellType kCell>
constexpr RecurrenceCandidate mma(std::string_view name,
                                  RecurrenceTile tile,
                                  RecurrenceStep forward,
                                  RecurrenceStep backward) {
  return {name, kCell, kMma, tile, resident_mma_blocks(tile), forward, backward};
}

constexpr RecurrenceTile with_x(int state_size, int rows) {
  return {.state_size = state_size, .rows = rows, .x_inside = true};
}
constexpr RecurrenceTile in_cluster(int state_size, int rows, int cluster) {
  return {.state_size = state_size, .rows = rows, .cluster = cluster};
}

// Measured on an H100.
constexpr RecurrenceCandidate kCandidates[] = {
    fma<kLltm>("recurrence_fma_32x1", {32, 1}, {0.21, 0.075}, {0.29, 0.058}),
    fma<kLltm>("recurrence_fma_32x2", {32, 2}, {0.33, 0.14}, {0.54, 0.105}),
    fma<kLltm>("recurrence_fma_32x4", {32, 4}, {0.65, 0.31}, {1.14, 0.35}),
    fma<kLltm>("recurrence_fma_32x1_x", with_x(32, 1), {0.30, 0.056}, {}),
    fma<kLltm>("recurrence_fma_64x1", {64, 1}, {0.24, 0.26}, {0.31, 0.23}),
    fma<kLltm>("recurrence_fma_64x2", {64, 2}, {0.32, 0.39}, {0.41, 0.30}),
    fma<kLltm>("recurrence_fma_64x4", {64, 4}, {0.53, 0.75}, {0.62, 0.53}),
    fma<kLltm>("recurrence_fma_96x1", {96, 1}, {0.46, 0.46}, {0.51, 0.51}),
    fma<kLltm>("recurrence_fma_96x2", {96, 2}, {0.68, 0.68}, {0.71, 0.71}),
    fma<kLltm>("recurrence_fma_96x4", {96, 4}, {1.30, 1.30}, {1.36, 1.36}),
    fma<kLltm>("recurrence_fma_128x1", {128, 1}, {0.54, 0.54}, {0.64, 0.64}),
    fma<kLltm>("recurrence_fma_128x2", {128, 2}, {0.95, 0.95}, {0.97, 0.97}),
    fma<kLltm>("recurrence_fma_128x4", {128, 4}, {1.95, 1.95}, {1.95, 1.95}),
    fma<kLltm>("recurrence_fma_256x1_cluster4", in_cluster(256, 1, 4), {0.69, 0}, {0.78, 0}),
    fma<kLltm>("recurrence_fma_256x2_cluster4", in_cluster(256, 2, 4), {1.17, 0}, {1.35, 0}),
    fma<kLltm>("recurrence_fma_256x3_cluster4", in_cluster(256, 3, 4), {1.60, 0}, {1.85, 0}),
    fma<kLltm>("recurrence_fma_256x4_cluster4", in_cluster(256, 4, 4), {1.95, 0}, {2.35, 0}),
    fma<kLltm>("recurrence_fma_256x5_cluster4", in_cluster(256, 5, 4), {2.75, 0}, {3.15, 0}),
    fma<kLltm>("recurrence_fma_512x1_cluster16", in_cluster(512, 1, 16), {0.83, 0}, {1.22, 0}),
    fma<kLltm>("recurrence_fma_512x2_cluster16", in_cluster(512, 2, 16), {1.41, 0}, {1.87, 0}),
    fma<kLltm>("recurrence_fma_512x3_cluster16", in_cluster(512, 3, 16), {1.98, 0}, {2.55, 0}),
    fma<kLltm>("recurrence_fma_512x4_cluster16", in_cluster(512, 4, 16), {2.45, 0}, {3.25, 0}),
    fma<kLltm>("recurrence_fma_512x5_cluster16", in_cluster(512, 5, 16), {2.90, 0}, {4.20, 0}),
    mma<kLltm>("recurrence_mma_32x1", {32, 1}, {0.21, 0.068}, {0.19, 0.072}),
    mma<kLltm>("recurrence_mma_32x8", {32, 8}, {0.30, 0.26}, {0.42, 0.21}),
    mma<kLltm>("recurrence_mma_64x1", {64, 1}, {0.23, 0.13}, {0.24, 0.17}),
    mma<kLltm>("recurrence_mma_64x8", {64, 8}, {0.35, 0.40}, {0.46, 0.44}),
    mma<kLltm>("recurrence_mma_96x1", {96, 1}, {0.37, 0.30}, {0.41, 0.30}),
    mma<kLltm>("recurrence_mma_96x8", {96, 8}, {0.60, 0.60}, {0.82, 0.82}),
    mma<kLltm>("recurrence_mma_128x1", {128, 1}, {0.40, 0.40}, {0.50, 0.50}),
    mma<kLltm>("recurrence_mma_128x8", {128, 8}, {0.65, 0.65}, {0.97, 0.97}),
    mma<kLltm>("recurrence_mma_128x32", {128, 32}, {3.50, 3.50}, {3.90, 3.90}),
    mma<kLltm>("recurrence_mma_128x32_x", with_x(128, 32), {2.60, 2.60}, {}),
    mma<kLltm>(
        "recurrence_mma_256x32_cluster4", in_cluster(256, 32, 4), {0.55, 0.15}, {0.97, 0.10}),
    mma<kLltm>(
        "recurrence_mma_384x32_cluster6", in_cluster(384, 32, 6), {0.80, 0.11}, {1.20, 0.11}),
    mma<kLltm>(
        "recurrence_mma_512x16_cluster8", in_cluster(512, 16, 8), {0.83, 0.15}, {1.60, 0.165}),
    fma<kLstm>("recurrence_lstm_fma_32x1", {32, 1}, {0.23, 0.070}, {0.35, 0.078}),
    fma<kLstm>("recurrence_lstm_fma_32x4", {32, 4}, {0.35, 0.26}, {0.59, 0.43}),
    fma<kLstm>("recurrence_lstm_fma_64x1", {64, 1}, {0.31, 0.23}, {0.40, 0.28}),
    fma<kLstm>("recurrence_lstm_fma_64x2", {64, 2}, {0.38, 0.30}, {0.48, 0.39}),
    fma<kLstm>("recurrence_lstm_fma_64x4", {64, 4}, {0.65, 0.57}, {0.89, 0.69}),
    fma<kLstm>("recurrence_lstm_fma_96x1", {96, 1}, {0.59, 0.59}, {0.89, 0.89}),
    fma<kLstm>("recurrence_lstm_fma_96x2", {96, 2}, {1.00, 1.00}, {1.25, 1.25}),
    fma<kLstm>("recurrence_lstm_fma_128x1_cluster2", in_cluster(128, 1, 2), {0.74, 0}, {0.87, 0}),
    fma<kLstm>("recurrence_lstm_fma_128x2_cluster2", in_cluster(128, 2, 2), {0.91, 0}, {1.12, 0}),
    fma<kLstm>("recurrence_lstm_fma_128x3_cluster2", in_cluster(128, 3, 2), {1.17, 0}, {1.45, 0}),
    fma<kLstm>("recurrence_lstm_fma_128x4_cluster2", in_cluster(128, 4, 2), {1.45, 0}, {1.69, 0}),
    fma<kLstm>("recurrence_lstm_fma_128x5_cluster2", in_cluster(128, 5, 2), {1.98, 0}, {2.30, 0}),
    fma<kLstm>("recurrence_lstm_fma_256x1_cluster8", in_cluster(256, 1, 8), {0.83, 0}, {1.02, 0}),
    fma<kLstm>("recurrence_lstm_fma_256x2_cluster8", in_cluster(256, 2, 8), {1.02, 0}, {1.35, 0}),
    fma<kLstm>("recurrence_lstm_fma_256x3_cluster8", in_cluster(256, 3, 8), {1.30, 0}, {1.77, 0}),
    fma<kLstm>("recurrence_lstm_fma_256x4_cluster8", in_cluster(256, 4, 8), {1.62, 0}, {2.17, 0}),
    fma<kLstm>("recurrence_lstm_fma_256x5_cluster8", in_cluster(256, 5, 8), {1.97, 0}, {2.52, 0}),
    mma<kLstm>("recurrence_lstm_mma_32x1", {32, 1}, {0.21, 0.066}, {0.24, 0.094}),
    mma<kLstm>("recurrence_lstm_mma_32x8", {32, 8}, {0.37, 0.245}, {0.52, 0.245}),
    mma<kLstm>("recurrence_lstm_mma_64x1", {64, 1}, {0.285, 0.173}, {0.315, 0.23}),
    mma<kLstm>("recurrence_lstm_mma_64x8", {64, 8}, {0.43, 0.49}, {0.63, 0.60}),
    mma<kLstm>("recurrence_lstm_mma_96x1", {96, 1}, {0.425, 0.29}, {0.69, 0.465}),
    mma<kLstm>("recurrence_lstm_mma_96x8", {96, 8}, {0.75, 0.75}, {1.17, 1.17}),
    mma<kLstm>("recurrence_lstm_mma_128x1", {128, 1}, {0.49, 0.49}, {0.66, 0.66}),
    mma<kLstm>("recurrence_lstm_mma_128x8", {128, 8}, {0.90, 0.90}, {1.51, 1.51}),
    mma<kLstm>("recurrence_lstm_mma_128x32_x", with_x(128, 32), {4.20, 4.20}, {}),
    mma<kLstm>("recurrence_lstm_mma_256x32_cluster4",
               in_cluster(256, 32, 4),
               {0.72, 0.122},
               {1.20, 0.165}),
    mma<kLstm>(
        "recurrence_lstm_mma_384x24_cluster8", in_cluster(384, 24, 8), {1.25, 0.125}, {2.0, 0.245}),
    mma<kLstm>("recurrence_lstm_mma_384x24_cluster12",
               in_cluster(384, 24, 12),
               {0.72, 0.065},
               {1.35, 0.115}),
    mma<kLstm>("recurrence_lstm_mma_512x16_cluster16",
               in_cluster(512, 16, 16),
               {0.95, 0.05},
               {1.35, 0.135}),
};

/// Whether the candidates of a cell and a product are the tiles that it is compiled for.
template <size_t kCount>
constexpr bool are_all(const std::array<RecurrenceTile, kCount>& tiles,
                       CellType cell,
                       RecurrenceProduct product) {
  size_t count = 0;
  for (const RecurrenceCandidate& of : kCandidates) {
    if (of.cell == cell && of.product == product) {
      if (std::find(tiles.begin(), tiles.end(), of.tile) == tiles.end()) {
        return false;
      }
      ++count;
    }
  }
  return count == kCount;
}
static_assert(are_all(kFmaTiles<gates_of(kLltm)>, kLltm, kFma));
static_assert(are_all(kFmaTiles<gates_of(kLstm)>, kLstm, kFma));
static_assert(are_all(kMmaTiles<gates_of(kLltm)>, kLltm, kMma));
static_assert(are_all(kMmaTiles<gates_of(kLstm)>, kLstm, kMma));

// Microseconds of a launch that loads the weights.
constexpr double kPrologue = 5, kClusterPrologue = 11;
// What is hidden of a prologue behind a product of this library.
constexpr double kHidden = 3;
// How much longer a step of several rows takes that reads and writes elements one by one.
constexpr double kOddInBlock = 1.7, kOddInCluster = 1.3;

// The shared memory of the largest blocks by mma.sync, which have 128 columns of the state, and of
// the blocks of clusters.
constexpr int kLargestMmaBytes = 150 * 1024, kClusterBytes = 227 * 1024;
// The largest state of those whose blocks fit every GPU.
constexpr int kSmallMmaState = 96;

RecurrenceProduct product_of(Arithmetic arithmetic) {
  return is_float(arithmetic) ? kFma : kMma;
}

int resident_clusters(int size, const DeviceFacts& device) {
  return device.resident_in_clusters_of(size) / size;
}

/// Why no kernel takes a state of this size; or empty.
std::string why_no_tile(const RecurrenceShape& shape, const DeviceFacts& device, bool in_clusters) {
  const RecurrenceProduct product = product_of(*shape.arithmetic);
  int largest = 0;
  const RecurrenceCandidate* fits = nullptr;  // the first is the smallest
  for (const RecurrenceCandidate& of : kCandidates) {
    if (of.cell == shape.cell && of.in_clusters() == in_clusters && of.product == product) {
      largest = std::max(largest, of.tile.state_size);
      if (fits == nullptr && shape.state_size <= of.tile.state_size) {
        fits = &of;
      }
    }
  }
  if (fits == nullptr) {
    return "takes a state_size of at most " + std::to_string(largest) + ", got " +
           std::to_string(shape.state_size);
  }
  if (in_clusters) {
    return device.shared_bytes_a_block < kClusterBytes ||
                   resident_clusters(fits->tile.cluster, device) == 0
               ? "needs a cluster of " + std::to_string(fits->tile.cluster) +
                     " blocks, which is not resident on this GPU"
               : "";
  }
  if (!is_float(*shape.arithmetic) && shape.state_size > kSmallMmaState &&
      device.shared_bytes_a_block < kLargestMmaBytes) {
    return "needs " + std::to_string(kLargestMmaBytes / 1024) +
           " KiB of shared memory a block for a 16-bit state_size of more than " +
           std::to_string(kSmallMmaState) + ", and the GPU has " +
           std::to_string(device.shared_bytes_a_block / 1024);
  }
  return {};
}

int64_t gradient_tiles(int64_t size) {
  return ceil_div(size, kGradientTile);
}

/// Whether a candidate multiplies the input itself, and needs no z_x.
bool multiplies_input(const RecurrenceCandidate& candidate,
                      const RecurrenceShape& shape,
                      const DeviceFacts& device) {
  if (!candidate.tile.x_inside || shape.backward || shape.state_size > candidate.tile.state_size ||
      candidate.product != product_of(*shape.arithmetic) || shape.input_features == 0) {
    return false;
  }
  return candidate.product == kFma
             ? shape.input_features <= candidate.tile.state_size
             : shape.input_features <= kLargestRecurrentInput && shape.in_pairs &&
                   shape.input_in_pairs &&
                   device.shared_bytes_a_block >= bytes_to_multiply_input(gates_of(shape.cell));
}

/// Whether a sequence needs no z_x.
bool can_multiply_input(const RecurrenceShape& shape, const DeviceFacts& device) {
  return std::ranges::any_of(kCandidates, [&](const RecurrenceCandidate& of) {
    return of.cell == shape.cell && multiplies_input(of, shape, device);
  });
}

}  // namespace

bool are_small_gradient_products(int64_t rows,
                                 int64_t input_features,
                                 int64_t state_size,
                                 int64_t columns) {
  // Of whole tiles, about as many as take as long as the launches of the library. A tile of d_input
  // counts for as many more as its way from and to memory takes.
  constexpr int64_t kMultiplyAdds = 80'000'000, kOfTile = 64;
  constexpr int64_t kMost = kMultiplyAdds / (kGradientTile * kGradientTile);
  if (rows > kMost) {
    return false;
  }
  return gradient_tiles(columns) * gradient_tiles(state_size + input_features) * rows +
             gradient_tiles(rows) * gradient_tiles(input_features) * (columns + kOfTile) <=
         kMost;
}

GradientParts parts_of_weight_gradient(int64_t rows,
                                       int64_t input_features,
                                       int64_t state_size,
                                       int64_t columns,
                                       const DeviceFacts& device) {
  // In chunks of tiles. So many in a row take no longer than adding parts would.
  constexpr int64_t kOfAMultiprocessor = 3, kOfOnePart = 3;
  const auto chunks = [](int64_t size) { return ceil_div(size, kGradientChunk); };
  const int64_t of_tile = chunks(rows);
  if (of_tile <= kOfOnePart) {
    return {of_tile * kGradientChunk, 1};
  }
  const int64_t all =
      gradient_tiles(columns) * gradient_tiles(state_size + input_features) * of_tile +
      gradient_tiles(rows) * gradient_tiles(input_features) * chunks(columns);
  const int64_t of_part = ceil_div(all, kOfAMultiprocessor * device.multiprocessors);
  return {of_part * kGradientChunk, ceil_div(of_tile, of_part)};
}

std::span<const RecurrenceCandidate> recurrence_candidates() {
  return kCandidates;
}

std::string why_no_recurrence(const RecurrenceShape& shape,
                              const DeviceFacts& device,
                              bool in_clusters) {
  // Kernels count steps, and the grid blocks, in 32 bits.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (!shape.arithmetic) {
    return "has no kernel for float64";
  }
  if (!device.tiles) {
    return "needs a GPU of compute capability 8.0 or newer";
  }
  if (std::string why = why_no_tile(shape, device, in_clusters); !why.empty()) {
    return why;
  }
  if (shape.launches == 0 && shape.steps > 0 &&
      (in_clusters || !can_multiply_input(shape, device))) {
    return "has no workspace for a step of " + std::to_string(shape.rows) + " rows";
  }
  if (shape.steps >= kMost || shape.rows >= kMost) {
    return "takes fewer than 2^30 steps and rows, got " + std::to_string(shape.steps) + " and " +
           std::to_string(shape.rows);
  }
  return {};
}

bool supports(const RecurrenceCandidate& candidate,
              const RecurrenceShape& shape,
              const DeviceFacts& device) {
  // What rules out most candidates comes first: every call asks all of them.
  if (candidate.cell != shape.cell || shape.state_size > candidate.tile.state_size ||
      shape.steps == 0 || !shape.arithmetic || candidate.product != product_of(*shape.arithmetic) ||
      !why_no_recurrence(shape, device, candidate.in_clusters()).empty()) {
    return false;
  }
  if (candidate.in_clusters()) {
    return resident_clusters(candidate.tile.cluster, device) > 0;
  }
  if (candidate.product == kMma && candidate.tile.state_size > kSmallMmaState &&
      device.shared_bytes_a_block < kLargestMmaBytes) {
    return false;
  }
  return (candidate.tile.x_inside ? multiplies_input(candidate, shape, device)
                                  : shape.launches > 0) &&
         (candidate.product == kFma || candidate.tile.rows <= 8 || shape.in_pairs);
}

int rows_of_group(const RecurrenceTile& tile, int64_t rows, const DeviceFacts& device) {
  if (tile.cluster == 1) {
    return tile.rows;
  }
  const int64_t at_once = resident_clusters(tile.cluster, device);
  const int64_t waves = ceil_div(rows, at_once * tile.rows);
  return static_cast<int>(ceil_div(rows, waves * at_once));
}

namespace {

/// z_x of a launch of a forward that does not multiply the input itself.
std::optional<InputProductPlan> product_of_launch(const RecurrenceShape& shape,
                                                  const DeviceFacts& device) {
  if (shape.backward || !shape.arithmetic) {
    return std::nullopt;
  }
  return plan_input_product(
      {.arithmetic = *shape.arithmetic,
       .rows = ceil_div(shape.steps * shape.rows, std::max<int64_t>(shape.launches, 1)),
       .input_features = shape.input_features,
       .state_size = shape.state_size,
       .columns = gates_of(shape.cell) * shape.state_size},
      device);
}

double time_of(const RecurrenceCandidate& candidate,
               const RecurrenceShape& shape,
               const std::optional<InputProductPlan>& product,
               const DeviceFacts& device) {
  const RecurrenceStep& step = shape.backward ? candidate.backward : candidate.forward;
  const int group_rows = rows_of_group(candidate.tile, shape.rows, device);
  const int64_t groups = ceil_div(shape.rows, group_rows);
  const int64_t a_multiprocessor =
      ceil_div(groups,
               candidate.in_clusters() ? resident_clusters(candidate.tile.cluster, device)
                                       : device.multiprocessors);
  const int64_t resident = std::min<int64_t>(a_multiprocessor, candidate.blocks_a_multiprocessor);
  const auto steps = static_cast<double>(shape.steps);
  const bool x_inside = candidate.tile.x_inside;
  const auto launches = x_inside ? 1.0 : static_cast<double>(shape.launches);
  double time_of_step = candidate.in_clusters()
                            ? step.latency + group_rows * step.busy
                            : std::max(step.latency, static_cast<double>(resident) * step.busy);
  if (candidate.product == kMma && candidate.tile.rows > 1 && !shape.in_pairs) {
    time_of_step *= candidate.in_clusters() ? kOddInCluster : kOddInBlock;
  }
  double prologue = candidate.in_clusters() ? kClusterPrologue : kPrologue, time = 0;
  if (product && !x_inside) {
    prologue -= product->is_own() ? kHidden : 0;
    time = launches * product->us;
  }
  return time + static_cast<double>(ceil_div(a_multiprocessor, resident)) *
                    (launches * prologue + steps * time_of_step);
}

}  // namespace

double recurrence_time(const RecurrenceCandidate& candidate,
                       const RecurrenceShape& shape,
                       const DeviceFacts& device) {
  return time_of(candidate, shape, product_of_launch(shape, device), device);
}

const RecurrenceCandidate* choose_recurrence(const RecurrenceShape& shape,
                                             const DeviceFacts& device,
                                             const Selection& selection,
                                             double time_of_steps) {
  const bool by_name = std::ranges::any_of(
      kCandidates, [&](const RecurrenceCandidate& of) { return of.name == selection.name; });
  const bool by_kind = selection.sequence && *selection.sequence != SequenceKernel::kSteps;
  const bool is_forced = by_name || by_kind;
  if (!is_forced && (selection.sequence == SequenceKernel::kSteps || selection.group ||
                     !selection.name.empty())) {
    return nullptr;
  }
  const std::optional<InputProductPlan> product = product_of_launch(shape, device);
  const RecurrenceCandidate* best = nullptr;
  double least = is_forced ? std::numeric_limits<double>::infinity() : time_of_steps;
  for (const RecurrenceCandidate& candidate : kCandidates) {
    if ((by_name && candidate.name != selection.name) ||
        (by_kind && candidate.in_clusters() != (selection.sequence == SequenceKernel::kCluster)) ||
        !supports(candidate, shape, device)) {
      continue;
    }
    if (const double time = time_of(candidate, shape, product, device); time < least) {
      least = time;
      best = &candidate;
    }
  }
  return best;
}

}  // namespace lltm::cuda
