// One block's part of a matrix product: a tile of C += A * B whose operands travel through shared
// memory in chunks of K, several chunks in flight (cp.async), multiplied by mma.sync. sm_80 on.
//
// A tile is kTileM x kTileN, spread over kWarpsM x kWarpsN warps; kWarpsK such groups share the
// steps of a chunk among them, which is what keeps many warps busy in a small tile. Where each
// element comes from is the caller's business: it calls copy_box for the rows it wants.
#pragma once

#include "instructions.cuh"
#include "launch_cluster.cuh"
#include "tile_kernels.h"

#include <type_traits>

namespace lltm::cuda {

// Which index of an operand is contiguous in memory: K, or the other one (M of A, N of B).
enum class Major { kK, kOther };

template <Arithmetic kArithmetic>
struct ElementOf {
  using type = float;
};
template <>
struct ElementOf<Arithmetic::kFloat16> {
  using type = __half;
};
template <>
struct ElementOf<Arithmetic::kBFloat16> {
  using type = __nv_bfloat16;
};

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void assign(float& to, float x) {
  to = x;
}
__device__ __forceinline__ void assign(__half& to, float x) {
  to = __float2half_rn(x);
}
__device__ __forceinline__ void assign(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}

// x = high + low, to about 22 bits: high is x rounded to TF32, low the rest, of which the tensor
// core ignores what TF32 has no room for; the factor centres the error of that, up to half a unit
// of what remains. In integers, as the conversion instruction is emulated by four. The pattern of
// NaN that this turns into a zero in `high` still is NaN in `low`.
template <int kCount>
__device__ __forceinline__ void split_float(uint32_t (&high)[kCount], uint32_t (&low)[kCount]) {
  constexpr float kCentre = 1 + 0x1.8p-12f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float x = __uint_as_float(high[i]);
    high[i] = (high[i] + 0x1000u) & 0xffffe000u;
    low[i] = __float_as_uint((x - __uint_as_float(high[i])) * kCentre);
  }
}

template <int kCount>
__device__ __forceinline__ void round_floats(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = round_to_tf32(__uint_as_float(values[i]));
  }
}

/// A box of a matrix: `rows` rows, `stride` elements apart, from `data` on.
/// vectors: every row starts at a multiple of 16 bytes.
template <typename Element>
struct Box {
  const Element* data;
  int64_t stride;
  int rows;
  bool vectors;

  __device__ __forceinline__ bool has(int r) const { return r < rows; }
  __device__ __forceinline__ int64_t offset(int r) const { return r * stride; }
};

/// The rows of `weights` that a block needs: kHidden of each gate.
template <typename Element, int kHidden>
struct GateRows {
  const Element* data;  // the first hidden column's row of the input gate
  int64_t stride;
  int64_t state_size;
  int hidden;  // how many hidden columns there are
  bool vectors;

  __device__ __forceinline__ bool has(int r) const { return r % kHidden < hidden; }
  __device__ __forceinline__ int64_t offset(int r) const {
    return (r / kHidden * state_size + r % kHidden) * stride;
  }
};

