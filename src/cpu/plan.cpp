#include "plan.h"

#include "../dispatch/optional_tensor.h"
#include "kernel_arguments.h"

#include <ATen/Dispatch.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <optional>
#include <string>
#include <type_traits>

namespace lltm::cpu {
namespace {

/// The limit for packed operands and a copy of weights with strided rows, or for the workspace of a
/// cell, out of the 64 MiB that a call's workspace may take.
constexpr int64_t kMaxWorkspaceBytes = 48 << 20;

/// The value of LLTM_CPU_GEMM. Like LLTM_CUDA_PATH, it is read at every call, under the lock with
/// which PyTorch changes the environment.
std::optional<Path> forced() {
  const std::string value = c10::utils::get_env("LLTM_CPU_GEMM").value_or("auto");
  if (value.empty() || value == "auto") {
    return std::nullopt;
  }
  if (value == "own") {
    return Path::kFused;
  }
  TORCH_CHECK(value == "aten",
              "lltm: expected the environment variable LLTM_CPU_GEMM to be auto, own or aten, got ",
              value);
  return Path::kLibrary;
}

/// When the fused kernels are the faster ones, by the measurements of docs/cpu-kernels.md.
enum class Fused { kNever, kForward, kSmall, kAlways };

struct FusedByDtype {
  InstructionSet instruction_set;
  Fused float64, float32, float16, bfloat16;
};

using enum Fused;

// clang-format off
constexpr FusedByDtype kTable[] = {
    //                             float64   float32    float16   bfloat16
    {InstructionSet::kAvx512Amx,   kNever,   kAlways,   kAlways,  kSmall},
    {InstructionSet::kAvx512Bf16,  kAlways,  kAlways,   kAlways,  kAlways},
    {InstructionSet::kAvx512,      kNever,   kAlways,   kAlways,  kAlways},
    {InstructionSet::kAvx2,        kNever,   kForward,  kAlways,  kAlways},
    {InstructionSet::kBaseline,    kNever,   kNever,    kNever,   kNever},
};
// clang-format on

Fused fused_by_measurement(at::ScalarType dtype) {
  const InstructionSet here = instruction_set();
  for (const FusedByDtype& row : kTable) {
    if (row.instruction_set == here) {
      return dtype == at::kDouble  ? row.float64
             : dtype == at::kFloat ? row.float32
             : dtype == at::kHalf  ? row.float16
                                   : row.bfloat16;
    }
  }
  return kNever;
}

bool cell_is_fused(at::ScalarType dtype, Pass pass, const CellSizes<int64_t>& sizes) {
  switch (fused_by_measurement(dtype)) {
    case kNever:
      return false;
    case kForward:
      return pass == Pass::kForward;
    case kSmall: {
      // Up to seven rows, or as many more as are multiplied while ATen prepares its product.
      const int64_t weights = sizes.gates * (sizes.state_size + sizes.input_features);
      return (sizes.batch - 7) * weights < 3'000'000;
    }
    case kAlways:
      break;
  }
  return true;
}

bool packed_weights_fit(const RecurrentArguments& arguments, const SequenceSizes<int64_t>& sizes) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        int64_t bytes = 0;
        for (const at::Tensor* weights : {&arguments.weight_ih, &arguments.weight_hh}) {
          const int64_t packed =
              packed_gates_size<scalar_t>(arguments.cell, sizes.state_size, weights->size(1));
          const int64_t copied = has_contiguous_rows(*weights) ? 0 : weights->numel();
          bytes += packed * static_cast<int64_t>(sizeof(accumulate_t<scalar_t>)) +
                   copied * static_cast<int64_t>(sizeof(scalar_t));
        }
        return bytes <= kMaxWorkspaceBytes;
      });
}

}  // namespace

Path plan_cell(at::ScalarType dtype, Pass pass, const CellSizes<int64_t>& sizes) {
  const std::optional<Path> path = forced();
  return path ? *path : cell_is_fused(dtype, pass, sizes) ? Path::kFused : Path::kLibrary;
}

// Packing the weights does not pay for a single step.
template <typename Arguments>
bool runs_as_cell(const Arguments& arguments, const SequenceSizes<int64_t>& sizes) {
  int64_t columns = sizes.gates + sizes.state_size + sizes.input_features;
  if (is_given(arguments.lengths) || is_given(arguments.reset)) {
    columns += 2 * sizes.state_size + sizes.input_features;  // copies with zeros
  }
  const at::ScalarType dtype = arguments.input.scalar_type();
  // There is no other single step of an LSTM or a GRU than the fused one.
  constexpr bool kMustBeFused = !std::is_same_v<Arguments, LltmSequenceArguments>;
  return sizes.steps == 1 &&
         sizes.batch * columns * static_cast<int64_t>(sizeof(double)) <= kMaxWorkspaceBytes &&
         (!kMustBeFused || plan_cell(dtype, Pass::kForward, sizes.of_step()) == Path::kFused);
}

template bool runs_as_cell(const LltmSequenceArguments&, const SequenceSizes<int64_t>&);
template bool runs_as_cell(const LstmArguments&, const SequenceSizes<int64_t>&);
template bool runs_as_cell(const GruArguments&, const SequenceSizes<int64_t>&);

Path plan_sequence(const RecurrentArguments& arguments, const SequenceSizes<int64_t>& sizes) {
  if (const std::optional<Path> path = forced()) {
    return *path;
  }
  // Without the fused kernels, a 16-bit sequence multiplies in float, so the choice for float
  // applies to it. The forward and the backward take the same path.
  const bool is_double = arguments.input.scalar_type() == at::kDouble;
  const Fused fused = fused_by_measurement(is_double ? at::kDouble : at::kFloat);
  return fused != kNever && packed_weights_fit(arguments, sizes) ? Path::kFused : Path::kLibrary;
}

}  // namespace lltm::cpu
