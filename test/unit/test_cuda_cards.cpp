// Every launch of random problems fits the smallest and the largest card of each kind, by the code
// that runs on it. Without a GPU: the figures of cards are those that their vendor publishes.
#include "cell/with_cell.h"
#include "cuda/kernels/backward/kernels.h"
#include "cuda/kernels/grid/grid.h"
#include "cuda/kernels/recurrence/recurrence.h"
#include "cuda/kernels/sequence/kernels.h"
#include "cuda/launch_forward.h"
#include "cuda/plan/backward.h"
#include "cuda/plan/sequence.h"
#include "fake_cuda.h"
#include "launch_problems.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace lltm::cuda {
namespace {

using test::fake_cuda;
using test::KernelCode;

struct Card {
  const char* name;
  int multiprocessors, kib_a_block, largest_cluster;
  int ptx_version;
  bool wgmma = false;
};

// By machine code for 8.0 and 9.0a, and by the PTX of 9.0 and, in a library without that, of 8.0.
constexpr Card kCards[] = {
    {"A30", 56, 163, 1, 80},
    {"A100", 108, 163, 1, 80},
    {"RTX 3060", 28, 99, 1, 80},
    {"A40", 84, 99, 1, 80},
    {"Orin", 16, 163, 1, 80},
    {"RTX 4060", 24, 99, 1, 80},
    {"L40S", 142, 99, 1, 80},
    {"H20", 78, 227, 16, 90, true},
    {"H200", 132, 227, 16, 90, true},
    {"H20 PTX", 78, 227, 16, 90},
    {"H200 PTX", 132, 227, 16, 90},
    {"H200 old", 132, 227, 1, 80},
    {"B200", 148, 227, 16, 90},
    {"B200 old", 148, 227, 1, 80},
    {"RTX 5060", 30, 99, 8, 90},
    {"PRO 6000", 188, 99, 8, 90},
    {"RTX 5060 old", 30, 99, 1, 80},
    {"PRO 6000 old", 188, 99, 1, 80},
};

DeviceFacts facts_of(const Card& card) {
  constexpr int kGpc = 16;  // multiprocessors, of which a cluster has all of its own
  DeviceFacts facts{.multiprocessors = card.multiprocessors,
                    .shared_bytes_a_block = card.kib_a_block * 1024,
                    .tiles = true,
                    .wgmma = card.wgmma};
  for (int size = 1; size <= card.largest_cluster; ++size) {
    const int clusters =
        card.multiprocessors / kGpc * (kGpc / size) + card.multiprocessors % kGpc / size;
    facts.resident[static_cast<size_t>(size - 1)] =
        size == 1 ? card.multiprocessors : clusters * size;
    facts.resident_by_two[static_cast<size_t>(size - 1)] =
        2 * facts.resident[static_cast<size_t>(size - 1)];
  }
  return facts;
}

/// unit/kernels.txt, for an architecture.
std::map<std::string, KernelCode> code_for(const std::string& architecture) {
  std::ifstream file(LLTM_KERNELS);
  std::map<std::string, KernelCode> all;
  std::string line, name, figures;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    KernelCode code{};
    words >> name >> code.threads;
    while (words >> figures) {
      if (figures.starts_with(architecture + "=")) {
        char slash = 0;
        std::istringstream(figures.substr(architecture.size() + 1)) >> code.registers >> slash >>
            code.static_bytes;
        all[name] = code;
      }
    }
  }
  return all;
}

class Cards : public testing::TestWithParam<Card> {
 protected:
  /// Launches, unless nothing is planned for the problem. The launch fits.
  template <typename Launch>
  void expect_fits(const std::string& what, const Launch& launch) {
    const Card& card = GetParam();
    fake_cuda() = {.context = context_,
                   .ptx_version = card.ptx_version,
                   .shared_bytes_a_block = card.kib_a_block * 1024,
                   .largest_cluster = static_cast<unsigned>(card.largest_cluster),
                   .has_wgmma = card.wgmma,
                   .code = &code_};
    const cudaError_t error = launch();
    const auto& violations = fake_cuda().violations;
    EXPECT_TRUE(error == cudaSuccess && violations.empty())
        << what << ": error " << error << ", expected "
        << (violations.empty() ? "success" : violations[0]);
    launches_ += fake_cuda().launches;
  }

  Arithmetic random_arithmetic() {
    return kBuiltArithmetics[static_cast<size_t>(random_.below(kBuiltArithmetics.size()))];
  }
  CellType random_cell() { return random_.below(2) == 0 ? CellType::kLltm : CellType::kLstm; }
  CellType random_cell_of_all() { return static_cast<CellType>(random_.below(kCellTypes)); }

