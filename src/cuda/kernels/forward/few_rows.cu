// The forward of the cell, or of a step of a sequence in float, in one launch for a batch of a few
// rows: a product of the weights with a few vectors, which takes as long as reading the weights
// once. More than kFewRows rows are in two groups, which both read the weights. A warp computes a
// column of the state from its rows of weights, one a gate, and shares K with other warps of its
// block. Of a cell that does not add its sides, h and then x are added to the same sums, but for
// the last gate's. Products are plain multiplications in float32. A lane takes four neighboring
// columns of K, or eight of 16 bits, if rows start at multiples of as many, as those of a sequence
// do; otherwise one. In a sequence, zeros fill up the last vector of h and of its weights.
#include "../../epilogue/math.cuh"
#include "../../epilogue/step.cuh"
#include "../../ptx/global.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/registers.cuh"
#include "../../reduction/lane_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../tile/vectors.cuh"
#include "../few_rows.cuh"
#include "kernels.h"

namespace lltm::cuda {
namespace {

template <typename Problem>
struct ForwardFewRowsArguments {
  Problem problem;
  int columns;           // of the state, per block
  int parts;             // warps that share the K of a column
  int h_pieces, pieces;  // of kWidth columns of [h | x]: of h, and of both
  int pieces_a_part;
};

/// The elements of a vector, from its word.
template <typename Element, int kWidth>
LLTM_DEVICE Vector<float, kWidth> floats_of(const WordOf<Element, kWidth>& word) {
  Vector<Element, kWidth> elements;
  memcpy(&elements, &word, sizeof(word));
  Vector<float, kWidth> floats;
#pragma unroll
  for (int c = 0; c < kWidth; ++c) {
    floats.values[c] = static_cast<float>(elements.values[c]);
  }
  return floats;
}

/// Sums each of kCount values over the lanes of a warp, so that the lanes from i * kLanesASum on
/// have the sum of value i.
template <int kCount>
struct LaneSums {
  static constexpr int kSums = kCount <= 4 ? 4 : kCount <= 8 ? 8 : kCount <= 16 ? 16 : 32;
  static constexpr int kLanesASum = 32 / kSums;
  static_assert(kCount <= 32);

  static LLTM_DEVICE float of(const float (&values)[kCount]) {
    float sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i] = i < kCount ? values[i] : 0;
    }
    scatter_sums<16, kLanesASum>(sums, static_cast<int>(threadIdx.x) % 32);
#pragma unroll
    for (int distance = kLanesASum / 2; distance > 0; distance /= 2) {
      sums[0] += __shfl_xor_sync(0xffffffff, sums[0], distance);
    }
    return sums[0];
  }
};

