#include "products.h"

#include "kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace lltm::cpu {
namespace {

using at::Tensor;

enum class Choice { kByDtype, kOwn, kAten };

Choice read_choice() {
  const char* value = std::getenv("LLTM_CPU_GEMM");
  if (value == nullptr || *value == '\0') {
    return Choice::kByDtype;
  }
  if (std::strcmp(value, "own") == 0) {
    return Choice::kOwn;
  }
  TORCH_CHECK(std::strcmp(value, "aten") == 0,
              "lltm: expected LLTM_CPU_GEMM to be own or aten, or not set, got ",
              value);
  return Choice::kAten;
}

/// A task should last well beyond the few microseconds that it takes to hand it to another thread.
constexpr int64_t kMultiplicationsPerTask = 400'000;
constexpr int64_t kCopiesPerTask = 50'000;

template <typename Function>
void for_each_task(int64_t tasks, int64_t work, int64_t work_per_task, const Function& function) {
  const int64_t work_of_one = std::max<int64_t>(1, work / std::max<int64_t>(1, tasks));
  at::parallel_for(0, tasks, std::max<int64_t>(1, work_per_task / work_of_one), function);
}

/// The kernels take any distance between rows, but none between the elements of one.
Tensor with_contiguous_rows(const Tensor& tensor) {
  return tensor.size(1) <= 1 || tensor.stride(1) == 1 ? tensor : tensor.contiguous();
}

template <typename real>
const ProductKernels<real>& product_kernels() {
  return std::get<ProductKernels<real>>(kernels().products);
}

template <typename real>
StateParams<real> state_params(const Tensor& input, const Tensor& old_h) {
  return {.batch = input.size(0),
          .state_size = old_h.size(1),
          .input_features = input.size(1),
          .old_h = old_h.const_data_ptr<real>(),
          .old_h_stride = old_h.stride(0),
          .input = input.const_data_ptr<real>(),
          .input_stride = input.stride(0)};
}

int64_t multiplications(const Tensor& input, const Tensor& weights) {
  return input.size(0) * weights.size(0) * weights.size(1);
}

template <typename real>
void state_gradient_out(const Tensor& out,
                        const Tensor& d_gates,
                        const Tensor& weights,
                        int64_t first_column) {
  const auto& kernels = product_kernels<real>();
  StateGradientParams<real> params{.batch = d_gates.size(0),
                                   .gates = d_gates.size(1),
                                   .columns = out.size(1),
                                   .d_gates = d_gates.const_data_ptr<real>(),
                                   .weights = weights.const_data_ptr<real>() + first_column,
                                   .weights_stride = weights.stride(0),
                                   .out = out.mutable_data_ptr<real>(),
                                   .row_chunks = 1};
  // Panels of columns alone may be too few for the threads. A chunk copies its panel for itself: it
  // should have the rows that this is worth.
  constexpr int64_t kRowsPerChunk = 24;
  const int64_t wanted = at::get_num_threads() > 1 ? 4 * at::get_num_threads() : 1;
  const int64_t panels = std::max<int64_t>(1, kernels.state_gradient_tasks(params));
  params.row_chunks =
      std::clamp<int64_t>(wanted / panels, 1, std::max<int64_t>(1, params.batch / kRowsPerChunk));
  for_each_task(kernels.state_gradient_tasks(params),
                params.batch * params.gates * params.columns,
                kMultiplicationsPerTask,
                [&](int64_t begin, int64_t end) { kernels.state_gradient(params, begin, end); });
}

template <typename real>
void weight_gradient_out(const Tensor& d_weights,
                         const Tensor& d_gates,
                         const Tensor& input,
                         const Tensor& old_h) {
  const auto& kernels = product_kernels<real>();
  WeightGradientParams<real> params{.states = state_params<real>(input, old_h),
                                    .d_gates = d_gates.const_data_ptr<real>(),
                                    .panels = nullptr,
                                    .d_weights = d_weights.mutable_data_ptr<real>()};
  const Tensor panels = at::empty({kernels.weight_panels_size(params.states)}, input.options());
  params.panels = panels.mutable_data_ptr<real>();
  for (int64_t row = 0; row < params.states.batch; row += kernels.weight_depth) {
    const int64_t rows = std::min(kernels.weight_depth, params.states.batch - row);
    for_each_task(
        kernels.weight_panels(params.states),
        rows * d_weights.size(1),
        kCopiesPerTask,
        [&](int64_t begin, int64_t end) { kernels.pack_weight_panels(params, row, begin, end); });
    for_each_task(
        kernels.weight_gradient_tasks(params.states),
        rows * d_weights.numel(),
        kMultiplicationsPerTask,
        [&](int64_t begin, int64_t end) { kernels.weight_gradient(params, row, begin, end); });
  }
}

template <typename real>
void bias_gradient_out(const Tensor& d_bias, const Tensor& d_gates) {
  const BiasGradientParams<real> params{.batch = d_gates.size(0),
                                        .gates = d_gates.size(1),
                                        .d_gates = d_gates.const_data_ptr<real>(),
                                        .d_bias = d_bias.mutable_data_ptr<real>()};
  for_each_task(params.gates, d_gates.numel(), kCopiesPerTask, [&](int64_t begin, int64_t end) {
    product_kernels<real>().bias_gradient(params, begin, end);
  });
}

}  // namespace

