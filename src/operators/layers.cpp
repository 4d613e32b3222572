// The layers of a recurrent module, in one operator for each cell: all layers and directions,
// dropout between layers, packs, batch_first, and single sequences. Composite, as aten::lstm is:
// each layer and direction is one call of the cell's operator, which autograd, autocast, the
// transforms and the exporters see.
//
// Messages begin with the module's name.
#include "checker.h"
#include "lltm/lltm.h"
#include "operators.h"

#include <ATen/Functions.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lltm {
namespace {

using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

/// What a layer computes in one direction, from the initial state, or all layers.
struct Run {
  Tensor output, h_n, c_n, cells;
};

// One call of each cell's operator, with the parameters of a layer and direction.

struct LltmLayers {
  static constexpr const char* kName = "LLTM";
  static constexpr int kWeights = 1, kBiases = 1, kStates = 2;

  static SymInt state_size(at::TensorList parameters) { return parameters[0].sym_size(0) / 3; }
  static SymInt input_size(at::TensorList parameters) {
    return parameters[0].sym_size(1) - state_size(parameters);
  }

  static Run run(at::TensorList parameters,
                 const Tensor& input,
                 const OptionalTensor& h0,
                 const OptionalTensor& c0,
                 const OptionalTensor& lengths,
                 const OptionalTensor& reset,
                 bool reverse,
                 bool keep) {
    const OptionalTensor bias = parameters.size() > 1 ? std::optional(parameters[1]) : std::nullopt;
    const auto results =
        op::LltmSequence::call({input, parameters[0], bias, h0, c0, lengths, reset}, reverse, keep);
    const auto& [output, h_n, c_n, cells, gates] = results;
    return {output, h_n, c_n, cells};
  }
};

struct LstmLayers {
  static constexpr const char* kName = "LSTM";
  static constexpr int kWeights = 2, kBiases = 2, kStates = 2;

  static SymInt state_size(at::TensorList parameters) { return parameters[1].sym_size(1); }
  static SymInt input_size(at::TensorList parameters) { return parameters[0].sym_size(1); }

  static Run run(at::TensorList parameters,
                 const Tensor& input,
                 const OptionalTensor& h0,
                 const OptionalTensor& c0,
                 const OptionalTensor& lengths,
                 const OptionalTensor& reset,
                 bool reverse,
                 bool keep) {
    // Not +, whose gradient would be that of both: one tensor, which clipping in place scales
    // twice.
    const OptionalTensor bias =
        parameters.size() > 2 ? std::optional(at::sub(parameters[2], parameters[3], /*alpha=*/-1))
                              : std::nullopt;
    const auto results = op::Lstm::call(
        {input, parameters[0], parameters[1], bias, h0, c0, lengths, reset}, reverse, keep);
    const auto& [output, h_n, c_n, cells, gates] = results;
    return {output, h_n, c_n, cells};
  }
};

/// The state that is carried, c0, is the only one: there is no h0 beside it.
struct GruLayers {
  static constexpr const char* kName = "GRU";
  static constexpr int kWeights = 2, kBiases = 2, kStates = 1;

  static SymInt state_size(at::TensorList parameters) { return parameters[1].sym_size(1); }
  static SymInt input_size(at::TensorList parameters) { return parameters[0].sym_size(1); }

