#include "../cell/accumulate.h"
#include "../cell/column_runs.h"
#include "../cell/with_cell.h"
#include "../dispatch/optional_tensor.h"
#include "kernels/sequence/kernels.h"
#include "library/products.h"
#include "packed_rows.h"
#include "plan/plan.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"
#include "sequence.h"
#include "steps.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// Launches the kernel that computes a step and its product.
template <typename Cell, typename scalar_t>
cudaError_t launch_with_product(const SequenceGradientsParams<scalar_t>& params,
                                const Matrix& weights_h,
                                Arithmetic arithmetic,
                                const Choice& plan,
                                cudaStream_t stream) {
  const TileShape& tile = plan.candidate->tile;
  const int ranks = plan.estimate.ranks;
  return with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
    if constexpr (std::is_same_v<scalar_t, TensorElement<kArithmetic>>) {
      if (plan.candidate->group == Group::kHopper) {
        return launch_sequence_gradient_wgmma<Cell, kArithmetic>(
            params, weights_h, tile, ranks, stream);
      }
      if constexpr (std::is_same_v<Cell, cell::Lltm>) {
        return launch_sequence_gradient_tiles<kArithmetic>(params, weights_h, tile, ranks, stream);
      }
    }
    return cudaErrorInvalidValue;  // other tensors; those of float64 have no arithmetic at all
  });
}

/// From the last step that was run to the first. The product of d_gates of the following step with
/// the weights is the gradient of h, from which a step's own d_gates are computed, in one launch
/// or, with the product by the library, in two. The gradients of the state are carried in the
/// accumulation type. d_gates are rounded, like those of the cell.
template <typename scalar_t>
class StepsBackward {
  using acc_t = accumulate_t<scalar_t>;
  static constexpr auto kAccumulated = c10::CppTypeToScalarType<acc_t>::value;

 public:
  StepsBackward(const Choice& choice,
                std::optional<Arithmetic> arithmetic,
                const Tensor& d_gates,
                const RecurrentBackwardArguments& arguments,
                const Device& device,
                bool reverse)
      : choice_(choice),
        arithmetic_(arithmetic),
        d_gates_(d_gates),
        arguments_(arguments),
        device_(device),
        order_{.steps = arguments.cells.size(0), .reverse = reverse},
        batch_(arguments.cells.size(1)),
        d_states_(before_all_steps()),
        d_h_(d_states_[0]),
        d_cell_(d_states_[1]),
        gates_(contiguous_vectors(arguments.gates)),
        cells_(contiguous_vectors(arguments.cells)),
        c0_(rounded_c0()) {}

  void run(const RecurrentGradients& gradients) {
    const bool carries_h = arguments_.sequence.cell.carries_h;
    const bool wants_h0 = carries_h ? gradients.c0.defined() : gradients.h0.defined();
    if (order_.steps > 1 || (order_.steps == 1 && wants_h0)) {
      prepare_product();
    }
    params_ = params_of_all_steps();
    for (int64_t k = order_.steps - 1; k >= 0; --k) {
      run_step(order_.time_of(k));
    }
    if (wants_h0) {
      if (order_.steps > 0) {
        run_step(kNoTime);
      }
      if (carries_h) {
        d_cell_.add_(d_h_);
      } else {
        gradients.h0.copy_(d_h_);
      }
    }
    if (gradients.c0.defined()) {
      gradients.c0.copy_(d_cell_);
    }
  }

 private:
  bool by_library() const { return choice_.candidate->group == Group::kLibrary; }

  /// The gradients of h and of the cell state, with what comes in from h_n and c_n.
  Tensor before_all_steps() const {
    Tensor states = device_.empty({2, batch_, arguments_.cells.size(2)}, kAccumulated);
    const auto &of_h = arguments_.grad_h_n, &of_cell = arguments_.grad_c_n;
    if (!is_given(of_h) && !is_given(of_cell)) {
      return states.zero_();
    }
    is_given(of_h) ? states[0].copy_(*of_h) : states[0].zero_();
    is_given(of_cell) ? states[1].copy_(*of_cell) : states[1].zero_();
    return states;
  }

