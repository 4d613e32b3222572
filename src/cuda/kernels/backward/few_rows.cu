// The whole backward in one launch for a batch of a few rows. It takes as long as reading weights
// and writing d_weights, once each. A thread has a few columns of [h | x] and walks down the rows
// of both matrices: it reads weights, whose products with d_gates give d_old_h and d_input, and
// writes their gradients, which are products of d_gates with the old_h or input that it keeps. A
// cluster shares the rows, and each block computes d_gates of its own. A thread has four columns if
// rows, including those of d_weights, start at multiples of four elements, otherwise one. d_gates
// are the gradients of what a cell saves; the columns of h take those of kOfGate, and those of x
// take those of kOfInput.
#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../../cell/sides.h"
#include "../../epilogue/math.cuh"
#include "../../epilogue/write_tile.cuh"
#include "../../problem.h"
#include "../../ptx/cluster.cuh"
#include "../../ptx/cp_async.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../reduction/cluster_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../scheduler/split_of_k.h"
#include "../../tile/elements.h"
#include "../../tile/vectors.cuh"
#include "../few_rows.cuh"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {

template <typename scalar_t>
struct BackwardFewRowsArguments {
  GateGradientsParams<scalar_t> cell;
  BackwardProblem products;
  KSplit split;  // of the columns of the state, by kGroups
  Segments strips;
};

/// A strip of columns of [h | x], kWidth per thread, for a batch of kRows rows.
template <typename Cell_, typename Element_, int kRows_, int kWidth_>
struct FewRowsStrip {
  using Cell = Cell_;
  using Element = Element_;
  static constexpr int kGates = Cell::kGates, kSaved = Cell::kSaved;
  static constexpr int kRows = kRows_, kColumns = 64, kWidth = kWidth_;
  static constexpr int kThreads = 256, kLanes = kColumns / kWidth, kGroups = kThreads / kLanes;

  // A thread computes d_gates of one element at a time, which is a row and a column of the state.
  // The rows of a gate and a column are adjacent.
  static constexpr int kPitch = kRows == 1 ? 1 : kRows == 2 ? 2 : kRows <= 4 ? 4 : 8;
  static constexpr int kHidden = kThreads / kPitch;
  static_assert(kHidden % kGroups == 0);

  // The threads that together have sums of all columns of a strip: a warp, or more if necessary.
  static constexpr int kPartThreads = kLanes < 32 ? 32 : kLanes, kParts = kThreads / kPartThreads;

  /// The part of d_old_h or d_input, as ClusterSums requires it.
  struct StateProduct {
    static constexpr int kTileM = kRows, kPitchC = kColumns;
    static constexpr int kSharedBytes = kTileM * kPitchC * 4;
    float* parts;
    float sum[kRows][kWidth];

    LLTM_DEVICE void store(float* result) {
      const int part = static_cast<int>(threadIdx.x) / kPartThreads;
      const int lane = static_cast<int>(threadIdx.x) % kPartThreads;
      __syncthreads();  // no thread still reads what `parts` replaces
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        Vector<float, kWidth> several;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          several.values[i] = sum[row][i];
          if constexpr (kLanes < kPartThreads) {
            several.values[i] += __shfl_xor_sync(0xffffffff, several.values[i], kLanes);
          }
        }
        if (lane < kLanes) {
          write_vector(&parts[(part * kRows + row) * kColumns + lane * kWidth], several);
        }
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns; i += kThreads) {
        float total = parts[i];
#pragma unroll
        for (int p = 1; p < kParts; ++p) {
          total += parts[p * kRows * kColumns + i];
        }
        result[i] = total;
      }
    }
  };

  // Shared memory: the cluster's sums; each thread's own weights in flight, later the parts of the
  // sums; d_gates, twice.
  using Sums = ClusterSums<StateProduct>;
  static constexpr int kStages = kWidth == 1 ? 10 : 4;
  // Copies are of at least four bytes: an element of 16 bits is copied with the word it is in.
  static constexpr bool kCopiesWords = kWidth * sizeof(Element) < 4;
  static constexpr int kVectorBytes = kCopiesWords ? 4 : kWidth * sizeof(Element);
  static constexpr int kStageBytes = kGates * kThreads * kVectorBytes;
  static constexpr int kWeightsOffset = Sums::kSharedBytes;
  static constexpr int kGatesOffset = kWeightsOffset + kStages * kStageBytes;
  static constexpr int kSharedBytes = kGatesOffset + 2 * kSaved * kThreads * 4;
  static_assert(kParts * kRows * kColumns * 4 <= kStages * kStageBytes);
  static_assert(kLanes >= 16 && kWeightsOffset % 16 == 0);
};

