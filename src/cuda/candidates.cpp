#include "candidates.h"

#include "plan_backward.h"
#include "plan_sequence_backward.h"

#include <algorithm>
#include <vector>

namespace lltm::cuda {
namespace {

constexpr Group kGroups[] = {Group::kFewRows, Group::kHopper, Group::kTiles, Group::kLibrary};

const std::vector<std::string_view>& candidate_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    const auto add = [&](const auto& candidates) {
      for (const auto& candidate : candidates) {
        all.push_back(candidate.name);
      }
    };
    add(forward_candidates());
    add(backward_candidates());
    add(sequence_gradient_candidates());
    return all;
  }();
  return names;
}

}  // namespace

std::optional<Selection> parse_selection(std::string_view path) {
  if (path.empty() || path == "auto") {
    return Selection{};
  }
  for (const Group group : kGroups) {
    if (path == name_of(group)) {
      return Selection{.group = group};
    }
  }
  int ranks = 0;
  if (const size_t colon = path.find(':'); colon != std::string_view::npos) {
    const std::string_view digits = path.substr(colon + 1);
    if (digits.size() != 1 || digits[0] < '1' || digits[0] > '0' + kLargestCluster) {
      return std::nullopt;
    }
    ranks = digits[0] - '0';
    path = path.substr(0, colon);
  }
  const auto name = std::ranges::find(candidate_names(), path);
  return name == candidate_names().end() ? std::nullopt
                                         : std::optional(Selection{.name = *name, .ranks = ranks});
}

std::string selectable() {
  std::string all = "auto";
  for (const Group group : kGroups) {
    all.append(" ").append(name_of(group));
  }
  for (const std::string_view name : candidate_names()) {
    all.append(" ").append(name);
  }
  return all;
}

}  // namespace lltm::cuda

__attribute__((visibility("default"))) const char* lltm_cuda_paths() {
  static const std::string all = lltm::cuda::selectable();
  return all.c_str();
}
