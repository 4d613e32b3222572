// The Meta kernels: the shapes and dtypes of the results, with symbolic sizes.
#include "checks.h"
#include "operators.h"
#include "outputs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/SymInt.h>
#include <torch/library.h>

#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

namespace lltm {
namespace {

using at::Tensor;

Tensor empty(at::SymIntArrayRef sizes,
             const Tensor& like,
             std::optional<at::ScalarType> dtype = std::nullopt) {
  return at::empty_symint(sizes, like.options().dtype(dtype.value_or(like.scalar_type())));
}

/// Gradients of these shapes where they are wanted, the last one, the cell state's, in its dtype.
template <size_t count>
auto empty_if_wanted(const std::array<bool, count>& output_mask,
                     const std::array<at::SymIntArrayRef, count>& shapes,
                     const Tensor& like,
                     at::ScalarType cell_dtype) {
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return std::tuple{if_wanted(output_mask[i], [&] {
      return empty(shapes[i], like, i + 1 == count ? cell_dtype : like.scalar_type());
    })...};
  }(std::make_index_sequence<count>());
}

CellResults forward_meta(const ForwardArguments& arguments) {
  const auto [batch, input_features, state_size, gates] = check<c10::SymInt>(arguments);
  return {empty({batch, state_size}, arguments.input),
          empty({batch, state_size}, arguments.input),
          empty({batch, gates}, arguments.input)};
}

OptionalGradients<5> backward_meta(const BackwardArguments& arguments,
                                   std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const Tensor &input = arguments.input, &weights = arguments.weights;
  const std::array state{sizes.batch, sizes.state_size};
  return empty_if_wanted<5>(output_mask,
                            {input.sym_sizes(), weights.sym_sizes(), sizes.gates, state, state},
                            input,
                            input.scalar_type());
}

template <typename Arguments>
auto sequence_meta(const Arguments& arguments, bool /*reverse*/, bool keep) {
  const auto sizes = check<c10::SymInt>(arguments);
  return empty_outputs(arguments,
                       sizes,
                       keep,
                       [&](at::SymIntArrayRef shape, at::ScalarType dtype) {
                         return empty(shape, arguments.input, dtype);
                       })
      .template results<Arguments>();
}

template <typename Arguments, size_t count>
auto sequence_backward_meta(const Arguments& arguments,
                            bool /*reverse*/,
                            std::array<bool, count> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const auto& sequence = arguments.sequence;
  const std::array state{sizes.batch, sizes.state_size};
  // After the bias comes another one, or the gradient of h0.
  const at::SymIntArrayRef next =
      Arguments::kCell.carries_h ? at::SymIntArrayRef(sizes.gates) : state;
  return std::apply(
      [&](const auto&... weights) {
        return empty_if_wanted<count>(
            output_mask,
            {sequence.input.sym_sizes(), weights.sym_sizes()..., sizes.gates, next, state},
            sequence.input,
            final_cell_dtype(sequence));
      },
      sequence.weight_tensors());
}

template <typename Arguments, size_t states>
GateGradientsOf<states> gate_gradients_meta(const Arguments& arguments,
                                            bool /*reverse*/,
                                            std::array<bool, states> state_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const Tensor& input = arguments.sequence.input;
  const auto state_if = [&](bool wanted, at::ScalarType dtype) {
    return if_wanted(wanted, [&] { return empty({sizes.batch, sizes.state_size}, input, dtype); });
  };
  const auto [wants_h0, wants_c0] = both_states(state_mask);
  const c10::SymInt saved = sizes.state_size * Arguments::kCell.saved;
  return gate_gradients_of<states>(empty({sizes.steps, sizes.batch, saved}, input),
                                   state_if(wants_h0, input.scalar_type()),
                                   state_if(wants_c0, final_cell_dtype(arguments.sequence)));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Meta, m) {
  op::Forward::implement<forward_meta>(m);
  op::Backward::implement<backward_meta>(m);
  for_each_cell([&]<typename Cell>() {
    using Op = typename Cell::Forward;
    using Backward = typename Cell::Backward;
    using GateGradients = typename Cell::GateGradients;
    Op::template implement<sequence_meta<typename Op::Arguments>>(m);
    Backward::template implement<sequence_backward_meta<typename Backward::Arguments>>(m);
    GateGradients::template implement<gate_gradients_meta<typename GateGradients::Arguments>>(m);
  });
}

}  // namespace lltm
