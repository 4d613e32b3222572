#include "candidates.h"

#include "../step_problem.h"
#include "backward.h"
#include "forward.h"
#include "recurrence.h"
#include "sequence_gradients.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace lltm::cuda {
namespace {

constexpr struct {
  std::string_view name;
  Group group;
} kGroups[] = {{"few_rows", Group::kFewRows},
               {"hopper", Group::kHopper},
               {"tiles", Group::kTiles},
               {"library", Group::kLibrary}};

constexpr struct {
  std::string_view name;
  SequenceKernel kernel;
} kSequenceKernels[] = {{"block", SequenceKernel::kBlock},
                        {"cluster", SequenceKernel::kCluster},
                        {"steps", SequenceKernel::kSteps}};

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
    add(recurrence_candidates());
    return all;
  }();
  return names;
}

constexpr ContiguousEstimate kUnsupported{std::numeric_limits<double>::quiet_NaN(), 0, 0};

Arithmetic arithmetic_of(const ContiguousProblem& of) {
  return static_cast<Arithmetic>(of.arithmetic);
}

Matrix contiguous(int64_t columns) {
  return {nullptr, columns};
}

ForwardShape shape_for(const ForwardCandidate&, const ContiguousProblem& of, bool is_step) {
  const Matrix input = contiguous(of.input_features);
  const Matrix weights = contiguous(of.state_size + of.input_features);
  StepOperands operands{.size = element_size(arithmetic_of(of)),
                        .input_features = of.input_features,
                        .state_size = of.state_size};
  if (is_step) {
    operands.choose_copies(
        is_describable(weights, of.state_size + of.input_features, operands.size),
        is_describable(input, of.input_features, operands.size));
    operands.copies_weights &= operands.weights_bytes() <= StepOperands::kWeightsBytes;
  }
  ForwardProblem problem = operands.problem(of.batch, input, weights);
  if (!is_step) {
    problem.old_h = contiguous(of.state_size);
  }
  return forward_shape(arithmetic_of(of), problem, is_step);
}

BackwardShape shape_for(const BackwardCandidate&, const ContiguousProblem& of, bool) {
  const int size = element_size(arithmetic_of(of));
  return {.arithmetic = arithmetic_of(of),
          .batch = of.batch,
          .input_features = of.input_features,
          .state_size = of.state_size,
          .vector_rows = contiguous(of.input_features).starts_at_vectors(size) &&
                         contiguous(of.state_size).starts_at_vectors(size)};
}

SequenceGradientShape shape_for(const SequenceGradientCandidate&,
                                const ContiguousProblem& of,
                                bool) {
  // As many steps as tools/tune measures.
  return {.arithmetic = arithmetic_of(of),
          .steps = 24,
          .rows = of.batch,
          .state_size = of.state_size,
          .gates = 3 * of.state_size};
}

template <typename Candidate>
ContiguousEstimate answer(const Candidate& candidate,
                          const DeviceFacts& device,
                          const ContiguousProblem& of,
                          bool of_steps) {
  const auto shape = shape_for(candidate, of, of_steps);
  const auto found = estimate_if_supported(candidate, shape, device, static_cast<int>(of.ranks));
  if (!found) {
    return kUnsupported;
  }
  int ranks = 0;
  if constexpr (requires { found->ranks; }) {
    ranks = candidate.costs ? found->ranks : 0;
  }
  return {found->us, ranks, is_exact(candidate, shape)};
}

}  // namespace

std::optional<Selection> parse_selection(std::string_view path) {
  if (path.empty() || path == "auto") {
    return Selection{};
  }
  for (const auto& [name, group] : kGroups) {
    if (path == name) {
      return Selection{.group = group};
    }
  }
  for (const auto& [name, kernel] : kSequenceKernels) {
    if (path == name) {
      return Selection{.sequence = kernel};
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
  for (const auto& of : kGroups) {
    all.append(" ").append(of.name);
  }
  for (const auto& of : kSequenceKernels) {
    all.append(" ").append(of.name);
  }
  for (const std::string_view name : candidate_names()) {
    all.append(" ").append(name);
  }
  return all;
}

}  // namespace lltm::cuda

using namespace lltm::cuda;

__attribute__((visibility("default"))) const char* lltm_cuda_paths() {
  static const std::string all = selectable();
  return all.c_str();
}

__attribute__((visibility("default"))) const char* lltm_cuda_costs() {
  return kCostsText;
}

__attribute__((visibility("default"))) bool lltm_cuda_estimates(const char* name,
                                                                bool of_steps,
                                                                const DeviceFacts* device,
                                                                const ContiguousProblem* problems,
                                                                int64_t count,
                                                                ContiguousEstimate* estimates) {
  const auto answer_all = [&](const auto& candidates) {
    const auto found =
        std::ranges::find_if(candidates, [&](const auto& of) { return of.name == name; });
    if (found == candidates.end()) {
      return false;
    }
    std::transform(problems, problems + count, estimates, [&](const ContiguousProblem& problem) {
      return answer(*found, *device, problem, of_steps);
    });
    return true;
  };
  return answer_all(forward_candidates()) || answer_all(backward_candidates()) ||
         answer_all(sequence_gradient_candidates());
}