  static Run run(at::TensorList parameters,
                 const Tensor& input,
                 const OptionalTensor& /*h0*/,
                 const OptionalTensor& c0,
                 const OptionalTensor& lengths,
                 const OptionalTensor& reset,
                 bool reverse,
                 bool /*keep*/) {
    OptionalTensor bias_ih, bias_hh;
    if (parameters.size() > 2) {
      bias_ih = parameters[2];
      bias_hh = parameters[3];
    }
    const auto results =
        op::Gru::call({input, parameters[0], parameters[1], bias_ih, bias_hh, c0, lengths, reset},
                      reverse,
                      /*keep=*/false);
    const auto& [output, h_n, gates] = results;
    return {output, h_n, h_n, output};
  }
};

/// The indices of packed rows among those of a tensor that is padded to `steps`, and the lengths of
/// the sequences. `sizes` are batch_sizes on the data's device, which is not synchronized with.
struct Padding {
  Padding(const Tensor& sizes, const SymInt& batch, const SymInt& packed_rows)
      : steps(sizes.sym_size(0)), sequences(batch) {
    const auto indices = [&](const SymInt& count) {
      return at::arange(c10::Scalar(count), sizes.options().dtype(at::kLong));
    };
    const Tensor shorter =
        at::searchsorted(sizes.flip(0), indices(batch), /*out_int32=*/false, /*right=*/true);
    lengths = at::rsub(shorter, c10::Scalar(steps));
    // A step takes `batch` rows in the padded tensor, and `sizes` rows in the packed data.
    const Tensor shift_of_step =
        indices(steps).mul(c10::Scalar(batch)).sub(sizes.cumsum(0).sub(sizes));
    rows = indices(packed_rows)
               .add(at::repeat_interleave_symint(shift_of_step, sizes, std::nullopt, packed_rows));
  }

  Tensor pad(const Tensor& packed) const {
    const SymInt features = packed.sym_size(1);
    return packed.new_zeros_symint({steps * sequences, features})
        .index_copy(0, rows, packed)
        .view_symint({steps, sequences, features});
  }
  Tensor pack(const Tensor& padded) const { return padded.flatten(0, 1).index_select(0, rows); }

  SymInt steps, sequences;
  Tensor lengths, rows;
};

/// Some steps of the sequences that run in the first of these.
struct Segment {
  int64_t first_step, first_row;
  Padding padding;
};

/// Whether a graph is being captured, which cannot depend on the values of this tensor.
bool is_traced(const Tensor& tensor) {
  return tensor.key_set().has_any(at::kTensorSubclassLike);
}

/// If few of many sequences are long, almost all of a padded tensor is padding. Then the steps are
/// divided into segments, at most half of which is padding, and the state is carried from segment
/// to segment. None if all steps are padded at once: because there is little padding, or because a
/// graph is being captured, which cannot depend on the sizes.
std::vector<Segment> make_segments(const Tensor& batch_sizes,
                                   const Tensor& sizes,
                                   const Tensor& data) {
  // Segments take more calls, and a gather in and out for every layer. They are used from this many
  // padded rows per packed one, and this much padding of the input.
  constexpr int64_t kPaddedRows = 4;
  constexpr int64_t kPaddingBytes = 1 << 20;
  std::vector<Segment> segments;
  if (is_traced(batch_sizes) || data.size(0) == 0) {
    return segments;
  }
  const auto* size = batch_sizes.const_data_ptr<int64_t>();
  const int64_t steps = batch_sizes.size(0);
  const int64_t packed = data.size(0), padded = steps * size[0];
  const int64_t padding = (padded - packed) * data.size(1) * data.element_size();
  if (padded < kPaddedRows * packed || padding < kPaddingBytes) {
    return segments;
  }
  int64_t row = 0;
  for (int64_t begin = 0, end = 0; begin < steps; begin = end) {
    int64_t rows = 0;
    for (; end < steps && 2 * size[end] >= size[begin]; ++end) {
      rows += size[end];
    }
    segments.push_back({begin, row, {sizes.slice(0, begin, end), size[begin], rows}});
    row += rows;
  }
  return segments;
}

/// The reset (T, N) of a reverse layer: a boundary between steps t-1 and t is crossed before step
/// t-1. A reset at index `length` belongs to a step that is not run. It must not clear the initial
/// state, which enters at the row's last step.
Tensor shift_to_reverse(const Tensor& reset, const OptionalTensor& lengths) {
  const Tensor shifted = at::constant_pad_nd(reset, {0, 0, 0, 1}).slice(/*dim=*/0, /*start=*/1);
  if (!lengths) {
    return shifted;
  }
  // (T, 1), and a DTensor where lengths are one, as arange() is not.
  const Tensor next_step = lengths->new_ones_symint({reset.sym_size(0), 1}).cumsum(0);
  return shifted.logical_and(next_step < *lengths);
}

/// A call of a module. Time first, with a batch, and with states (D * L, N, H).
template <typename Cell>
struct Layers : LayersArguments {
  at::TensorList parameters;
  std::vector<Segment> segments = {};  // of an input that is packed, as the results are then
  std::vector<Tensor> outputs = {}, cells = {};  // of each layer and direction, with keep

