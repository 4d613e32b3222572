// What the forward and the backward of the recurrence in 16 bits share.
//
// A warp has 16 columns of the state, those of all gates, and all of K. Its weights are operand A
// of m16n8k16 and stay in registers for all steps. The rows of the batch are the N of the product,
// in tiles of 8, and operand B: h, or in the backward the gradients of all gates. B is in shared
// memory twice, since a step reads what the last one wrote; one block barrier a step is then
// enough. A block of several tiles multiplies two of them at a time, whose products do not wait for
// each other, and has a barrier for every two: a warp goes on with them while others are still at
// the last two of the step before.
//
// The rows of A are permuted so that the sums of a thread belong to two neighboring columns, 2g and
// 2g + 1, of the rows 2q and 2q + 1, where g = lane / 4 and q = lane % 4. All gates of an element
// are in one thread, which computes the cell from its sums. Nothing else is exchanged.
//
// A block of one row reads this row as all of B's, so all q have the same sums. There, a thread has
// one element, of column 2g + q % 2, and the threads with q >= 2 only take part in the product.
//
// The blocks of a cluster share the columns of a larger state, and each has all of B. Two warps
// have the same columns, each a share of K, and finish one of the rows 2q and 2q + 1 each
// (mma_cluster.cuh).
#pragma once

#include "../../ptx/barrier.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/cp_async.cuh"
#include "../../ptx/global.cuh"
#include "../../ptx/mma.cuh"
#include "../../ptx/packed.cuh"
#include "../../ptx/registers.cuh"
#include "../../ptx/shared.cuh"
#include "../../runtime/dispatch.h"
#include "cell_tiles.h"
#include "copy_weights.cuh"
#include "pairs.h"
#include "recurrence.h"

#include <cstdint>
#include <limits>
#include <type_traits>

namespace lltm::cuda {

/// The sizes of a block. kPairs: two neighboring columns are read and written at once (pairs.h).
/// Otherwise elements are read and written one by one.
template <typename CellType, typename ElementType, RecurrenceTile kTileOfShape, bool kInPairs>
struct MmaShape {
  using Cell = CellType;
  using Element = ElementType;
  static constexpr RecurrenceTile kTile = kTileOfShape;
  static constexpr int kState = kTile.state_size, kRows = kTile.rows, kCluster = kTile.cluster;
  static constexpr bool kPairs = kInPairs;
  static constexpr int kColumns = kState / kCluster;  // of a block
  static constexpr int kShares = mma_shares(kTile);   // of K, of warps with the same columns
  static_assert(kState % (32 * kShares) == 0 && kColumns % 16 == 0);
  static_assert(kRows == 1 || (kRows % 8 == 0 && kRows <= 32));

  static constexpr int kThreads = mma_threads(kTile);
  static constexpr int kBlocks = resident_mma_blocks(kTile);
  static constexpr bool kOneRow = kRows == 1;
  static constexpr int kTiles = kOneRow ? 1 : kRows / 8;
  // In a cluster the others' results of a tile are on their way during the product of the next one.
  static constexpr int kTilesAtOnce = kTiles > 1 && kCluster == 1 ? 2 : 1;
  static_assert(kTiles % kTilesAtOnce == 0 && (kCluster == 1 || !kOneRow));
  // What a thread has of a tile.
  static constexpr int kOwnRows = kOneRow || kShares > 1 ? 1 : 2, kOwnColumns = kOneRow ? 1 : 2;
};

/// The rows of a cluster, or of a block by itself.
template <typename Shape>
struct GroupRows {
  int64_t group, first;
  int count;

  template <typename Problem>
  LLTM_DEVICE explicit GroupRows(const Problem& p) {
    const int most = Shape::kCluster == 1 ? Shape::kRows : p.group_rows;
    group = blockIdx.x / Shape::kCluster;
    first = group * most;
    count = at_most(p.rows - first, most);
  }

