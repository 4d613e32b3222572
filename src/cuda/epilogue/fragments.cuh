// The end of a forward tile that wgmma computed: sums go from the registers of the warps that have
// them to the threads that finish them, by a policy as epilogue/cell.cuh describes.
//
// Lane l of a warp has, of 16 rows and each 8 hidden columns, four sums a gate: of rows l/4 and
// l/4 + 8, and of columns l%4*2 and the next. Each such four is an item, moved as a float4 a gate,
// that one thread finishes. A unit is what lanes 8q to 8q + 7 have of all columns: ranks of a
// cluster share units, and consecutive threads take a unit's items, so that a warp touches two rows
// or three of a matrix at a time; it would be eight if it kept its own, at two cycles each for ten
// accesses an item.
#pragma once

#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/shared.cuh"

#include <algorithm>
#include <type_traits>

namespace lltm::cuda {

/// The bytes of a unit's sums from one rank.
constexpr int unit_bytes(int hidden) {
  return 3 * hidden / 8 * 128;
}

/// For kWarps warps of 16 rows each, the first of a block; kThreads threads finish. `parts`, where
/// it appears, is shared memory for the sums of this rank's units, of all ranks.
template <typename Epilogue, int kWarps, int kHidden, int kThreads>
class FragmentFinisher {
 public:
  static constexpr int kSums = 3 * kHidden / 2;

  __device__ __forceinline__ FragmentFinisher(
      const Epilogue& epilogue, int64_t first_row, int first_hidden, int rank, int ranks)
      : epilogue_(epilogue),
        first_row_(first_row),
        first_hidden_(first_hidden),
        rank_(rank),
        ranks_(ranks),
        units_a_rank_((kUnits + ranks - 1) / ranks),
        first_unit_(rank * units_a_rank_),
        items_(max(min(kUnits - first_unit_, units_a_rank_), 0) * kItemsAUnit),
        item_(static_cast<int>(threadIdx.x)) {}

  /// What `barrier` has to count beside one that expects the bytes: the threads of this block that
  /// have what it finishes, each for itself (a warp's first thread could arrive for all after
  /// __syncwarp(), but racecheck would not follow).
  __device__ __forceinline__ int own_arrivals() const { return own_units() * 8; }
  /// The bytes that other ranks send.
  __device__ __forceinline__ int expected_bytes() const {
    return own_units() * (ranks_ - 1) * kUnitBytes;
  }

  /// Fetches what the first item needs beside its sums; of the others as the policy says.
  __device__ __forceinline__ void fetch() {
    next_.rows = 0;
    if (item_ >= items_) {
      return;
    }
    epilogue_.fetch(next_, row(item_), column(item_));
    if constexpr (kFetchesAhead) {
#pragma unroll
      for (int i = 1; i < kMostItems; ++i) {
        if (item_ + i * kThreads < items_) {
          epilogue_.fetch_state(further_[i - 1], row(item_ + i * kThreads), column(item_));
        }
      }
    }
  }

  /// Leaves every unit with the rank that finishes it, whose `barrier` tells that all of its units
  /// are there, of all ranks. Called by the warps that have sums. block_of(rank) is a rank's number
  /// in the cluster.
  template <typename BlockOf>
  __device__ __forceinline__ void exchange(const float (&sum)[kSums],
                                           unsigned char* parts,
                                           uint32_t barrier,
                                           const BlockOf& block_of) const {
    const int rank = own_unit() / units_a_rank_;
    const int place = own_unit() - rank * units_a_rank_;
    unsigned char* const own =
        parts + (place * ranks_ + rank_) * kUnitBytes + lane() % 8 * sizeof(float4);
    if (rank == rank_) {
#pragma unroll
      for (int part = 0; part < kSums / 4; ++part) {
        const float* const s = sum + part * 4;
        *reinterpret_cast<float4*>(own + part * 128) = make_float4(s[0], s[1], s[2], s[3]);
      }
      arrive(barrier);
    } else {
      const uint32_t there = address_in_block(shared_address(own), block_of(rank));
      const uint32_t barrier_there = address_in_block(barrier, block_of(rank));
#pragma unroll
      for (int part = 0; part < kSums / 4; ++part) {
        const float* const s = sum + part * 4;
        send_16(there + part * 128, s[0], s[1], s[2], s[3], barrier_there);
      }
    }
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
      // In the ranks' order: the same bits on every run.
#pragma unroll 1
      for (int r = 1; r < ranks_; ++r) {
        part += 3 * kItemsAUnit;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const float4 s = part[gate * kItemsAUnit];
          z[gate][0] += s.x, z[gate][1] += s.y, z[gate][2] += s.z, z[gate][3] += s.w;
        }
      }
      const typename Epilogue::Operands operands = next_;
      item_ += kThreads;
      if constexpr (kFetchesAhead) {
        if constexpr (kMostItems > 1) {
          epilogue_.place(next_, further_[0], row(item_), column(item_));
#pragma unroll
          for (int i = 1; i < kMostItems - 1; ++i) {
            further_[i - 1] = further_[i];
          }
        }
      } else {
        fetch();
      }
      epilogue_.finish(operands, z);
    }
  }

 private:
  static constexpr int kUnits = 4 * kWarps, kUnitBytes = unit_bytes(kHidden);
  static constexpr int kItemsAUnit = kHidden;  // of four rows and kHidden columns
  // Of a thread. States are fetched ahead where all are of the same columns: tiles of 64x24, of
  // which a thread most often has one, take 0.1 us longer with as many threads as it takes for
  // that.
  static constexpr int kMostItems = (kUnits * kItemsAUnit + kThreads - 1) / kThreads;
  static constexpr bool kFetchesAhead =
      !std::is_empty_v<typename Epilogue::State> && kThreads % kItemsAUnit == 0;

  // The first of an item.
  __device__ __forceinline__ int64_t row(int item) const {
    const int unit = first_unit_ + item / kItemsAUnit;
    return first_row_ + unit / 4 * 16 + unit % 4 * 2 + item % kItemsAUnit % 8 / 4;
  }
  __device__ __forceinline__ int column(int item) const {
    const int in_unit = item % kItemsAUnit;
    return first_hidden_ + in_unit / 8 * 8 + in_unit % 4 * 2;
  }

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ int own_units() const { return items_ / kItemsAUnit; }
  static __device__ __forceinline__ int own_unit() { return static_cast<int>(threadIdx.x) / 8; }

  const Epilogue epilogue_;
  const int64_t first_row_;
  const int first_hidden_, rank_, ranks_, units_a_rank_, first_unit_, items_;
  int item_;
  typename Epilogue::Operands next_;
  typename Epilogue::State further_[std::max(kMostItems - 1, 1)];
};

}  // namespace lltm::cuda