  /// Half of the time what is chosen, else a candidate by its name.
  Selection random_selection(Work work) {
    const auto all = candidates(work);
    const auto& of = all[static_cast<size_t>(random_.below(static_cast<int64_t>(all.size())))];
    if (random_.below(2) == 0) {
      return {};
    }
    return {.name = of.name, .ranks = static_cast<int>(random_.below(of.most_ranks + 1))};
  }

  void run_recurrence();
  void run_across_grid(const Shape& shape);
  void run_input_product();
  void run_forward();
  void run_step_backward();
  void run_backward();
  void run_gradient_products();

  static inline unsigned long long last_context = 3000;
  const unsigned long long context_ = ++last_context;
  const DeviceFacts facts_ = facts_of(GetParam());
  const std::map<std::string, KernelCode> code_ =
      code_for(GetParam().ptx_version < 90 ? "80" : "90a");
  Random random_;
  int launches_ = 0;
};

void Cards::run_recurrence() {
  Shape shape{.work = Work::kSequence,
              .cell = random_cell_of_all(),
              .arithmetic = random_arithmetic(),
              .steps = random_.log_uniform(1, 1e6),
              .batch = random_.log_uniform(1, 1e5),
              .input_features = random_.log_uniform(1, 300),
              .state_size = random_.log_uniform(1, 600),
              .backward = random_.below(2) == 0};
  shape.in_pairs = shape.state_size % 2 == 0;
  shape.input_in_pairs = shape.input_features % 2 == 0;
  const Candidate* const of = choose_recurrence(
      shape, facts_, random_selection(Work::kSequence), std::numeric_limits<double>::infinity());
  if (of == nullptr) {
    return;
  }
  if (of->group == Group::kGrid) {
    run_across_grid(shape);
    return;
  }
  const int group_rows = rows_of_group(of->recurrence, shape.batch, facts_);
  const auto launch = [&]<typename scalar_t, template <typename> typename Problem>() {
    Problem<scalar_t> problem{};
    problem.steps = shape.steps;
    problem.rows = shape.batch;
    problem.group_rows = group_rows;
    problem.state_size = shape.state_size;
    if constexpr (std::is_same_v<Problem<scalar_t>, RecurrenceForward<scalar_t>>) {
      problem.input_features = of->recurrence.x_inside ? shape.input_features : 0;
      problem.follows_input_product = !of->recurrence.x_inside;
      problem.least_shared_bytes =
          of->recurrence.x_inside ? 0 : static_cast<int>(random_.below(kSpreadBytes + 1));
    }
    return with_cell(shape.cell, [&]<typename Cell>() {
      if constexpr (std::is_same_v<scalar_t, float>) {
        return launch_recurrence_fma<Cell>(problem, of->recurrence, nullptr);
      } else {
        return launch_recurrence_mma<Cell>(problem, of->recurrence, nullptr);
      }
    });
  };
  expect_fits(std::string(of->name), [&] {
    return with_arithmetic(*shape.arithmetic, [&]<Arithmetic kArithmetic>() {
      using scalar_t = TensorElement<kArithmetic>;
      return shape.backward ? launch.template operator()<scalar_t, RecurrenceBackward>()
                            : launch.template operator()<scalar_t, RecurrenceForward>();
    });
  });
}

void Cards::run_across_grid(const Shape& shape) {
  const Arithmetic arithmetic = *shape.arithmetic;
  const std::optional<GridPlan> plan = plan_grid(shape, facts_);
  ASSERT_TRUE(plan.has_value());
  ASSERT_LE(plan->teams.teams * plan->teams.blocks, facts_.multiprocessors);
  const auto launch = [&](auto problem, const auto& run) {
    problem.steps = shape.steps;
    problem.rows = shape.batch;
    problem.group_rows = plan->rows_of_team();
    problem.state_size = shape.state_size;
    problem.grid = plan->teams;
    problem.workspace = parts_of(memory(0),
                                 grid_workspace(plan->tile,
                                                plan->teams,
                                                gates_of(shape.cell),
                                                arithmetic,
                                                shape.backward,
                                                shape.batch));
    return run(problem);
  };
  expect_fits(shape.backward ? "grid, backward" : "grid, forward", [&] {
    return with_cell(shape.cell, [&]<typename Cell>() {
      return with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
        using Element = TensorElement<kArithmetic>;
        return shape.backward
                   ? launch(OfGrid<RecurrenceBackward<Element>>{},
                            [&](const auto& problem) {
                              return launch_recurrence_grid<Cell, kArithmetic>(
                                  problem, plan->tile, nullptr);
                            })
                   : launch(OfGrid<RecurrenceForward<Element>>{}, [&](const auto& problem) {
                       return launch_recurrence_grid<Cell, kArithmetic>(
                           problem, plan->tile, random_.below(2) == 0, nullptr);
                     });
      });
    });
  });
}

