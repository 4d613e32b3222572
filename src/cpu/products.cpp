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

enum class Choice { kByMeasurement, kOwn, kAten };

Choice read_choice() {
  const char* value = std::getenv("LLTM_CPU_GEMM");
  if (value == nullptr || *value == '\0') {
    return Choice::kByMeasurement;
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

/// Enough for every thread to have as much as another, where tasks are not all alike.
int64_t wanted_tasks() {
  return at::get_num_threads() > 1 ? 4 * at::get_num_threads() : 1;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

template <typename Function>
void for_each_task(int64_t tasks, int64_t work, int64_t work_per_task, const Function& function) {
  const int64_t work_of_one = std::max<int64_t>(1, work / std::max<int64_t>(1, tasks));
  at::parallel_for(0, tasks, std::max<int64_t>(1, work_per_task / work_of_one), function);
}

/// The kernels take any distance between rows, but none between the elements of one.
Tensor with_contiguous_rows(const Tensor& tensor) {
  return tensor.size(1) <= 1 || tensor.stride(1) == 1 ? tensor : tensor.contiguous();
}

template <typename scalar_t>
const ProductKernels<scalar_t>& product_kernels() {
  return std::get<ProductKernels<scalar_t>>(kernels().products);
}

template <typename scalar_t>
StateParams<scalar_t> state_params(const Tensor& input, const Tensor& old_h) {
  return {.batch = input.size(0),
          .state_size = old_h.size(1),
          .input_features = input.size(1),
          .old_h = old_h.const_data_ptr<scalar_t>(),
          .old_h_stride = old_h.stride(0),
          .input = input.const_data_ptr<scalar_t>(),
          .input_stride = input.stride(0)};
}

/// The work of a product with the weights or their gradient, in multiplications. Fewer rows than
/// four take as long as four: the time that it takes to read or write the matrix.
int64_t multiplications(int64_t batch, int64_t gates, int64_t columns) {
  return std::max<int64_t>(batch, 4) * gates * columns;
}

template <typename scalar_t>
Tensor empty_panels(int64_t size, const at::TensorOptions& options) {
  return at::empty({size}, options.dtype(c10::CppTypeToScalarType<accumulate_t<scalar_t>>::value));
}

template <typename scalar_t>
void state_gradient_out(const Tensor& out,
                        const Tensor& d_gates,
                        const Tensor& weights,
                        int64_t first_column) {
  const auto& kernels = product_kernels<scalar_t>();
  StateGradientParams<scalar_t> params{.batch = d_gates.size(0),
                                       .gates = d_gates.size(1),
                                       .columns = out.size(1),
                                       .d_gates = d_gates.const_data_ptr<scalar_t>(),
                                       .weights = weights.const_data_ptr<scalar_t>() + first_column,
                                       .weights_stride = weights.stride(0),
                                       .out = out.mutable_data_ptr<scalar_t>(),
                                       .row_chunks = 1};
  // Panels of columns alone may be too few for the threads. A chunk copies its panel for itself,
  // which takes as long as some eight rows do: to give every thread a task it should have three
  // times as many rows, and to give it several, eight times.
  const int64_t panels = std::max<int64_t>(1, kernels.state_gradient_tasks(params));
  params.row_chunks =
      std::max({ceil_div(params.batch, kernels.max_rows_per_chunk),
                std::min<int64_t>(ceil_div(at::get_num_threads(), panels), params.batch / 24),
                std::min<int64_t>(ceil_div(wanted_tasks(), panels), params.batch / 64)});
  for_each_task(kernels.state_gradient_tasks(params),
                multiplications(params.batch, params.gates, params.columns),
                kMultiplicationsPerTask,
                [&](int64_t begin, int64_t end) { kernels.state_gradient(params, begin, end); });
}

template <typename scalar_t>
void weight_gradient_out(const Tensor& d_weights,
                         const Tensor& d_gates,
                         const Tensor& input,
                         const Tensor& old_h) {
  const auto& kernels = product_kernels<scalar_t>();
  WeightGradientParams<scalar_t> params{.states = state_params<scalar_t>(input, old_h),
                                        .d_gates = d_gates.const_data_ptr<scalar_t>(),
                                        .d_weights = d_weights.mutable_data_ptr<scalar_t>(),
                                        .panel_groups = 1,
                                        .panels = nullptr,
                                        .first_panel = 0};
  const int64_t panel_count = kernels.weight_panels(params.states);
  const int64_t tasks_of_group = kernels.weight_gradient_tasks(params);
  const int64_t groups_for_threads = ceil_div(wanted_tasks(), tasks_of_group);
  params.panel_groups = std::max({ceil_div(panel_count, kernels.max_panels_per_group),
                                  std::min(groups_for_threads, panel_count),
                                  int64_t{1}});
  // Group by group, as far as there is work for the threads: a few panels stay in the cache.
  const int64_t groups = std::min(groups_for_threads, params.panel_groups);
  const int64_t most_panels = ceil_div(panel_count * groups, params.panel_groups);
  const Tensor panels = empty_panels<scalar_t>(
      most_panels * kernels.weight_panel_size(params.states), input.options());
  params.panels = panels.mutable_data_ptr<accumulate_t<scalar_t>>();
  for (int64_t group = 0; group < params.panel_groups; group += groups) {
    const int64_t last_group = std::min(group + groups, params.panel_groups);
    params.first_panel = kernels.first_panel_of(params, group);
    const int64_t panels_here = kernels.first_panel_of(params, last_group) - params.first_panel;
    for_each_task(panels_here,
                  panels_here * kernels.weight_panel_size(params.states),
                  kCopiesPerTask,
                  [&](int64_t begin, int64_t end) {
                    kernels.pack_weight_panels(
                        params, params.first_panel + begin, params.first_panel + end);
                  });
    const int64_t first_task = group * tasks_of_group;
    for_each_task((last_group - group) * tasks_of_group,
                  multiplications(input.size(0), d_weights.size(0), d_weights.size(1)) *
                      (last_group - group) / params.panel_groups,
                  kMultiplicationsPerTask,
                  [&](int64_t begin, int64_t end) {
                    kernels.weight_gradient(params, first_task + begin, first_task + end);
                  });
  }
}

template <typename scalar_t>
void bias_gradient_out(const Tensor& d_bias, const Tensor& d_gates) {
  const BiasGradientParams<scalar_t> params{.batch = d_gates.size(0),
                                            .gates = d_gates.size(1),
                                            .d_gates = d_gates.const_data_ptr<scalar_t>(),
                                            .d_bias = d_bias.mutable_data_ptr<scalar_t>()};
  for_each_task(params.gates, d_gates.numel(), kCopiesPerTask, [&](int64_t begin, int64_t end) {
    product_kernels<scalar_t>().bias_gradient(params, begin, end);
  });
}

/// See has_own_products().
bool has_own_products_in_16_bits() {
#if defined(__x86_64__)
  return !__builtin_cpu_supports("amx-bf16");
#else
  return false;
#endif
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
// of gates to the pointwise math while it is in the cache. In 16 bits, where ATen goes to oneDNN:
//
//   shape            bfloat16: ours   oneDNN   float16: ours   oneDNN
//   16,32,128                    99       53              62       12
//   64,1024,128                 199      183              91       22
//   64,512,512                  201      168
//   128,1024,1024               199      186
//
// Held to AVX-512 without dot products of bfloat16, or to AVX2 (ONEDNN_MAX_CPU_ISA,
// ATEN_CPU_CAPABILITY), oneDNN falls behind further. It has the matrix units of AMX, which are out
// of these kernels' reach, and BLAS libraries of Arm's: there ours have not been measured.
bool has_own_products(at::ScalarType dtype) {
  static const Choice choice = read_choice();
  if (choice != Choice::kByMeasurement) {
    return choice == Choice::kOwn;
  }
  static const bool own_in_16_bits = has_own_products_in_16_bits();
  return dtype == at::kFloat || dtype == at::kDouble || own_in_16_bits;
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
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::forward", [&] {
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
          panels =
              empty_panels<scalar_t>(kernels.state_panels_size(params.states), input.options());
          params.panels = panels.const_data_ptr<accumulate_t<scalar_t>>();
          // Narrower panels make more tasks.
          while (params.panel_vectors > 1 && kernels.cell_tasks(params) < at::get_num_threads()) {
            --params.panel_vectors;
          }
          // As many panels, of one size.
          const int64_t vectors = ceil_div(params.states.batch, kernels.lanes);
          const int64_t panel_count = ceil_div(vectors, params.panel_vectors);
          params.panel_vectors = static_cast<int>(ceil_div(vectors, panel_count));
          for_each_task(kernels.pack_tasks(params.states),
                        panels.numel(),
                        kCopiesPerTask,
                        [&](int64_t begin, int64_t end) {
                          kernels.pack_states(params.states,
                                              params.panel_vectors,
                                              panels.mutable_data_ptr<accumulate_t<scalar_t>>(),
                                              begin,
                                              end);
                        });
        }
        for_each_task(kernels.cell_tasks(params),
                      multiplications(input.size(0), weights.size(0), weights.size(1)),
                      kMultiplicationsPerTask,
                      [&](int64_t begin, int64_t end) { kernels.cell(params, begin, end); });
      });
}

void finish_own_gradients(const CellGradients& gradients,
                          const Tensor& input,
                          const Tensor& weights,
                          const Tensor& old_h) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
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