/// Copies one kRows x kColumns box after another to shared memory; what lies outside a source is
/// zero there. A source tells whether it `has` a row and at which `offset` from its `data`, and
/// whether its rows start at `vectors`.
///
/// A thread's addresses are computed once, and moved from box to box: a block has few warps, and
/// the time between a box's first and last copy is latency that nothing hides.
template <int kRows, int kColumns, int kPitch, int kThreads, typename Element, typename Source>
class BoxCopier {
 public:
  /// Before the first copy, and wherever the boxes that follow do not continue the one before.
  __device__ __forceinline__ void start(const Source& source) {
    source_ = source;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      pointers_[i] = source.data + source.offset(first_row() + i * kRowsPerPass) + column();
    }
  }

  /// Starts the copy of a box of which `columns` are inside; the next one is `advance` elements on.
  __device__ __forceinline__ void copy(Element* shared, int columns, int64_t advance) {
    if (source_.vectors) {
      const int valid = min(max(columns - column(), 0), kPieceElements) * kSize;
      const uint32_t to = shared_address(shared + first_row() * kPitch + column());
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const int r = first_row() + i * kRowsPerPass;
        if (kRows % kRowsPerPass == 0 || r < kRows) {
          copy_async_16(
              to + i * kRowsPerPass * kPitch * kSize, pointers_[i], source_.has(r) ? valid : 0);
        }
        pointers_[i] += advance;
      }
    } else {
      copy_elements(shared, source_, columns);
      source_.data += advance;
    }
  }

  Source source_;

 private:
  static constexpr int kSize = sizeof(Element);
  static constexpr int kPieceElements = 16 / kSize;
  static constexpr int kPiecesPerRow = kColumns / kPieceElements;
  static constexpr int kRowsPerPass = kThreads / kPiecesPerRow;
  static constexpr int kPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;
  static_assert(kColumns % kPieceElements == 0 && kThreads % kPiecesPerRow == 0);

  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % kPiecesPerRow * kPieceElements;
  }
  static __device__ __forceinline__ int first_row() {
    return static_cast<int>(threadIdx.x) / kPiecesPerRow;
  }

  static __device__ __forceinline__ void copy_elements(Element* shared,
                                                       const Source& source,
                                                       int columns) {
    constexpr int kRowsAtOnce = kThreads / kColumns;
    static_assert(kThreads % kColumns == 0);
    const int column = static_cast<int>(threadIdx.x) % kColumns;
    const bool valid = column < columns;
#pragma unroll 2
    for (int r = static_cast<int>(threadIdx.x) / kColumns; r < kRows; r += kRowsAtOnce) {
      const Element* from = source.data + source.offset(r) + column;
      const bool inside = valid && source.has(r);
      if constexpr (kSize == 4) {
        copy_async_4(shared_address(shared + r * kPitch + column), from, inside ? 4 : 0);
      } else {
        Element value;
        assign(value, 0.0f);
        if (inside) {
          value = *from;
        }
        shared[r * kPitch + column] = value;
      }
    }
  }

  const Element* pointers_[kPasses];
};

template <Arithmetic kArithmetic_,
          Major kMajorA,
          Major kMajorB,
          int kTileM_,
          int kTileN_,
          int kWarpsM_,
          int kWarpsN_,
          int kWarpsK_,
          int kStages_>
struct TileProduct {
  static constexpr Arithmetic kArithmetic = kArithmetic_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kWarpsK = kWarpsK_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN * kWarpsK;
  using Element = typename ElementOf<kArithmetic>::type;

  // A step is what one mma.sync takes of K, 32 bytes; a chunk is four steps, 128 bytes.
  static constexpr int kStepK = 32 / sizeof(Element);
  static constexpr int kSteps = 4;
  static constexpr int kChunkK = kSteps * kStepK;

  // Rows of shared memory are padded so that neither ldmatrix nor the 32-bit loads of a fragment
  // meet a bank twice.
  static constexpr int kPitchOfK = kChunkK + 16 / static_cast<int>(sizeof(Element));
  static constexpr int kPitchA = kMajorA == Major::kK ? kPitchOfK : kTileM + 8;
  static constexpr int kPitchB = kMajorB == Major::kK ? kPitchOfK : kTileN + 8;
  static constexpr int kElementsA = kPitchA * (kMajorA == Major::kK ? kTileM : kChunkK);
  static constexpr int kElementsB = kPitchB * (kMajorB == Major::kK ? kTileN : kChunkK);
  static constexpr int kStageElements = kElementsA + kElementsB;
  static constexpr int kPipelineBytes =
      kStages * kStageElements * static_cast<int>(sizeof(Element));

  // The finished tile in shared memory, over the pipeline: float rows, a pitch of 8 or 24 mod 32.
  static constexpr int kPitchC = kTileN % 16 == 8 ? kTileN : kTileN + 8;
  static constexpr int kResultBytes = kWarpsK * kTileM * kPitchC * 4;
  static constexpr int kSharedBytes = kPipelineBytes > kResultBytes ? kPipelineBytes : kResultBytes;

  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static_assert(kWarpM % 16 == 0 && kWarpN % 8 == 0 && kSteps % kWarpsK == 0);

  // Where registers allow, a chunk is summed up by itself first: long chains of additions lose what
  // SGEMM, which shares K among more blocks, does not.
  static constexpr bool kSumsChunks =
      kArithmetic == Arithmetic::kFloat32 && kFragmentsM * kFragmentsN <= 6;

  using Fragments = float[kFragmentsM][kFragmentsN][4];
  Fragments sum;

  static __device__ __forceinline__ Element* a_of(Element* shared, int slot) {
    return shared + slot * kStageElements;
  }
  static __device__ __forceinline__ Element* b_of(Element* shared, int slot) {
    return shared + slot * kStageElements + kElementsA;
  }

