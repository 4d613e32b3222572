// The end of a forward tile that wgmma computed: sums go from the registers of the warps that have
// them to the threads that finish them, and become gates, new_cell and new_h there.
//
// Lane l of a warp has, of 16 rows and each 8 hidden columns, four sums a gate: of rows l/4 and
// l/4 + 8, and of columns l%4*2 and the next. Each such four is an item, moved as a float4 a gate,
// that one thread finishes. A unit is what lanes 8q to 8q + 7 have of all columns: ranks of a
// cluster share units, and consecutive threads take a unit's items, so that a warp touches two rows
// or three of a matrix at a time; it would be eight if it kept its own, at two cycles each for ten
// accesses an item.
#pragma once

#include "../cell.h"
#include "device_math.cuh"
#include "hopper_instructions.cuh"
#include "tile_kernels.h"
#include "tile_product.cuh"

namespace lltm::cuda {

/// The bytes of a unit's sums from one rank.
constexpr int unit_bytes(int hidden) {
  return 3 * hidden / 8 * 128;
}

__device__ __forceinline__ void assign_two(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}
__device__ __forceinline__ void assign_two(__half* to, float x, float y) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(x, y);
}
__device__ __forceinline__ void assign_two(__nv_bfloat16* to, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}

#if defined(LLTM_HOPPER)

/// For kWarps warps of 16 rows each. `parts`, where it appears, is shared memory for the sums of
/// this rank's units, of all ranks.
template <typename Element, int kWarps, int kHidden>
class FragmentFinisher {
 public:
  static constexpr int kSums = 3 * kHidden / 2;

  __device__ __forceinline__ FragmentFinisher(
      const FusedForwardParams& params, int64_t first_row, int first_hidden, int rank, int ranks)
      : p_(params),
        first_row_(first_row),
        first_hidden_(first_hidden),
        rank_(rank),
        ranks_(ranks),
        units_a_rank_((kUnits + ranks - 1) / ranks),
        first_unit_(rank * units_a_rank_),
        items_(max(min(kUnits - first_unit_, units_a_rank_), 0) * kItemsAUnit),
        item_(static_cast<int>(threadIdx.x)) {}

  /// What arrives for this rank.
  __device__ __forceinline__ int expected_bytes() const {
    return items_ / kItemsAUnit * ranks_ * kUnitBytes;
  }

  /// Fetches what the first item needs beside its sums.
  __device__ __forceinline__ void fetch() {
    if (item_ >= items_) {
      return;
    }
    const int column = column_of(item_);
    if (column >= p_.state_size) {
      return;
    }
    if (p_.bias != nullptr) {
      const Element* const bias = static_cast<const Element*>(p_.bias) + column;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        operands_.bias[gate][0] = bias[gate * p_.state_size];
        operands_.bias[gate][1] = bias[gate * p_.state_size + 1];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = row_of(item_) + half * 8;
      if (row < p_.batch) {
        const Element* const old_cell =
            static_cast<const Element*>(p_.old_cell) + row * p_.old_cell_stride + column;
        operands_.old_cell[half][0] = old_cell[0];
        operands_.old_cell[half][1] = old_cell[1];
      }
    }
  }

  /// For one rank: leaves the sums to be finished, after the next barrier of the block.
  __device__ __forceinline__ void keep(const float (&sum)[kSums], unsigned char* parts) const {
    float4* const to = reinterpret_cast<float4*>(parts + own_unit() * kUnitBytes) + lane() % 8;
#pragma unroll
    for (int part = 0; part < kSums / 4; ++part) {
      const float* const s = sum + part * 4;
      to[part * 8] = make_float4(s[0], s[1], s[2], s[3]);
    }
  }

