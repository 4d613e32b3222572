// Problems on raw pointers: the sizes and matrices of a cell's forward and of the products of its
// backward. The kernels do not know at::Tensor.
//
// Matrices are row-major. Sizes and strides are 64-bit and count elements.
#pragma once

#include "../cell/math.h"

#include <cstdint>

namespace lltm::cuda {

/// The type of a product's operands and how they are multiplied. Sums are always float32.
enum class Arithmetic {
  kFloat32,   // float tensors, with the accuracy of float32 (three TF32 products)
  kTf32,      // float tensors, rounded to TF32
  kFloat16,   // c10::Half
  kBFloat16,  // c10::BFloat16
};

/// a / b, rounded up.
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

LLTM_HOST_DEVICE constexpr bool is_float(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kFloat32 || arithmetic == Arithmetic::kTf32;
}

/// Calls `run` with an arithmetic as a template argument.
template <typename Run>
auto with_arithmetic(Arithmetic arithmetic, const Run& run) {
  switch (arithmetic) {
    case Arithmetic::kFloat32:
      return run.template operator()<Arithmetic::kFloat32>();
    case Arithmetic::kTf32:
      return run.template operator()<Arithmetic::kTf32>();
    case Arithmetic::kFloat16:
      return run.template operator()<Arithmetic::kFloat16>();
    default:
      return run.template operator()<Arithmetic::kBFloat16>();
  }
}

/// The size of an operand's element in bytes.
LLTM_HOST_DEVICE constexpr int element_size(Arithmetic arithmetic) {
  return is_float(arithmetic) ? 4 : 2;
}

/// The columns of a chunk of K, of which a row has 128 bytes.
constexpr int chunk_columns(Arithmetic arithmetic) {
  return 128 / element_size(arithmetic);
}

/// `columns` elements of `size` bytes, rounded up to a multiple of 16 bytes.
constexpr int64_t whole_vectors(int64_t columns, int size) {
  return ceil_div(columns * size, 16) * 16 / size;
}

/// `columns` rounded up to a multiple of 128 bytes, in elements. TMA requires 16, but boxes whose
/// rows span two cache lines cost 1.4 times as much of L2.
constexpr int64_t packed_stride(int64_t columns, int size) {
  return (columns * size + 127) / 128 * 128 / size;
}

/// Consecutive elements of a row are adjacent. Rows are `stride` elements apart.
struct Matrix {
  const void* data;
  int64_t stride;

  bool operator==(const Matrix&) const = default;

  /// What is left from element `first` of each row on. Elements have `size` bytes.
  LLTM_HOST_DEVICE Matrix from(int64_t first, int size) const {
    return {data == nullptr ? data : static_cast<const char*>(data) + first * size, stride};
  }
  /// Whether every row, from its element `first` on, starts at a multiple of 16 bytes.
  bool starts_at_vectors(int size, int64_t first = 0) const {
    return starts_at_multiples_of(16, size, first);
  }
  /// The same for cache lines.
  bool starts_at_lines(int size) const { return starts_at_multiples_of(128, size, 0); }
  /// The same for multiples of `count` elements.
  bool starts_at_neighbors(int count, int size) const {
    return starts_at_multiples_of(count * size, size, 0);
  }

 private:
  bool starts_at_multiples_of(int bytes, int size, int64_t first) const {
    return (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(first * size)) %
                   static_cast<uintptr_t>(bytes) ==
               0 &&
           stride * size % bytes == 0;
  }
};

/// A tensor of shape (rows, columns) or (steps, rows, columns) that may be absent: its data is
/// then null. Elements may be anywhere; a tensor that is expanded has only one.
template <typename scalar_t>
struct Steps {
  const scalar_t* data;
  int64_t strides[3];  // of time, rows and columns

  LLTM_HOST_DEVICE const scalar_t& at(int64_t t, int64_t row, int64_t column) const {
    return data[t * strides[0] + row * strides[1] + column * strides[2]];
  }
  /// Whether it is absent, or its rows are contiguous and all start at multiples of `count`
  /// elements.
  bool starts_at_neighbors(int count) const {
    return data == nullptr ||
           (strides[2] == 1 && strides[0] % count == 0 &&
            Matrix{data, strides[1]}.starts_at_neighbors(count, sizeof(scalar_t)));
  }
};

/// Whether TMA can describe a matrix of `columns` columns (at least one) of `size` bytes: all rows
/// start at multiples of 16 bytes, do not overlap, and are not too far apart.
inline bool is_describable(const Matrix& matrix, int64_t columns, int size) {
  return matrix.starts_at_vectors(size) && matrix.stride >= columns &&
         matrix.stride < (int64_t{1} << 36);
}

/// The columns of [h | x] in pieces of `size`, which are chunks of K or tiles of columns: first
/// those of h, then those of x. No piece has columns of both.
struct Segments {
  int h_pieces, x_pieces;

  struct Piece {
    bool of_h;
    int64_t first;  // its first column, counted within h or x

    /// Returns h or x, whichever the piece belongs to.
    template <typename T>
    LLTM_HOST_DEVICE const T& of(const T& h, const T& x) const {
      return of_h ? h : x;
    }
  };

