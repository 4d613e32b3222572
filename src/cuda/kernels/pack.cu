#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "../tile/elements.h"
#include "pack.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The warps that a row takes, with one 16-byte vector per lane.
__host__ __device__ uint32_t pieces_a_row(const PackParams::Part& part, int element_size) {
  return static_cast<uint32_t>(((part.lead + part.columns) * element_size + 32 * 16 - 1) /
                               (32 * 16));
}

// All of them. Parts with as many as 2^32 do not fit a GPU's memory.
__host__ __device__ int64_t pieces_of(const PackParams::Part& part, int element_size) {
  return part.rows * pieces_a_row(part, element_size);
}

// Reads the words [begin, end) of a vector, in words of a type that `from` is aligned to. The other
// words are zero.
template <typename Word>
LLTM_DEVICE uint4 read_words(const void* from, int begin, int end) {
  constexpr int kWords = 16 / sizeof(Word);
  Word words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = i >= begin && i < end ? static_cast<const Word*>(from)[i] : Word{};
  }
  uint4 vector;
  memcpy(&vector, words, sizeof(vector));
  return vector;
}

// A warp copies a piece of a row, of any part. A vector is read in words as large as its alignment
// allows.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ PackParams params) {
  constexpr int kElements = 16 / kBytes;
  start_next_kernel();
  wait_for_previous_kernel();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int which = 0;
  int64_t piece = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;  // within its part
#pragma unroll 1
  while (true) {
    while (which < params.count && piece >= pieces_of(params.parts[which], kBytes)) {
      piece -= pieces_of(params.parts[which++], kBytes);
    }
    if (which == params.count) {
      return;
    }
    const PackParams::Part& part = params.parts[which];
    const uint32_t pieces = pieces_a_row(part, kBytes), index = static_cast<uint32_t>(piece);
    const int64_t row = index / pieces, column = (index % pieces * 32 + lane) * kElements;
    const int begin = column == 0 ? part.lead : 0;
    const int end = at_most(part.lead + part.columns - column, kElements);
    if (end > 0) {
      const char* const from = static_cast<const char*>(part.from.data) +
                               (row * part.from.stride + column - part.lead) * kBytes;
      const auto place = reinterpret_cast<uintptr_t>(from);
      uint4 vector;
      if (begin > 0 || end < kElements) {
        vector = read_words<std::conditional_t<kBytes == 2, uint16_t, uint32_t>>(from, begin, end);
      } else if (place % 8 == 0) {
        vector = read_words<uint2>(from, 0, 2);
      } else if (place % 4 == 0) {
        vector = read_words<uint32_t>(from, 0, 4);
      } else {
        vector = read_words<uint16_t>(from, 0, 8);
      }
      *reinterpret_cast<uint4*>(static_cast<char*>(const_cast<void*>(part.to.data)) +
                                (row * part.to.stride + column) * kBytes) = vector;
    }
    piece += int64_t(gridDim.x) * kWarps;
  }
}

}  // namespace

cudaError_t launch_pack(const PackParams& params, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 132 * 8;
  int64_t pieces = 0;
  for (int i = 0; i < params.count; ++i) {
    pieces += pieces_of(params.parts[i], params.element_size);
  }
  const dim3 grid = grid_of(std::clamp<int64_t>(ceil_div(pieces, kWarps), 1, kMaxBlocks));
  return params.element_size == 2
             ? launch_in_clusters<&pack_kernel<2>, kThreads>(params, grid, 1, stream)
             : launch_in_clusters<&pack_kernel<4>, kThreads>(params, grid, 1, stream);
}

}  // namespace lltm::cuda