  /// Runs over the chunks [begin, end) of K. load(a, b, chunk) starts the copies of one; started()
  /// is called once as many as fit are under way.
  template <typename Load, typename Started>
  __device__ __forceinline__ void run(
      Element* shared, int begin, int end, const Load& load, const Started& started) {
    clear(sum);
    int slot = 0, free_slot = 0;
    // The first rounds only fill the pipeline. Where all chunks fit, all are awaited at once.
    const bool fits = end - begin < kStages;
    const int lead = fits ? end - begin : kStages - 1;
    if (lead == 0) {
      started();
    }
#pragma unroll 1
    for (int next = begin; next < end + lead; ++next) {
      const bool filled = next >= begin + lead;
      if (filled) {
        if (next == begin + lead) {
          started();
        }
        if (fits) {
          wait_copies<0>();
        } else {
          wait_copies<kStages - 2>();
        }
        __syncthreads();
      }
      if (next < end) {
        load(a_of(shared, free_slot), b_of(shared, free_slot), next);
      }
      commit_copies();
      free_slot = free_slot + 1 == kStages ? 0 : free_slot + 1;
      if (filled) {
        if constexpr (kSumsChunks) {
          Fragments chunk_sum;
          clear(chunk_sum);
          multiply(chunk_sum, a_of(shared, slot), b_of(shared, slot));
          add(sum, chunk_sum);
        } else {
          multiply(sum, a_of(shared, slot), b_of(shared, slot));
        }
        slot = slot + 1 == kStages ? 0 : slot + 1;
      }
    }
    wait_copies<0>();
    __syncthreads();
  }

  /// Leaves the block's tile in `result` (rows of kPitchC floats), the kWarpsK parts added up.
  __device__ __forceinline__ void store(float* result) {
    const int lane = threadIdx.x % 32;
    float* part = result + warp_k() * kTileM * kPitchC;
#pragma unroll
    for (int m = 0; m < kFragmentsM; ++m) {
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
        const int row = warp_m() * kWarpM + m * 16 + lane / 4;
        const int column = warp_n() * kWarpN + n * 8 + lane % 4 * 2;
        const float(&c)[4] = sum[m][n];
        *reinterpret_cast<float2*>(&part[row * kPitchC + column]) = make_float2(c[0], c[1]);
        *reinterpret_cast<float2*>(&part[(row + 8) * kPitchC + column]) = make_float2(c[2], c[3]);
      }
    }
    if constexpr (kWarpsK > 1) {
      __syncthreads();
      constexpr int kElements = kTileM * kPitchC;
#pragma unroll
      for (int first = 0; first < kElements; first += kThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        if (i < kElements) {
          float total = result[i];
#pragma unroll
          for (int k = 1; k < kWarpsK; ++k) {
            total += result[k * kElements + i];
          }
          result[i] = total;
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ void clear(Fragments& values) {
#pragma unroll
    for (int m = 0; m < kFragmentsM; ++m) {
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[m][n][i] = 0;
        }
      }
    }
  }

  static __device__ __forceinline__ void add(Fragments& values, const Fragments& others) {
#pragma unroll
    for (int m = 0; m < kFragmentsM; ++m) {
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[m][n][i] += others[m][n][i];
        }
      }
    }
  }

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int warp_m() { return warp() % kWarpsM; }
  static __device__ __forceinline__ int warp_n() { return warp() / kWarpsM % kWarpsN; }
  static __device__ __forceinline__ int warp_k() { return warp() / (kWarpsM * kWarpsN); }

  // to += a * b, of one chunk.
  static __device__ __forceinline__ void multiply(Fragments& to,
                                                  const Element* a,
                                                  const Element* b) {
#pragma unroll
    for (int i = 0; i < kSteps / kWarpsK; ++i) {
      const int step = i * kWarpsK + warp_k();
      uint32_t b_fragments[kFragmentsN][2];
      load_b(b_fragments, b, step);
      if constexpr (kArithmetic == Arithmetic::kFloat32) {
        uint32_t b_low[kFragmentsN][2];
#pragma unroll
        for (int n = 0; n < kFragmentsN; ++n) {
          split_float(b_fragments[n], b_low[n]);
        }
#pragma unroll
        for (int m = 0; m < kFragmentsM; ++m) {
          uint32_t a_high[4], a_low[4];
          load_a(a_high, a, step, m);
          split_float(a_high, a_low);
          // The tensor core truncates when it adds to its accumulator, so that its sums go no
          // further than a step; the float32 registers take it from there.
          float step_sum[kFragmentsN][4];
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            multiply_tf32(step_sum[n], a_low, b_fragments[n]);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            multiply_add_tf32(step_sum[n], a_high, b_low[n]);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            multiply_add_tf32(step_sum[n], a_high, b_fragments[n]);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              to[m][n][i] += step_sum[n][i];
            }
          }
        }
      } else {
        if constexpr (kArithmetic == Arithmetic::kTf32) {
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            round_floats(b_fragments[n]);
          }
        }