  /// The tiles that have any of them.
  LLTM_DEVICE int tiles() const { return Shape::kCluster == 1 ? Shape::kTiles : (count + 7) / 8; }
};

/// Keeps a value in a register. The assembler, too, would compute it again at each step, and to
/// read a parameter takes 35 cycles, so it must not know the value's origin. With several tiles
/// registers are scarcer. All threads call it.
template <typename Shape, typename Value>
LLTM_DEVICE Value kept_in_register(Value value) {
  return Shape::kTiles == 1 ? __shfl_sync(~0u, value, static_cast<int>(threadIdx.x))
                            : in_register(value);
}

/// Which elements a thread has.
template <typename Shape>
struct OwnElements {
  int lane;
  int warp;     // of those that have different columns
  int share;    // of K
  int column;   // the first of its columns
  int columns;  // how many of them exist
  int row;      // the first of its rows in a tile
  int rows;     // its elements of the tiles' rows `row` + r exist for r below it,
  // and those of its second column for r below this. A comparison of `columns` in the loop would be
  // kept as a predicate, which nvcc 13.0 loses.
  int rows_of_second;

  LLTM_DEVICE OwnElements(int block_rows, int state_size) {
    constexpr int kWarps = Shape::kColumns / 16;  // that have different columns
    lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_of_block = static_cast<int>(threadIdx.x) / 32;
    warp = Shape::kShares == 1 ? warp_of_block : warp_of_block % kWarps;
    share = Shape::kShares == 1 ? 0 : warp_of_block / kWarps;
    column = first_of_block<Shape::kCluster>(Shape::kColumns) + 16 * warp + 2 * (lane / 4) +
             (Shape::kOneRow ? lane % 2 : 0);
    row = Shape::kOneRow ? 0 : 2 * (lane % 4) + share;
    columns = in_register(takes_part() ? max(min(state_size - column, Shape::kOwnColumns), 0) : 0);
    rows = in_register(columns > 0 ? max(block_rows - row, 0) : 0);
    rows_of_second = in_register(columns > 1 ? rows : 0);
  }

  /// Whether the thread has elements, rather than only a part of the product.
  LLTM_DEVICE bool takes_part() const { return !Shape::kOneRow || lane % 4 < 2; }

  /// The part of a mask of the block's rows that says something about the thread's. Elements that
  /// do not exist belong to rows that never run.
  LLTM_DEVICE uint32_t own(uint32_t mask) const { return columns > 0 ? mask >> row : 0; }
  /// Calls function(tile, r, j, row, column) for the elements that exist: row r of the thread's in
  /// a tile and column j of the thread's, of the batch's rows, of which the group's start at
  /// first_row, and of the state.
  template <typename Function>
  LLTM_DEVICE void for_each(int64_t first_row, const Function& function) const {
    for_all([&](int tile, int r, int j) {
      if (8 * tile + r < rows && j < columns) {
        function(tile, r, j, first_row + row + 8 * tile + r, column + j);
      }
    });
  }

  /// Calls take(tile, r, j, bits) with the elements of a matrix that exist, and with zeros for
  /// others; not at all if the matrix is absent.
  template <typename Scalar, typename Take>
  LLTM_DEVICE void load(const Steps<Scalar>& of, int64_t first_row, const Take& take) const {
    if (of.data == nullptr) {
      return;
    }
    const Scalar* const first = &of.at(0, first_row + row, column);
    for_all([&](int tile, int r, int j) {
      const Scalar* const from = first + (8 * tile + r) * of.strides[1] + j * of.strides[2];
      const bool exists = 8 * tile + r < (j == 0 ? rows : rows_of_second);
      uint32_t bits;
      if constexpr (sizeof(Scalar) == 2) {
        load_half_once(bits, from, exists);
      } else {
        load_once(bits, from, exists);
      }
      take(tile, r, j, bits);
    });
  }