/// For groups of kRows rows, in pieces of kWidth columns. The last group ends with the last row, so
/// that some rows may be computed twice; of a single group, the last rows may not exist
/// (kPowersOfFewRows).
template <typename Problem, typename Cell, Arithmetic kArithmetic, int kRows, int kWidth>
__global__ void __launch_bounds__(32 * kFewRowsWarps, 1)
    forward_few_rows_kernel(const __grid_constant__ ForwardFewRowsArguments<Problem> arguments) {
  constexpr int kGates = cell::kGatesOfWeights<Cell>, kNumbers = kSumsOf<Problem, Cell>;
  using Element = TensorElement<kArithmetic>;
  using Word = WordOf<Element, kWidth>;
  using Sums = LaneSums<kNumbers * kRows>;
  // Pieces of a row of weights that each thread has in flight, as registers allow.
  constexpr int kAtOnce = kWidth == 1 ? 8 : kNumbers * kRows <= 15 ? 4 : 2;
  __shared__ float parts[kFewRowsWarps][kNumbers * kRows];
  const ForwardProblem& p = arguments.problem;
  const int columns = arguments.columns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_hidden = int64_t(blockIdx.x) * columns;
  const int64_t first_row = blockIdx.y == 0 ? 0 : p.batch - kRows;
  [[maybe_unused]] const int last_row = at_most(p.batch - first_row, kRows) - 1;
  // A cell does not let the next kernel start early: the blocks of a backward would crowd onto the
  // first multiprocessors with room. A step does, since the next step loads early, too. This is
  // safe for the reason given in wgmma.cuh.
  bool waited = !loads_early(arguments.problem);
  if (waited) {
    wait_for_previous_kernel();
  } else {
    start_next_kernel();
  }

  // The element that this thread finishes, and what it needs besides its sums.
  const int row = static_cast<int>(threadIdx.x) / columns;
  const int own_column = static_cast<int>(threadIdx.x) % columns;
  using Math = std::conditional_t<kArithmetic == Arithmetic::kFloat32,
                                  cell::StandardMath,
                                  ForwardMath<kArithmetic>>;
  using Epilogue = EpilogueOf<Problem, Cell, Element, Math, 1, 1>;
  const Epilogue epilogue(arguments.problem);
  typename Epilogue::Fetched operands;
  const auto fetch = [&] {
    if (row < kRows) {
      epilogue.fetch(operands, first_row + row, first_hidden + own_column);
    }
  };
  if (waited) {
    fetch();
  }
  const auto wait_and_fetch = [&] {
    waited = true;
    wait_for_previous_kernel();
    fetch();
  };

  if (warp < columns * arguments.parts) {
    // Past the last column of the state, the last one is computed again.
    const int64_t hidden = min(first_hidden + warp % columns, p.state_size - 1);
    const int begin = warp / columns * arguments.pieces_a_part;
    const int end = begin + arguments.pieces_a_part;
    float sums[kNumbers * kRows] = {};
#pragma unroll 1
    for (int segment = 0; segment < 2; ++segment) {
      // In a sequence, x is available before h.
      const bool of_h = segment == (kOfSequence<Problem> ? 1 : 0);
      const int first = of_h ? 0 : arguments.h_pieces;
      const int last = min(of_h ? arguments.h_pieces : arguments.pieces, end);
      const int64_t stride = (of_h ? p.old_h : p.input).stride;
      const Element* const x =
          static_cast<const Element*>((of_h ? p.old_h : p.input).data) + first_row * stride;
      const int64_t weights_stride = (of_h ? p.weights : p.weights_input).stride;
      const Element* const weights =
          static_cast<const Element*>((of_h ? p.weights : p.weights_input).data) +
          hidden * weights_stride;
      const int64_t gate_stride = p.state_size * weights_stride;
#pragma unroll 1
      for (int piece = max(begin, first) + lane; piece - lane < last; piece += kAtOnce * 32) {
        const Element* const from_w = weights + int64_t(piece - first) * kWidth;
        const Element* const from_x = x + int64_t(piece - first) * kWidth;
        Word weight_words[kAtOnce][kGates];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            load_once(weight_words[i][gate],
                      from_w + gate * gate_stride + i * 32 * kWidth,
                      piece + i * 32 < last);
          }
        }
        if constexpr (kOfSequence<Problem>) {
          if (of_h && !waited) {
            wait_and_fetch();
          }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          Vector<float, kWidth> w[kGates];
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            w[gate] = floats_of<Element, kWidth>(weight_words[i][gate]);
          }
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
            if (!Cell::kAdds && row > last_row) {
              break;
            }
            Word word;
            load_again(word, from_x + row * stride + i * 32 * kWidth, piece + i * 32 < last);
            const auto v = floats_of<Element, kWidth>(word);
#pragma unroll
            for (int gate = 0; gate < kGates; ++gate) {
              // Each vector is summed by itself first, for shorter chains of additions and a
              // smaller error.
              float product = w[gate].values[0] * v.values[0];
#pragma unroll
              for (int c = 1; c < kWidth; ++c) {
                product = fmaf(w[gate].values[c], v.values[c], product);
              }
              sums[gate * kRows + row] += product;
            }
          }
        }
      }
      if (kNumbers > kGates && (kOfSequence<Problem> || of_h)) {
        // The sums of the last gate, to which x does not add. In a sequence, those of x make room.
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          float& of_x = sums[(kGates - 1) * kRows + row];
          const float ended = of_x;
          of_x = kOfSequence<Problem> ? sums[(kNumbers - 1) * kRows + row] : 0;
          sums[(kNumbers - 1) * kRows + row] = ended;
        }
      }
    }
    __syncwarp();
    const float sum = Sums::of(sums);
    if (lane % Sums::kLanesASum == 0 && lane / Sums::kLanesASum < kNumbers * kRows) {
      parts[warp][lane / Sums::kLanesASum] = sum;
    }
  }
  if constexpr (kOfSequence<Problem>) {
    if (!waited) {
      wait_and_fetch();
    }
  }
  __syncthreads();
  // Computed again, rather than kept in registers that the product needs.
  const int row_again = in_register(row);
  if (row_again < kRows) {
    epilogue.place(operands, first_row + row_again, first_hidden + own_column);
  }
  if (operands.rows > 0) {
    float z[kNumbers][1];
#pragma unroll
    for (int gate = 0; gate < kNumbers; ++gate) {
      z[gate][0] = parts[own_column][gate * kRows + row];
    }
#pragma unroll 1
    for (int part = 1; part < arguments.parts; ++part) {
#pragma unroll
      for (int gate = 0; gate < kNumbers; ++gate) {
        z[gate][0] += parts[part * columns + own_column][gate * kRows + row];
      }
    }
    epilogue.finish(operands, z);
  }
}

