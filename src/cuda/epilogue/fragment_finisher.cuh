// The epilogue of a tile that was computed by wgmma, of the forward or of a step's gradients: sums
// move from the registers of the warps that hold them to the threads that finish them, by a policy
// as described in epilogue/cell.cuh.
//
// An element has one sum, or one per gate. For 16 rows and each group of 8 columns, lane l of a
// warp holds four of each: those of rows l/4 and l/4 + 8 and of columns l%4*2 and the next. A unit
// is what lanes 8q to 8q + 7 hold of all columns. The ranks of a cluster divide the units among
// them. Sums are sent in fours, as a lane holds them. A thread finishes items of four: neighbors of
// a row if these can be read and written at once, otherwise the four of a lane. Consecutive threads
// take the items of a unit, so that a warp accesses two or four rows of a matrix at a time.
//
// If items are neighbors of a row, lanes and the halves of their fours are permuted in shared
// memory from one group of 8 columns to the next, so that the threads of a row read from different
// banks.
#pragma once

#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/shared.cuh"
#include "../tile/shapes.h"

#include <algorithm>
#include <type_traits>

namespace lltm::cuda {

/// The shared memory of a block: the pipeline, a barrier for the sums, and the sums, of kColumns
/// columns. The sums of a block without a cluster replace the stages.
template <typename Product, int kColumns = Product::kTileN>
struct FragmentMemory {
  // The bytes of a unit's sums from one rank.
  static constexpr int kUnitBytes = kColumns / 8 * 128;
  static constexpr int kUnits = Product::kTileM / 4;
  static constexpr int kSumsBarrier = (Product::kPipelineBytes + 7) / 8 * 8;
  static constexpr int kPartsOffset = (kSumsBarrier + 8 + 127) / 128 * 128;
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kMaxRanks =
      std::min(kLargestCluster / Product::kRowTiles,
               std::max(1, (kMostBytes - kPartsOffset) / kUnitBytes - kUnits + 1));
  static constexpr int kBlockBytes = kPartsOffset;
  static constexpr int kClusterBytes =
      kPartsOffset + (kMaxRanks == 1 ? 0 : (kUnits + kMaxRanks - 1) * kUnitBytes);
  static_assert(kUnits * kUnitBytes <= Product::kStages * Product::kStageBytes);
  // Whether blocks of a kernel and of the next one fit a multiprocessor together.
  static constexpr bool kFitsTwice = kClusterBytes <= 113 * 1024;
  // With this, no two of them do.
  static constexpr int kAloneBytes = 116 * 1024;
};

/// The first kWarps warps of a block hold the sums, of 16 rows and kColumns elements of each, and
/// kThreads threads finish them. `parts` is shared memory for the sums of this rank's units, from
/// all ranks.
template <typename Epilogue, int kWarps, int kColumns, int kThreads>
class FragmentFinisher {
 public:
  static constexpr int kSumsAnElement = Epilogue::kSumsAnElement;
  static constexpr int kSums = kSumsAnElement * kColumns / 2;

  LLTM_DEVICE FragmentFinisher(
      const Epilogue& epilogue, int64_t first_row, int first_column, int rank, int ranks)
      : epilogue_(epilogue),
        first_row_(first_row),
        first_column_(first_column),
        rank_(rank),
        ranks_(ranks),
        units_a_rank_((kUnits + ranks - 1) / ranks),
        first_unit_(rank * units_a_rank_),
        items_(static_cast<unsigned>(max(min(kUnits - first_unit_, units_a_rank_), 0)) *
               kItemsAUnit),
        item_(threadIdx.x) {}

  /// Initializes the barrier of the sums. One thread calls it, before a barrier of the cluster.
  LLTM_DEVICE void prepare_barrier(uint32_t barrier) const {
    // Besides the arrival that expects what other ranks send, the threads of this block arrive that
    // hold sums which the block finishes. (A warp's first thread could arrive for all after
    // __syncwarp(), but racecheck would not recognize that.)
    init_barrier(barrier, 1 + own_units() * 8);
    fence_barriers();
    arrive_expecting(barrier, own_units() * (ranks_ - 1) * kUnitBytes);
  }

