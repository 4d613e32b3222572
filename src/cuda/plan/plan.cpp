#include "plan.h"

#include "../../cell/descriptor.h"
#include "../../operators/tf32.h"
#include "../runtime/device_facts.h"
#include "candidates.h"

#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <string>

namespace lltm::cuda {

Selection selection() {
  const std::string path = c10::utils::get_env("LLTM_CUDA_PATH").value_or("");
  const std::optional<Selection> selected = parse_selection(path);
  TORCH_CHECK(selected.has_value(),
              "lltm: expected the environment variable LLTM_CUDA_PATH to be one of ",
              selectable(),
              ", or NAME:RANKS with 1 to ",
              kLargestCluster,
              " ranks, got ",
              path);
  return *selected;
}

std::optional<Arithmetic> arithmetic_of(c10::ScalarType dtype, CellType cell) {
  switch (dtype) {
    case at::kFloat:
      return allows_tf32(cell) ? Arithmetic::kTf32 : Arithmetic::kFloat32;
    case at::kHalf:
      return Arithmetic::kFloat16;
    case at::kBFloat16:
      return Arithmetic::kBFloat16;
    default:
      return std::nullopt;
  }
}

ForwardPlan plan_forward(const DeviceFacts& device,
                         Arithmetic arithmetic,
                         const ForwardProblem& problem) {
  return recent_choice<choose_forward>(
      forward_shape(arithmetic, problem, /*is_step=*/false), device, selection());
}

SequencePlan plan_sequence(const DeviceFacts& device, const SequenceShape& shape) {
  const Selection selected = selection();
  const SequencePlan plan = recent_choice<choose_sequence>(shape, device, selected);
  if (plan.recurrence == nullptr && selected.group && runs_all_steps(*selected.group)) {
    const std::string why = why_no_recurrence(shape, device, *selected.group);
    TORCH_CHECK(why.empty(),
                descriptor_of(shape.cell).name,
                shape.backward ? "_backward" : "",
                ": LLTM_CUDA_PATH=",
                name_of(*selected.group),
                " ",
                why);
  }
  return plan;
}

Choice plan_backward(const DeviceFacts& device, const Shape& shape) {
  const Selection selected = selection();  // an unknown one is an error for every size
  const bool is_empty = shape.batch == 0 || shape.state_size == 0;
  return recent_choice<choose>(
      shape, device, is_empty ? Selection{.group = Group::kLibrary} : selected);
}

}  // namespace lltm::cuda

__attribute__((visibility("default"))) int lltm_cuda_device_facts(lltm::cuda::DeviceFacts* facts) {
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaGetDeviceProperties(&properties, device);
  }
  if (error == cudaSuccess) {
    error = lltm::cuda::device_facts(properties, facts);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // else the next launch of the program would report it
  }
  return error;
}