template <Arithmetic kArithmetic, typename Cell, int kRows, int kWidth, typename Problem>
cudaError_t launch_forward_few_rows_of(const Problem& problem,
                                       int groups,
                                       int columns,
                                       cudaStream_t stream) {
  const ForwardProblem& params = problem;
  const int parts = kFewRowsWarps / columns;
  const auto h_pieces = static_cast<int>(ceil_div(params.state_size, kWidth));
  const int pieces = h_pieces + static_cast<int>(params.input_features / kWidth);
  const ForwardFewRowsArguments<Problem> arguments{
      problem, columns, parts, h_pieces, pieces, (pieces + 32 * parts - 1) / (32 * parts) * 32};
  const dim3 blocks = grid_of(ceil_div(params.state_size, columns), groups);
  return launch_in_clusters<&forward_few_rows_kernel<Problem, Cell, kArithmetic, kRows, kWidth>,
                            32 * kFewRowsWarps>(arguments, blocks, 1, stream);
}

}  // namespace

template <Arithmetic kArithmetic, typename Cell, typename Problem>
cudaError_t launch_forward_few_rows(const Problem& problem,
                                    int multiprocessors,
                                    cudaStream_t stream) {
  const ForwardProblem& p = problem;
  // Distributes the columns of the state evenly over the multiprocessors of a group, in as many
  // rounds as needed.
  const int groups = p.batch > kFewRows ? kFewRowsGroups : 1;
  const int64_t in_a_round = std::max(multiprocessors / groups, 1);
  const int64_t rounds = ceil_div(p.state_size, kFewRowsWarps * in_a_round);
  const auto columns = static_cast<int>(ceil_div(p.state_size, rounds * in_a_round));
  constexpr int kSize = element_size(kArithmetic);
  // A step's h and its weights go on with zeros to the end of a vector.
  const int64_t h_columns =
      kOfSequence<Problem> ? whole_vectors(p.state_size, kSize) : p.state_size;
  return dispatch_few_rows<Cell>(ceil_div(p.batch, groups), [&](auto rows) {
    const auto launch = [&]<int kWidth>() {
      return launch_forward_few_rows_of<kArithmetic, Cell, rows, kWidth>(
          problem, groups, columns, stream);
    };
    if constexpr (!is_float(kArithmetic)) {
      if (rows_are_vectors_of(8, p, h_columns, kSize)) {
        return launch.template operator()<8>();
      }
    }
    if (rows_are_vectors_of(4, p, h_columns, kSize)) {
      return launch.template operator()<4>();
    }
    if constexpr (kOfSequence<Problem>) {
      return cudaErrorInvalidValue;
    } else {
      return launch.template operator()<1>();
    }
  });
}

#define LLTM_INSTANTIATE(arithmetic, Cell, Problem)                           \
  template cudaError_t launch_forward_few_rows<Arithmetic::arithmetic, Cell>( \
      const Problem&, int, cudaStream_t);
LLTM_INSTANTIATE(kFloat32, cell::Lltm, ForwardProblem)
LLTM_INSTANTIATE(kFloat16, cell::Lltm, ForwardProblem)
LLTM_INSTANTIATE(kBFloat16, cell::Lltm, ForwardProblem)
LLTM_INSTANTIATE(kFloat32, cell::Lltm, StepProblem)
LLTM_INSTANTIATE(kFloat32, cell::Lstm, OneStepProblem)
LLTM_INSTANTIATE(kFloat16, cell::Lstm, OneStepProblem)
LLTM_INSTANTIATE(kBFloat16, cell::Lstm, OneStepProblem)
LLTM_INSTANTIATE(kFloat32, cell::Lstm, StepProblem)
LLTM_INSTANTIATE(kFloat32, cell::Gru, OneStepProblem)
LLTM_INSTANTIATE(kFloat16, cell::Gru, OneStepProblem)
LLTM_INSTANTIATE(kBFloat16, cell::Gru, OneStepProblem)
LLTM_INSTANTIATE(kFloat32, cell::Combined<cell::Gru>, StepProblem)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