  /// The same for a cell state, whose elements are numbers.
  template <typename Take>
  LLTM_DEVICE void load(const AnyCells<typename Shape::Element>& cells,
                        int64_t first_row,
                        const Take& take) const {
    load(cells.exact, first_row, [&](int tile, int r, int j, uint32_t bits) {
      take(tile, r, j, __uint_as_float(bits));
    });
    load(cells.rounded, first_row, [&](int tile, int r, int j, uint32_t bits) {
      take(tile, r, j, Packed<typename Shape::Element>::low(bits));
    });
  }

  /// Masks out the column that does not exist.
  LLTM_DEVICE uint32_t existing(uint32_t word) const {
    return !Shape::kPairs && Shape::kOwnColumns == 2 && columns < 2 ? word & 0xffffu : word;
  }

 private:
  /// Calls function(tile, r, j) for the places of all elements.
  template <typename Function>
  static LLTM_DEVICE void for_all(const Function& function) {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
      for (int r = 0; r < Shape::kOwnRows; ++r) {
#pragma unroll
        for (int j = 0; j < Shape::kOwnColumns; ++j) {
          function(tile, r, j);
        }
      }
    }
  }
};

/// Value `column` of a word of neighboring columns.
template <typename Element>
LLTM_DEVICE float column_of(uint32_t word, int column) {
  return column == 0 ? Packed<Element>::low(word) : Packed<Element>::high(word);
}
template <typename Element, int kColumns>
LLTM_DEVICE uint32_t word_of_columns(const float (&values)[kColumns]) {
  return Packed<Element>::pack(values[0], kColumns == 2 ? values[kColumns - 1] : 0.0f);
}
template <typename Element>
LLTM_DEVICE Element element_of(float value) {
  return Element(static_cast<uint16_t>(Packed<Element>::pack(value, 0.0f)), Element::from_bits());
}

/// Writes the columns of a thread's row that exist.
template <typename Shape>
LLTM_DEVICE void store_columns(const OwnElements<Shape>& own,
                               typename Shape::Element* to,
                               uint32_t word,
                               int row,
                               bool row_exists) {
  const bool exists = row_exists && row < own.rows;
  if constexpr (Shape::kOwnColumns == 1) {
    store_low_half(to, word, exists);
  } else if constexpr (Shape::kPairs) {
    store_word(to, word, exists);
  } else {
    store_low_half(to, word, exists);
    store_low_half(to + 1, word >> 16, row_exists && row < own.rows_of_second);
  }
}

/// The order in which a thread reads a group's tiles, step after step, some of them ahead.
template <typename Shape>
class TilesAhead {
 public:
  LLTM_DEVICE explicit TilesAhead(const GroupRows<Shape>& group) : tiles_(group.tiles()) {}

  /// Of the tiles read before the first step, number `i`.
  LLTM_DEVICE int first(int i) { return Shape::kCluster == 1 ? i % Shape::kTiles : next(); }
  /// The one that is read when `tile` is used, `ahead` of it.
  LLTM_DEVICE int after(int tile, int ahead) {
    return Shape::kCluster == 1 ? (tile + ahead) % Shape::kTiles : next();
  }
  LLTM_DEVICE bool is_last(int tile) const {
    return tile == (Shape::kCluster == 1 ? Shape::kTiles : tiles_) - 1;
  }

 private:
  LLTM_DEVICE int next() {
    const int tile = next_;
    next_ = next_ + 1 == tiles_ ? 0 : next_ + 1;
    return tile;
  }

  int tiles_, next_ = 0;
};

/// Some neighboring columns of a row in memory.
template <typename Element>
struct ColumnsAt {
  const Element* data;
  int64_t column_stride;  // one for pairs
  int rows;               // how many of the thread's rows exist from this one on, if any
};

/// What a thread reads for its elements at each step: kWords words of columns for each of its rows,
/// tile after tile. They are read some tiles ahead, by asynchronous copies to shared memory, where
/// each thread has its own words, or one by one into registers.
///
/// Every take() is followed by a fetch(), and kTilesAhead calls of fetch() come before the first.
/// `at(word, row)` returns where one is.
template <typename Shape, int kWordCount>
class ColumnsAhead {
 public:
  using Words = uint32_t[kWordCount][Shape::kOwnRows];
  static constexpr int kTilesAhead = Shape::kPairs ? 4 : 1;
  static constexpr int kTileBytes =
      kWordCount * Shape::kOwnRows * Shape::kThreads * static_cast<int>(sizeof(uint32_t));
  static constexpr int kBytes = Shape::kPairs ? kTilesAhead * kTileBytes : 0;

