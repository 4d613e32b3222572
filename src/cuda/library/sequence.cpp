// z_x, the product with the inputs, is computed in chunks of steps, by one product each, and a
// product with h in each step. Both are kept in the accumulation type, float32 for 16-bit tensors,
// so z is rounded only where it is written to gates. h is carried in h_n, which each step updates
// in place. A row that has ended leaves its state alone, so h_n has the final one at the end. The
// cell state is carried in the accumulation type: in c_n if that has it, else in a buffer.
#include "sequence.h"

#include "../../cell/column_runs.h"
#include "../../cell/with_cell.h"
#include "../../dispatch/optional_tensor.h"
#include "../kernels/sequence/kernels.h"
#include "../plan/sequence.h"
#include "../runtime/launch_check.h"
#include "../sequence.h"
#include "products.h"

#include <ATen/Dispatch.h>

#include <algorithm>

namespace lltm::cuda {
namespace {

using at::Tensor;

// What a step and a chunk of z_x take. They leave half of the 64 MiB of a call to the workspace
// that cuBLAS allocates per stream by itself.
constexpr int64_t kLibraryStepBytes = 12 << 20, kLibraryChunkBytes = 16 << 20;

template <typename scalar_t>
class LibraryForward {
  using acc_t = accumulate_t<scalar_t>;
  static constexpr auto kAccumulated = c10::CppTypeToScalarType<acc_t>::value;

 public:
  LibraryForward(const SequenceOutputs& outputs,
                 const RecurrentArguments& arguments,
                 const SequenceSizes<int64_t>& sizes,
                 std::optional<Arithmetic> arithmetic,
                 const Device& device,
                 bool reverse)
      : outputs_(outputs),
        arguments_(arguments),
        sizes_(sizes),
        arithmetic_(arithmetic),
        device_(device),
        order_{.steps = sizes.steps, .reverse = reverse},
        bias_(arguments.cell.adds ? contiguous_or_undefined(arguments.bias)
                                  : saved_bias(arguments.cell,
                                               arguments.bias,
                                               arguments.bias_hh,
                                               sizes.state_size,
                                               arguments.input.options().dtype(kAccumulated))) {}

  void run() const {
    const int64_t row_bytes =
        2 * (sizes_.gates + sizes_.state_size) * static_cast<int64_t>(sizeof(acc_t));
    const int64_t at_a_time =
        in_equal_parts(sizes_.batch, std::max<int64_t>(kLibraryStepBytes / row_bytes, 1));
    for (int64_t first = 0; first < sizes_.batch; first += at_a_time) {
      run_rows(first, std::min(at_a_time, sizes_.batch - first));
    }
  }

 private:
  /// Runs the rows [first, first + count) of the batch, for all steps.
  void run_rows(int64_t first, int64_t count) const {
    const int64_t gates = sizes_.gates, state_size = sizes_.state_size;
    const int64_t saved = state_size * arguments_.cell.saved;
    const Tensor h = outputs_.h_n.narrow(0, first, count);
    const Tensor c_n = outputs_.c_n.narrow(0, first, count);
    const bool carries_in_c_n = c_n.scalar_type() == kAccumulated;
    const Tensor cell = carries_in_c_n ? c_n : device_.empty({count, state_size}, kAccumulated);
    auto* const h_data = h.mutable_data_ptr<scalar_t>();
    auto* const cell_data = cell.mutable_data_ptr<acc_t>();
    auto start = start_of_rows<scalar_t>(arguments_, order_, first, count);
    start.h[0] = h_data;
    start.h_stride = state_size;
    start.cell = cell_data;
    start.h_n = h_data;
    check_launch(launch_sequence_start(start, device_.stream()));

    const Tensor z_h = device_.empty({count, gates}, kAccumulated);
    const int64_t row_bytes = saved * static_cast<int64_t>(sizeof(acc_t)) +
                              sizes_.input_features * static_cast<int64_t>(sizeof(scalar_t));
    const int64_t at_once = std::clamp<int64_t>(
        kLibraryChunkBytes / (count * row_bytes), 1, std::max<int64_t>(sizes_.steps, 1));
    const Tensor chunk = device_.empty({at_once, count, saved}, kAccumulated);
    StepProblem step{};
    step.batch = count;
    step.state_size = state_size;
    step.added = {arguments_.cell.adds ? data_or_null<scalar_t>(bias_) : nullptr, 0};
    step.old_cell = {cell_data, state_size};
    step.next_cell = cell_data;
    step.rows = start.rows_of_sequence;
    step.next_h = {h_data, state_size};
    step.h_n = h_data;
    int64_t first_time = 0;  // in the chunk
    for (int64_t k = 0; k < sizes_.steps; ++k) {
      const int64_t t = order_.time_of(k);
      if (k % at_once == 0) {
        const int64_t steps = std::min(at_once, sizes_.steps - k);
        first_time = order_.first_time(k, steps);
        const Tensor input = arguments_.input.narrow(0, first_time, steps).narrow(1, first, count);
        input_product_out(chunk.narrow(0, 0, steps).flatten(0, 1), input.flatten(0, 1));
      }
      step.t = t;
      step.next_t = order_.next_time(k);
      step.new_h = address_of(outputs_.output, t, first);
      step.new_cell = address_of(outputs_.cells, t, first);
      step.gates = address_of(outputs_.gates, t, first);
      product_out(z_h, h, arguments_.weight_hh.t(), arithmetic_);
      const SequenceStepParams<scalar_t> params{
          step,
          chunk.const_data_ptr<acc_t>() + (t - first_time) * count * saved,
          z_h.const_data_ptr<acc_t>()};
      check_launch(with_cell(arguments_.cell.type, [&]<typename Cell>() {
        return launch_sequence_step<cell::CombinedOf<Cell>>(params, device_.stream());
      }));
    }
    if (!carries_in_c_n) {
      Tensor(c_n).copy_(cell);
    }
  }

  /// Without the bias of a cell that adds both sides, which its steps add.
  void input_product_out(const Tensor& z_x, const Tensor& x) const {
    const CellDescriptor& cell = arguments_.cell;
    const Tensor& weight_ih = arguments_.weight_ih;
    if (cell.adds) {
      product_out(z_x, x, weight_ih.t(), arithmetic_);
      return;
    }
    Tensor(z_x).copy_(bias_.expand_as(z_x));
    for (const ColumnRun& run : runs_of(cell.of_input, sizes_.state_size)) {
      product_out(run.saved(z_x), x, run.side(weight_ih).t(), arithmetic_, /*adds=*/true);
    }
  }

  const SequenceOutputs& outputs_;
  const RecurrentArguments& arguments_;
  const SequenceSizes<int64_t>& sizes_;
  const std::optional<Arithmetic> arithmetic_;
  const Device& device_;
  const StepOrder order_;
  const Tensor bias_;  // contiguous, or undefined; of what is saved if the cell does not add sides
};

}  // namespace

void library_sequence_out(const SequenceOutputs& outputs,
                          const RecurrentArguments& arguments,
                          const SequenceSizes<int64_t>& sizes,
                          std::optional<Arithmetic> arithmetic,
                          const Device& device,
                          bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        LibraryForward<scalar_t>(outputs, arguments, sizes, arithmetic, device, reverse).run();
      });
}

}  // namespace lltm::cuda