void Cards::run_input_product() {
  const Shape shape{.arithmetic = random_arithmetic(),
                    .batch = random_.log_uniform(1, 1e6),
                    .input_features = random_.log_uniform(1, 2500),
                    .state_size = random_.log_uniform(1, 1000),
                    .columns = 4 * random_.log_uniform(1, 1000)};
  const InputProductPlan plan = plan_input_product(shape, facts_);
  if (plan.kernel == InputProductKernel::kSmall) {
    expect_fits("input_product", [&] {
      return with_arithmetic(*shape.arithmetic, [&]<Arithmetic kArithmetic>() {
        InputProductProblem<TensorElement<kArithmetic>> problem{};
        problem.steps = 1;
        problem.rows = shape.batch;
        problem.input_features = shape.input_features;
        problem.columns = shape.columns;
        return launch_input_product(problem, nullptr);
      });
    });
  } else if (plan.kernel == InputProductKernel::kWgmmaFloat32) {
    const int64_t stride = packed_stride(shape.input_features, sizeof(float));
    const Float32InputProduct problem{.rows = shape.batch,
                                      .input_features = shape.input_features,
                                      .columns = shape.columns,
                                      .input = {memory(0), stride},
                                      .weights = {memory(1), stride},
                                      .bias = nullptr,
                                      .bias_stride = 0,
                                      .z_x = nullptr};
    expect_fits("input_product_wgmma", [&] {
      return launch_input_product_wgmma_float32(
          problem, plan.tile_rows, facts_.multiprocessors, nullptr);
    });
  }
}

/// A cell, a sequence of one step, or a step of a sequence.
void Cards::run_forward() {
  const Arithmetic arithmetic = random_arithmetic();
  const int size = element_size(arithmetic);
  const CellType cell = random_cell_of_all();
  const bool is_step = random_.below(2) == 0;
  StepProblem step = random_step(random_, size);
  OneStepProblem one_step = random_one_step(random_, size);
  if (cell == CellType::kLltm) {
    one_step.weights.stride = one_step.state_size + one_step.input_features + random_.below(9);
    one_step.weights_input = one_step.weights.from(one_step.state_size, size);
  }
  step.batch = one_step.batch = random_.below(3) == 0 ? random_.log_uniform(1, 16) : step.batch;
  const Shape shape =
      forward_shape(arithmetic,
                    is_step ? static_cast<ForwardProblem&>(step) : layout_of(one_step),
                    is_step,
                    cell);
  const ForwardPlan plan = choose_forward(shape, facts_, random_selection(Work::kForward));
  if (plan.by_library()) {
    return;
  }
  if (!is_step) {
    pack(one_step, plan);
  }
  expect_fits(std::string(plan.choice.candidate->name), [&] {
    return is_step                   ? launch_forward(plan, step, nullptr)
           : cell == CellType::kLltm ? launch_forward<ForwardProblem>(plan, one_step, nullptr)
                                     : launch_forward(plan, one_step, nullptr);
  });
}

void Cards::run_step_backward() {
  const Arithmetic arithmetic = random_arithmetic();
  const CellType cell = random_cell();
  const int64_t state_size = random_.log_uniform(1, 5000), steps = random_.log_uniform(1, 1000);
  const Shape shape{.work = Work::kStepBackward,
                    .cell = cell,
                    .arithmetic = arithmetic,
                    .steps = steps,
                    .batch = random_.log_uniform(1, 1e5),
                    .state_size = state_size};
  const auto [candidate, estimate, is_selected] =
      choose(shape, facts_, random_selection(Work::kStepBackward));
  if (candidate->group == Group::kLibrary) {
    return;
  }
  const int size = element_size(arithmetic), ranks = estimate.ranks;
  const bool hopper = candidate->group == Group::kHopper;
  const TileShape tile = candidate->tile;
  expect_fits(std::string(candidate->name), [&] {
    return with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
      SequenceGradientsParams<TensorElement<kArithmetic>> params{};
      params.steps = steps;
      params.rows = shape.batch;
      params.state_size = state_size;
      params.last_t = random_.below(steps);
      const Matrix weights{memory(0), packed_stride(hopper ? shape.gates() : state_size, size)};
      params.d_gates = reinterpret_cast<TensorElement<kArithmetic>*>(memory(1));
      params.d_gates_stride = packed_stride(shape.gates(), size);
      if (!hopper) {
        return launch_sequence_gradient_tiles<kArithmetic>(params, weights, tile, ranks, nullptr);
      }
      return with_cell(cell, [&]<typename Cell>() {
        return launch_sequence_gradient_wgmma<cell::CombinedOf<Cell>, kArithmetic>(
            params, weights, tile, ranks, nullptr);
      });
    });
  });
}