  size_t directions() const { return bidirectional ? 2 : 1; }

  size_t parameters_of_direction() const {
    return Cell::kWeights + (has_biases ? Cell::kBiases : 0);
  }

  /// The last state of each is stacked.
  Run run(Tensor input) {
    const size_t of_direction = parameters_of_direction();
    const size_t layers = parameters.size() / of_direction / directions();
    OptionalTensor shifted_reset;
    std::vector<Tensor> h_n, c_n;
    for (size_t layer = 0; layer < layers; ++layer) {
      Tensor output;
      for (size_t direction = 0; direction < directions(); ++direction) {
        const size_t index = layer * directions() + direction;
        const auto initial = [&](const OptionalTensor& states) {
          return states ? std::optional(states->select(0, static_cast<int64_t>(index)))
                        : std::nullopt;
        };
        // Here, because the first call has checked reset and lengths.
        if (layer == 0 && direction == 1 && reset) {
          shifted_reset = shift_to_reverse(*reset, lengths);
        }
        const Run results = run_direction(parameters.slice(index * of_direction, of_direction),
                                          input,
                                          initial(h0),
                                          initial(c0),
                                          direction == 1 ? shifted_reset : reset,
                                          /*reverse=*/direction == 1);
        output = direction == 0 ? results.output : at::cat({output, results.output}, -1);
        h_n.push_back(results.h_n);
        c_n.push_back(results.c_n);
        if (keep) {
          outputs.push_back(results.output);
          cells.push_back(results.cells);
        }
      }
      input =
          dropout > 0 && layer + 1 < layers ? at::dropout(output, dropout, /*train=*/true) : output;
    }
    const Tensor last_c = stack_last(c_n);  // of a cell with one state, both
    return {input, Cell::kStates == 1 ? last_c : stack_last(h_n), last_c, {}};
  }

 private:
  /// No view, even of one layer, because callers detach the states in place: of a tensor that
  /// nothing else refers to, _unsafe_view() makes none.
  static Tensor stack_last(const std::vector<Tensor>& states) {
    if (states.size() > 1) {
      return at::stack(states);
    }
    const auto sizes = states[0].sym_sizes();
    return at::_unsafe_view_symint(states[0], {1, sizes[0], sizes[1]});
  }

  Run run_direction(at::TensorList of_direction,
                    const Tensor& input,
                    const OptionalTensor& first_h,
                    const OptionalTensor& first_c,
                    const OptionalTensor& resets,
                    bool reverse) const {
    return segments.empty()
               ? Cell::run(of_direction, input, first_h, first_c, lengths, resets, reverse, keep)
               : run_segments(of_direction, input, first_h, first_c, resets, reverse);
  }

