"""The layers against nn.LSTM and nn.GRU (shapes and states) and against loops of cells (values and gradients)."""

import copy
import io
import math
import pickle
import random
import sys
import typing

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from lltm_testing.graphs import Operators
from lltm_testing.module_reference import assert_same, count_of_parts, packed, random_state, run, state_of, twins
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import lltm

pytestmark = pytest.mark.pytorch

LAYOUTS = [
    {"num_layers": layers, "bidirectional": both, "batch_first": batch_first}
    for layers in (1, 2)
    for both in (False, True)
    for batch_first in (False, True)
]


def name(options) -> str:
    return "-".join(f"{key}={value}" for key, value in options.items())


def shapes(results):
    return tree_map(lambda result: result.shape, results)


@pytest.mark.parametrize("options", LAYOUTS, ids=name)
def test_shapes(cls, options):
    theirs, rnn = twins(3, 4, cls=cls, **options)
    state = random_state(rnn, 2)
    batched, single = torch.randn(5, 2, 3), torch.randn(5, 3)
    if options["batch_first"]:
        batched = batched.transpose(0, 1)
    single_state = tree_map(lambda part: part[:, 0], state)
    for arguments in [(batched,), (batched, state), (single,), (single, single_state)]:
        assert shapes(rnn(*arguments)) == shapes(theirs(*arguments))


@pytest.mark.parametrize("options", LAYOUTS, ids=name)
@pytest.mark.parametrize("lengths", [[5, 3, 1], [2, 5, 4]], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "state"])
def test_packed(cls, options, lengths, with_state):
    """The metadata agrees with torch.nn, the values with the padded batch with lengths."""
    theirs, rnn = twins(3, 4, cls=cls, **options)
    padded = torch.randn(3, 5, 3) if options["batch_first"] else torch.randn(5, 3, 3)
    state = random_state(rnn, 3) if with_state else None
    sorted_already = lengths == sorted(lengths, reverse=True)
    sequence = packed(padded, lengths, batch_first=options["batch_first"], enforce_sorted=sorted_already)
    output, state_n = rnn(sequence, state)
    other, other_state = theirs(sequence, state)
    assert isinstance(output, PackedSequence) and output.data.shape == other.data.shape
    assert shapes(state_n) == shapes(other_state)
    for field, expected in zip(output[1:], other[1:], strict=True):
        assert (field is None) == (expected is None) == (field is expected is None)
        assert field is None or torch.equal(field, expected)
    unpacked, _ = pad_packed_sequence(output, options["batch_first"])
    assert_same((unpacked, state_n), rnn(padded, state, torch.tensor(lengths)), rtol=0, atol=0)


def test_packed_gradients(cls):
    """The gradients of data, states and parameters agree with those of the separate sequences."""
    rnn = cls(3, 4, 2, bidirectional=True, dtype=torch.float64)
    sequences = [torch.randn(steps, 3, dtype=torch.float64, requires_grad=True) for steps in (2, 5, 3)]
    state = random_state(rnn, 3, dtype=torch.float64, requires_grad=True)
    leaves = [*sequences, *tree_leaves(state), *rnn.parameters()]

    def loss(results):
        output, state_n = results
        return output.pow(2).sum() + sum(part.sin().sum() * k for k, part in enumerate(tree_leaves(state_n), 1))

    output, state_n = rnn(pack_sequence(sequences, enforce_sorted=False), state)
    whole = torch.autograd.grad(loss((output.data, state_n)), leaves)
    parts = [rnn(x, tree_map(lambda part, n=n: part[:, n], state)) for n, x in enumerate(sequences)]
    torch.testing.assert_close(whole, torch.autograd.grad(sum(map(loss, parts)), leaves))


