// All candidates by their names: those of the forward, of the backward, and of the steps of a
// sequence's backward.
//
// The functions in C are for programs that measure the candidates and fit the model's constants to
// the times (tools/tune). They and their structs may change with any version.
#pragma once

#include "choice.h"
#include "facts.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lltm::cuda {

/// Returns what a value of LLTM_CUDA_PATH (plan.h) selects, or nothing if it is unknown.
std::optional<Selection> parse_selection(std::string_view path);

/// The value that selects a group.
std::string_view name_of(Group group);

/// The values of LLTM_CUDA_PATH, separated by spaces, without those that have ranks.
std::string selectable();

/// A problem of contiguous matrices, and the number of ranks, or 0 for those with the least
/// estimate. `arithmetic` is an enumerator of Arithmetic.
struct ContiguousProblem {
  int64_t arithmetic, batch, input_features, state_size, ranks;
};

/// The answer for a problem: microseconds, which are NaN if the candidate does not support it, the
/// ranks, if the model chooses them, and whether the candidate may be chosen without being
/// selected.
struct ContiguousEstimate {
  double us;
  int32_t ranks, by_default;
};

}  // namespace lltm::cuda

extern "C" {

/// selectable().
const char* lltm_cuda_paths();

/// The initializer of the model's constants in costs.h. They are doubles, in this order.
const char* lltm_cuda_costs();

/// The times of all candidates' tiles, in lines of a name and a number.
const char* lltm_cuda_times();

/// Estimates a candidate for `count` problems of the LLTM or, with `of_lstm`, of the LSTM; with
/// `of_steps`, a candidate of the forward for steps of their sequences. `times` are others than
/// lltm_cuda_times(), in its order, or null. Returns false if no candidate has the name.
bool lltm_cuda_estimates(const char* name,
                         bool of_lstm,
                         bool of_steps,
                         const lltm::cuda::DeviceFacts* device,
                         const double* times,
                         const lltm::cuda::ContiguousProblem* problems,
                         int64_t count,
                         lltm::cuda::ContiguousEstimate* estimates);

/// The facts about the current GPU. Returns an error of CUDA's, or zero.
int lltm_cuda_device_facts(lltm::cuda::DeviceFacts* facts);
}