  /// The same by one call per segment.
  Run run_segments(at::TensorList of_direction,
                   const Tensor& data,
                   const OptionalTensor& h_0,
                   const OptionalTensor& c_0,
                   const OptionalTensor& resets,
                   bool reverse) const {
    // 16-bit states are carried in float32, as within a call. The operator refuses a c0 of any
    // other dtype.
    const auto carried = data.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const std::vector<SymInt> shape{segments[0].padding.sequences, Cell::state_size(of_direction)};
    std::vector<Tensor> first;  // h, if it is not what is carried, and c
    if (Cell::kStates == 2) {
      first.push_back(h_0 ? *h_0 : data.new_zeros_symint(shape));
    }
    first.push_back(!c_0 ? data.new_zeros_symint(shape, carried)
                    : c_0->scalar_type() == dtype_of_call(data) ? c_0->to(carried)
                                                                : *c_0);
    const size_t count = segments.size();
    std::vector<Tensor> packed(count), packed_cells(keep ? count : 0), states = first;
    std::array<std::vector<Tensor>, Cell::kStates> ended;
    for (size_t i = 0; i < count; ++i) {
      const size_t index = reverse ? count - 1 - i : i;
      const auto& [first_step, first_row, padding] = segments[index];
      for (size_t k = 0; reverse && k < states.size(); ++k) {
        // Sequences that end in this segment begin here.
        const SymInt running = i > 0 ? states[k].sym_size(0) : 0;
        const Tensor begin = first[k].slice_symint(0, running, padding.sequences);
        states[k] = i > 0 ? at::cat({states[k], begin.to(states[k].scalar_type())}) : begin;
      }
      OptionalTensor its_resets;
      if (resets) {
        its_resets = resets->slice_symint(0, first_step, first_step + padding.steps)
                         .slice_symint(1, 0, padding.sequences);
      }
      const Tensor its_rows = data.slice(0, first_row, first_row + padding.rows.size(0));
      const Run results = Cell::run(of_direction,
                                    padding.pad(its_rows),
                                    states.front(),
                                    states.back(),
                                    padding.lengths,
                                    its_resets,
                                    reverse,
                                    keep);
      packed[index] = padding.pack(results.output);
      if (keep) {
        packed_cells[index] = padding.pack(results.cells);
      }
      states.front() = results.h_n;
      states.back() = results.c_n;
      for (size_t k = 0; !reverse && k < states.size(); ++k) {
        const SymInt going_on = i + 1 < count ? segments[i + 1].padding.sequences : 0;
        ended[k].push_back(states[k].slice_symint(0, going_on));
        states[k] = states[k].slice_symint(0, 0, going_on);
      }
    }
    for (size_t k = 0; !reverse && k < states.size(); ++k) {
      std::reverse(ended[k].begin(), ended[k].end());  // the last to end come first
      states[k] = at::cat(ended[k]);
    }
    const Tensor all = at::cat(packed);
    states.back() = states.back().to((c_0 ? *c_0 : all).scalar_type());
    return {all, states.front(), states.back(), keep ? at::cat(packed_cells) : Tensor()};
  }