def test_packed_costs_a_gather_in_and_one_out(cls):
    """The number of operations does not grow with the number of steps, and none waits for the device."""
    rnn = cls(3, 4, 2, bidirectional=True)
    counts = []
    for steps in (4, 40):
        sequence = pack_sequence([torch.randn(steps, 3), torch.randn(steps // 2, 3)])
        with Operators() as operators, torch.no_grad():
            rnn(sequence)
        counts.append(len(operators.calls))
        of_features = [
            function.name()
            for function, args in operators.calls
            if isinstance(args[0], torch.Tensor) and args[0].is_floating_point()
        ]
        moves = [name for name in of_features if name.startswith("aten::index")]
        assert moves == ["aten::index_copy", "aten::index_select"]
        assert not {"aten::nonzero", "aten::masked_select"}.intersection(operators.names())
        # Numbers are read from batch_sizes alone, which are on the host.
        assert "aten::_local_scalar_dense" not in of_features
    assert counts[0] == counts[1]


@pytest.mark.parametrize("segments", [False, True], ids=["padded", "segments"])
def test_each_state_of_an_unsorted_pack_is_sorted_once(cls, segments):
    """On its way in, and on its way out."""
    features = WIDE if segments else 3
    rnn, lengths = cls(features, 4), [1] * 9 + [40] if segments else [2, 5]
    sequence = pack_sequence([torch.randn(steps, features) for steps in lengths], enforce_sorted=False)
    with Operators() as operators, torch.no_grad():
        rnn(sequence, random_state(rnn, len(lengths)))
    sorts = [args for function, args in operators.calls if function.name() == "aten::index_select" and args[1] == 1]
    assert len(sorts) == 2 * count_of_parts(rnn)


WIDE = 800
"""Features with which the packs below run in segments, because padding would take more than 1 MiB."""


@pytest.mark.parametrize("seed", range(6))
def test_packs_of_very_different_lengths(device, seed, cls):
    """They run in segments, with the results and gradients of padded ones."""
    dtype = (torch.float64, torch.float32, torch.bfloat16)[seed % 3]
    chosen = random.Random(seed)
    torch.manual_seed(seed)
    lengths = [chosen.choice([1, 2, 3, 9]) for _ in range(chosen.randint(8, 12))] + [100]
    flags = {name: chosen.random() < 0.5 for name in ("batch_first", "bidirectional", "bias")}
    rnn = cls(WIDE, 4, num_layers=chosen.choice([1, 2]), **flags).to(device, dtype)
    packed = pack_sequence([torch.randn(n, WIDE, device=device, dtype=dtype) for n in lengths], enforce_sorted=False)
    *others, carried = tree_leaves(random_state(rnn, len(lengths), device=device, dtype=dtype))
    carried = carried.to(dtype if chosen.random() < 0.5 or dtype is torch.float64 else torch.float32)
    hx = state_of((*others, carried)) if chosen.random() < 0.7 else None
    reset = torch.rand(len(lengths), 100, device=device) < 0.2
    reset = None if chosen.random() < 0.5 else reset if rnn.batch_first else reset.T

    def run_padded(packed, hx, reset):
        padded, _ = pad_packed_sequence(packed, rnn.batch_first)
        output, state = rnn(padded, hx, torch.tensor(lengths, device=device), reset)
        return pack_padded_sequence(output, torch.tensor(lengths), rnn.batch_first, enforce_sorted=False), state

    def run(call):
        data = packed.data.clone().requires_grad_()
        state = None if hx is None else tree_map(lambda part: part.clone().requires_grad_(), hx)
        with Operators() as operators:
            output, final = call(packed._replace(data=data), state, reset=reset)
        results = output.data, *tree_leaves(final)
        loss = sum(tensor.double().pow(2).sum() for tensor in results)
        leaves = [data, *rnn.parameters(), *(() if hx is None else tree_leaves(state))]
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        return len(operators.fused()) // carried.size(0), results, gradients

    calls, results, gradients = run(rnn)
    calls_with_padding, padded_results, padded_gradients = run(run_padded)
    assert calls > calls_with_padding == 1
    rounding = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    for found, padded in zip((*results, *gradients), (*padded_results, *padded_gradients), strict=True):
        assert found.dtype == padded.dtype
        assert (found.double() - padded.double()).abs().max() <= rounding * padded.double().abs().max()


@pytest.mark.parametrize(("features", "calls"), [(64, 1), (128, 2)])
def test_packs_with_little_padding_are_padded(device, cls, features, calls):
    """Segments cost more than 1 MiB of padding saves."""
    packed = pack_sequence([torch.randn(n, features, device=device) for n in [120] + [1] * 32])
    with Operators() as operators:
        cls(features, 4).to(device)(packed)
    assert len(operators.fused()) == calls


def test_lengths_of_a_pack_take_no_matrix(device):
    """One sequence of 5,000 steps and 4,999 of one: a matrix of all steps and sequences would take 200 MB."""
    steps = 5000
    batch_sizes = torch.ones(steps, dtype=torch.int64)
    batch_sizes[0] = steps
    packed = PackedSequence(torch.randn(2 * steps - 1, 2, device=device), batch_sizes)
    rnn = lltm.LLTM(2, 2).to(device)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        rnn(packed)
    name = "self_device_memory_usage" if device.type == "cuda" else "self_cpu_memory_usage"
    assert max(getattr(event, name) for event in profile.key_averages()) < 10e6


@pytest.mark.parametrize("lengths", [[2] + [1] * 9, [40] + [1] * 9], ids=["padded", "segments"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_packs_take_no_other_dtype_of_the_state(device, cls, lengths, dtype):
    packed = pack_sequence([torch.randn(n, WIDE, device=device) for n in lengths])
    rnn = cls(WIDE, 8).to(device)
    *others, carried = tree_leaves(random_state(rnn, 10, device=device))
    with pytest.raises(RuntimeError, match="expected [hc]0 of input's dtype float32, got"):
        rnn(packed, state_of((*others, carried.to(dtype))))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_16_bit_state_of_autocast_is_carried_in_float32(device, cls, bidirectional):
    """From segment to segment, as within a call. Only the last one has its dtype."""
    packed = pack_sequence([torch.randn(n, WIDE, device=device) for n in [40] + [1] * 9])
    rnn = cls(WIDE, 8, bidirectional=bidirectional).to(device)
    state = random_state(rnn, 10, device=device, dtype=torch.bfloat16)
    with torch.autocast(device.type, dtype=torch.bfloat16), Operators() as operators:
        _, state_n = rnn(packed, state)
    carried = {
        args[4 if cls is lltm.LLTM else 5].dtype for function, args in operators.calls if "lltm" in function.name()
    }
    assert carried == {torch.float32} and {part.dtype for part in tree_leaves(state_n)} == {torch.bfloat16}


@pytest.mark.parametrize("lengths", [[2] + [1] * 9, [40] + [1] * 9], ids=["padded", "segments"])
def test_a_16_bit_state_beside_float64_under_autocast(device, cls, lengths):
    """Autocast leaves float64 as it is."""
    packed = pack_sequence([torch.randn(n, WIDE, device=device, dtype=torch.float64) for n in lengths])
    rnn = cls(WIDE, 8, dtype=torch.float64).to(device)
    *others, carried = tree_leaves(random_state(rnn, 10, device=device, dtype=torch.float64))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="expected [hc]0 of input's dtype float64, got bfloat16"):
            rnn(packed, state_of((*others, carried.bfloat16())))


@st.composite
def cases(draw):
    steps, batch = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    options = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
    }
    lengths = draw(st.none() | st.lists(st.integers(-1, steps + 2), min_size=batch, max_size=batch))
    row = st.lists(st.booleans(), min_size=batch, max_size=batch)
    reset = draw(st.none() | st.lists(row, min_size=steps, max_size=steps))
    return steps, batch, options, lengths, reset, draw(st.booleans()), draw(st.integers(0, 2**31))


@given(cases())
@example((1, 1, {"num_layers": 1, "bias": True, "batch_first": False, "bidirectional": False}, [0], None, False, 0))
def test_is_a_loop_of_cells(cls, case):
    """Values and gradients of everything, with lengths and reset, layer by layer and in both directions."""
    steps, batch, options, lengths, reset, with_state, seed = case
    torch.manual_seed(seed)
    rnn = cls(3, 4, **options, dtype=torch.float64)
    input = torch.randn(steps, batch, 3, dtype=torch.float64, requires_grad=True)
    state = random_state(rnn, batch, dtype=torch.float64, requires_grad=True) if with_state else None
    lengths = None if lengths is None else torch.tensor(lengths)
    reset = None if reset is None else torch.tensor(reset)

    given_input, given_reset = input, reset
    if options["batch_first"]:
        given_input, given_reset = input.transpose(0, 1), None if reset is None else reset.t()
    output, state_n = rnn(given_input, state, lengths, given_reset)
    actual = (output.transpose(0, 1) if options["batch_first"] else output), *tree_leaves(state_n)
    expected = tree_leaves(run(rnn, input, state, lengths, reset))
    assert_same(actual, expected)

    leaves = [input, *(tree_leaves(state) if with_state else ()), *rnn.parameters()]
    weights = [torch.randn_like(result) for result in expected]

    def gradients(results):
        # Connected to the leaves even if no row runs a step.
        sums = [(r * w).sum() + 0 * input.sum() for r, w in zip(results, weights, strict=True)]
        return torch.autograd.grad(sums, leaves, allow_unused=True)

    for grad, expected_grad, leaf in zip(gradients(actual), gradients(expected), leaves, strict=True):
        torch.testing.assert_close(grad, torch.zeros_like(leaf) if expected_grad is None else expected_grad)


@pytest.mark.parametrize("batch_first", [False, True])
def test_reset_of_a_packed_sequence_is_in_the_order_of_the_batch(cls, batch_first):
    rnn = cls(3, 4, 2, bidirectional=True, batch_first=batch_first, dtype=torch.float64)
    padded, reset = torch.randn(5, 3, 3, dtype=torch.float64), torch.rand(5, 3) < 0.4
    state = random_state(rnn, 3, dtype=torch.float64)
    output, state_n = rnn(
        packed(padded, [2, 5, 4], enforce_sorted=False), state, None, reset.t() if batch_first else reset
    )
    expected = run(rnn, padded, state, torch.tensor([2, 5, 4]), reset)
    assert_same((pad_packed_sequence(output)[0], state_n), expected)


def test_a_mark_at_the_length_of_a_row_leaves_its_reverse_direction_alone(cls):
    """A row of three steps does not run step 3, so a reset there has no effect."""
    rnn = cls(3, 4, bidirectional=True)
    input, state = torch.randn(5, 1, 3), random_state(rnn, 1)
    reset = torch.zeros(5, 1, dtype=torch.bool)
    reset[3] = True
    lengths = torch.tensor([3])
    assert_same(rnn(input, state, lengths, reset), rnn(input, state, lengths), rtol=0, atol=0)


def test_a_boundary_stays_where_it_is_in_both_directions(cls):
    """Two successive episodes are equivalent to two calls."""
    rnn = cls(3, 4, bidirectional=True)
    input = torch.randn(5, 1, 3)
    reset = torch.zeros(5, 1, dtype=torch.bool)
    reset[2] = True
    whole, _ = rnn(input, None, None, reset)
    torch.testing.assert_close(whole, torch.cat([rnn(input[:2])[0], rnn(input[2:])[0]]))


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_single_sequence_with_length_and_reset(cls, shape):
    rnn = cls(3, 4, bidirectional=True, batch_first=True)
    input, reset = torch.randn(5, 3), torch.tensor([False, True, False, False, True])
    results = rnn(input, None, torch.full(shape, 3), reset)
    expected, state = rnn(input[None], None, torch.tensor([3]), reset[None])
    assert_same(results, (expected[0], tree_map(lambda part: part[:, 0], state)), rtol=0, atol=0)


def test_no_state_is_zeros(cls, device, dtype):
    rnn = cls(3, 4, 2, device=device, dtype=dtype)
    input = torch.randn(5, 2, 3, device=device, dtype=dtype)
    zeros = tree_map(torch.zeros_like, random_state(rnn, 2, device=device, dtype=dtype))
    assert_same(rnn(input), rnn(input, zeros), rtol=0, atol=0)


def test_a_stream_of_calls_is_one_call(device, cls):
    """The state is carried exactly, even with 16-bit inputs, where its c, or a GRU's h, is in float32."""
    rnn = cls(3, 4, 2, device=device, dtype=torch.bfloat16)
    input = torch.randn(64, 2, 3, device=device, dtype=torch.bfloat16)
    *others, carried = tree_leaves(random_state(rnn, 2, device=device, dtype=torch.bfloat16))
    state = state_of((*others, carried.float()))
    whole, last = rnn(input, state)
    assert [part.dtype for part in tree_leaves(last)] == [torch.bfloat16] * len(others) + [torch.float32]
    parts = []
    for part in input.split(16):
        output, state = rnn(part, state)
        parts.append(output)
    assert_same((torch.cat(parts), state), (whole, last))


@pytest.mark.parametrize("options", LAYOUTS, ids=name)
@pytest.mark.parametrize("as_pack", [False, True], ids=["padded", "packed"])
def test_states_can_be_detached_in_place(cls, options, as_pack):
    """As in loops over the chunks of a stream that were written for torch.nn."""
    for module in twins(3, 4, cls=cls, **options):
        state = random_state(module, 2)
        for chunk in torch.randn(3, 2, 2, 3):
            input = pack_sequence(list(chunk)) if as_pack else chunk
            output, state = module(input, state)
            (output.data if as_pack else output).sum().backward()
            for tensor in tree_leaves(state):
                assert tensor.grad_fn is not None
                tensor.detach_()


@pytest.mark.parametrize("sizes", [(0, 2), (5, 0), (1, 1)], ids=str)
def test_odd_sizes(device, cls, sizes):
    steps, batch = sizes
    rnn = cls(3, 4, 2, bidirectional=True, device=device)
    state = random_state(rnn, batch, device=device)
    reset = torch.zeros(steps, batch, dtype=torch.bool, device=device)
    output, state_n = rnn(torch.randn(steps, batch, 3, device=device), state, None, reset)
    assert output.shape == (steps, batch, 8) and shapes(state_n) == shapes(state)
    if steps == 0:
        assert_same(state_n, state, rtol=0, atol=0)


def test_dropout_between_layers_in_training_only(cls):
    rnn = cls(3, 8, 3, dropout=0.5, bidirectional=True, dtype=torch.float64)
    input = torch.randn(5, 2, 3, dtype=torch.float64)
    torch.manual_seed(7)
    results = rnn(input)
    torch.manual_seed(7)
    assert_same(results, run(rnn, input, dropout=lambda x: nn.functional.dropout(x, 0.5, True)))
    torch.manual_seed(7)
    assert_same(rnn(input), results, rtol=0, atol=0)
    assert not torch.equal(rnn(input)[0], results[0])
    assert_same(rnn.eval()(input), run(rnn, input))


def test_dropout_that_is_changed():
    rnn = lltm.LLTM(3, 8, 2)
    input = torch.randn(5, 2, 3)
    output, _ = rnn(input)
    rnn.dropout = 0.5
    assert not torch.equal(rnn(input)[0], output)
    rnn.dropout = 0.0
    assert torch.equal(rnn(input)[0], output)


@pytest.mark.parametrize("p", [0, 0.3, 1])
def test_dropout_draws_what_torch_nn_draws(cls, p):
    """The generator's final state is the same, so a seed has the same effect with either module."""
    states = []
    for module in twins(3, 8, 3, cls=cls, dropout=p):
        torch.manual_seed(7)
        module(torch.randn(5, 2, 3))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("options", LAYOUTS, ids=name)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_parameters(options, bias):
    lstm, rnn = twins(5, 25, bias=bias, **options)
    rnn.reset_parameters(leak=0)
    assert all(0.19 < parameter.abs().max() <= 0.2 for parameter in rnn.parameters() if parameter.dim() == 2)
    weights = {key: value.shape for key, value in rnn.named_parameters() if key.startswith("weights")}
    for key, shape in weights.items():
        suffix = key.removeprefix("weights")
        features = getattr(lstm, f"weight_ih{suffix}").size(1) + getattr(lstm, f"weight_hh{suffix}").size(1)
        assert shape == (75, features)
    assert [len(names) for names in rnn.all_weights] == [len(names) // 2 for names in lstm.all_weights]
    biases = [key for key, _ in rnn.named_parameters() if key.startswith("bias")]
    assert biases == ([key.replace("weights", "bias") for key in weights] if bias else [])


def test_a_cells_checkpoint_becomes_a_layer_by_renaming():
    cell, rnn = lltm.LLTMCell(3, 4), lltm.LLTM(3, 4)
    rnn.load_state_dict({f"{key}_l0": value for key, value in cell.state_dict().items()})
    torch.testing.assert_close(rnn(torch.ones(1, 2, 3))[0][0], cell(torch.ones(2, 3))[0])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_from_cell(bias):
    cell = lltm.LLTMCell(3, 4, bias, dtype=torch.float64, leak=2.0).eval()
    cell.weights.requires_grad_(False)
    rnn = lltm.LLTM.from_cell(cell, batch_first=True)
    assert repr(rnn) == f"LLTM(3, 4{'' if bias else ', bias=False'}, batch_first=True)" and not rnn.training
    assert rnn.weights_l0.dtype == torch.float64 and not rnn.weights_l0.requires_grad
    input, state = torch.randn(2, 5, 3, dtype=torch.float64), None
    output, (h_n, c_n) = rnn(input)
    for step in range(5):
        state = cell(input[:, step], state)
        torch.testing.assert_close(output[:, step], state[0])
    torch.testing.assert_close((h_n[0], c_n[0]), state)
    with torch.no_grad():
        rnn.weights_l0.zero_()
    assert cell.weights.any()  # a copy


def test_from_cell_of_a_subclass():
    class Layer(lltm.LLTM):
        pass

    assert type(Layer.from_cell(lltm.LLTMCell(3, 4))) is Layer


@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "dropout": 0.5}, {"bias": False, "batch_first": True}, {"bidirectional": True}],
    ids=name,
)
def test_repr(options):
    lstm, rnn = twins(3, 4, **options)
    assert repr(rnn) == repr(lstm).replace("LSTM", "LLTM") and str(nn.Sequential(rnn)).count("LLTM(3, 4") == 1


def test_copies(cls, device):
    rnn = cls(3, 4, 2, bidirectional=True, device=device)
    input = torch.randn(5, 2, 3, device=device)
    file = io.BytesIO()
    torch.save(rnn, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for twin in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn)), loaded):
        (*_, last), (*_, original) = twin.parameters(), rnn.parameters()
        assert type(twin) is cls and last.data_ptr() != original.data_ptr()
        assert_same(twin(input), rnn(input), rtol=0, atol=0)
        with torch.no_grad():
            last.fill_(1)
        assert not torch.equal(twin(input)[0], rnn(input)[0])


