// z_x, the product with the inputs, is computed in chunks of steps, by one product each, and a
// product with h in each step. Both are kept in the accumulation type, float32 for 16-bit tensors,
// so z is rounded only where it is written to gates. h is carried in h_n, which each step updates
// in place. A row that has ended leaves its state alone, so h_n has the final one at the end. The
// cell state is carried in the accumulation type: in c_n if that has it, else in a buffer.
#include "sequence.h"

#include "../../cell/with_cell.h"
#include "../../dispatch/optional_tensor.h"
#include "../kernels/sequence/kernels.h"
#include "../runtime/launch_check.h"
#include "../sequence.h"

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
                 const Device& device,
                 bool reverse)
      : outputs_(outputs),
        arguments_(arguments),
        sizes_(sizes),
        device_(device),
        reverse_(reverse),
        bias_(contiguous_or_undefined(arguments.bias)) {}

  void run() const {
    const int64_t row_bytes =
        2 * (sizes_.gates + sizes_.state_size) * static_cast<int64_t>(sizeof(acc_t));
    const int64_t at_a_time = std::clamp<int64_t>(kLibraryStepBytes / row_bytes, 1, sizes_.batch);
    for (int64_t first = 0; first < sizes_.batch; first += at_a_time) {
      run_rows(first, std::min(at_a_time, sizes_.batch - first));
    }
  }

 private:
  int64_t time_of(int64_t k) const { return reverse_ ? sizes_.steps - 1 - k : k; }

  /// The address of (t, row) in a contiguous tensor of steps, or null if the tensor is empty.
  static scalar_t* at(const Tensor& steps, int64_t t, int64_t row) {
    return steps.size(0) > 0
               ? steps.mutable_data_ptr<scalar_t>() + (t * steps.size(1) + row) * steps.size(2)
               : nullptr;
  }

  /// Writes the state that the rows start from to h_n and `cell`.
  void start_rows(int64_t first, int64_t count, scalar_t* h_n, acc_t* cell) const {
    const auto state_of = [&]<typename T>(const std::optional<Tensor>& initial, T) {
      return is_given(initial) && initial->scalar_type() == c10::CppTypeToScalarType<T>::value
                 ? steps_of<T>(initial->narrow(0, first, count))
                 : Steps<T>{};
    };
    check_launch(launch_sequence_start(
        SequenceStartParams<scalar_t>{.rows = count,
                                      .state_size = sizes_.state_size,
                                      .steps = sizes_.steps,
                                      .reverse = reverse_,
                                      .rows_of_sequence = rows_from(first),
                                      .h0 = state_of(arguments_.h0, scalar_t{}),
                                      .c0 = state_of(arguments_.c0, scalar_t{}),
                                      .c0_float = state_of(arguments_.c0, float{}),
                                      .h = {h_n, nullptr},
                                      .h_stride = sizes_.state_size,
                                      .cell = cell,
                                      .h_n = h_n},
        device_.stream()));
  }

  RowsOfSequence rows_from(int64_t first) const {
    return rows_of_sequence(arguments_.lengths, arguments_.reset, first);
  }

  /// Runs the rows [first, first + count) of the batch, for all steps.
  void run_rows(int64_t first, int64_t count) const {
    const int64_t gates = sizes_.gates, state_size = sizes_.state_size;
    const Tensor h = outputs_.h_n.narrow(0, first, count);
    const Tensor c_n = outputs_.c_n.narrow(0, first, count);
    const bool carries_in_c_n = c_n.scalar_type() == kAccumulated;
    const Tensor cell = carries_in_c_n ? c_n : device_.empty({count, state_size}, kAccumulated);
    auto* const h_data = h.mutable_data_ptr<scalar_t>();
    auto* const cell_data = cell.mutable_data_ptr<acc_t>();
    start_rows(first, count, h_data, cell_data);

    const Tensor z_h = device_.empty({count, gates}, kAccumulated);
    const int64_t row_bytes = gates * static_cast<int64_t>(sizeof(acc_t)) +
                              sizes_.input_features * static_cast<int64_t>(sizeof(scalar_t));
    const int64_t at_once = std::clamp<int64_t>(
        kLibraryChunkBytes / (count * row_bytes), 1, std::max<int64_t>(sizes_.steps, 1));
    const Tensor chunk = device_.empty({at_once, count, gates}, kAccumulated);
    StepProblem step{};
    step.batch = count;
    step.state_size = state_size;
    step.added = {data_or_null<scalar_t>(bias_), 0};
    step.old_cell = {cell_data, state_size};
    step.next_cell = cell_data;
    step.rows = rows_from(first);
    step.next_h = {h_data, state_size};
    step.h_n = h_data;
    int64_t first_time = 0;  // in the chunk
    for (int64_t k = 0; k < sizes_.steps; ++k) {
      const int64_t t = time_of(k);
      if (k % at_once == 0) {
        const int64_t steps = std::min(at_once, sizes_.steps - k);
        first_time = std::min(t, time_of(k + steps - 1));
        const Tensor input = arguments_.input.narrow(0, first_time, steps).narrow(1, first, count);
        product_out(
            chunk.narrow(0, 0, steps).flatten(0, 1), input.flatten(0, 1), arguments_.weight_ih.t());
      }
      step.t = t;
      step.next_t = k + 1 == sizes_.steps ? kNever : time_of(k + 1);
      step.new_h = at(outputs_.output, t, first);
      step.new_cell = at(outputs_.cells, t, first);
      step.gates = at(outputs_.gates, t, first);
      product_out(z_h, h, arguments_.weight_hh.t());
      const SequenceStepParams<scalar_t> params{
          step,
          chunk.const_data_ptr<acc_t>() + (t - first_time) * count * gates,
          z_h.const_data_ptr<acc_t>()};
      check_launch(with_cell(arguments_.cell, [&]<typename Cell>() {
        return launch_sequence_step<Cell>(params, device_.stream());
      }));
    }
    if (!carries_in_c_n) {
      Tensor(c_n).copy_(cell);
    }
  }

  const SequenceOutputs& outputs_;
  const RecurrentArguments& arguments_;
  const SequenceSizes<int64_t>& sizes_;
  const Device& device_;
  const bool reverse_;
  const Tensor bias_;  // contiguous, or undefined
};

}  // namespace

void library_sequence_out(const SequenceOutputs& outputs,
                          const RecurrentArguments& arguments,
                          const SequenceSizes<int64_t>& sizes,
                          const Device& device,
                          bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        LibraryForward<scalar_t>(outputs, arguments, sizes, device, reverse).run();
      });
}

}  // namespace lltm::cuda
