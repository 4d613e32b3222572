// The individual checks that the operators' argument checks are composed of. A Checker serves one
// call: it holds the operator's name and `input`, whose dtype and device the other arguments must
// share.
//
// Shape checks are templates: Size is int64_t for concrete sizes, and c10::SymInt for sizes that
// may be symbolic.
#pragma once

#include "../cell/lltm.h"
#include "checks.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>

#include <array>
#include <string>
#include <string_view>

namespace lltm {

struct Argument {
  std::string_view name;
  const at::Tensor& tensor;
};

// What differs between concrete and possibly symbolic sizes.
template <typename Size>
struct Sizes;

template <>
struct Sizes<int64_t> {
  static at::IntArrayRef of(const at::Tensor& tensor) { return tensor.sizes(); }
  static bool equal(int64_t a, int64_t b) { return a == b; }
};

template <>
struct Sizes<c10::SymInt> {
  static c10::SymIntArrayRef of(const at::Tensor& tensor) { return tensor.sym_sizes(); }
  // For an unbacked symbol this defers the check to run time instead of failing the trace.
  static bool equal(const c10::SymInt& a, const c10::SymInt& b) {
    return a.sym_eq(b).expect_true(__FILE__, __LINE__);
  }
};

inline std::string dtype_name(at::ScalarType dtype) {
  // A string or, since 2.15, a string_view.
  return std::string(c10::getDtypeNames(dtype).first);
}

class Checker {
 public:
  Checker(std::string_view operator_name, const at::Tensor& input)
      : operator_(operator_name), input_(input) {}

  // The dispatcher passes only dense tensors to the kernels, but any layout to the formula.
  void dense(const Argument& argument) const {
    TORCH_CHECK(argument.tensor.layout() == at::kStrided,
                operator_,
                ": expected ",
                argument.name,
                " to be dense, got the layout ",
                argument.tensor.layout());
    within_storage(argument);
  }

  void supported_dtype() const {
    const auto dtype = input_.scalar_type();
    TORCH_CHECK(
        dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
        operator_,
        ": expected input of dtype float64, float32, float16 or bfloat16, got ",
        dtype_name(dtype));
  }

  /// `whose` says where the expected dtype comes from, `meaning` what its values mean. `advice` is
  /// appended to the message.
  void dtype(const Argument& argument,
             std::string_view whose,
             at::ScalarType expected,
             std::string_view meaning = "",
             std::string_view advice = "") const {
    TORCH_CHECK(argument.tensor.scalar_type() == expected,
                operator_,
                ": expected ",
                argument.name,
                " of ",
                whose,
                " ",
                dtype_name(expected),
                meaning,
                ", got ",
                dtype_name(argument.tensor.scalar_type()),
                advice);
  }

  void on_inputs_device(const Argument& argument) const {
    TORCH_CHECK(argument.tensor.device() == input_.device(),
                operator_,
                ": expected ",
                argument.name,
                " on input's device ",
                input_.device(),
                ", got ",
                argument.tensor.device());
  }

  void dense_on_inputs_device(const Argument& argument,
                              std::string_view whose,
                              at::ScalarType expected) const {
    dense(argument);
    dtype(argument, whose, expected);
    on_inputs_device(argument);
  }

  void like_input(const Argument& argument) const {
    dense_on_inputs_device(argument, "input's dtype", input_.scalar_type());
  }

  template <typename Size>
  void rank(const Argument& argument, size_t rank, std::string_view in_words) const {
    const auto sizes = Sizes<Size>::of(argument.tensor);
    TORCH_CHECK(sizes.size() == rank,
                operator_,
                ": expected ",
                argument.name,
                " of shape ",
                in_words,
                ", got ",
                sizes);
  }