def test_moves(cls, device):
    rnn = cls(3, 4).to(device=device, dtype=torch.float64)
    assert rnn(torch.randn(5, 2, 3, device=device, dtype=torch.float64))[0].dtype == torch.float64
    assert rnn.half()(torch.randn(5, 2, 3, device=device).half())[0].dtype == torch.float16
    empty = cls(3, 4, 2, device="meta")
    found = empty(torch.empty(5, 2, 3, device="meta"))
    assert shapes(found) == ((5, 2, 4), shapes(random_state(empty, 2)))
    empty.to_empty(device=device).reset_parameters(**({"leak": 0} if cls is lltm.LLTM else {}))
    for parameter in empty.parameters():
        assert parameter.device.type == device.type and parameter.abs().max() <= 1 / math.sqrt(4)
    found = rnn.to("meta")(torch.empty(5, 2, 3, device="meta").half())
    assert shapes(found) == ((5, 2, 4), shapes(random_state(rnn, 2)))


def test_a_leak_pulls_each_cell_back():
    rnn = lltm.LLTM(3, 4, 2, bidirectional=True)
    torch.manual_seed(0)
    rnn.reset_parameters(leak=0)
    without = [weights.detach().clone() for weights, _ in rnn.all_weights]
    torch.manual_seed(0)
    rnn.reset_parameters(leak=2.0)
    for (weights, _), expected in zip(rnn.all_weights, without, strict=True):
        expected[8:, :4] -= 2 * torch.eye(4)  # rows of the candidate, columns of h
        torch.testing.assert_close(weights.detach(), expected)
    # Without an input, each cell returns towards zero, wherever it begins.
    rnn = lltm.LLTM(1, 4, bias=False)
    torch.nn.init.zeros_(rnn.weights_l0)
    state = torch.tensor([-2.0, -0.1, 0.1, 2.0]).repeat(2, 1, 1)
    assert torch.equal(rnn(torch.zeros(9, 1), (state[0], state[1]))[1][1], state[1])
    rnn.reset_parameters(leak=2.0)
    with torch.no_grad():
        rnn.weights_l0[8:] = torch.cat([-2 * torch.eye(4), torch.zeros(4, 1)], 1)
    _, (_, c_n) = rnn(torch.zeros(9, 1), (state[0], state[1]))
    assert (c_n.abs() < state[1].abs()).all()