  /// Prefetches what the policy fetches.
  LLTM_DEVICE void prefetch() const {
#pragma unroll 1
    for (unsigned item = item_; item < items_; item += kThreads) {
      epilogue_.prefetch(row(item), column(item));
    }
  }

  /// For a policy that has these: prepare(fetched) computes, after fetch(), what does not depend
  /// on the sums, and fetch_carried(fetched) fetches what the previous kernel writes.
  LLTM_DEVICE void prepare() {
    epilogue_.prepare(next_[0]);
    is_prepared_ = true;
  }
  LLTM_DEVICE void fetch_carried() { epilogue_.fetch_carried(next_[0]); }

  /// Fetches what the first item needs besides its sums, and the states of the others if the policy
  /// has any.
  LLTM_DEVICE void fetch() {
    fetch_item(next_[0], item_);
    // Computed here so that no division follows the product.
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

  /// Adds the sums of all ranks and finishes this rank's elements. Called after fetch(), by the
  /// warps that hold sums, which are kMultipliers threads, and by those that only finish.
  /// block_of(rank) is a rank's block in the cluster.
  template <int kMultipliers, typename BlockOf>
  LLTM_DEVICE void finish(const float (&sum)[kSums],
                          unsigned char* parts,
                          uint32_t barrier,
                          const BlockOf& block_of) {
    if (threadIdx.x < kMultipliers) {
      if (ranks_ == 1) {
        // All warpgroups are done with the stages, which the sums replace.
        sync_threads_of<kMultipliers>(2);
      }
      exchange(sum, parts, barrier, block_of);
    }
    fetch_further();
    wait_phase(barrier, 0);
    finish_items(parts);
  }

 private:
  static constexpr int kUnits = 4 * kWarps, kUnitBytes = kSumsAnElement * kColumns / 8 * 128;
  static constexpr int kGroups = kColumns / 8;       // of columns
  static constexpr int kRows = Epilogue::kItemRows;  // of an item
  static_assert(kRows * Epilogue::kItemColumns == 4);
  static constexpr unsigned kItemsARow = kColumns / 4, kItemsAUnit = kColumns;
  // Per thread. States are fetched ahead only if all items of a thread have the same columns. In
  // tiles of 64x24, where a thread usually has one item, they do not: with the number of threads
  // that this requires, such tiles take 0.1 us longer.
  static constexpr int kMostItems = (kUnits * kItemsAUnit + kThreads - 1) / kThreads;
  static constexpr bool kSameColumns = kThreads % kItemsAUnit == 0;
  static constexpr bool kHasStates = !std::is_empty_v<typename Epilogue::State>;
  static constexpr bool kFetchesAhead = kSameColumns && kHasStates;
  static constexpr bool kPrepares =
      requires(const Epilogue& of, typename Epilogue::Fetched& fetched) { of.prepare(fetched); };
  // The items of a thread that are being fetched while it finishes one. In a step of a
  // sequence, each comes from L2.
  static constexpr int kDepth = kHasStates ? 1 : std::min(kMostItems, kPrepares ? 2 : 3);

  // Sends every unit to the rank that finishes it. That rank's `barrier` completes when all of its
  // units have arrived from all ranks.
  template <typename BlockOf>
  LLTM_DEVICE void exchange(const float (&sum)[kSums],
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
      send([&](unsigned at, const float4& s) { send_16(there + at, s, barrier_there); });
    }
  }

  // Starts fetching what the next few items need, once the sums need no registers.
  LLTM_DEVICE void fetch_further() {
#pragma unroll
    for (int i = 1; i < kDepth; ++i) {
      fetch_item(next_[i], item_ + i * kThreads);
      fetch_carried_of(next_[i]);
    }
  }