// The products' one place of choice. Measured on an AMD EPYC (Zen 4, PyTorch 2.11 of PyPI), one
// thread, GFLOP/s of gates = states @ weights.T:
//
//   shape            ours   oneDNN   addmm (MKL)
//   16,32,128         75      49       67
//   64,1024,128      115      90       92
//   64,512,512       115     100       87
//   128,1024,1024    110     104       86
//
// Ours reads old_h, input and weights where they lie, needs no concatenation, and hands each tile
// of gates to the pointwise math while it is in the cache. In 16 bits ATen goes to oneDNN, which
// has the machine's 16-bit dot products and tiles.
bool has_own_products(at::ScalarType dtype) {
  static const Choice choice = read_choice();
  return choice != Choice::kAten && (dtype == at::kFloat || dtype == at::kDouble);
}

void cell_out(const Tensor& new_h,
              const Tensor& new_cell,
              const Tensor& gates,
              const Tensor& input,
              const Tensor& weights,
              const std::optional<Tensor>& bias,
              const Tensor& old_h,
              const Tensor& old_cell) {
  const Tensor input_ = with_contiguous_rows(input);
  const Tensor weights_ = with_contiguous_rows(weights);
  const Tensor old_h_ = with_contiguous_rows(old_h);
  const Tensor bias_ = contiguous_or_undefined(bias);
  const Tensor old_cell_ = old_cell.contiguous();
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "lltm::forward", [&] {
    const auto& kernels = product_kernels<scalar_t>();
    CellParams<scalar_t> params{.states = state_params<scalar_t>(input_, old_h_),
                                .weights = weights_.const_data_ptr<scalar_t>(),
                                .weights_stride = weights_.stride(0),
                                .bias = data_or_null<scalar_t>(bias_),
                                .old_cell = old_cell_.const_data_ptr<scalar_t>(),
                                .gates = gates.mutable_data_ptr<scalar_t>(),
                                .new_h = new_h.mutable_data_ptr<scalar_t>(),
                                .new_cell = new_cell.mutable_data_ptr<scalar_t>(),
                                .panels = nullptr,
                                .panel_vectors = kernels.max_panel_vectors};
    Tensor panels;
    if (kernels.cell_needs_panels(params.states.batch)) {
      const int64_t vectors = (params.states.batch + kernels.lanes - 1) / kernels.lanes;
      panels = at::empty({vectors * kernels.lanes, weights.size(1)}, input.options());
      params.panels = panels.const_data_ptr<scalar_t>();
      // Narrower panels make more tasks.
      while (params.panel_vectors > 1 && kernels.cell_tasks(params) < at::get_num_threads()) {
        --params.panel_vectors;
      }
      for_each_task(kernels.pack_tasks(params.states),
                    panels.numel(),
                    kCopiesPerTask,
                    [&](int64_t begin, int64_t end) {
                      kernels.pack_states(params.states,
                                          params.panel_vectors,
                                          panels.mutable_data_ptr<scalar_t>(),
                                          begin,
                                          end);
                    });
    }
    for_each_task(kernels.cell_tasks(params),
                  multiplications(input, weights),
                  kMultiplicationsPerTask,
                  [&](int64_t begin, int64_t end) { kernels.cell(params, begin, end); });
  });
}

void finish_own_gradients(const CellGradients& gradients,
                          const Tensor& input,
                          const Tensor& weights,
                          const Tensor& old_h) {
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "lltm::backward", [&] {
    if (gradients.bias.defined()) {
      bias_gradient_out<scalar_t>(gradients.bias, gradients.gates);
    }
    if (gradients.weights.defined()) {
      weight_gradient_out<scalar_t>(gradients.weights,
                                    gradients.gates,
                                    with_contiguous_rows(input),
                                    with_contiguous_rows(old_h));
    }
    if (gradients.input.defined() || gradients.old_h.defined()) {
      const Tensor weights_ = with_contiguous_rows(weights);
      if (gradients.input.defined()) {
        state_gradient_out<scalar_t>(gradients.input, gradients.gates, weights_, old_h.size(1));
      }
      if (gradients.old_h.defined()) {
        state_gradient_out<scalar_t>(gradients.old_h, gradients.gates, weights_, 0);
      }
    }
  });
}

}  // namespace lltm::cpu
