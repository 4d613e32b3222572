#include "checks.h"

#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>

namespace lltm {
namespace {

constexpr std::string_view kForward = "lltm::forward";
constexpr std::string_view kBackward = "lltm::backward";

struct Argument {
  std::string_view name;
  const at::Tensor& tensor;
};

// What differs between sizes that are known and sizes that may be symbols.
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
  // For an unbacked symbol this defers the question to run time instead of failing the trace.
  static bool equal(const c10::SymInt& a, const c10::SymInt& b) {
    return a.sym_eq(b).expect_true(__FILE__, __LINE__);
  }
};

std::string dtype_name(const at::Tensor& tensor) {
  // A string or, since 2.15, a string_view.
  return std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

bool is_supported(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf ||
         dtype == at::kBFloat16;
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
                " to be a tensor, got None");
  }

  // A kernel sees dense tensors only, the dispatcher turns others away; the formula may see any.
  void dense(const Argument& argument) const {
    TORCH_CHECK(argument.tensor.layout() == at::kStrided,
                operator_,
                ": expected ",
                argument.name,
                " to be dense, got the layout ",
                argument.tensor.layout());
  }

  void supported_dtype() const {
    TORCH_CHECK(is_supported(input_.scalar_type()),
                operator_,
                ": expected input of dtype float64, float32, float16 or bfloat16, got ",
                dtype_name(input_));
  }

  void like_input(const Argument& argument) const {
    dense(argument);
    TORCH_CHECK(argument.tensor.scalar_type() == input_.scalar_type(),
                operator_,
                ": expected ",
                argument.name,
                " of input's dtype ",
                dtype_name(input_),
                ", got ",
                dtype_name(argument.tensor));
    TORCH_CHECK(argument.tensor.device() == input_.device(),
                operator_,
                ": expected ",
                argument.name,
                " on input's device ",
                input_.device(),
                ", got ",
                argument.tensor.device());
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

  /// `terms` spells the shape in the caller's terms, `expected` in numbers.
  template <typename Size, size_t rank>
  void shape(const Argument& argument,
             std::string_view terms,
             const std::array<Size, rank>& expected) const {
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
                sizes);
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

  /// input and weights give the sizes that every other argument is measured against.
  template <typename Size>
  CellSizes<Size> cell_sizes(const at::Tensor& weights) const {
    rank<Size>({"input", input_}, 2, "[batch, input_features]");
    rank<Size>({"weights", weights}, 2, kWeightsShape);
    const auto input_sizes = Sizes<Size>::of(input_);
    const Size rows = Sizes<Size>::of(weights)[0];
    divisible_by_three<Size>({"weights", weights}, rows);
    CellSizes<Size> sizes{input_sizes[0], input_sizes[1], rows / Size(3)};
    shape<Size, 2>(
        {"weights", weights}, kWeightsShape, {rows, Size(sizes.state_size + sizes.input_features)});
    return sizes;
  }

  template <typename Size>
  void bias(const std::optional<at::Tensor>& bias, const CellSizes<Size>& sizes) const {
    if (is_given(bias)) {
      like_input({"bias", *bias});
      shape<Size, 1>({"bias", *bias}, "[3*state_size]", {Size(sizes.state_size * 3)});
    }
  }

  template <typename Size>
  void state(const Argument& argument, const CellSizes<Size>& sizes) const {
    shape<Size, 2>(argument, "[batch, state_size]", {sizes.batch, sizes.state_size});
  }

  template <typename Size>
  void gradient(std::string_view name,
                const std::optional<at::Tensor>& gradient,
                const CellSizes<Size>& sizes) const {
    if (is_given(gradient)) {
      like_input({name, *gradient});
      state({name, *gradient}, sizes);
    }
  }

 private:
  static constexpr std::string_view kWeightsShape = "[3*state_size, state_size+input_features]";

  std::string_view operator_;
  const at::Tensor& input_;
};

}  // namespace

void check_defined(const ForwardArguments& arguments) {
  const Checker check(kForward, arguments.input);
  check.defined({"input", arguments.input});
  check.defined({"weights", arguments.weights});
  check.defined({"old_h", arguments.old_h});
  check.defined({"old_cell", arguments.old_cell});
}

void check_defined(const BackwardArguments& arguments) {
  const Checker check(kBackward, arguments.input);
  check.defined({"new_cell", arguments.new_cell});
  check.defined({"gates", arguments.gates});
  check.defined({"input", arguments.input});
  check.defined({"weights", arguments.weights});
  check.defined({"old_h", arguments.old_h});
}

template <typename Size>
CellSizes<Size> check(const ForwardArguments& arguments) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  check_defined(arguments);
  const Checker check(kForward, input);
  check.dense({"input", input});
  check.supported_dtype();
  check.like_input({"weights", weights});
  check.like_input({"old_h", old_h});
  check.like_input({"old_cell", old_cell});
  const CellSizes<Size> sizes = check.cell_sizes<Size>(weights);
  check.bias(bias, sizes);
  check.state({"old_h", old_h}, sizes);
  check.state({"old_cell", old_cell}, sizes);
  return sizes;
}

template <typename Size>
CellSizes<Size> check(const BackwardArguments& arguments) {
  const auto& [grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h] = arguments;
  check_defined(arguments);
  const Checker check(kBackward, input);
  check.dense({"input", input});
  check.supported_dtype();
  check.like_input({"new_cell", new_cell});
  check.like_input({"gates", gates});
  check.like_input({"weights", weights});
  check.like_input({"old_h", old_h});
  const CellSizes<Size> sizes = check.cell_sizes<Size>(weights);
  check.bias(bias, sizes);
  check.gradient("grad_h", grad_h, sizes);
  check.gradient("grad_cell", grad_cell, sizes);
  check.state({"new_cell", new_cell}, sizes);
  check.template shape<Size, 2>(
      {"gates", gates}, "[batch, 3*state_size]", {sizes.batch, Size(sizes.state_size * 3)});
  check.state({"old_h", old_h}, sizes);
  return sizes;
}

template CellSizes<int64_t> check(const ForwardArguments&);
template CellSizes<int64_t> check(const BackwardArguments&);
template CellSizes<c10::SymInt> check(const ForwardArguments&);
template CellSizes<c10::SymInt> check(const BackwardArguments&);

}  // namespace lltm
