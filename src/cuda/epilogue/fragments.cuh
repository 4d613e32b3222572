// The end of a forward tile that wgmma computed: sums go from the registers of the warps that have
// them to the threads that finish them, by a policy as epilogue/cell.cuh describes.
//
// Lane l of a warp has, of 16 rows and each 8 hidden columns, four sums a gate: of rows l/4 and
// l/4 + 8, and of columns l%4*2 and the next. A unit is what lanes 8q to 8q + 7 have of all
// columns: ranks of a cluster share units. Sums travel as the four of a lane; a thread finishes
// items of four, which are neighbours of a row where these can be read and written at once, else a
// lane's four. Consecutive threads take a unit's items, so that a warp touches two rows or four of
// a matrix at a time.
//
// For items of a row, lanes and the halves of their four change places in shared memory from one 8
// columns to the next, so that the threads of a row read from different banks.
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
        items_(static_cast<unsigned>(max(min(kUnits - first_unit_, units_a_rank_), 0)) *
               kItemsAUnit),
        item_(threadIdx.x) {}

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
    fetch_item();
    // Here, so that no division follows the product.
    receiver_ = own_unit() / units_a_rank_;
    first_ = place_in_unit(item_);
    asm volatile("" : "+r"(receiver_), "+r"(first_));
    if (item_ >= items_) {
      return;
    }
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
    const int rank = receiver_, place = own_unit() - rank * units_a_rank_;
    unsigned char* const own = parts + (place * ranks_ + rank_) * kUnitBytes;
    const auto send = [&](const auto& write) {
#pragma unroll
      for (int part = 0; part < kSums / 4; ++part) {
        const float* const s = sum + part * 4;
        const int group = kRows == 1 ? part % kGroups : 0, half = group & 2;
        write(part * 128 + (threadIdx.x % 8 ^ (group & 1)) * sizeof(float4),
              make_float4(s[half], s[half + 1], s[2 - half], s[3 - half]));
      }
    };
    if (rank == rank_) {
      send([&](unsigned at, const float4& s) { *reinterpret_cast<float4*>(own + at) = s; });
      arrive(barrier);
    } else {
      const uint32_t there = address_in_block(shared_address(own), block_of(rank));
      const uint32_t barrier_there = address_in_block(barrier, block_of(rank));
      send([&](unsigned at, const float4& s) {
        send_16(there + at, s.x, s.y, s.z, s.w, barrier_there);
      });
    }
  }

  /// After the first fetch().
  __device__ __forceinline__ void finish(const unsigned char* parts) {
#pragma unroll 1
    while (item_ < items_) {
      const unsigned char* part = parts + item_ / kItemsAUnit * ranks_ * kUnitBytes;
      const unsigned first = kSameColumns ? first_ : place_in_unit(item_);
      float z[3][4];
      const auto add = [&](const auto& to) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const unsigned char* const of_gate = part + gate * kGroups * 128;
          float4 s;
          if constexpr (kRows == 2) {
            s = *reinterpret_cast<const float4*>(of_gate + first);
          } else {
            const float2 a = *reinterpret_cast<const float2*>(of_gate + first);
            const float2 b = *reinterpret_cast<const float2*>(of_gate + (first ^ sizeof(float4)));
            s = make_float4(a.x, a.y, b.x, b.y);
          }
          to(z[gate][0], s.x), to(z[gate][1], s.y), to(z[gate][2], s.z), to(z[gate][3], s.w);
        }
      };
      add([](float& z, float sum) { z = sum; });
      // In the ranks' order: the same bits on every run.
#pragma unroll 1
      for (int r = 1; r < ranks_; ++r) {
        part += kUnitBytes;
        add([](float& z, float sum) { z += sum; });
      }
      item_ += kThreads;
      if constexpr (kFetchesAhead && kRows == 1) {
        epilogue_.finish(next_, z);
        place_next();
      } else {
        const typename Epilogue::Operands operands = next_;
        if constexpr (kFetchesAhead) {
          place_next();
        } else {
          fetch_item();
        }
        epilogue_.finish(operands, z);
      }
    }
  }

 private:
  static constexpr int kUnits = 4 * kWarps, kUnitBytes = unit_bytes(kHidden);
  static constexpr int kGroups = kHidden / 8;        // of columns
  static constexpr int kRows = Epilogue::kItemRows;  // of an item
  static_assert(kRows * Epilogue::kItemColumns == 4);
  static constexpr unsigned kItemsARow = kHidden / 4, kItemsAUnit = kHidden;
  // Of a thread. States are fetched ahead where all are of the same columns: tiles of 64x24, of
  // which a thread most often has one, take 0.1 us longer with as many threads as it takes for
  // that.
  static constexpr int kMostItems = (kUnits * kItemsAUnit + kThreads - 1) / kThreads;
  static constexpr bool kSameColumns = kThreads % kItemsAUnit == 0;
  static constexpr bool kFetchesAhead = kSameColumns && !std::is_empty_v<typename Epilogue::State>;

  __device__ __forceinline__ void fetch_item() {
    next_.rows = 0;
    if (item_ < items_) {
      epilogue_.fetch(next_, row(item_), column(item_));
    }
  }
  __device__ __forceinline__ void place_next() {
    if constexpr (kMostItems > 1) {
      epilogue_.place(next_, further_[0], row(item_), column(item_));
#pragma unroll
      for (int i = 2; i < kMostItems; ++i) {
        further_[i - 2] = further_[i - 1];
      }
    }
  }

  // The first of an item.
  __device__ __forceinline__ int64_t row(unsigned item) const {
    const unsigned unit = first_unit_ + item / kItemsAUnit, in_unit = item % kItemsAUnit;
    const unsigned of_four = in_unit / kItemsARow;
    return first_row_ + (unit / 4 * 16 + unit % 4 * 2 +
                         (kRows == 2 ? in_unit % 8 / 4 : of_four / 2 * 8 + of_four % 2));
  }
  __device__ __forceinline__ int column(unsigned item) const {
    const unsigned in_unit = item % kItemsAUnit;
    return first_hidden_ + static_cast<int>(kRows == 2 ? in_unit / 8 * 8 + in_unit % 4 * 2
                                                       : in_unit % kItemsARow * 4);
  }
  // Where the first of an item's sums of the first gate are.
  static __device__ __forceinline__ unsigned place_in_unit(unsigned item) {
    const unsigned in_unit = item % kItemsAUnit;
    if constexpr (kRows == 2) {
      return in_unit * 16;
    } else {
      const unsigned of_four = in_unit / kItemsARow, group = in_unit % kItemsARow / 2;
      const unsigned lane = of_four % 2 * 4 + in_unit % 2 * 2;
      return group * 128 + (lane ^ (group & 1)) * 16 + (of_four / 2 ^ (group / 2 & 1)) * 8;
    }
  }

  __device__ __forceinline__ int own_units() const {
    return static_cast<int>(items_ / kItemsAUnit);
  }
  static __device__ __forceinline__ int own_unit() { return static_cast<int>(threadIdx.x) / 8; }

  const Epilogue epilogue_;
  const int64_t first_row_;
  const int first_hidden_, rank_, ranks_, units_a_rank_, first_unit_;
  const unsigned items_;
  unsigned item_;
  int receiver_;    // the rank that finishes what this thread has
  unsigned first_;  // place_in_unit() of its first item
  typename Epilogue::Operands next_;
  typename Epilogue::State further_[std::max(kMostItems - 1, 1)];
};

}  // namespace lltm::cuda
