// Copies of the operands that TMA cannot describe.
#pragma once

#include "kernels/pack.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace lltm::cuda {

/// A copy of a matrix in rows that TMA can describe.
struct PackedRows {
  bool wanted;
  Matrix& matrix;
  int64_t rows, columns;
  int64_t lead = 0;  // columns of zeros in front
};

/// Makes all wanted copies in one launch, and points their matrices to them. The returned memory
/// must live until the copies have been used; it is undefined if there are none.
inline at::Tensor pack(std::initializer_list<PackedRows> copies, int size, const Device& device) {
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
  at::Tensor memory = device.empty({bytes}, at::kByte);
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

/// The same of the operands of a backward's products that TMA cannot describe, by wgmma or
/// mma.sync.
inline at::Tensor pack(BackwardProblem& p,
                       Arithmetic arithmetic,
                       bool by_wgmma,
                       const Device& device) {
  const int size = element_size(arithmetic);
  const int64_t h = p.state_size, x = p.input_features;
  const auto must_pack = [&](const Matrix& matrix, int64_t columns) {
    return columns > 0 && !is_describable(matrix, columns, size);
  };
  // By wgmma in TF32, the inputs are transposed into a copy, from rows that start anywhere.
  const bool reads_inputs =
      p.d_weights != nullptr && !(by_wgmma && arithmetic == Arithmetic::kTf32);
  const bool halves = has_weights_in_halves(arithmetic, by_wgmma);
  const bool reads_weights = p.d_old_h != nullptr || (!halves && p.d_input != nullptr);
  const bool reads_weights_input = halves && p.d_input != nullptr;
  const int64_t columns = halves ? h : h + x;
  return pack({{reads_inputs && must_pack(p.old_h, h), p.old_h, p.batch, h},
               {reads_inputs && must_pack(p.input, x), p.input, p.batch, x},
               {reads_weights && must_pack(p.weights, columns), p.weights, 3 * h, columns},
               {reads_weights_input && must_pack(p.weights_input, x), p.weights_input, 3 * h, x}},
              size,
              device);
}

}  // namespace lltm::cuda