  /// That of autocast, if it casts the input.
  static at::ScalarType dtype_of_call(const Tensor& input) {
    const at::DeviceType device = input.device().type();
    return input.scalar_type() != at::kDouble && at::autocast::is_autocast_available(device) &&
                   at::autocast::is_autocast_enabled(device)
               ? at::autocast::get_autocast_dtype(device)
               : input.scalar_type();
  }
};

void check_size(const char* module,
                const char* name,
                const Tensor& tensor,
                c10::SymIntArrayRef expected) {
  const auto sizes = tensor.sym_sizes();
  bool fits = sizes.size() == expected.size();
  for (size_t d = 0; fits && d < sizes.size(); ++d) {
    fits = Sizes<SymInt>::equal(sizes[d], expected[d]);
  }
  TORCH_CHECK(fits, module, ": Expected ", name, " size ", expected, ", got ", sizes);
}

/// Checks a PackedSequence that was not made by pack_sequence() or pack_padded_sequence().
void check_packed(const char* module, const Tensor& data, const Tensor& batch_sizes) {
  TORCH_CHECK(data.dim() == 2, module, ": input must have 2 dimensions, got ", data.dim());
  TORCH_CHECK(batch_sizes.dim() == 1 && batch_sizes.sym_size(0) > 0 &&
                  batch_sizes.scalar_type() == at::kLong && batch_sizes.is_cpu(),
              module,
              ": expected batch_sizes of a PackedSequence to be int64, on the CPU, and not empty, "
              "got ",
              dtype_name(batch_sizes.scalar_type()),
              " on ",
              batch_sizes.device(),
              " of sizes ",
              batch_sizes.sym_sizes());
  if (is_traced(batch_sizes)) {
    return;
  }
  const at::IntArrayRef sizes(batch_sizes.const_data_ptr<int64_t>(), batch_sizes.numel());
  TORCH_CHECK(std::is_sorted(sizes.rbegin(), sizes.rend()) && sizes.back() >= 0,
              module,
              ": Expected batch_sizes of a PackedSequence never to increase, got ",
              sizes);
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK(data.size(0) == rows,
              module,
              ": Expected data of a PackedSequence to have ",
              rows,
              " rows, the sum of batch_sizes, got ",
              data.size(0));
}

/// Checks what the cell's operator does not see, or would report with other sizes than those of the
/// module.
template <typename Cell>
void check_call(const Layers<Cell>& layers, const Tensor& input) {
  const int64_t of_layer =
      static_cast<int64_t>(layers.parameters_of_direction() * layers.directions());
  const int64_t count = static_cast<int64_t>(layers.parameters.size());
  TORCH_CHECK(count > 0 && count % of_layer == 0,
              Cell::kName,
              ": Expected the number of parameters to be a multiple of ",
              of_layer,
              ", got ",
              count);
  const SymInt expected = Cell::input_size(layers.parameters);
  TORCH_CHECK(Sizes<SymInt>::equal(input.sym_size(-1), expected),
              Cell::kName,
              ": input.size(-1) must be equal to input_size. Expected ",
              expected,
              ", got ",
              input.sym_size(-1));
}

/// The states of a batch, or of a single sequence.
template <typename Cell>
void check_states(const Layers<Cell>& layers, const SymInt& batch, bool is_batch) {
  if (!layers.c0) {
    return;
  }
  const Tensor& c0 = *layers.c0;
  const std::string before =
      c10::str(Cell::kName, is_batch ? ": For batched 3-D" : ": For unbatched 2-D", " input, hx ");
  const int64_t dims = is_batch ? 3 : 2;
  const SymInt count = layers.parameters.size() / layers.parameters_of_direction();
  const std::array expected{count, batch, Cell::state_size(layers.parameters)};
  const auto as_batch = [&](const Tensor& state) { return is_batch ? state : state.unsqueeze(1); };
  if constexpr (Cell::kStates == 1) {
    TORCH_CHECK(
        c0.dim() == dims, before, "should also be ", dims, "-D but got ", c0.dim(), "-D tensor");
    check_size(Cell::kName, "hidden", as_batch(c0), expected);
  } else {
    const Tensor& h0 = *layers.h0;
    TORCH_CHECK(h0.dim() == dims && c0.dim() == dims,
                before,
                "and cx should also be ",
                dims,
                "-D but got (",
                h0.dim(),
                "-D, ",
                c0.dim(),
                "-D) tensors");
    check_size(Cell::kName, "hidden[0]", as_batch(h0), expected);
    check_size(Cell::kName, "hidden[1]", as_batch(c0), expected);
  }
}

/// Changes a tensor that may be absent.
template <typename Change>
void change(OptionalTensor& tensor, const Change& function) {
  if (tensor) {
    tensor = function(*tensor);
  }
}

/// output, h_n, c_n, and the states after every step if they are kept.
using LayersResults = std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>>;

/// h and, if it is another state, c after every step.
template <typename Cell>
std::vector<Tensor> kept_states(const Layers<Cell>& layers, int64_t dim) {
  std::vector<Tensor> states;
  if (layers.keep) {
    states.push_back(at::stack(layers.outputs, dim));
    if (Cell::kStates == 2) {
      states.push_back(at::stack(layers.cells, dim));
    }
  }
  return states;
}

template <typename Cell>
LayersResults run_padded(Layers<Cell>& layers, Tensor input) {
  TORCH_CHECK_VALUE(input.dim() == 2 || input.dim() == 3,
                    Cell::kName,
                    ": Expected input to be 2D or 3D, got ",
                    input.dim(),
                    "D instead");
  check_call(layers, input);
  if (layers.reset) {
    check_size(Cell::kName, "reset", *layers.reset, input.sym_sizes().slice(0, input.dim() - 1));
  }
  const bool batched = input.dim() == 3;
  const bool transposed = batched && layers.batch_first;
  check_states(layers, !batched ? 1 : input.sym_size(transposed ? 0 : 1), batched);
  if (!batched) {
    const auto as_batch = [](const Tensor& tensor) { return tensor.unsqueeze(1); };
    input = as_batch(input);
    change(layers.h0, as_batch);
    change(layers.c0, as_batch);
    change(layers.reset, as_batch);
    change(layers.lengths, [](const Tensor& lengths) {
      return lengths.dim() == 0 ? lengths.unsqueeze(0) : lengths;
    });
  } else if (transposed) {
    const auto time_first = [](const Tensor& tensor) { return tensor.transpose(0, 1); };
    input = time_first(input);
    change(layers.reset, time_first);
  }
  auto [output, h_n, c_n, cells] = layers.run(input);
  std::vector<Tensor> states = kept_states(layers, 0);
  if (!batched) {
    output = output.squeeze(1);
    h_n = h_n.squeeze(1);
    c_n = c_n.squeeze(1);
  } else if (transposed) {
    output = output.transpose(0, 1);
  }
  for (Tensor& steps : states) {
    steps = transposed ? steps.transpose(1, 2) : batched ? steps : steps.squeeze(2);
  }
  return {output, h_n, c_n, std::move(states)};
}

/// The number of a pack's sequences. In a graph that is being captured, the number in batch_sizes
/// is a symbol, which torch.compile refuses if no result has it as a size. Another tensor's size
/// then says it, if there is one, and the graph compares the two.
SymInt count_sequences(const Tensor& batch_sizes, const LayersArguments& arguments) {
  const Tensor first = batch_sizes.select(0, 0);
  const auto& [indices, state] = std::tie(arguments.unsorted_indices, arguments.c0);
  if (!is_traced(batch_sizes) || !(indices || (state && state->dim() == 3))) {
    return first.item().toSymInt();
  }
  SymInt count = indices ? indices->sym_size(0) : state->sym_size(1);
  at::_assert_async(first.eq(c10::Scalar(count)),
                    "Expected a state for each sequence of the PackedSequence");
  return count;
}

template <typename Cell>
LayersResults run_packed(Layers<Cell>& layers, const Tensor& data) {
  const Tensor batch_sizes = layers.batch_sizes->contiguous();
  TORCH_CHECK_VALUE(!layers.lengths,
                    Cell::kName,
                    ": a PackedSequence knows its lengths: expected lengths to be None");
  check_packed(Cell::kName, data, batch_sizes);
  check_call(layers, data);
  const SymInt steps = batch_sizes.sym_size(0);
  const SymInt batch = count_sequences(batch_sizes, layers);
  if (layers.reset) {
    std::array expected{steps, batch};
    if (layers.batch_first) {
      std::swap(expected[0], expected[1]);
    }
    check_size(Cell::kName, "reset", *layers.reset, expected);
    if (layers.batch_first) {
      layers.reset = layers.reset->transpose(0, 1);
    }
  }
  check_states(layers, batch, /*is_batch=*/true);
  if (layers.sorted_indices) {
    const auto sort = [&](const Tensor& tensor) {
      return tensor.index_select(1, *layers.sorted_indices);
    };
    change(layers.reset, sort);
    change(layers.h0, sort);
    change(layers.c0, sort);
  }
  const Tensor sizes = batch_sizes.to(data.device());
  const Padding padding(sizes, batch, data.sym_size(0));
  layers.lengths = padding.lengths;
  layers.segments = make_segments(batch_sizes, sizes, data);
  const bool padded = layers.segments.empty();
  auto [output, h_n, c_n, cells] = layers.run(padded ? padding.pad(data) : data);
  if (padded) {
    const auto pack = [&](const Tensor& tensor) { return padding.pack(tensor); };
    output = pack(output);
    std::transform(layers.outputs.begin(), layers.outputs.end(), layers.outputs.begin(), pack);
    std::transform(layers.cells.begin(), layers.cells.end(), layers.cells.begin(), pack);
  }
  if (layers.unsorted_indices) {
    c_n = c_n.index_select(1, *layers.unsorted_indices);
    h_n = Cell::kStates == 1 ? c_n : h_n.index_select(1, *layers.unsorted_indices);
  }
  return {output, h_n, c_n, kept_states(layers, 1)};
}

template <typename Cell>
LayersResults run_layers(const Tensor& input,
                         at::TensorList parameters,
                         const LayersArguments& arguments) {
  Layers<Cell> layers{arguments, parameters};
  if constexpr (Cell::kStates == 1) {
    std::swap(layers.h0, layers.c0);
  }
  for (OptionalTensor* tensor : {&layers.h0,
                                 &layers.c0,
                                 &layers.lengths,
                                 &layers.reset,
                                 &layers.batch_sizes,
                                 &layers.sorted_indices,
                                 &layers.unsorted_indices}) {
    if (!is_given(*tensor)) {
      tensor->reset();
    }
  }
  TORCH_CHECK(
      input.defined(), Cell::kName, ": expected input to be a tensor, got an undefined tensor");
  TORCH_CHECK(Cell::kStates == 1 || layers.h0.has_value() == layers.c0.has_value(),
              Cell::kName,
              ": expected h0 and c0, or neither, got ",
              layers.h0 ? "h0" : "c0",
              " alone");
  return layers.batch_sizes ? run_packed(layers, input) : run_padded(layers, input);
}

/// The operator of all layers of a cell. CellState is the type of c0, if the schema has it.
template <typename Cell, typename... CellState>
struct LayersOperator {
  using Results = std::conditional_t<Cell::kStates == 2,
                                     LayersResults,
                                     std::tuple<Tensor, Tensor, std::vector<Tensor>>>;

