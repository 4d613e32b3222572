// The tiles of a step, with what was measured beside each choice: (rows, state_size), H200,
// microseconds a step by graph replay.
#include "plan_sequence_backward.h"

namespace lltm::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t tiles_of_size(int64_t rows, int64_t state_size, int64_t size) {
  return ceil_div(rows, size) * ceil_div(state_size, size);
}

/// The most ranks of a cluster for which all tiles are resident at once: the weights are read the
/// faster, the more multiprocessors read them. A block a multiprocessor, or else two: (32,512)
/// takes 5.8 in float32 with six ranks, 96 blocks, and 6.6 with eight, of which 15 clusters fit;
/// (4096,128), 128 tiles, 19.7 with two ranks and 24.3 with one.
int largest_split(const DeviceFacts& device, int64_t tiles, int64_t chunks) {
  for (const int blocks_a_multiprocessor : {1, 2}) {
    for (int split = kLargestCluster; split > 1; --split) {
      if (split <= chunks &&
          tiles * split <= blocks_a_multiprocessor * device.resident_in_clusters_of(split)) {
        return split;
      }
    }
  }
  return 1;
}

}  // namespace

std::optional<SequenceGradientPlan> plan_sequence_gradients(const DeviceFacts& device,
                                                            std::optional<Arithmetic> arithmetic,
                                                            std::optional<Group> group,
                                                            int64_t rows,
                                                            int64_t state_size) {
  const int64_t small_tiles = tiles_of_size(rows, state_size, 32);
  const int64_t tiles = tiles_of_size(rows, state_size, 64);
  // Blocks are counted in 32 bits.
  if (!arithmetic || !device.tiles || group == Group::kLibrary || small_tiles > (1 << 27)) {
    return std::nullopt;
  }
  // Larger products by ATen gain more than a kernel less: of (64,1024) and (128,2048) a step takes
  // 7.7 and 32 in bfloat16, by the library 9.4 and 17; in TF32 12.6 and 61, 11.7 and 35; in float32
  // 20.6 and 108, 21.8 and 79.
  const double multiplications = static_cast<double>(rows) * static_cast<double>(state_size) * 3 *
                                 static_cast<double>(state_size);
  if (!group && multiplications > 4e8) {
    return std::nullopt;
  }
  // (32,512) takes 3.5 in bfloat16 by small tiles and 4.4 by large ones; (64,1024) 9.6 and 7.7.
  const bool few = small_tiles * 4 <= device.multiprocessors;
  return SequenceGradientPlan{
      few ? SequenceGradientTile::k32x32 : SequenceGradientTile::k64x64,
      largest_split(device,
                    few ? small_tiles : tiles,
                    ceil_div(3 * state_size, 128 / element_size(*arithmetic)))};
}

}  // namespace lltm::cuda