/// The word of four bytes that contains an element. It may also contain what is in front of the
/// first element of a tensor or behind the last, which can be read, too: no word crosses the end of
/// a page or of what the device allocates.
LLTM_DEVICE const void* word_around(const void* element) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(element) / 4 * 4);
}

template <typename Strip>
__global__ void __launch_bounds__(Strip::kThreads, 2) backward_few_rows_kernel(
    const __grid_constant__ BackwardFewRowsArguments<typename Strip::Element> arguments) {
  using Cell = typename Strip::Cell;
  using Element = typename Strip::Element;
  using Math = TensorMath<Element>;
  constexpr int kGates = Strip::kGates, kSaved = Strip::kSaved;
  constexpr int kRows = Strip::kRows, kHidden = Strip::kHidden, kThreads = Strip::kThreads;
  constexpr int kWidth = Strip::kWidth, kLanes = Strip::kLanes, kGroups = Strip::kGroups;
  constexpr int kStages = Strip::kStages, kVectorBytes = Strip::kVectorBytes;
  extern __shared__ __align__(16) unsigned char shared[];
  const GateGradientsParams<Element>& cell = arguments.cell;
  const BackwardProblem& p = arguments.products;
  const int64_t state_size = p.state_size;
  const int thread = static_cast<int>(threadIdx.x);

  const unsigned strip = cluster_index();
  const auto piece = arguments.strips.piece(static_cast<int>(strip), Strip::kColumns);
  const int64_t first_column = piece.first;
  const int64_t width_of_part = piece.of(state_size, p.input_features);
  const int columns = at_most(width_of_part - first_column, Strip::kColumns);
  const int column = thread % kLanes * kWidth, group = thread / kLanes;
  const bool inside = column < columns;  // widths are multiples of kWidth
  const bool state_wanted = piece.of(p.d_old_h, p.d_input) != nullptr;
  const Matrix& weights = piece.of(p.weights, p.weights_input);
  void* const all_d_weights = piece.of(p.d_weights.of_h, p.d_weights.of_input);
  const int64_t d_weights_stride = piece.of(p.d_weights.h_stride, p.d_weights.input_stride);
  const bool weights_wanted = all_d_weights != nullptr;
  const bool cell_wanted = strip == 0;

  // Which of d_gates a gate of the weights takes. The sides differ in the last one, at most.
  constexpr int kLastOfH = Cell::kOfGate[kGates - 1], kLastOfX = Cell::kOfInput[kGates - 1];
  const auto saved = [&](int gate) {
    return gate < kGates - 1 ? gate : piece.of_h ? kLastOfH : kLastOfX;
  };
  static_assert(kGates == Cell::kInputs && kSaved <= kGates + 1);

  const int64_t begin = int64_t(arguments.split.first_chunk(cluster_rank())) * kGroups;
  const int64_t end =
      min(int64_t(arguments.split.first_chunk(cluster_rank() + 1)) * kGroups, state_size);
  const int hidden = at_most(max(end - begin, int64_t(0)), 1 << 30);  // columns of this rank

  typename Strip::Sums sums(shared, arguments.split);
  // Those that exist (kPowersOfFewRows), and of these the ones whose sums this rank finishes.
  const int rows = Cell::kAdds ? kRows : static_cast<int>(p.batch);
  const auto own_rows = [&] {
    return Cell::kAdds ? sums.rows() : min(sums.rows(), rows - sums.first_row());
  };
  typename Strip::StateProduct product{reinterpret_cast<float*>(shared + Strip::kWeightsOffset),
                                       {}};
  auto* const both_d_gates = reinterpret_cast<float*>(shared + Strip::kGatesOffset);
  unsigned char* const own_weights = shared + Strip::kWeightsOffset + thread * kVectorBytes;
  wait_for_previous_kernel();

  // The operands of d_gates of this thread's next element, which is in column `own` of those
  // computed at a time.
  const int own = thread % kHidden, own_row = thread / kHidden;
  struct Operands {
    Element z[kSaved] = {}, new_cell = 0, old_cell = 0, grad_h = 0, grad_cell = 0;
  } element;
  const auto load = [&](Operands& of, int row, int64_t at) {
    const Element* const gates = cell.gates + row * kSaved * state_size + at;
#pragma unroll
    for (int k = 0; k < kSaved; ++k) {
      of.z[k] = gates[k * state_size];
    }
    if (Cell::kReadsOldCell && cell.old_cell.data != nullptr) {
      of.old_cell = cell.old_cell.at(0, row, at);
    }
    of.new_cell = cell.new_cell[row * state_size + at];
    if (cell.grad_h.data != nullptr) {
      of.grad_h = cell.grad_h.at(0, row, at);
    }
    if (cell.grad_cell.data != nullptr) {
      of.grad_cell = cell.grad_cell.at(0, row, at);
    }
  };
  const auto load_element = [&](int first) {
    if (own_row < rows && first + own < hidden) {
      load(element, own_row, begin + first + own);
    }
  };
  // Returns the gradient of the old state.
  const auto differentiate = [&](const Operands& of, float(&d_z)[kSaved]) {
    float z[kSaved];
#pragma unroll
    for (int k = 0; k < kSaved; ++k) {
      z[k] = static_cast<float>(of.z[k]);
    }
    const auto by = Cell::template derivatives<Math>(
        z, static_cast<float>(of.old_cell), static_cast<float>(of.new_cell));
    return Cell::backward(by, static_cast<float>(of.grad_h), static_cast<float>(of.grad_cell), d_z);
  };
  const auto form_d_gates = [&](float* d_gates, int first) {
    if (own_row >= kRows) {
      return;
    }
    float d_z[kSaved];
    const float d_old_cell = differentiate(element, d_z);
    const bool exists = first + own < hidden && (Cell::kAdds || own_row < rows);
    float* const to = d_gates + own * Strip::kPitch + own_row;
#pragma unroll
    for (int k = 0; k < kSaved; ++k) {
      to[k * kThreads] = exists ? d_z[k] : 0;
    }
    if (cell_wanted && exists && cell.d_old_cell != nullptr) {
      cell.d_old_cell[own_row * state_size + begin + first + own] =
          static_cast<Element>(d_old_cell);
    }
  };
  const auto d_bias = cell.template biases<Cell>();
  const auto sum_bias = [&](const float* d_gates, int first) {
    for (int i = thread; i < kSaved * kHidden; i += kThreads) {
      const int column = first + i % kHidden;
      if (column < hidden) {
        float sum = 0;
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          sum += d_gates[i * Strip::kPitch + row];
        }
        d_bias.store(i / kHidden * state_size + begin + column, sum);
      }
    }
  };

  // Starts the copies of all gates' weights of a column of the state to a stage.
  const int64_t in_row = first_column + column;
  const Element* const first_weights =
      static_cast<const Element*>(weights.data) + (begin + group) * weights.stride + in_row;
  const Element* next = first_weights;
  int next_hidden = group, next_stage = 0;
  const auto copy_weights = [&] {
    if (state_wanted && inside && next_hidden < hidden) {
      const uint32_t to = shared_address(own_weights + next_stage * Strip::kStageBytes);
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const Element* const vector = next + gate * state_size * weights.stride;
        copy_async<kVectorBytes>(to + gate * kThreads * kVectorBytes,
                                 Strip::kCopiesWords ? word_around(vector) : vector,
                                 kVectorBytes);
      }
    }
    commit_copies();
    next += kGroups * weights.stride;
    next_hidden += kGroups;
    next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
  };
  // Where the weight of a gate is in its copied word, in bytes. This is the same in all rows of a
  // thread, since it walks by an even number of them.
  static_assert(!Strip::kCopiesWords || kGroups % 2 == 0);
  const auto in_word = [&](int gate) {
    return Strip::kCopiesWords
               ? reinterpret_cast<uintptr_t>(first_weights + gate * state_size * weights.stride) %
                     kVectorBytes
               : 0;
  };
  load_element(0);
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) {
    copy_weights();
  }

  Vector<Element, kWidth> x[kRows] = {};
  if (weights_wanted && inside) {
    const Element* const from =
        static_cast<const Element*>(piece.of(p.old_h, p.input).data) + first_column + column;
    const int64_t stride = piece.of(p.old_h, p.input).stride;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (Cell::kAdds || row < rows) {
        x[row] = read_vector<kWidth>(from + row * stride);
      }
    }
  }

  Element* d_weights = static_cast<Element*>(all_d_weights);
  if (weights_wanted) {
    d_weights += (begin + group) * d_weights_stride + in_row;
  }
  // Of a state that is h itself: the gradient of the old one but for the product, of the elements
  // that this thread writes.
  constexpr int kFours = Strip::kColumns / 4;  // of a row
  static_assert(kRows * kFours <= kThreads);
  [[maybe_unused]] float besides_product[4] = {};
  if constexpr (Cell::kCarriesH) {
    const int row = thread / kFours, first = thread % kFours * 4;
    if (piece.of_h && state_wanted && row < own_rows()) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (first + i < columns) {
          Operands of;
          load(of, sums.first_row() + row, first_column + first + i);
          float d_z[kSaved];
          besides_product[i] = differentiate(of, d_z);
        }
      }
    }
  }

  int stage = 0;