  LLTM_DEVICE ColumnsAhead(const OwnElements<Shape>& own, uint32_t shared)
      : own_(own),
        slots_(kept_in_register<Shape>(shared +
                                       threadIdx.x * static_cast<uint32_t>(sizeof(uint32_t)))) {}

  template <typename At>
  LLTM_DEVICE void fetch(const At& at) {
#pragma unroll
    for (int row = 0; row < Shape::kOwnRows; ++row) {
#pragma unroll
      for (int word = 0; word < kWordCount; ++word) {
        const auto columns = at(word, row);
        if constexpr (Shape::kPairs) {
          // The pair that the thread's column belongs to.
          const auto* const pair = columns.data - (Shape::kOneRow ? own_.lane % 2 : 0);
          copy_async<4>(slots_ + fetched_ + offset_of(word, row), pair, columns.rows > 0 ? 4 : 0);
        } else {
#pragma unroll
          for (int column = 0; column < Shape::kOwnColumns; ++column) {
            load_half_once(
                halves_[word][row][column],
                columns.data + column * columns.column_stride,
                (column == 0 ? columns.rows : min(columns.rows, own_.rows_of_second)) > 0);
          }
        }
      }
    }
    if constexpr (Shape::kPairs) {
      commit_copies();
      fetched_ = next_slot(fetched_);
    }
  }

  LLTM_DEVICE void take(Words& words) {
    if constexpr (Shape::kPairs) {
      wait_copies<kTilesAhead - 1>();
    }
#pragma unroll
    for (int row = 0; row < Shape::kOwnRows; ++row) {
#pragma unroll
      for (int word = 0; word < kWordCount; ++word) {
        if constexpr (!Shape::kPairs) {
          const auto& halves = halves_[word][row];
          words[word][row] = Shape::kOneRow
                                 ? halves[0]
                                 : __byte_perm(halves[0], halves[Shape::kOwnColumns - 1], 0x5410);
        } else {
          // It was fetched into the slot that is fetched into next.
          words[word][row] = load_shared(slots_ + fetched_ + offset_of(word, row));
          if constexpr (Shape::kOneRow) {
            words[word][row] >>= 16 * (own_.lane % 2);
          }
        }
      }
    }
  }

 private:
  static LLTM_DEVICE int offset_of(int word, int row) {
    return (word * Shape::kOwnRows + row) * Shape::kThreads * static_cast<int>(sizeof(uint32_t));
  }
  static LLTM_DEVICE int next_slot(int slot) {
    return slot == (kTilesAhead - 1) * kTileBytes ? 0 : slot + kTileBytes;
  }

  const OwnElements<Shape>& own_;
  uint32_t slots_;
  int fetched_ = 0;
  uint32_t halves_[kWordCount][Shape::kOwnRows][Shape::kOwnColumns];
};

/// Some weights in shared memory, for reading operand A from: for all gates kRows rows of kColumns,
/// with zeros where they do not exist.
template <typename Shape, int kRows, int kColumns, bool kEvenRowsFirst>
class SharedWeights {
 public:
  static constexpr int kPitch = kColumns + 8;  // keeps rows in different banks
  static constexpr int kBytes = Shape::Cell::kGates * kRows * kPitch * 2;
  using Weights = RecurrentWeights<typename Shape::Element>;

  LLTM_DEVICE SharedWeights(const OwnElements<Shape>& own, uint32_t shared)
      : shared_(shared),
        fragments_(
            in_register(shared + ((16 * own.warp + own.lane % 16) * kPitch +
                                  own.share * (kColumns / Shape::kShares) + own.lane / 16 * 8) *
                                     2)) {}