#pragma unroll
        for (int m = 0; m < kFragmentsM; ++m) {
          uint32_t a_fragment[4];
          load_a(a_fragment, a, step, m);
          if constexpr (kArithmetic == Arithmetic::kTf32) {
            round_floats(a_fragment);
          }
#pragma unroll
          for (int n = 0; n < kFragmentsN; ++n) {
            if constexpr (kArithmetic == Arithmetic::kTf32) {
              multiply_add_tf32(to[m][n], a_fragment, b_fragments[n]);
            } else if constexpr (kArithmetic == Arithmetic::kFloat16) {
              multiply_add_f16(to[m][n], a_fragment, b_fragments[n]);
            } else {
              multiply_add_bf16(to[m][n], a_fragment, b_fragments[n]);
            }
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void load_a(uint32_t (&fragment)[4],
                                                const Element* a,
                                                int step,
                                                int m) {
    const int lane = threadIdx.x % 32;
    const int first = warp_m() * kWarpM + m * 16;
    const int matrix = lane / 8, r = lane % 8;
    if constexpr (kMajorA == Major::kK) {
      constexpr int kHalf = kStepK / 2;
      load_matrices_x4(fragment,
                       shared_address(a + (first + matrix % 2 * 8 + r) * kPitchA + step * kStepK +
                                      matrix / 2 * kHalf));
    } else if constexpr (sizeof(Element) == 2) {
      load_matrices_x4_transposed(
          fragment,
          shared_address(a + (step * kStepK + matrix / 2 * 8 + r) * kPitchA + first +
                         matrix % 2 * 8));
    } else {
      const float* from = a + (step * kStepK + lane % 4) * kPitchA + first + lane / 4;
      fragment[0] = __float_as_uint(from[0]);
      fragment[1] = __float_as_uint(from[8]);
      fragment[2] = __float_as_uint(from[4 * kPitchA]);
      fragment[3] = __float_as_uint(from[4 * kPitchA + 8]);
    }
  }

  static __device__ __forceinline__ void load_b(uint32_t (&fragments)[kFragmentsN][2],
                                                const Element* b,
                                                int step) {
    const int lane = threadIdx.x % 32;
    const int first = warp_n() * kWarpN;
    const int matrix = lane / 8, r = lane % 8;
    if constexpr (kMajorB == Major::kOther && sizeof(Element) == 4) {
      const float* from = b + (step * kStepK + lane % 4) * kPitchB + first + lane / 4;
#pragma unroll
      for (int n = 0; n < kFragmentsN; ++n) {
        fragments[n][0] = __float_as_uint(from[n * 8]);
        fragments[n][1] = __float_as_uint(from[n * 8 + 4 * kPitchB]);
      }
    } else {
      // Two fragments a load, and a last one by itself.
#pragma unroll
      for (int n = 0; n + 1 < kFragmentsN; n += 2) {
        uint32_t pair[4];
        if constexpr (kMajorB == Major::kK) {
          load_matrices_x4(pair,
                           shared_address(b + (first + n * 8 + matrix / 2 * 8 + r) * kPitchB +
                                          step * kStepK + matrix % 2 * (kStepK / 2)));
        } else {
          load_matrices_x4_transposed(
              pair,
              shared_address(b + (step * kStepK + matrix % 2 * 8 + r) * kPitchB + first + n * 8 +
                             matrix / 2 * 8));
        }
        fragments[n][0] = pair[0];
        fragments[n][1] = pair[1];
        fragments[n + 1][0] = pair[2];
        fragments[n + 1][1] = pair[3];
      }
      if constexpr (kFragmentsN % 2 == 1) {
        constexpr int kLast = kFragmentsN - 1;
        const int half = matrix % 2;
        if constexpr (kMajorB == Major::kK) {
          load_matrices_x2(fragments[kLast],
                           shared_address(b + (first + kLast * 8 + r) * kPitchB + step * kStepK +
                                          half * (kStepK / 2)));
        } else {
          load_matrices_x2_transposed(
              fragments[kLast],
              shared_address(b + (step * kStepK + half * 8 + r) * kPitchB + first + kLast * 8));
        }
      }
    }
  }
};

__device__ __forceinline__ int at_most(int64_t value, int limit) {
  return static_cast<int>(value < limit ? value : limit);
}

/// Whether every row of a matrix starts at a multiple of 16 bytes, `offset` elements from `data`
/// on.
inline bool starts_at_vectors(const void* data, int64_t stride, int64_t offset, int element_size) {
  return (reinterpret_cast<uintptr_t>(data) + offset * element_size) % 16 == 0 &&
         stride * element_size % 16 == 0;
}

/// How the blocks of a cluster share the K of a tile, and its rows when the sums are added up.
struct KSplit {
  int ranks;
  int chunks_a_rank, ranks_with_one_more;
  int rows_a_rank;

  __device__ __forceinline__ int first_chunk(int rank) const {
    return rank * chunks_a_rank + min(rank, ranks_with_one_more);
  }
};

inline KSplit split_of_k(int ranks, int chunks, int tile_rows) {
  return {ranks, chunks / ranks, chunks % ranks, (tile_rows + ranks - 1) / ranks};
}

/// The sums of a tile whose K is shared by a cluster: every rank sends each other rank the rows
/// that this one finishes. Shared memory: Product's, in which the block's own sums replace the
/// pipeline; the received rows; a barrier that tells that all of them are here.
template <typename Product>
class ClusterSums {
 public:
  // kTileM rows, and what rounding up to whole rows a rank adds.
  static constexpr int kBarrierOffset =
      Product::kSharedBytes + (Product::kTileM + kMaxSplit) * Product::kPitchC * 4;
  static constexpr int kSharedBytes = kBarrierOffset + 16;

  __device__ __forceinline__ ClusterSums(unsigned char* shared, const KSplit& split)
      : own_(reinterpret_cast<float*>(shared)),
        received_(reinterpret_cast<float*>(shared + Product::kSharedBytes)),
        barrier_(shared_address(shared + kBarrierOffset)),
        ranks_(split.ranks),
        rank_(cluster_rank()),
        rows_a_rank_(split.rows_a_rank) {
    if (ranks_ > 1) {
      if (threadIdx.x == 0) {
        expect_bytes(barrier_, (ranks_ - 1) * rows() * kRowBytes);
      }
      __syncwarp();
      cluster_arrive();
    }
  }

  /// The rows of the tile that this rank finishes.
  __device__ __forceinline__ int first_row() const { return first_row_of(rank_); }
  __device__ __forceinline__ int rows() const { return rows_of(rank_); }

  /// After the product has run: leaves the sums of this rank's rows, of all ranks, to be read.
  __device__ __forceinline__ void exchange(Product& product) {
    product.store(own_);
    if (ranks_ == 1) {
      __syncthreads();
      return;
    }
    fence_for_copies();
    __syncthreads();
    cluster_wait();
    const int to = static_cast<int>(threadIdx.x);
    if (to < ranks_ && to != rank_ && rows_of(to) > 0) {
      copy_to_rank(shared_address(received_) + rank_ * rows_a_rank_ * kRowBytes,
                   shared_address(own_) + first_row_of(to) * kRowBytes,
                   rows_of(to) * kRowBytes,
                   barrier_,
                   to);
    }
    wait_for_bytes(barrier_);
    // Once all ranks have arrived here, nobody reads another's shared memory any more.
    cluster_arrive();
  }

  /// kCount sums, kStep columns apart, from (row, column) on; row counts from first_row(). They are
  /// added up in the ranks' order, so that they are the same on every run.
  template <int kCount, int kStep>
  __device__ __forceinline__ void read(float (&sums)[kCount], int row, int column) const {
    const float* const own = own_ + (first_row() + row) * Product::kPitchC + column;
    const float* const received = received_ + row * Product::kPitchC + column;
    const float* part = rank_ == 0 ? own : received;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[i] = part[i * kStep];
    }
#pragma unroll
    for (int r = 1; r < kMaxSplit; ++r) {
      if (r < ranks_) {
        part = r == rank_ ? own : received + r * rows_a_rank_ * Product::kPitchC;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sums[i] += part[i * kStep];
        }
      }
    }
  }

  /// Before the block leaves.
  __device__ __forceinline__ void finish() const {
    if (ranks_ > 1) {
      cluster_wait();
    }
  }

 private:
  static constexpr int kRowBytes = Product::kPitchC * 4;

  __device__ __forceinline__ int first_row_of(int rank) const {
    return min(rank * rows_a_rank_, Product::kTileM);
  }
  __device__ __forceinline__ int rows_of(int rank) const {
    return min(Product::kTileM - first_row_of(rank), rows_a_rank_);
  }

  float* own_;
  float* received_;
  uint32_t barrier_;
  int ranks_, rank_, rows_a_rank_;
};

}  // namespace lltm::cuda