void Cards::run_backward() {
  const Arithmetic arithmetic = random_arithmetic();
  BackwardProblem p = random_problem(random_, element_size(arithmetic), /*vectors=*/true, 7);
  p.batch = random_.below(3) == 0 ? random_.log_uniform(1, 16) : p.batch;
  Shape shape = shape_of(arithmetic, p, /*vectors=*/true);
  shape.cell = random_cell_of_all();
  p.gates = shape.gates();
  p.d_gates_stride = packed_stride(p.gates, element_size(arithmetic));
  const auto [candidate, estimate, is_selected] =
      choose(shape, facts_, random_selection(Work::kBackward));
  const Group group = candidate->group;
  const GradientPlan plan = estimate.plan;
  expect_fits(std::string(candidate->name), [&] {
    return with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
      GateGradientsParams<TensorElement<kArithmetic>> gates{};
      gates.batch = p.batch;
      gates.state_size = p.state_size;
      gates.d_gates_stride = p.d_gates_stride;
      gates.blocks_at_once = 2 * facts_.multiprocessors;
      gates.blocks_in_clusters = 2 * facts_.resident_in_clusters_of(kLargestCluster);
      gates.bias_in_parts = group == Group::kHopper;
      cudaError_t error = with_cell(shape.cell, [&]<typename Cell>() {
        return group == Group::kFewRows
                   ? launch_backward_few_rows<Cell>(gates, p, plan.ranks, nullptr)
                   : launch_gate_gradients<Cell>(gates, nullptr);
      });
      if (error == cudaSuccess && group == Group::kHopper) {
        error = launch_backward_wgmma<kArithmetic>(
            p, plan, reinterpret_cast<float*>(memory(7)), nullptr);
      } else if (error == cudaSuccess && group == Group::kTiles) {
        error = launch_backward_tiles<kArithmetic>(p, plan, nullptr);
      }
      return error;
    });
  });
}

/// Of all steps of a short sequence.
void Cards::run_gradient_products() {
  const int64_t rows = random_.log_uniform(1, 1e5), state_size = random_.log_uniform(1, 300),
                input_features = random_.log_uniform(1, 300);
  const Shape shape{.cell = CellType::kGru,
                    .batch = rows,
                    .input_features = input_features,
                    .state_size = state_size};
  if (!are_small_gradient_products(shape)) {
    return;
  }
  expect_fits("gradient_products", [&] {
    return with_arithmetic(random_arithmetic(), [&]<Arithmetic kArithmetic>() {
      using Element = TensorElement<kArithmetic>;
      GradientProducts<cell::Gru, Element> problem{};
      problem.old_h.steps = rows;
      problem.old_h.rows = 1;
      problem.state_size = state_size;
      problem.input_features = input_features;
      problem.columns = shape.gates();
      problem.d_input = reinterpret_cast<Element*>(memory(0));
      problem.d_weights = {reinterpret_cast<Element*>(memory(1)), nullptr, state_size, 0};
      problem.parts = parts_of_weight_gradient(shape, facts_);
      problem.weight_parts =
          problem.parts.count > 1 ? reinterpret_cast<float*>(memory(2)) : nullptr;
      return launch_gradient_products(problem, nullptr);
    });
  });
}

TEST_P(Cards, FitEveryLaunch) {
  ASSERT_GT(code_.size(), 500u);
  constexpr int kProblems = 100'000;
  for (int i = 0; i < kProblems && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    switch (i % 32) {  // some plans take longer than others
      case 0:
        run_backward();
        break;
      case 1:
      case 2:
        run_step_backward();
        break;
      case 3:
      case 4:
        run_gradient_products();
        break;
      case 5:
      case 6:
        run_input_product();
        break;
      default:
        i % 3 == 0 ? run_forward() : run_recurrence();
    }
  }
  EXPECT_GT(launches_, kProblems / 5);
}

INSTANTIATE_TEST_SUITE_P(Of, Cards, testing::ValuesIn(kCards), [](const auto& info) {
  std::string name = info.param.name;
  std::erase(name, ' ');
  return name;
});

}  // namespace
}  // namespace lltm::cuda