  /// Sends every unit to the rank that finishes it, this one included, and waits for what this one
  /// finishes: `barrier` expects it. block_of(rank) is a rank's number in the cluster.
  template <typename BlockOf>
  __device__ __forceinline__ void exchange(const float (&sum)[kSums],
                                           uint32_t parts,
                                           uint32_t barrier,
                                           const BlockOf& block_of) const {
    const int rank = own_unit() / units_a_rank_;
    const int place = own_unit() - rank * units_a_rank_;
    const int block = block_of(rank);
    const uint32_t to =
        address_in_block(parts + (place * ranks_ + rank_) * kUnitBytes + lane() % 8 * 16, block);
    const uint32_t remote_barrier = address_in_block(barrier, block);
#pragma unroll
    for (int part = 0; part < kSums / 4; ++part) {
      const float* const s = sum + part * 4;
      send_16(to + part * 128, s[0], s[1], s[2], s[3], remote_barrier);
    }
    wait_phase(barrier, 0);
  }

  /// After the first fetch().
  __device__ __forceinline__ void finish(const unsigned char* parts) {
#pragma unroll 1
    while (item_ < items_) {
      const float4* part = reinterpret_cast<const float4*>(parts) +
                           item_ / kItemsAUnit * ranks_ * kItemsAUnit * 3 + item_ % kItemsAUnit;
      float z[3][4];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const float4 s = part[gate * kItemsAUnit];
        z[gate][0] = s.x, z[gate][1] = s.y, z[gate][2] = s.z, z[gate][3] = s.w;
      }
      // In the ranks' order: the same bits on every run. Few branches, so that loads overlap.
#pragma unroll
      for (int first = 1; first < kMaxSplit; first += 4) {
        if (first < ranks_) {
#pragma unroll
          for (int r = first; r < first + 4 && r < kMaxSplit; ++r) {
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
              const float4 s = r < ranks_ ? part[(r * 3 + gate) * kItemsAUnit] : float4{};
              z[gate][0] += s.x, z[gate][1] += s.y, z[gate][2] += s.z, z[gate][3] += s.w;
            }
          }
        }
      }
      const Operands operands = operands_;
      const int64_t first_row = row_of(item_);
      const int column = column_of(item_);
      item_ += 32 * kWarps;
      fetch();
      if (column >= p_.state_size) {
        continue;
      }
      float h[4], c[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          z[gate][i] += to_float(operands.bias[gate][i % 2]);
        }
        const cell::State<float> state =
            cell::forward<DeviceMath>(cell::Gates<float>{z[0][i], z[1][i], z[2][i]},
                                      to_float(operands.old_cell[i / 2][i % 2]));
        h[i] = state.h;
        c[i] = state.cell;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first_row + half * 8;
        if (row < p_.batch) {
          const int64_t index = row * p_.state_size + column;
          Element* const gates = static_cast<Element*>(p_.gates) + row * 3 * p_.state_size + column;
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            assign_two(gates + gate * p_.state_size, z[gate][half * 2], z[gate][half * 2 + 1]);
          }
          assign_two(static_cast<Element*>(p_.new_h) + index, h[half * 2], h[half * 2 + 1]);
          assign_two(static_cast<Element*>(p_.new_cell) + index, c[half * 2], c[half * 2 + 1]);
        }
      }
    }
  }

 private:
  static constexpr int kUnits = 4 * kWarps, kUnitBytes = unit_bytes(kHidden);
  static constexpr int kItemsAUnit = kHidden;  // of four rows and kHidden columns

  struct Operands {
    Element bias[3][2], old_cell[2][2];
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int own_unit() { return static_cast<int>(threadIdx.x) / 8; }

  __device__ __forceinline__ int64_t row_of(int item) const {
    const int unit = first_unit_ + item / kItemsAUnit;
    return first_row_ + unit / 4 * 16 + unit % 4 * 2 + item % kItemsAUnit % 8 / 4;
  }
  __device__ __forceinline__ int column_of(int item) const {
    return first_hidden_ + item % kItemsAUnit / 8 * 8 + item % 4 * 2;
  }

  const FusedForwardParams& p_;
  const int64_t first_row_;
  const int first_hidden_, rank_, ranks_, units_a_rank_, first_unit_, items_;
  int item_;
  Operands operands_{};
};

#endif  // LLTM_HOPPER

}  // namespace lltm::cuda
