"""What the operators compute: a step of each cell against the bounds of bounds.py, and sequences against a loop of the
cell's formula in float64, and against nn.LSTM."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import (
    CELLS,
    Lstm,
    Sizes,
    assert_carries_the_state_in_float32,
    assert_results_close,
    call,
    call_backward,
    each_chunked,
    each_size_and_flags,
    kept_of,
    make,
    make_gradients,
    ragged,
    run,
    specified,
)
from lltm_testing.steps import each_step_and_size
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

MASKS = list(itertools.product([False, True], repeat=2))
lengths_and_reset = pytest.mark.parametrize(("lengths", "reset"), MASKS, ids=lambda flag: "with" if flag else "without")
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
KEEP = pytest.mark.parametrize("keep", [False, True], ids=["plain", "keep"])
SIXTEEN_BITS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


@each_step_and_size
def test_a_step_is_the_formula(device, dtype, step, sizes):
    for bias in (True, False):
        arguments = step.make(sizes, dtype, device, bias)
        step.assert_close(step.call(arguments), arguments)


@given(sizes=st.tuples(st.integers(0, 40), st.integers(0, 70), st.integers(1, 70)), bias=st.booleans())
def test_a_step_is_the_formula_at_any_size(device, dtype, step, sizes, bias):
    arguments = step.make(sizes, dtype, device, bias)
    step.assert_close(step.call(arguments), arguments)


def test_one_tensor_may_be_several_arguments(device, step):
    arguments = step.make((4, 4, 4), device=device)
    arguments = arguments._replace(**dict.fromkeys(step.cell.states, arguments.input[0]))
    step.assert_close(step.call(arguments), arguments)


@each_size_and_flags
def test_is_the_formula(device, dtype, cell, sizes, flags):
    arguments = make(sizes, dtype, device, cell=cell, **dict.fromkeys(flags, True))
    assert_results_close(call(arguments, keep=True), arguments, keep=True)


@given(
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 40), st.integers(1, 70)),
    flags=st.tuples(*[st.booleans()] * 6),
)
def test_is_the_formula_at_any_size(device, dtype, cell, sizes, flags):
    *flags, keep = flags
    arguments = make(sizes, dtype, device, *flags, cell=cell)
    assert_results_close(call(arguments, keep), arguments, keep)


@pytest.mark.slow
@each_chunked
def test_is_the_formula_in_chunks_of_steps_and_blocks_of_rows(products, cell, sizes, reverse, masked):
    """The CPU takes at most 4 MiB of steps and 16 MiB of rows at once."""
    arguments = make(sizes, torch.float64, lengths=masked, reset=masked, reverse=reverse, cell=cell)
    assert_results_close(call(arguments, keep=True), arguments, keep=True)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(
    ("cell", "absent"), [(c, n) for c in CELLS for n in (*CELLS[c].bias_names(), *CELLS[c].states)], indirect=["cell"]
)
def test_absent_is_zero(device, products, dtype, cell, absent, steps):
    several = steps > 1  # a single step without lengths and resets runs as a cell
    arguments = make(Sizes(steps, 6, 5, 7), dtype, device, lengths=several, reset=several, cell=cell)
    given = arguments._replace(**{absent: torch.zeros_like(getattr(arguments, absent))})
    assert_identical(call(arguments._replace(**{absent: None})), call(given))


def test_keywords_and_defaults(device, cell):
    arguments = make(Sizes(5, 6, 5, 7), device=device, bias=False, state=False, cell=cell)
    operator, given = getattr(torch.ops.lltm, cell.operator), {n: getattr(arguments, n) for n in arguments.given()}
    assert_results_close(operator(**given), arguments)
    reverse = operator(*given.values(), reverse=True, keep=True)
    assert_results_close(reverse, arguments._replace(reverse=True), keep=True)


@KEEP
@SIXTEEN_BITS
@lengths_and_reset
@pytest.mark.parametrize("steps", [1, 5])
def test_the_carried_state_may_be_float32_beside_16_bits(device, products, dtype, cell, keep, lengths, reset, steps):
    options = {"lengths": lengths, "reset": reset, "cell_dtype": torch.float32, "cell": cell}
    arguments = make(Sizes(steps, 6, 5, 7), dtype, device, **options)
    results = call(arguments, keep)
    assert results[len(cell.states)].dtype == torch.float32
    assert_results_close(results, arguments, keep)


def in_pieces(arguments, steps):
    """The output and the last states of a call for each piece of so many steps."""
    states, outputs = arguments.initial_states(), []
    for piece in arguments.input.split(steps):
        output, *others = call(arguments._replace(input=piece, **dict(zip(arguments.states, states, strict=True))))
        states = others[: len(states)]
        outputs.append(output)
    return torch.cat(outputs), *states


@SIXTEEN_BITS
def test_a_stream_of_calls_keeps_its_state_exact(device, products, dtype, cell):
    """A sequence in pieces is the whole if the carried state between them is float32."""
    arguments = make(Sizes(12, 6, 5, 7), dtype, device, cell_dtype=torch.float32, cell=cell)
    assert_results_close((*in_pieces(arguments, 5), *call(arguments)[1 + len(cell.states) :]), arguments)

    def run(*tensors):
        # What ten steps change is less than half a unit of the state in 16 bits.
        return in_pieces(cell(*tensors[:-1], tensors[-1].float()), 10)[-1]

    assert_carries_the_state_in_float32(run, dtype, device, steps=500, cell=cell)


@SIXTEEN_BITS
def test_the_state_is_carried_in_float32(device, products, dtype, cell):
    def run(*tensors):
        results = dict(zip(cell.outputs, getattr(torch.ops.lltm, cell.operator)(*tensors, keep=True), strict=True))
        last = results["c_n" if "c_n" in results else "h_n"]
        assert torch.equal(results["cells" if "cells" in results else "output"][-1], last)
        return last

    assert_carries_the_state_in_float32(run, dtype, device, steps=3000, cell=cell)


@REVERSE
@pytest.mark.parametrize("steps", [6, 1])
def test_lengths_in_int32(device, dtype, cell, steps, reverse):
    """Of any strides, forward and backward: the same bits as in int64."""
    arguments = make(Sizes(steps, 5, 3, 4), dtype, device, reset=True, reverse=reverse, cell=cell)

    def results(lengths):
        leaves = arguments._replace(lengths=lengths).require_grad()
        outputs = call(leaves, keep=True)
        gradients = torch.autograd.grad(sum(output.double().sum() for output in outputs[:-1]), leaves.leaves())
        return *specified(leaves, outputs), *gradients, *call(arguments._replace(lengths=lengths))

    several, one = torch.tensor([0, -1, 3, 6, 9], device=device), torch.tensor([2], device=device)
    for lengths in (several, one.expand(5)):
        for short in (lengths.int(), lengths.int().repeat_interleave(2)[::2], one.int().expand(5)):
            assert_identical(results(short), results(short.long()))


@REVERSE
def test_what_is_beyond_the_length_is_never_used(device, products, dtype, cell, reverse):
    arguments = make(Sizes(6, 11, 3, 21), dtype, device, reset=True, reverse=reverse, cell=cell)
    arguments, poisoned, beyond = ragged(arguments)
    results = specified(arguments, call(poisoned, keep=True))
    assert_identical(results, specified(arguments, call(arguments, keep=True)))
    for of_steps in kept_of(arguments, results):
        assert of_steps[beyond].eq(0).all()
    for name, last in zip(cell.states, results[1:], strict=False):
        assert torch.equal(last[0], getattr(arguments, name)[0])


@REVERSE
def test_a_row_is_the_row_by_itself(device, cell, reverse):
    """lengths have the same effect as slicing a row, and reset the same as splitting a sequence."""
    arguments = make(Sizes(8, 3, 5, 7), torch.float64, device, reverse=reverse, cell=cell)
    lengths = torch.tensor([8, 5, 0], device=device)
    count = 1 + len(cell.states)
    output, *last = call(arguments._replace(lengths=lengths))[:count]
    for row, length in enumerate(lengths.tolist()):
        one = arguments._replace(
            input=arguments.input[:length, row : row + 1],
            **{name: getattr(arguments, name)[row, None] for name in cell.states},
        )
        found = output[:length, row : row + 1], *(state[row, None] for state in last)
        torch.testing.assert_close(found, call(one)[:count])
    reset = torch.zeros(8, 3, dtype=torch.bool, device=device)
    reset[4] = True
    output, *last = call(arguments._replace(reset=reset))[:count]
    pieces = arguments.input.split([5, 3] if reverse else [4, 4])
    first, second = reversed(pieces) if reverse else pieces
    whole = call(arguments._replace(input=first))
    rest = call(arguments._replace(input=second, **dict.fromkeys(cell.states)))
    parts = (rest[0], whole[0]) if reverse else (whole[0], rest[0])
    torch.testing.assert_close(output, torch.cat(parts))
    torch.testing.assert_close(last, list(rest[1:count]))


def test_a_reset_replaces_the_state(device, products, dtype, cell):
    """It replaces the state rather than multiplying it: even an infinite state is gone, and gets no gradient."""
    arguments = make(Sizes(3, 2, 4, 5), dtype, device, cell=cell)
    reset = torch.zeros(3, 2, dtype=torch.bool, device=device)
    reset[0, 1] = True
    arguments = arguments._replace(reset=reset)
    spoiled = arguments.map(torch.clone)
    for name, value in zip(cell.states, (torch.nan, torch.inf), strict=False):
        getattr(spoiled, name)[1] = value
    assert_identical(call(spoiled), call(arguments))
    gradients = make_gradients(arguments)
    found = call_backward(gradients, spoiled)
    assert_identical(found, call_backward(gradients, arguments))
    assert not any(gradient[1].any() for gradient in found[-len(cell.states) :])


def test_an_infinite_state(device, products, dtype, cell):
    """Where the formula keeps the infinity, it must not become NaN, which the next step gives the whole row."""
    arguments = make(Sizes(6, 40, 4, 2), dtype, device, cell=cell)
    getattr(arguments, cell.states[-1])[:, 0] = torch.inf
    exact = run(arguments.map(lambda tensor: tensor.double().cpu()))
    for found, expected in zip(call(arguments, keep=True), exact, strict=True):
        assert torch.equal(found.isnan().cpu(), expected.isnan())
        assert torch.equal(found.isinf().cpu(), expected.isinf())


@pytest.mark.parametrize("steps", [1, 2, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_loop_of_cells_agrees(device, dtype, steps):
    arguments = make(Sizes(steps, 33, 40, 64), dtype, device)
    for found, expected in zip(call(arguments, keep=True), run(arguments, step=torch.ops.lltm.forward), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=64 * torch.finfo(dtype).eps * steps**0.5)


@SIXTEEN_BITS
@pytest.mark.parametrize("steps", [1, 16, 100])
def test_no_less_exact_than_a_loop_of_cells(device, dtype, steps):
    arguments = make(Sizes(steps, 33, 40, 64), dtype, device)
    exact = run(arguments.map(torch.Tensor.double))
    ours, loop = call(arguments, keep=True), run(arguments, step=torch.ops.lltm.forward)
    for name, found, other, value in zip(("output", "h_n", "c_n", "cells"), ours, loop, exact, strict=False):
        error, of_loop = ((t.double() - value).square().mean().sqrt().item() for t in (found, other))
        assert error <= 1.02 * of_loop, f"{name} is off by {error:.3g}, a loop of cells by {of_loop:.3g}"


@lengths_and_reset
def test_keep_changes_no_bit(device, dtype, cell, lengths, reset):
    arguments = make(Sizes(7, 6, 5, 7), dtype, device, lengths=lengths, reset=reset, cell=cell)
    count = 1 + len(cell.states)  # output and the last states
    assert_identical(call(arguments)[:count], call(arguments, keep=True)[:count])


def test_one_step_is_the_cell(device, dtype):
    arguments = make(Sizes(1, 6, 5, 7), dtype, device)
    output, h_n, c_n, cells, gates = call(arguments, keep=True)
    expected = torch.ops.lltm.forward(arguments.input[0], *arguments[1:5])
    for found, value in zip((output[0], cells[0], gates[0]), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=0, atol=8 * torch.finfo(dtype).eps)
    assert torch.equal(h_n, output[0]) and torch.equal(c_n, cells[0])


def nn_lstm(arguments: Lstm) -> torch.nn.LSTM:
    """A bidirectional layer whose reverse direction has the weights of the arguments, and so has the other."""
    _, features, hidden = *arguments.input.shape[1:], arguments.state_size
    module = torch.nn.LSTM(features, hidden, bidirectional=True, device=arguments.input.device, dtype=torch.float64)
    for suffix in ("", "_reverse"):
        values = {
            "weight_ih_l0": arguments.weight_ih,
            "weight_hh_l0": arguments.weight_hh,
            "bias_ih_l0": arguments.bias,
            "bias_hh_l0": torch.zeros_like(arguments.bias),
        }
        for name, value in values.items():
            getattr(module, name + suffix).data.copy_(value)
    return module


@REVERSE
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_is_nn_lstm(device, reverse, packed):
    """Values, and gradients of the parameters, the input and the states."""
    arguments = make(Sizes(9, 6, 5, 7), torch.float64, device, cell=Lstm, reverse=reverse)
    if packed:
        lengths = torch.tensor([9, 1, 4, 9, 7, 2], device=device)
        arguments = arguments._replace(lengths=lengths)
    module, leaves = nn_lstm(arguments), arguments.require_grad(("input", "h0", "c0"))
    input = leaves.input
    if packed:
        input = pack_padded_sequence(input, arguments.lengths.cpu(), enforce_sorted=False)
    # Of the two directions, this one.
    output, (h_n, c_n) = module(input, (leaves.h0.repeat(2, 1, 1), leaves.c0.repeat(2, 1, 1)))
    if packed:
        output, _ = pad_packed_sequence(output)
    expected = output.chunk(2, dim=2)[reverse], h_n[int(reverse)], c_n[int(reverse)]
    results = call(arguments, keep=True)
    for found, value in zip(results, expected, strict=False):
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-12)

    gradients = make_gradients(arguments, (True, True, True, False))
    torch.autograd.backward(expected, gradients[:3])
    suffix = "_reverse" if reverse else ""
    parameters = [getattr(module, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih")]
    wanted = [leaves.input.grad, *(p.grad for p in parameters), leaves.h0.grad, leaves.c0.grad]
    for found, value in zip(call_backward(gradients, arguments), wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-11, atol=1e-11)
