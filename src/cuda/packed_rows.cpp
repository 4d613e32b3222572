#include "packed_rows.h"

#include "../cell/column_runs.h"
#include "kernels/pack.h"
#include "kernels/transpose.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"

namespace lltm::cuda {

using at::Tensor;

Tensor rows_of_vectors(int64_t rows, int64_t columns, c10::ScalarType dtype, const Device& device) {
  const auto size = static_cast<int>(c10::elementSize(dtype));
  return device.empty({rows, whole_vectors(columns, size)}, dtype).narrow(1, 0, columns);
}

Tensor describable_rows(const Tensor& tensor, const Device& device) {
  if (is_describable(tensor) && (tensor.dim() == 2 || tensor.is_contiguous())) {
    return tensor.flatten(0, -2);
  }
  const int64_t columns = tensor.size(-1);
  const Tensor copy =
      rows_of_vectors(tensor.numel() / columns, columns, tensor.scalar_type(), device);
  copy.view(tensor.sizes()).copy_(tensor);
  return copy;
}

Tensor contiguous_vectors(const Tensor& tensor) {
  const Tensor contiguous = tensor.contiguous();
  const bool aligned = reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 == 0;
  return aligned ? contiguous : contiguous.clone();
}

Tensor transposed(const Tensor& weights, c10::ArrayRef<int> of, const Device& device) {
  const auto runs = runs_of(of, weights.size(0) / static_cast<int64_t>(of.size()));
  TORCH_INTERNAL_ASSERT(runs.front().of_saved == 0 && runs.size() <= 2);
  const int64_t zeros = runs.back().of_saved - runs.back().of_side;
  const int64_t rows = weights.size(0) + zeros;
  const Tensor copy = rows_of_vectors(weights.size(1), rows, weights.scalar_type(), device);
  check_launch(launch_transpose({.element_size = static_cast<int>(weights.element_size()),
                                 .rows = rows,
                                 .columns = weights.size(1),
                                 .first_zeros = runs.front().count,
                                 .zeros = zeros,
                                 .from = weights.const_data_ptr(),
                                 .from_strides = {weights.stride(0), weights.stride(1)},
                                 .to = copy.mutable_data_ptr(),
                                 .to_stride = copy.stride(0)},
                                device.stream()));
  return copy;
}

Tensor pack(std::initializer_list<PackedRows> copies, int size, const Device& device) {
  const auto stride_of = [&](const PackedRows& of) {
    return packed_stride(of.lead + of.columns, size);
  };
  int64_t bytes = 0;
  for (const PackedRows& of : copies) {
    bytes += of.wanted ? of.rows * stride_of(of) * size : 0;
  }
  if (bytes == 0) {
    return {};
  }
  Tensor memory = device.empty({bytes}, at::kByte);
  auto* to = static_cast<char*>(memory.mutable_data_ptr());
  PackParams params;
  params.element_size = size;
  for (const PackedRows& of : copies) {
    if (!of.wanted) {
      continue;
    }
    const Matrix packed{to, stride_of(of)};
    params.add({of.matrix, of.rows, of.columns, packed, static_cast<int>(of.lead)});
    of.matrix = packed;
    to += of.rows * packed.stride * size;
  }
  check_launch(launch_pack(params, device.stream()));
  return memory;
}

Tensor pack(ForwardProblem& p, const ForwardPlan& plan, const Device& device) {
  const int size = element_size(plan.arithmetic);
  const int64_t h = p.state_size, x = p.input_features, gates = gates_of(plan.cell) * h;
  const bool one_matrix = plan.cell == CellType::kLltm;
  const ForwardPacks& packs = plan.packs;
  Tensor memory = pack({{packs.input, p.input, p.batch, x, packs.input_lead},
                        {packs.old_h, p.old_h, p.batch, h},
                        {packs.weights, p.weights, gates, one_matrix ? h + x : h},
                        {packs.weights_input && !one_matrix, p.weights_input, gates, x}},
                       size,
                       device);
  if (one_matrix) {
    p.weights_input = p.weights.from(h, size);
  }
  p.input_lead = packs.input_lead;
  return memory;
}

Tensor pack(BackwardProblem& p, Arithmetic arithmetic, bool by_wgmma, const Device& device) {
  const int size = element_size(arithmetic);
  const int64_t h = p.state_size, x = p.input_features;
  const auto must_pack = [&](const Matrix& matrix, int64_t columns) {
    return columns > 0 && !is_describable(matrix, columns, size);
  };
  // By wgmma in TF32, the inputs are transposed into a copy, from rows that start anywhere.
  const bool reads_inputs =
      p.d_weights.any_wanted() && !(by_wgmma && arithmetic == Arithmetic::kTf32);
  const bool halves = has_weights_in_halves(arithmetic, by_wgmma);
  const bool reads_weights = p.d_old_h != nullptr || (!halves && p.d_input != nullptr);
  const bool reads_weights_input = halves && p.d_input != nullptr;
  const int64_t columns = halves ? h : h + x;
  return pack({{reads_inputs && must_pack(p.old_h, h), p.old_h, p.batch, h},
               {reads_inputs && must_pack(p.input, x), p.input, p.batch, x},
               {reads_weights && must_pack(p.weights, columns), p.weights, p.gates, columns},
               {reads_weights_input && must_pack(p.weights_input, x), p.weights_input, p.gates, x}},
              size,
              device);
}

}  // namespace lltm::cuda
