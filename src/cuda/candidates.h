// All candidates by their names: those of the forward, of the backward, and of the steps of a
// sequence's backward.
#pragma once

#include "model.h"

#include <optional>
#include <string>
#include <string_view>

namespace lltm::cuda {

/// Returns what a value of LLTM_CUDA_PATH (plan.h) selects, or nothing if it is unknown.
std::optional<Selection> parse_selection(std::string_view path);

/// The values of LLTM_CUDA_PATH, separated by spaces, without those that have ranks.
std::string selectable();

}  // namespace lltm::cuda

/// selectable(), for programs that measure the candidates.
extern "C" const char* lltm_cuda_paths();
