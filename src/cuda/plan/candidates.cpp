#include "candidates.h"

#include "../step_problem.h"
#include "forward.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>
#include <vector>

namespace lltm::cuda {
namespace {

// In the order of the groups.
constexpr std::string_view kGroups[] = {
    "few_rows", "hopper", "tiles", "library", "block", "cluster", "grid", "steps"};

std::vector<std::string_view> all_names() {
  std::vector<std::string_view> all;
  for (const Work work : {Work::kForward, Work::kBackward, Work::kStepBackward, Work::kSequence}) {
    std::ranges::transform(candidates(work), std::back_inserter(all), &Candidate::name);
  }
  return all;
}
const std::vector<std::string_view>& candidate_names() {
  static const std::vector<std::string_view> names = all_names();
  return names;
}

/// Of its address, only the alignment counts.
Matrix contiguous(int64_t columns) {
  return {reinterpret_cast<const void*>(4096), columns};
}

/// A problem of a cell, or of a step of its sequence, on contiguous matrices.
Shape forward_of(const Shape& of) {
  StepOperands operands{.size = of.element_bytes(),
                        .gates = of.gates(),
                        .input_features = of.input_features,
                        .state_size = of.state_size};
  const bool one_matrix = of.cell == CellType::kLltm;
  const Matrix input = contiguous(of.input_features);
  const Matrix weights = contiguous(of.state_size + (one_matrix ? of.input_features : 0));
  const Matrix weights_input =
      one_matrix ? weights.from(of.state_size, operands.size) : contiguous(of.input_features);
  if (of.is_step()) {
    operands.choose_copies(is_describable(weights, of.state_size, operands.size),
                           is_describable(weights_input, of.input_features, operands.size),
                           is_describable(input, of.input_features, operands.size));
    if (operands.weights_bytes() > StepOperands::kWeightsBytes) {
      operands.copies_weights = operands.copies_weights_input = false;
    }
  }
  ForwardProblem problem = operands.problem(of.batch, input, weights, weights_input);
  if (!of.is_step()) {
    problem.old_h = contiguous(of.state_size);
  }
  return forward_shape(*of.arithmetic, problem, of.is_step(), of.cell);
}

/// The same of any work.
Shape contiguous(Shape of) {
  switch (of.work) {
    case Work::kStepBackward:
      of = of.step_backward();
      of.steps = 24;  // as many as tools/tune measures
      return of;
    case Work::kBackward:
      of.vector_rows = contiguous(of.input_features).starts_at_vectors(of.element_bytes()) &&
                       contiguous(of.state_size).starts_at_vectors(of.element_bytes());
      return of;
    default:
      return forward_of(of);
  }
}

ContiguousEstimate answer(const Candidate& of,
                          const DeviceFacts& device,
                          Shape shape,
                          const ContiguousProblem& problem) {
  shape.arithmetic = static_cast<Arithmetic>(problem.arithmetic);
  shape.batch = problem.batch;
  shape.input_features = problem.input_features;
  shape.state_size = problem.state_size;
  shape = contiguous(shape);
  const auto found = estimate(of, shape, device, static_cast<int>(problem.ranks));
  if (!found) {
    return {std::numeric_limits<double>::quiet_NaN(), 0, 0};
  }
  return {found->us, of.has_ranks() ? found->ranks : 0, is_exact(of, shape)};
}

std::string all_times() {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  for (const Work work : {Work::kForward, Work::kStepBackward}) {
    const auto& names = work == Work::kForward ? ForwardTimes::kNames : StepBackwardTimes::kNames;
    for (const Candidate& of : candidates(work)) {
      for (size_t i = 0; i < of.times.size(); ++i) {
        text << of.name << '.' << names[i] << ' ' << of.times[i] << '\n';
      }
    }
  }
  return text.str();
}

}  // namespace

std::optional<Selection> parse_selection(std::string_view path) {
  if (path.empty() || path == "auto") {
    return Selection{};
  }
  if (const auto* const group = std::ranges::find(kGroups, path); group != std::end(kGroups)) {
    return Selection{.group = static_cast<Group>(group - kGroups)};
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

std::string_view name_of(Group group) {
  return kGroups[static_cast<size_t>(group)];
}

std::string selectable() {
  std::string all = "auto";
  const auto add = [&](std::string_view name) { all.append(" ").append(name); };
  std::ranges::for_each(kGroups, add);
  std::ranges::for_each(candidate_names(), add);
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

__attribute__((visibility("default"))) const char* lltm_cuda_times() {
  static const std::string all = all_times();
  return all.c_str();
}

__attribute__((visibility("default"))) bool lltm_cuda_estimates(const char* name,
                                                                bool of_lstm,
                                                                bool of_steps,
                                                                const DeviceFacts* device,
                                                                const double* times,
                                                                const ContiguousProblem* problems,
                                                                int64_t count,
                                                                ContiguousEstimate* estimates) {
  Shape shape{.cell = of_lstm ? lltm::CellType::kLstm : lltm::CellType::kLltm};
  for (const Work work :
       {of_steps ? Work::kStep : Work::kForward, Work::kStepBackward, Work::kBackward}) {
    shape.work = work;
    for (Candidate of : candidates(work)) {
      if (times != nullptr && work != Work::kBackward) {
        std::copy_n(times, of.times.size(), of.times.begin());
        times += of.times.size();
      }
      if (of.name == name) {
        std::transform(
            problems, problems + count, estimates, [&](const ContiguousProblem& problem) {
              return answer(of, *device, shape, problem);
            });
        return true;
      }
    }
  }
  return false;
}
