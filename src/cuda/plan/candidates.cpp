#include "candidates.h"

#include "../step_problem.h"
#include "backward.h"
#include "forward.h"
#include "recurrence.h"
#include "sequence_gradients.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <sstream>
#include <type_traits>
#include <vector>

namespace lltm::cuda {
namespace {

constexpr struct {
  std::string_view name;
  Group group;
} kGroups[] = {{"few_rows", Group::kFewRows},
               {"hopper", Group::kHopper},
               {"tiles", Group::kTiles},
               {"library", Group::kLibrary},
               {"block", Group::kBlock},
               {"cluster", Group::kCluster},
               {"grid", Group::kGrid},
               {"steps", Group::kSteps}};

const std::vector<std::string_view>& candidate_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    const auto add = [&](const auto& of) {
      for (const auto& candidate : of) {
        all.push_back(candidate.name);
      }
    };
    add(candidates<ForwardShape>());
    add(candidates<BackwardShape>());
    add(candidates<SequenceGradientShape>());
    add(candidates<RecurrenceShape>());
    return all;
  }();
  return names;
}

/// Of its address, only the alignment counts.
Matrix contiguous(int64_t columns) {
  return {reinterpret_cast<const void*>(4096), columns};
}

/// A problem of a cell, or of a step of its sequence, on contiguous matrices.
ForwardShape forward_of(const CommonShape& of, bool is_step) {
  StepOperands operands{.size = of.element_bytes(),
                        .gates = of.gates(),
                        .input_features = of.input_features,
                        .state_size = of.state_size};
  const bool one_matrix = of.cell == CellType::kLltm;
  const Matrix input = contiguous(of.input_features);
  const Matrix weights = contiguous(of.state_size + (one_matrix ? of.input_features : 0));
  const Matrix weights_input =
      one_matrix ? weights.from(of.state_size, operands.size) : contiguous(of.input_features);
  if (is_step) {
    operands.choose_copies(is_describable(weights, of.state_size, operands.size),
                           is_describable(weights_input, of.input_features, operands.size),
                           is_describable(input, of.input_features, operands.size));
    if (operands.weights_bytes() > StepOperands::kWeightsBytes) {
      operands.copies_weights = operands.copies_weights_input = false;
    }
  }
  ForwardProblem problem = operands.problem(of.batch, input, weights, weights_input);
  if (!is_step) {
    problem.old_h = contiguous(of.state_size);
  }
  return forward_shape(*of.arithmetic, problem, is_step, of.cell);
}

template <typename Shape>
Shape shape_of(const CommonShape& of, bool is_step) {
  if constexpr (std::is_same_v<Shape, ForwardShape>) {
    return forward_of(of, is_step);
  } else if constexpr (std::is_same_v<Shape, BackwardShape>) {
    return {of,
            contiguous(of.input_features).starts_at_vectors(of.element_bytes()) &&
                contiguous(of.state_size).starts_at_vectors(of.element_bytes())};
  } else {
    Shape step = step_gradient_shape(of);
    step.steps = 24;  // as many as tools/tune measures
    return step;
  }
}

template <typename Shape>
ContiguousEstimate answer(const Candidate<Shape>& candidate,
                          const DeviceFacts& device,
                          const ContiguousProblem& of,
                          bool of_lstm,
                          bool of_steps) {
  const auto shape = shape_of<Shape>({.cell = of_lstm ? CellType::kLstm : CellType::kLltm,
                                      .arithmetic = static_cast<Arithmetic>(of.arithmetic),
                                      .batch = of.batch,
                                      .input_features = of.input_features,
                                      .state_size = of.state_size},
                                     of_steps);
  const auto found = estimate_if_supported(candidate, shape, device, static_cast<int>(of.ranks));
  if (!found) {
    return {std::numeric_limits<double>::quiet_NaN(), 0, 0};
  }
  return {found->us, candidate.has_ranks() ? found->ranks : 0, is_exact(candidate, shape)};
}

/// The number of a candidate's times, all of which are doubles.
template <typename Shape>
constexpr size_t kTimes = sizeof(typename Shape::Times) / sizeof(double);

std::string all_times() {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  const auto add = [&]<typename Shape>() {
    for (const Candidate<Shape>& candidate : candidates<Shape>()) {
      const auto times = std::bit_cast<std::array<double, kTimes<Shape>>>(candidate.times);
      for (size_t i = 0; i < times.size(); ++i) {
        text << candidate.name << '.' << Shape::Times::kNames[i] << ' ' << times[i] << '\n';
      }
    }
  };
  add.template operator()<ForwardShape>();
  add.template operator()<SequenceGradientShape>();
  return text.str();
}

/// A candidate with its part of `times`, which begin with those of its Shape.
template <typename Shape>
Candidate<Shape> with_times(const Candidate<Shape>& candidate, const double* times) {
  Candidate<Shape> changed = candidate;
  if (kTimes<Shape> > 0 && times != nullptr) {
    const auto index = &candidate - candidates<Shape>().data();
    std::memcpy(
        static_cast<void*>(&changed.times), times + index * kTimes<Shape>, sizeof(changed.times));
  }
  return changed;
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
  return std::ranges::find(kGroups, group, [](const auto& of) { return of.group; })->name;
}

std::string selectable() {
  std::string all = "auto";
  for (const auto& of : kGroups) {
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
  const auto answer_all = [&]<typename Shape>(const double* of_shape) {
    const auto all = candidates<Shape>();
    const auto found = std::ranges::find_if(all, [&](const auto& of) { return of.name == name; });
    if (found == all.end()) {
      return false;
    }
    const Candidate<Shape> candidate = with_times(*found, of_shape);
    std::transform(problems, problems + count, estimates, [&](const ContiguousProblem& problem) {
      return answer(candidate, *device, problem, of_lstm, of_steps);
    });
    return true;
  };
  const double* const of_gradients =
      times == nullptr ? nullptr : times + candidates<ForwardShape>().size() * kTimes<ForwardShape>;
  return answer_all.template operator()<ForwardShape>(times) ||
         answer_all.template operator()<BackwardShape>(nullptr) ||
         answer_all.template operator()<SequenceGradientShape>(of_gradients);
}