def test_parameters_that_are_replaced_are_used(cls):
    rnn = cls(3, 4)
    for name, parameter in list(rnn.named_parameters()):
        if parameter.dim() == 2:
            setattr(rnn, name, nn.Parameter(torch.zeros_like(parameter)))
        else:
            parameter.data = torch.zeros_like(parameter)
    assert not rnn(torch.randn(5, 2, 3))[0].any()
    assert rnn.flatten_parameters() is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not keep overloads")
def test_forward_is_typed_as_that_of_nn_lstm():
    def results(cls):
        hints = [typing.get_type_hints(overload) for overload in typing.get_overloads(cls.forward)]
        return {hint["input"]: hint["return"] for hint in hints}

    assert results(lltm.LLTM) == results(nn.LSTM)


def test_the_resets_of_the_reverse_direction_take_no_memory_of_their_own_size_in_integers(cls):
    rnn = cls(3, 4, bidirectional=True)
    lengths, reset = torch.tensor([50, 20, 0, 7]), torch.rand(50, 4) < 0.2
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            results = function(*args, **(kwargs or {}))
            sizes.extend(r.numel() for r in tree_leaves(results) if isinstance(r, Tensor) and r.dtype == torch.int64)
            return results

    with Sizes():
        rnn(torch.randn(50, 4, 3), lengths=lengths, reset=reset)
    assert sizes and max(sizes) <= 50