#pragma unroll 1
  for (int first = 0; first < hidden; first += kHidden) {
    const int count = min(hidden - first, kHidden);
    // d_gates alternate between two places, so that one barrier is enough.
    float* const d_gates = both_d_gates + first / kHidden % 2 * kSaved * kThreads;
    form_d_gates(d_gates, first);
    load_element(first + kHidden);
    __syncthreads();
    if (cell_wanted && d_bias.wanted()) {
      sum_bias(d_gates, first);
    }
#pragma unroll 1
    for (int j = group; j < count; j += kGroups) {
      wait_copies<kStages - 2>();
      float d_z[kGates][Strip::kPitch];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        constexpr int kAtOnce = Strip::kPitch < 4 ? Strip::kPitch : 4;
#pragma unroll
        for (int row = 0; row < kRows; row += kAtOnce) {
          const auto several =
              read_vector<kAtOnce>(&d_gates[saved(gate) * kThreads + j * Strip::kPitch + row]);
          memcpy(&d_z[gate][row], several.values, sizeof(several));
        }
      }
      if (inside && state_wanted) {
        const unsigned char* const from = own_weights + stage * Strip::kStageBytes;
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          const auto w = read_vector<kWidth>(reinterpret_cast<const Element*>(
              from + gate * kThreads * kVectorBytes + in_word(gate)));
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
            if (!Cell::kAdds && row >= rows) {
              break;
            }
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
              product.sum[row][i] =
                  fmaf(d_z[gate][row], static_cast<float>(w.values[i]), product.sum[row][i]);
            }
          }
        }
      }
      copy_weights();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (inside && weights_wanted) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          Vector<Element, kWidth> four;
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            float value = 0;
#pragma unroll
            for (int row = 0; row < kRows; ++row) {
              if (!Cell::kAdds && row >= rows) {
                break;
              }
              value = fmaf(d_z[gate][row], static_cast<float>(x[row].values[i]), value);
            }
            four.values[i] = static_cast<Element>(value);
          }
          stream_global_vector(d_weights + gate * state_size * d_weights_stride, four);
        }
        d_weights += kGroups * d_weights_stride;
      }
    }
  }
  wait_copies<0>();
  if (state_wanted) {
    sums.exchange(product);
    const auto read = [&](float(&values)[4], int row, int column) {
      sums.template read<4, 1>(values, row, column);
      if constexpr (Cell::kCarriesH) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[i] += besides_product[i];
        }
      }
    };
    auto* const to = static_cast<Element*>(piece.of(p.d_old_h, p.d_input)) +
                     sums.first_row() * width_of_part + first_column;
    write_tile<kThreads, Strip::kColumns>(
        to, width_of_part, own_rows(), columns, kWidth == 4, read);
  }
  sums.finish();
}

