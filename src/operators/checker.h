// The individual checks that the operators' argument checks are composed of. A Checker serves one
// call: it holds the operator's name and `input`, whose dtype and device the other arguments must
// share.
//
// Shape checks are templates: Size is int64_t for concrete sizes, and c10::SymInt for sizes that
// may be symbolic.
#pragma once

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

  void defined(const Argument& argument) const {
    TORCH_CHECK(argument.tensor.defined(),
                operator_,
                ": expected ",
                argument.name,
                " to be a tensor, got None or an undefined tensor");
    // A nested tensor has no sizes, and autograd would ask for them before the dispatcher could
    // reject it.
    TORCH_CHECK(!argument.tensor.is_nested(),
                operator_,
                ": expected ",
                argument.name,
                " to be a dense tensor, got a nested one");
  }

  void defined_or_absent(std::string_view name, const std::optional<at::Tensor>& tensor) const {
    if (is_given(tensor)) {
      defined({name, *tensor});
    }
  }

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
  void rank(const Argument& argument, size_t rank, std::string_view terms) const {
    const auto sizes = Sizes<Size>::of(argument.tensor);
    TORCH_CHECK(sizes.size() == rank,
                operator_,
                ": expected ",
                argument.name,
                " of shape ",
                terms,
                ", got ",
                sizes);
  }

  /// `terms` is the expected shape in words, `expected` the same in numbers. `advice` is appended
  /// to the message.
  template <typename Size, size_t rank>
  void shape(const Argument& argument,
             std::string_view terms,
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
                terms,
                " = ",
                c10::ArrayRef<Size>(expected),
                ", got ",
                sizes,
                advice);
  }

  /// Checks the shape of weights for this number of input features. Returns the state size.
  template <typename Size>
  Size weights(const at::Tensor& weights, const Size& input_features) const {
    const Argument argument{"weights", weights};
    rank<Size>(argument, 2, kWeightsShape);
    const Size rows = Sizes<Size>::of(weights)[0];
    divisible_by_three<Size>(argument, rows);
    const Size state_size = rows / Size(3);
    shape<Size, 2>(argument, kWeightsShape, {rows, Size(state_size + input_features)});
    return state_size;
  }

  template <typename Size>
  void state(const Argument& argument, const Size& batch, const Size& state_size) const {
    shape<Size, 2>(argument, "[batch, state_size]", {batch, state_size});
  }

  template <typename Size>
  void bias(const std::optional<at::Tensor>& bias, const Size& state_size) const {
    if (is_given(bias)) {
      like_input({"bias", *bias});
      shape<Size, 1>({"bias", *bias}, "[3*state_size]", {Size(state_size * 3)});
    }
  }

 private:
  static constexpr std::string_view kWeightsShape = "[3*state_size, state_size+input_features]";

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

  template <typename Size>
  void divisible_by_three(const Argument& weights, const Size& rows) const {
    TORCH_CHECK(Sizes<Size>::equal(rows % Size(3), Size(0)),
                operator_,
                ": expected ",
                weights.name,
                " of shape ",
                kWeightsShape,
                ", its first size a multiple of 3, got ",
                Sizes<Size>::of(weights.tensor));
  }

  std::string_view operator_;
  const at::Tensor& input_;
};

}  // namespace lltm