  /// `in_words` is the expected shape as messages show it, `expected` the same in numbers. `advice`
  /// is appended to the message.
  template <typename Size, size_t rank>
  void shape(const Argument& argument,
             std::string_view in_words,
             const std::array<Size, rank>& expected,
             std::string_view advice = "") const {
    const auto sizes = Sizes<Size>::of(argument.tensor);
    bool fits = sizes.size() == rank;
    for (size_t d = 0; fits && d < rank; ++d) {
      fits = Sizes<Size>::equal(sizes[d], expected[d]);
    }
    TORCH_CHECK(fits,
                operator_,
                ": expected ",
                argument.name,
                " of shape ",
                in_words,
                " = ",
                c10::ArrayRef<Size>(expected),
                ", got ",
                sizes,
                advice);
  }

  /// Checks the shape of an LLTM's weights for this number of input features. Returns the state
  /// size.
  template <typename Size>
  Size weights(const at::Tensor& weights, const Size& input_features) const {
    constexpr std::string_view kInWords = "[3*state_size, state_size+input_features]";
    const Argument argument{"weights", weights};
    const Size state_size = state_size_of<Size>(argument, cell::Lltm::kGates, kInWords);
    shape<Size, 2>(argument, kInWords, {Size(state_size * 3), Size(state_size + input_features)});
    return state_size;
  }

  /// The same for the two matrices of a cell with this number of gates.
  template <int gates, typename Size>
  Size weights(const at::Tensor& weight_ih,
               const at::Tensor& weight_hh,
               const Size& input_features) const {
    static_assert(gates == 3 || gates == 4);
    constexpr std::string_view kInWords =
        gates == 3 ? "[3*state_size, input_features]" : "[4*state_size, input_features]";
    const Argument argument{"weight_ih", weight_ih};
    const Size state_size = state_size_of<Size>(argument, gates, kInWords);
    shape<Size, 2>(argument, kInWords, {Size(state_size * gates), input_features});
    shape<Size, 2>({"weight_hh", weight_hh},
                   gates == 3 ? "[3*state_size, state_size]" : "[4*state_size, state_size]",
                   {Size(state_size * gates), state_size});
    return state_size;
  }

  template <typename Size>
  void state(const Argument& argument, const Size& batch, const Size& state_size) const {
    shape<Size, 2>(argument, "[batch, state_size]", {batch, state_size});
  }

  /// `in_words` as for shape().
  template <typename Size>
  void bias(std::string_view name,
            const std::optional<at::Tensor>& bias,
            std::string_view in_words,
            const Size& gates) const {
    if (is_given(bias)) {
      like_input({name, *bias});
      shape<Size, 1>({name, *bias}, in_words, {gates});
    }
  }

 private:
  // A storage may have been resized to less than its tensors need. ATen's operators do not check
  // that, and read past its end.
  void within_storage(const Argument& argument) const {
    const at::Tensor& tensor = argument.tensor;
    if (!tensor.has_storage() || tensor._is_zerotensor() || at::isTensorSubclassLike(tensor)) {
      return;  // no memory of its own
    }
    const size_t needed = at::detail::computeStorageNbytes(
        tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
    TORCH_CHECK(needed <= tensor.storage().nbytes(),
                operator_,
                ": expected ",
                argument.name,
                " to lie within its storage, which takes ",
                needed,
                " bytes, got ",
                tensor.storage().nbytes());
  }

  /// From the number of rows of a matrix of weights.
  template <typename Size>
  Size state_size_of(const Argument& weights, int gates, std::string_view in_words) const {
    rank<Size>(weights, 2, in_words);
    const auto sizes = Sizes<Size>::of(weights.tensor);
    TORCH_CHECK(Sizes<Size>::equal(sizes[0] % Size(gates), Size(0)),
                operator_,
                ": expected ",
                weights.name,
                " of shape ",
                in_words,
                ", its first size a multiple of ",
                gates,
                ", got ",
                sizes);
    return sizes[0] / Size(gates);
  }

  std::string_view operator_;
  const at::Tensor& input_;
};

}  // namespace lltm