  LLTM_HOST_DEVICE int pieces() const { return h_pieces + x_pieces; }
  /// With x_first, those of x come before those of h.
  LLTM_HOST_DEVICE Piece piece(int index, int size, bool x_first = false) const {
    const bool of_h = x_first ? index >= x_pieces : index < h_pieces;
    const int before = x_first ? x_pieces : h_pieces;
    return {of_h, int64_t(of_h == x_first ? index - before : index) * size};
  }
};

/// The segments of h and x; one without columns has no pieces.
inline Segments segments_of(int64_t state_size, int64_t input_features, int64_t size) {
  return {static_cast<int>(ceil_div(state_size, size)),
          static_cast<int>(ceil_div(input_features, size))};
}

/// A forward: new_h, new_cell and gates from input, weights, bias, old_h and old_cell. A row of
/// gates has as many times state_size as the cell saves numbers.
struct ForwardProblem {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  Matrix input;          // (batch, input_features)
  Matrix weights;        // (gates, state_size): of an LLTM, the columns of h of [h | input]
  Matrix weights_input;  // (gates, input_features)
  const void* bias;      // (gates), or null
  Matrix old_h;          // (batch, state_size)
  Matrix old_cell;       // (batch, state_size)
  void* new_h;           // (batch, state_size), contiguous
  void* new_cell;        // (batch, state_size), contiguous
  void* gates;           // (batch, saved), contiguous, pre-activations
  // The columns of zeros in front of input, for the kernels with tiles. Boxes start at multiples of
  // 16 bytes. Where weights_input does not, its boxes start this many columns earlier, inside the
  // columns of h of the same matrix.
  int64_t input_lead = 0;

  /// The columns that the boxes of input cover, including those in front of it.
  LLTM_HOST_DEVICE int64_t input_columns() const {
    return input_features == 0 ? 0 : input_lead + input_features;
  }
};

/// A sequence of one step: new_h is its output and new_cell its c_n, and both are written once
/// more.
struct OneStepProblem : ForwardProblem {
  void* h_n;            // (batch, state_size), contiguous; not written if the state is h itself
  void* cells;          // the same, or null if it is not kept, as gates then are
  const void* bias_hh;  // of the gates, if `bias` is of the inputs; (gates), or null
};

/// Where the two blocks of d_weights are written, (gates, state_size) and (gates, input_features),
/// which may be views of one matrix. Null data: the block is not wanted.
template <typename Element>
struct WeightGradients {
  Element *of_h, *of_input;
  int64_t h_stride, input_stride;  // between rows

  LLTM_HOST_DEVICE bool any_wanted() const { return of_h != nullptr || of_input != nullptr; }
  template <typename To>
  WeightGradients<To> as() const {
    return {static_cast<To*>(of_h), static_cast<To*>(of_input), h_stride, input_stride};
  }
  /// Of [h | input].
  template <typename Value>
  LLTM_HOST_DEVICE void store(int64_t row, int64_t column, int64_t state_size, Value value) const {
    const bool is_of_h = column < state_size;
    Element* const to = is_of_h ? of_h + row * h_stride + column
                                : of_input + row * input_stride + column - state_size;
    if ((is_of_h ? of_h : of_input) != nullptr) {
      *to = static_cast<Element>(value);
    }
  }
};

/// The same for sums that are counted as elements of one matrix, [h | input].
template <typename Element>
struct WeightGradientSums {
  WeightGradients<Element> result;
  int64_t state_size, input_features;

  template <typename Value>
  LLTM_HOST_DEVICE void store(int64_t index, Value sum) const {
    const int64_t columns = state_size + input_features, row = index / columns;
    result.store(row, index - row * columns, state_size, sum);
  }
};

/// The blocks of a contiguous matrix, [h | input], of `width` columns of `size` bytes, or of none.
inline WeightGradients<void> blocks_of(void* matrix, int64_t state_size, int64_t width, int size) {
  void* const of_input =
      matrix == nullptr ? nullptr : static_cast<char*>(matrix) + state_size * size;
  return {matrix, of_input, width, width};
}

/// d_bias as a sum of parts, each over a part of the batch, which are added in order.
struct BiasParts {
  const float* parts = nullptr;  // (count, 3*state_size), or null if there is nothing to add
  int64_t count = 0;
  void* d_bias = nullptr;  // (3*state_size)
};

/// d_old_h, d_input = d_gates @ weights and d_weights = d_gates.T @ [old_h, input].
struct BackwardProblem {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  int64_t gates;        // 3*state_size, or 4*state_size of an LSTM, which the float32 products take
  const void* d_gates;  // (batch, gates)
  int64_t d_gates_stride;
  Matrix input;          // (batch, input_features)
  Matrix weights;        // (gates, state_size + input_features)
  Matrix weights_input;  // its columns of input, or a copy of these
  Matrix old_h;          // (batch, state_size)
  void* d_old_h;         // (batch, state_size), contiguous, or null if not wanted
  void* d_input;         // (batch, input_features), contiguous, or null if not wanted
  // In one contiguous matrix, (gates, state_size + input_features), except in float32 products.
  WeightGradients<void> d_weights;
  BiasParts bias{};  // which the products by wgmma add, if there are any
};

/// Whether a backward's products read the columns of h of weights and those of input as matrices of
/// their own, so that rows of both start at multiples of 16 bytes.
constexpr bool has_weights_in_halves(Arithmetic arithmetic, bool by_wgmma) {
  return !by_wgmma || arithmetic == Arithmetic::kFloat32;
}

}  // namespace lltm::cuda