  /// Copies the weights, of which `rows` of each gate and `columns` exist. They can be read after a
  /// block barrier.
  LLTM_DEVICE void load(const Weights& weights, int state_size, int rows, int columns) const {
    const int64_t gate_stride = state_size * weights.strides[0];
    copy_weights<Shape::kThreads, kRows, kColumns>(
        WeightsOfBlock<typename Shape::Element>{weights.data,
                                                {weights.strides[0], weights.strides[1]},
                                                gate_stride,
                                                Shape::Cell::kGates,
                                                rows,
                                                columns},
        [&](int gate, int row, int column) {
          return shared_ + ((gate * kRows + place_of(row)) * kPitch + column) * 2;
        });
  }

  /// Operand A of the warp's columns of the state.
  LLTM_DEVICE void fragment(uint32_t (&a)[4], int gate, int chunk) const {
    static_assert(kEvenRowsFirst);
    load_matrices_x4(a, fragments_ + (gate * kRows * kPitch + 16 * chunk) * 2);
  }

  /// Two neighboring columns of a row.
  LLTM_DEVICE uint32_t word(int row, int column) const {
    static_assert(!kEvenRowsFirst);
    return load_shared(shared_ + (row * kPitch + column) * 2);
  }

 private:
  /// Of 16 rows, operand A has the even ones first, from which a thread gets neighboring columns of
  /// the state.
  static LLTM_DEVICE int place_of(int row) {
    return kEvenRowsFirst ? (row & ~15) + row % 2 * 8 + row % 16 / 2 : row;
  }

  uint32_t shared_, fragments_;
};

/// Adds products of weights and some tiles of operand B, of which a lane's rows are at `rows`, to
/// kSums sums for each tile: one for each gate, or one in all if B has a part for each gate. Layout
/// has the distances of tiles, parts and 16 columns. Chunks of K take turns at kChains sums of
/// their own. `fragment(a, gate, chunk)` loads operand A, which serves all the tiles.
template <typename Element,
          typename Layout,
          int kParts,
          int kColumns,
          int kTiles,
          int kSums,
          int kChains,
          typename Fragment>
LLTM_DEVICE void multiply_tiles(const Fragment& fragment,
                                uint32_t rows,
                                float (&sums)[kTiles][kSums][kChains][4]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int chunk = 0; chunk < kColumns / 16; chunk += 2) {
      uint32_t b[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        load_matrices_x4(b[tile],
                         rows + tile * Layout::kTileBytes + part * Layout::kPartBytes +
                             chunk * Layout::kChunkBytes);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int sum = 0; sum < kSums; ++sum) {
          uint32_t a[4];
          fragment(a, kParts == 1 ? sum : part, chunk + half);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            multiply_add_in_order<Element>(sums[tile][sum][(chunk + half) % kChains],
                                           a,
                                           {b[tile][2 * half], b[tile][2 * half + 1]});
          }
        }
      }
    }
  }
}

/// The weights of a warp's columns: operand A for every gate and 16 of its K. With kTransposed the
/// columns of the state are those of the weights, and else their rows.
template <typename Shape, bool kTransposed>
struct WeightFragments {
  static constexpr int kKOfWarp = Shape::kState / Shape::kShares;
  static constexpr int kChunks = kKOfWarp / 16;
  using Loaded = SharedWeights<Shape,
                               kTransposed ? Shape::kState : Shape::kColumns,
                               kTransposed ? Shape::kColumns : Shape::kState,
                               !kTransposed>;
  // Of the shared memory that they are loaded through.
  static constexpr int kSharedBytes = Loaded::kBytes;
  uint32_t of[Shape::Cell::kGates][kChunks][4];