  /// A float32 c0 beside 16 bits is rounded, as all other cells are.
  Tensor rounded_c0() const {
    const std::optional<Tensor>& c0 = arguments_.sequence.c0;
    return is_given(c0) ? c0->to(cells_.scalar_type()) : Tensor();
  }

  void prepare_product() {
    const CellDescriptor& cell = arguments_.sequence.cell;
    const Tensor& weight_hh = arguments_.sequence.weight_hh;
    // One product with some zeros takes no longer than two without.
    weights_h_ = choice_.candidate->group == Group::kHopper
                     ? transposed(weight_hh, cell.of_gate, device_)
                     : describable_rows(
                           saved_rows(cell, weight_hh, cell.of_gate, weight_hh.size(1)), device_);
    if (by_library()) {
      from_h_ = device_.empty(d_h_.sizes(), kAccumulated);
    }
  }

  /// What all steps have in common.
  SequenceGradientsParams<scalar_t> params_of_all_steps() const {
    const RecurrentArguments& sequence = arguments_.sequence;
    return {
        .steps = order_.steps,
        .rows = batch_,
        .state_size = cells_.size(2),
        .t = kNoTime,
        .last_t = kNoTime,
        .follows_a_product = false,
        .rows_of_sequence = rows_of_sequence(sequence),
        .grad_output = steps_of<scalar_t>(arguments_.grad_output),
        .grad_cells = steps_of<scalar_t>(arguments_.grad_cells),
        .from_h = data_or_null<acc_t>(from_h_),
        .d_h = d_h_.mutable_data_ptr<acc_t>(),
        .d_cell = d_cell_.mutable_data_ptr<acc_t>(),
        .gates = nullptr,
        .cells = nullptr,
        .d_gates = nullptr,
        .all_d_gates = d_gates_.const_data_ptr<scalar_t>(),
        .d_gates_stride = d_gates_.stride(0),
        .old_cells = old_states_of<scalar_t>(sequence, cells_, c0_, order_.reverse),
    };
  }

  /// Runs the step at t after the one that was run before or, at kNoTime, only the product with
  /// d_gates of that one.
  void run_step(int64_t t) {
    params_.t = t;
    if (t != kNoTime) {
      params_.gates = gates_.const_data_ptr<scalar_t>() + t * batch_ * gates_.size(2);
      params_.cells = cells_.const_data_ptr<scalar_t>() + t * batch_ * cells_.size(2);
      params_.d_gates = d_gates_.mutable_data_ptr<scalar_t>() + t * batch_ * params_.d_gates_stride;
    }
    const bool has_product = params_.last_t != kNoTime;
    if (has_product && by_library()) {
      product_out(
          from_h_, d_gates_.narrow(0, params_.last_t * batch_, batch_), weights_h_, arithmetic_);
    }
    check_launch(with_cell(arguments_.sequence.cell.type, [&]<typename OfSides>() {
      using Cell = cell::CombinedOf<OfSides>;
      return has_product && !by_library()
                 ? launch_with_product<Cell>(
                       params_, rows_of(weights_h_), *arithmetic_, choice_, device_.stream())
                 : launch_sequence_gradients<Cell>(params_, device_.stream());
    }));
    params_.last_t = t;
    params_.follows_a_product = has_product;
  }

  const Choice& choice_;
  const std::optional<Arithmetic> arithmetic_;
  const Tensor& d_gates_;
  const RecurrentBackwardArguments& arguments_;
  const Device& device_;
  const StepOrder order_;
  const int64_t batch_;
  const Tensor d_states_, d_h_, d_cell_;
  const Tensor gates_, cells_;
  const Tensor c0_;            // in the type of cells, or undefined
  Tensor weights_h_, from_h_;  // of the product, if there is any
  SequenceGradientsParams<scalar_t> params_;
};

}  // namespace

void run_steps_backward(const Choice& choice,
                        std::optional<Arithmetic> arithmetic,
                        const Tensor& d_gates,
                        const RecurrentGradients& gradients,
                        const RecurrentBackwardArguments& arguments,
                        const Device& device,
                        bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, d_gates.scalar_type(), "lltm::sequence_backward", [&] {
        StepsBackward<scalar_t>(choice, arithmetic, d_gates, arguments, device, reverse)
            .run(gradients);
      });
}

}  // namespace lltm::cuda