  LLTM_DEVICE void finish_items(const unsigned char* parts) {
#pragma unroll 1
    while (item_ < items_) {
      const unsigned char* part = parts + item_ / kItemsAUnit * ranks_ * kUnitBytes;
      const unsigned first = kSameColumns ? first_ : place_in_unit(item_);
      float z[kSumsAnElement][4];
      const auto add = [&](const auto& to) {
#pragma unroll
        for (int gate = 0; gate < kSumsAnElement; ++gate) {
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
      // In rank order, so that every run gives the same bits.
#pragma unroll 1
      for (int r = 1; r < ranks_; ++r) {
        part += kUnitBytes;
        add([](float& z, float sum) { z += sum; });
      }
      item_ += kThreads;
      if constexpr (kFetchesAhead && kRows == 1) {
        epilogue_.finish(next_[0], z);
        place_next();
      } else {
        typename Epilogue::Fetched fetched = next_[0];
        if constexpr (kFetchesAhead) {
          place_next();
        } else {
#pragma unroll
          for (int i = 1; i < kDepth; ++i) {
            next_[i - 1] = next_[i];
          }
          fetch_item(next_[kDepth - 1], item_ + (kDepth - 1) * kThreads);
          fetch_carried_of(next_[kDepth - 1]);
        }
        if constexpr (kPrepares) {
          if (!is_prepared_) {
            epilogue_.prepare(fetched);
          }
          is_prepared_ = false;
        }
        epilogue_.finish(fetched, z);
      }
    }
  }

  LLTM_DEVICE void fetch_item(typename Epilogue::Fetched& fetched, unsigned item) {
    fetched.rows = 0;
    if (item < items_) {
      epilogue_.fetch(fetched, row(item), column(item));
    }
  }
  LLTM_DEVICE void fetch_carried_of(typename Epilogue::Fetched& fetched) {
    if constexpr (kPrepares) {
      epilogue_.fetch_carried(fetched);
    }
  }
  LLTM_DEVICE void place_next() {
    if constexpr (kMostItems > 1) {
      epilogue_.place(next_[0], further_[0], row(item_), column(item_));
#pragma unroll
      for (int i = 2; i < kMostItems; ++i) {
        further_[i - 2] = further_[i - 1];
      }
    }
  }

  // The first row and column of an item.
  LLTM_DEVICE int64_t row(unsigned item) const {
    const unsigned unit = first_unit_ + item / kItemsAUnit, in_unit = item % kItemsAUnit;
    const unsigned of_four = in_unit / kItemsARow;
    return first_row_ + (unit / 4 * 16 + unit % 4 * 2 +
                         (kRows == 2 ? in_unit % 8 / 4 : of_four / 2 * 8 + of_four % 2));
  }
  LLTM_DEVICE int column(unsigned item) const {
    const unsigned in_unit = item % kItemsAUnit;
    return first_column_ + static_cast<int>(kRows == 2 ? in_unit / 8 * 8 + in_unit % 4 * 2
                                                       : in_unit % kItemsARow * 4);
  }
  // The offset of an item's first sums of the first gate.
  static LLTM_DEVICE unsigned place_in_unit(unsigned item) {
    const unsigned in_unit = item % kItemsAUnit;
    if constexpr (kRows == 2) {
      return in_unit * 16;
    } else {
      const unsigned of_four = in_unit / kItemsARow, group = in_unit % kItemsARow / 2;
      const unsigned lane = of_four % 2 * 4 + in_unit % 2 * 2;
      return group * 128 + (lane ^ (group & 1)) * 16 + (of_four / 2 ^ (group / 2 & 1)) * 8;
    }
  }

  LLTM_DEVICE int own_units() const { return static_cast<int>(items_ / kItemsAUnit); }
  static LLTM_DEVICE int own_unit() { return static_cast<int>(threadIdx.x) / 8; }

  const Epilogue epilogue_;
  const int64_t first_row_;
  const int first_column_, rank_, ranks_, units_a_rank_, first_unit_;
  const unsigned items_;
  unsigned item_;
  bool is_prepared_ = false;  // next_[0]
  int receiver_;              // the rank that finishes this thread's sums
  unsigned first_;            // place_in_unit() of its first item
  typename Epilogue::Fetched next_[kDepth];
  typename Epilogue::State further_[std::max(kMostItems - 1, 1)];
};

}  // namespace lltm::cuda