  /// Through `shared`, which is free for other uses after the next block barrier.
  LLTM_DEVICE void load(RecurrentWeights<typename Shape::Element> weights,
                        int64_t state_size,
                        const OwnElements<Shape>& own,
                        uint32_t shared) {
    const Loaded loaded(own, shared);
    const int size = static_cast<int>(state_size),
              first = first_of_block<Shape::kCluster>(Shape::kColumns);
    if constexpr (Shape::kCluster > 1) {
      weights.data += first * weights.strides[kTransposed ? 1 : 0];
    }
    loaded.load(
        weights, size, kTransposed ? size : size - first, kTransposed ? size - first : size);
    __syncthreads();
    const uint32_t zero = static_cast<uint32_t>(state_size >> 32);
#pragma unroll
    for (int gate = 0; gate < Shape::Cell::kGates; ++gate) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        uint32_t(&a)[4] = of[gate][chunk];
        if constexpr (kTransposed) {
          const auto word_at = [&](int k) {
            const int row =
                gate * Shape::kState + own.share * kKOfWarp + 16 * chunk + 2 * (own.lane % 4) + k;
            const int column = 16 * own.warp + 2 * (own.lane / 4);
            return loaded.word(row, column);
          };
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t first = word_at(8 * half), second = word_at(8 * half + 1);
            a[2 * half] = __byte_perm(first, second, 0x5410);
            a[2 * half + 1] = __byte_perm(first, second, 0x7632);
          }
        } else {
          loaded.fragment(a, gate, chunk);
#pragma unroll
          for (uint32_t& word : a) {
            wait_for(word, zero);
          }
        }
      }
    }
  }

  /// Adds the products with some tiles' rows of operand B, of which a lane's are at `rows`
  /// (multiply_tiles).
  template <typename Layout, int kParts, int kTiles, int kSums, int kChains>
  LLTM_DEVICE void multiply(uint32_t rows, float (&sums)[kTiles][kSums][kChains][4]) const {
    multiply_tiles<typename Shape::Element, Layout, kParts, kKOfWarp>(
        [&](uint32_t(&a)[4], int gate, int chunk) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a[i] = of[gate][chunk][i];
          }
        },
        rows,
        sums);
  }
};

/// Operand B of a step and of the next one, in shared memory: for each row of the block, kParts
/// times the columns of the state. For blocks by themselves.
///
/// A step calls start_tiles() and finish_tiles() for every kTilesAtOnce tiles in order.
template <typename Shape, int kParts>
class RowOperands {
 public:
  static constexpr int kPitch = kParts * Shape::kState + 8;  // keeps rows in different banks
  static constexpr int kTileBytes = 8 * kPitch * 2, kPartBytes = Shape::kState * 2;
  static constexpr int kChunkBytes = 16 * 2;
  static constexpr int kStepBytes = Shape::kRows * kPitch * 2;
  static constexpr int kBytes = 2 * kStepBytes;
  // None: the block's own barrier. They need sm_90; before, it is used there, too.
  static constexpr int kBarriers =
      Shape::kTiles > Shape::kTilesAtOnce ? Shape::kTiles / Shape::kTilesAtOnce : 0;
  // Keeps what follows at a multiple of 16 bytes.
  static constexpr int kBarrierBytes = (kBarriers + 1) / 2 * 16;
  using Element = typename Shape::Element;

  /// A block barrier must follow before the first finish_tiles().
  LLTM_DEVICE RowOperands(const OwnElements<Shape>& own,
                          const GroupRows<Shape>&,
                          uint32_t shared,
                          uint32_t barriers)
      : publishes_(own.takes_part()),
        barriers_(in_register(barriers)),
        read_(kept_in_register<Shape>(
            shared + ((Shape::kOneRow ? 0 : own.lane % 8 * kPitch) + own.lane / 8 * 8) * 2)),
        write_(kept_in_register<Shape>(shared + (own.row * kPitch + own.column) * 2)) {
    if constexpr (kBarriers > 0) {
      if (threadIdx.x == 0) {
        for (int i = 0; i < kBarriers; ++i) {
          init_barrier(barriers + 8 * i, Shape::kThreads);
        }
        fence_barriers();
      }
    }
  }

