#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "../tile/elements.cuh"
#include "pack.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kBlocksPerSm = 6;

// The warps that a row takes, with one 16-byte vector per lane.
template <typename Part>
__host__ __device__ uint32_t pieces_a_row(const Part& part, int element_size) {
  return static_cast<uint32_t>(((part.lead + part.columns) * element_size + 32 * 16 - 1) /
                               (32 * 16));
}

// All of them. Parts with as many as 2^32 do not fit a GPU's memory.
template <typename Part>
__host__ __device__ int64_t pieces_of(const Part& part, int element_size) {
  return part.rows * pieces_a_row(part, element_size);
}

// A vector of a packed row, and its elements [begin, end) in the row that it is a copy of. Its
// other elements are zero. `from` is where its first element is, or would be.
struct Copy {
  uint4* to = nullptr;
  const char* from = nullptr;
  int begin = 0, end = 0;
};

// Reads a vector from anywhere, by the one or two aligned vectors that have wanted elements. These
// may begin before a matrix or end behind it, but within the same 16 bytes of memory.
template <int kBytes>
__device__ __forceinline__ void read_both(uint4 (&both)[2], const Copy& copy) {
  const int first = static_cast<int>(reinterpret_cast<uintptr_t>(copy.from) % 16);
  const auto* const aligned = reinterpret_cast<const uint4*>(copy.from - first);
  both[0] = both[1] = {};
  if (first + copy.begin * kBytes < 16 && copy.begin < copy.end) {
    both[0] = __ldca(aligned);
  }
  if (first + copy.end * kBytes > 16) {
    both[1] = __ldca(aligned + 1);
  }
}

// The 16 bytes from byte `first` on of two vectors, with zeros outside the elements [begin, end).
template <int kBytes>
__device__ __forceinline__ uint4 shift_and_clear(const uint4 (&both)[2], const Copy& copy) {
  using Element = std::conditional_t<kBytes == 2, uint16_t, uint32_t>;
  const unsigned first = reinterpret_cast<uintptr_t>(copy.from) % 16;
  uint32_t words[8];
  memcpy(words, both, sizeof(words));
#pragma unroll
  for (int words_less = 2; words_less > 0; --words_less) {
    if ((first / 4 & words_less) != 0) {
#pragma unroll
      for (int i = 0; i + words_less < 8; ++i) {
        words[i] = words[i + words_less];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = __funnelshift_r(words[i], words[i + 1], first % 4 * 8);
  }
  Element elements[16 / kBytes];
  memcpy(elements, words, sizeof(elements));
  if (copy.begin > 0 || copy.end < 16 / kBytes) {
#pragma unroll
    for (int i = 0; i < 16 / kBytes; ++i) {
      if (i < copy.begin || i >= copy.end) {
        elements[i] = 0;
      }
    }
  }
  uint4 vector;
  memcpy(&vector, elements, sizeof(vector));
  return vector;
}

// A warp copies pieces of rows, of any part, two at a time.
template <int kBytes>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    pack_kernel(const __grid_constant__ PackParams params) {
  constexpr int kElements = 16 / kBytes, kAtOnce = 2;
  start_next_kernel();
  wait_for_previous_kernel();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int which = 0;
  int64_t piece = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;  // within its part
  // This lane's vector of the warp's next piece, if there is one.
  const auto next_copy = [&]() -> Copy {
    while (which < params.count && piece >= pieces_of(params.parts[which], kBytes)) {
      piece -= pieces_of(params.parts[which++], kBytes);
    }
    if (which == params.count) {
      return {};
    }
    const PackParams::Part& part = params.parts[which];
    const uint32_t pieces = pieces_a_row(part, kBytes), index = static_cast<uint32_t>(piece);
    const int64_t row = index / pieces, column = (index % pieces * 32 + lane) * kElements;
    piece += int64_t(gridDim.x) * kWarps;
    auto* const to = static_cast<char*>(const_cast<void*>(part.to.data));
    return {reinterpret_cast<uint4*>(to + (row * part.to.stride + column) * kBytes),
            static_cast<const char*>(part.from.data) +
                (row * part.from.stride + column - part.lead) * kBytes,
            column == 0 ? part.lead : 0,
            at_most(part.lead + part.columns - column, kElements)};
  };
  do {
    Copy copies[kAtOnce];
    uint4 both[kAtOnce][2];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      copies[i] = next_copy();
      read_both<kBytes>(both[i], copies[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (copies[i].end > 0) {
        __stcg(copies[i].to, shift_and_clear<kBytes>(both[i], copies[i]));
      }
    }
  } while (which < params.count);
}

}  // namespace

cudaError_t launch_pack(const PackParams& params, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 132 * kBlocksPerSm;
  int64_t pieces = 0;
  for (int i = 0; i < params.count; ++i) {
    pieces += pieces_of(params.parts[i], params.element_size);
  }
  const int64_t blocks = std::clamp<int64_t>((pieces + kWarps - 1) / kWarps, 1, kMaxBlocks);
  const dim3 grid(static_cast<unsigned>(blocks));
  return params.element_size == 2
             ? launch_in_clusters<&pack_kernel<2>, kThreads, 0, 0>(params, grid, 1, stream)
             : launch_in_clusters<&pack_kernel<4>, kThreads, 0, 0>(params, grid, 1, stream);
}

}  // namespace lltm::cuda
