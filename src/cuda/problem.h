// What is to be computed, on raw pointers: the sizes and the matrices of a cell's forward and of
// the products of its backward. The kernels know no Tensor.
//
// Matrices are row-major; sizes and strides are in elements and 64-bit.
#pragma once

#include "../cell.h"

#include <cstdint>

namespace lltm::cuda {

/// The type of a product's operands, and how they are multiplied. Sums are float32 always.
enum class Arithmetic {
  kFloat32,   // float tensors, each product as exact as float32's (three TF32 products)
  kTf32,      // float tensors, rounded to TF32
  kFloat16,   // c10::Half
  kBFloat16,  // c10::BFloat16
};

/// a / b, rounded up.
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

constexpr bool is_float(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kFloat32 || arithmetic == Arithmetic::kTf32;
}

/// In bytes, of an operand's element.
constexpr int element_size(Arithmetic arithmetic) {
  return is_float(arithmetic) ? 4 : 2;
}

/// So many columns of elements of `size` bytes, up to the next multiple of 16 bytes.
constexpr int64_t whole_vectors(int64_t columns, int size) {
  return ceil_div(columns * size, 16) * 16 / size;
}

/// Consecutive elements of a row are adjacent, rows are `stride` elements apart.
struct Matrix {
  const void* data;
  int64_t stride;

  bool operator==(const Matrix&) const = default;

  /// Whether every row starts at a multiple of 16 bytes, `first` elements of `size` bytes from its
  /// beginning on.
  bool starts_at_vectors(int size, int64_t first = 0) const {
    return starts_at_multiples_of(16, size, first);
  }
  /// The same for lines of the cache.
  bool starts_at_lines(int size) const { return starts_at_multiples_of(128, size, 0); }
  /// The same for so many elements.
  bool starts_at_neighbours(int count, int size) const {
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

/// The columns of [h | x] in pieces of `size`, which are chunks of K or tiles of columns: first
/// those of h, then those of x. No piece has columns of both.
struct Segments {
  int h_pieces, x_pieces;

  struct Piece {
    bool of_h;
    int64_t first;  // its first column of h or of x

    /// What belongs to its segment.
    template <typename T>
    LLTM_HOST_DEVICE const T& of(const T& h, const T& x) const {
      return of_h ? h : x;
    }
  };

  LLTM_HOST_DEVICE int pieces() const { return h_pieces + x_pieces; }
  LLTM_HOST_DEVICE Piece piece(int index, int size) const {
    const bool of_h = index < h_pieces;
    return {of_h, int64_t(of_h ? index : index - h_pieces) * size};
  }
  /// The same with the columns of x first.
  LLTM_HOST_DEVICE Piece piece_from_x(int index, int size) const {
    const bool of_h = index >= x_pieces;
    return {of_h, int64_t(of_h ? index - x_pieces : index) * size};
  }
};

/// For h and x of so many columns; none where there are none.
inline Segments segments_of(int64_t state_size, int64_t input_features, int64_t size) {
  return {static_cast<int>(ceil_div(state_size, size)),
          static_cast<int>(ceil_div(input_features, size))};
}

/// How many neighbours of a row the end of a forward reads and writes at once, if the rows start
/// so: as many as state_size is a multiple of, up to four.
inline int neighbours_in(int64_t state_size) {
  return state_size % 4 == 0 ? 4 : state_size % 2 == 0 ? 2 : 1;
}

/// new_h, new_cell and gates of input, weights, bias, old_h and old_cell.
struct ForwardProblem {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  Matrix input;      // (batch, input_features)
  Matrix weights;    // (3*state_size, state_size + input_features)
  const void* bias;  // (3*state_size), or null
  Matrix old_h;      // (batch, state_size)
  Matrix old_cell;   // (batch, state_size)
  void* new_h;       // (batch, state_size), contiguous
  void* new_cell;    // (batch, state_size), contiguous
  void* gates;       // (batch, 3*state_size), contiguous, pre-activations
  // How many columns of zeros input has in front, for the kernels of Hopper's instructions: TMA's
  // boxes start at multiples of 16 bytes, which the columns of weights that belong to input may
  // not. They begin so many columns earlier then, with some of h's.
  int64_t input_lead = 0;
  // How many columns earlier still the first boxes of input and of its weights begin, before both
  // matrices, where TMA finds zeros: those of weights start at lines of the cache then.
  int64_t input_shift = 0;
  // How many columns weights have between those of h and those of input, where they were copied
  // so that both start at multiples of 16 bytes.
  int64_t weights_gap = 0;

  /// The column of weights where those of input begin.
  LLTM_HOST_DEVICE int64_t input_column() const { return state_size + weights_gap; }
  /// Of the segment of x as boxes have it.
  int64_t input_columns() const {
    return input_features == 0 ? 0 : input_shift + input_lead + input_features;
  }
};

/// d_bias = the sum of its parts of the batch, in their order.
struct BiasParts {
  const float* parts = nullptr;  // (count, 3*state_size), or null: there is nothing to add up
  int64_t count = 0;
  void* d_bias = nullptr;  // (3*state_size)
};

/// d_old_h, d_input = d_gates @ weights and d_weights = d_gates.T @ [old_h, input].
struct BackwardProblem {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  const void* d_gates;  // (batch, 3*state_size), contiguous but for the products by wgmma
  int64_t d_gates_stride;
  Matrix input;      // (batch, input_features)
  Matrix weights;    // (3*state_size, state_size + input_features)
  Matrix old_h;      // (batch, state_size)
  void* d_old_h;     // (batch, state_size), contiguous, or null where not wanted
  void* d_input;     // (batch, input_features), contiguous, or null where not wanted
  void* d_weights;   // (3*state_size, state_size + input_features), contiguous, or null
  BiasParts bias{};  // for the products by wgmma in 16 bits and TF32
};

}  // namespace lltm::cuda