template <typename Cell, typename scalar_t, int kRows, int kWidth>
cudaError_t launch_backward_few_rows_of(const GateGradientsParams<scalar_t>& cell,
                                        const BackwardProblem& products,
                                        int ranks,
                                        cudaStream_t stream) {
  using Strip = FewRowsStrip<Cell, scalar_t, kRows, kWidth>;
  const bool of_h = products.d_old_h != nullptr || products.d_weights.of_h != nullptr;
  const bool of_input = products.d_input != nullptr || products.d_weights.of_input != nullptr;
  const BackwardFewRowsArguments<scalar_t> arguments{
      .cell = cell,
      .products = products,
      .split = split_of_k(ranks, tiles_of(products.state_size, Strip::kGroups), kRows),
      .strips = segments_of(
          of_h ? products.state_size : 0, of_input ? products.input_features : 0, Strip::kColumns)};
  // The first strip computes d_bias and d_old_cell, even if no product is wanted.
  const int count = std::max(arguments.strips.pieces(), 1);
  return launch_in_clusters<&backward_few_rows_kernel<Strip>, Strip::kThreads, Strip::kSharedBytes>(
      arguments, grid_of(count * ranks), ranks, stream);
}

template <typename Cell, typename scalar_t>
cudaError_t launch_backward_few_rows(const GateGradientsParams<scalar_t>& cell,
                                     const BackwardProblem& products,
                                     int ranks,
                                     cudaStream_t stream) {
  constexpr int kSize = sizeof(scalar_t);
  const WeightGradients<void>& d_weights = products.d_weights;
  const bool fours =
      rows_are_vectors_of(4, products, products.state_size, kSize) &&
      Matrix{d_weights.of_h, d_weights.h_stride}.starts_at_neighbors(4, kSize) &&
      Matrix{d_weights.of_input, d_weights.input_stride}.starts_at_neighbors(4, kSize);
  return dispatch_few_rows<Cell>(products.batch, [&](auto rows) {
    const auto launch = [&]<int kWidth>() {
      return launch_backward_few_rows_of<Cell, scalar_t, rows, kWidth>(
          cell, products, ranks, stream);
    };
    return fours ? launch.template operator()<4>() : launch.template operator()<1>();
  });
}

#define LLTM_INSTANTIATE(Cell, scalar_t)               \
  template cudaError_t launch_backward_few_rows<Cell>( \
      const GateGradientsParams<scalar_t>&, const BackwardProblem&, int, cudaStream_t);
LLTM_INSTANTIATE(cell::Lltm, float)
LLTM_INSTANTIATE(cell::Lltm, c10::Half)
LLTM_INSTANTIATE(cell::Lltm, c10::BFloat16)
LLTM_INSTANTIATE(cell::Lstm, float)
LLTM_INSTANTIATE(cell::Lstm, c10::Half)
LLTM_INSTANTIATE(cell::Lstm, c10::BFloat16)
LLTM_INSTANTIATE(cell::Gru, float)
LLTM_INSTANTIATE(cell::Gru, c10::Half)
LLTM_INSTANTIATE(cell::Gru, c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