  static Results kernel(const Tensor& input,
                        at::TensorList parameters,
                        const OptionalTensor& h0,
                        const CellState&... c0,
                        const OptionalTensor& lengths,
                        const OptionalTensor& reset,
                        const OptionalTensor& batch_sizes,
                        const OptionalTensor& sorted_indices,
                        const OptionalTensor& unsorted_indices,
                        bool has_biases,
                        bool batch_first,
                        double dropout,
                        bool bidirectional,
                        bool keep) {
    const LayersResults results = run_layers<Cell>(input,
                                                   parameters,
                                                   {h0,
                                                    OptionalTensor(c0...),
                                                    lengths,
                                                    reset,
                                                    batch_sizes,
                                                    sorted_indices,
                                                    unsorted_indices,
                                                    has_biases,
                                                    batch_first,
                                                    dropout,
                                                    bidirectional,
                                                    keep});
    if constexpr (Cell::kStates == 2) {
      return results;
    } else {
      const auto& [output, h_n, c_n, states] = results;
      return {output, h_n, states};
    }
  }

  /// Through the dispatcher.
  static Results call(const char* name,
                      const Tensor& input,
                      at::TensorList parameters,
                      const LayersArguments& arguments) {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<decltype(kernel)>();
    const auto& [h0,
                 c0,
                 lengths,
                 reset,
                 batch_sizes,
                 sorted_indices,
                 unsorted_indices,
                 has_biases,
                 batch_first,
                 dropout,
                 bidirectional,
                 keep] = arguments;
    TORCH_CHECK(Cell::kStates == 2 || !is_given(c0),
                Cell::kName,
                ": expected c0 to be std::nullopt, because h0 is the only state");
    return handle.call(input,
                       parameters,
                       h0,
                       static_cast<const CellState&>(c0)...,
                       lengths,
                       reset,
                       batch_sizes,
                       sorted_indices,
                       unsorted_indices,
                       has_biases,
                       batch_first,
                       dropout,
                       bidirectional,
                       keep);
  }
};

using LltmOperator = LayersOperator<LltmLayers, OptionalTensor>;
using LstmOperator = LayersOperator<LstmLayers, OptionalTensor>;
using GruOperator = LayersOperator<GruLayers>;

void register_kernels(torch::Library& m) {
  m.impl("lltm_layers", LltmOperator::kernel);
  m.impl("lstm_layers", LstmOperator::kernel);
  m.impl("gru_layers", GruOperator::kernel);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CompositeImplicitAutograd, m) {
  register_kernels(m);
}

TORCH_LIBRARY_IMPL(lltm, FuncTorchBatchedDecomposition, m) {
  register_kernels(m);
}

LayersResults lltm_layers(const Tensor& input,
                          at::TensorList parameters,
                          const LayersArguments& arguments) {
  return LltmOperator::call("lltm::lltm_layers", input, parameters, arguments);
}

LayersResults lstm_layers(const Tensor& input,
                          at::TensorList parameters,
                          const LayersArguments& arguments) {
  return LstmOperator::call("lltm::lstm_layers", input, parameters, arguments);
}

std::tuple<Tensor, Tensor, std::vector<Tensor>> gru_layers(const Tensor& input,
                                                           at::TensorList parameters,
                                                           const LayersArguments& arguments) {
  return GruOperator::call("lltm::gru_layers", input, parameters, arguments);
}

}  // namespace lltm