  /// Writes columns of a thread's `row` of a tile for the next step.
  LLTM_DEVICE void publish(int tile, int row, int part, uint32_t word) const {
    const uint32_t to = write_ + next_ + ((8 * tile + row) * kPitch + part * Shape::kState) * 2;
    if constexpr (Shape::kOneRow) {
      if (publishes_) {
        store_shared_low_half(to, word);
      }
    } else {
      store_shared(to, word);
    }
  }

  /// What a thread has published for this step, or for the next one.
  LLTM_DEVICE uint32_t published(int tile, int row) const {
    return load_shared(write_ + now_ + (8 * tile + row) * kPitch * 2);
  }
  LLTM_DEVICE uint32_t published_for_next(int tile, int row) const {
    return load_shared(write_ + next_ + (8 * tile + row) * kPitch * 2);
  }

  /// Makes what all threads have published of the tiles from `tile` on the operand of this step.
  LLTM_DEVICE void start_tiles(int tile) {
    if (tile == 0) {
      now_ = next_;
      next_ = kStepBytes - next_;
      parity_ ^= 1;
    }
#if __CUDA_ARCH__ >= 900
    if constexpr (kBarriers > 0) {
      wait_phase(barriers_ + tile / Shape::kTilesAtOnce * 8, parity_);
      return;
    }
#endif
    if (tile == 0) {
      __syncthreads();
    }
  }

  /// The thread has published all that it has of the tiles from `tile` on. What it has written to
  /// shared memory before is visible to others after their start_tiles() of the next step.
  LLTM_DEVICE void finish_tiles(int tile) const {
    if constexpr (kBarriers > 0) {
      arrive(barriers_ + tile / Shape::kTilesAtOnce * 8);
    }
  }
  LLTM_DEVICE void finish_all_tiles() const {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; tile += Shape::kTilesAtOnce) {
      finish_tiles(tile);
    }
  }

  /// Adds the products of the weights and kTilesAtOnce tiles' rows (multiply_tiles).
  template <typename Weights, int kSums, int kChains>
  LLTM_DEVICE void multiply(const Weights& weights,
                            int tile,
                            float (&sums)[Shape::kTilesAtOnce][kSums][kChains][4]) const {
    static_assert(kSums == (kParts == 1 ? Shape::Cell::kGates : 1));
    weights.template multiply<RowOperands, kParts>(read_ + now_ + tile * kTileBytes, sums);
  }

 private:
  bool publishes_;
  uint32_t barriers_, read_, write_;
  int now_ = 0, next_ = 0;
  uint32_t parity_ = 1;  // of the phase of the last step
};

/// The thread's sum of a row and column of a tile. If warps share K, their sums have been added
/// (SharesOfK).
template <typename Shape, int kChains>
LLTM_DEVICE float sum_of(const OwnElements<Shape>& own,
                         const float (&chains)[kChains][4],
                         int row,
                         int column) {
  if constexpr (Shape::kShares > 1) {
    return chains[0][2 * column];
  }
  float sum = 0;
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
    const float(&s)[4] = chains[chain];
    const float term = Shape::kOneRow ? (own.lane % 2 == 0 ? s[0] : s[2]) : s[2 * column + row];
    sum = chain == 0 ? term : sum + term;
  }
  return sum;
}

/// Returns launch(tile, pairs), with both as constants (dispatch), if the tile takes the problem.
/// Elements one by one are not compiled for blocks by themselves of more than 8 rows.
template <typename Cell, typename Problem, typename Launch>
cudaError_t dispatch_mma(const Problem& problem, const RecurrenceTile& tile, const Launch& launch) {
  if (problem.state_size > tile.state_size || problem.steps > std::numeric_limits<int>::max()) {
    return cudaErrorInvalidValue;
  }
  const bool pairs = is_in_pairs(problem);
  return dispatch<kMmaTilesOf<Cell::kGates, Cell::kSaved>>(tile, [&](auto instance) {
    constexpr RecurrenceTile kTile = instance;
    if (pairs) {
      return launch(instance, std::true_type());
    }
    if constexpr (kTile.cluster > 1 || kTile.rows <= 8) {
      return launch(instance, std::false_type());
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace lltm::cuda
