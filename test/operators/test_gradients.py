"""The gradients of the operators, by autograd and by their backward operators: of a step of each cell against the
bounds of bounds.py, and of sequences against autograd of the loop in float64."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing import reference
from lltm_testing.named_arguments import WEIGHTS
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import (
    CELLS,
    Sizes,
    assert_close,
    assert_gradients_close,
    call,
    call_backward,
    each_chunked,
    each_size_and_flags,
    expected_gradients,
    gradient_dtypes,
    make,
    make_gradients,
    ragged,
)
from lltm_testing.steps import each_step_and_size
from lltm_testing.steps import make_gradients as make_gradients_of_step
from torch.utils.checkpoint import checkpoint

# Which of the gradients of new_h and new_cell are given.
INCOMING = [(True, True), (True, False), (False, True)]
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def choose(grads, incoming):
    return tuple(gradient if given else None for gradient, given in zip(grads, incoming, strict=False))


def step_by_autograd(step, grads, arguments, names=None):
    """The gradients of the named arguments, None for the others and for those that are absent."""
    leaves = arguments.require_grad(names)
    *states, gates = step.call(leaves)
    assert not gates.requires_grad
    pairs = [(r, g) for r, g in zip(states, grads, strict=True) if g is not None]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return [None if (leaf := getattr(leaves, name)) is None else leaf.grad for name in leaves.names]


@each_step_and_size
def test_those_of_a_step_are_the_formula(device, dtype, step, sizes):
    for bias in (True, False):
        arguments = step.make(sizes, dtype, device, bias)
        grads = make_gradients_of_step(arguments)
        step.assert_gradients_close(step_by_autograd(step, grads, arguments), grads, arguments)


@given(
    sizes=st.tuples(st.integers(0, 40), st.integers(0, 70), st.integers(1, 70)),
    bias=st.booleans(),
    incoming=st.sampled_from(INCOMING),
    mask=st.tuples(*[st.booleans()] * 6),
)
def test_those_of_a_step_are_the_formula_at_any_size(device, dtype, step, sizes, bias, incoming, mask):
    arguments = step.make(sizes, dtype, device, bias)
    grads = choose(make_gradients_of_step(arguments), incoming)
    found = step.call_backward(grads, arguments, mask=mask[: len(step.cell.names)])
    assert [gradient is not None for gradient in found] == list(mask[: len(found)])
    step.assert_gradients_close(found, grads, arguments)


def test_those_of_a_step_from_one_incoming_gradient(device, dtype, step):
    arguments = step.make((6, 5, 7), dtype, device)
    for incoming in INCOMING[1 : 1 + len(step.cell.states)]:
        grads = choose(make_gradients_of_step(arguments), incoming)
        step.assert_gradients_close(step_by_autograd(step, grads, arguments), grads, arguments)


def test_autograd_computes_what_is_wanted(device, step):
    """Of each subset of the arguments that require gradients."""
    arguments = step.make((6, 5, 7), device=device)
    grads = make_gradients_of_step(arguments)
    for size in range(1, len(step.cell.names) + 1):
        for names in itertools.combinations(step.cell.names, size):
            for present in (arguments, arguments._replace(**dict.fromkeys(step.cell.bias_names()))):
                if wanted := [name for name in names if getattr(present, name) is not None]:
                    found = step_by_autograd(step, grads, present, wanted)
                    results = zip(present.names, found, strict=True)
                    assert [name for name, result in results if result is not None] == wanted
                    step.assert_gradients_close(found, grads, present)


def by_autograd(arguments, gradients):
    """The gradients by autograd, None for absent arguments."""
    leaves = arguments.require_grad()
    *results, _ = call(leaves, keep=True)
    pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return [None if (leaf := getattr(leaves, name)) is None else leaf.grad for name in arguments.names]


@each_size_and_flags
def test_autograd_is_the_formula(device, dtype, cell, sizes, flags):
    arguments = make(sizes, dtype, device, cell=cell, **dict.fromkeys(flags, True))
    gradients = make_gradients(arguments)
    assert_gradients_close(by_autograd(arguments, gradients), gradients, arguments)


@given(
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 40), st.integers(1, 70)),
    flags=st.tuples(*[st.booleans()] * 5),
    incoming=st.tuples(*[st.booleans()] * 4),
    mask=st.tuples(*[st.booleans()] * 6),
)
def test_is_the_formula_at_any_size(device, dtype, cell, sizes, flags, incoming, mask):
    arguments, mask = make(sizes, dtype, device, *flags, cell=cell), mask[: len(cell.names)]
    gradients = make_gradients(arguments, incoming)
    assert_gradients_close(call_backward(gradients, arguments, mask), gradients, arguments, mask)


@pytest.fixture
def one_thread(set_threads):
    """With more threads, a chunk has more steps."""
    set_threads(1)


@pytest.mark.slow
@each_chunked
def test_is_the_formula_in_chunks_of_steps_and_blocks_of_rows(products, one_thread, cell, sizes, reverse, masked):
    """The CPU takes at most 512 KiB or, with ATen's products, 4 MiB of steps and 16 MiB of rows at once."""
    arguments = make(sizes, torch.float64, lengths=masked, reset=masked, reverse=reverse, cell=cell)
    gradients = make_gradients(arguments)
    found = call_backward(gradients, arguments)
    assert_gradients_close(found, gradients, arguments)
    # Between two chunks, the gradient of h is needed even if that of h0 is not.
    states = len(cell.states)
    mask = [True] * (len(found) - states) + [False] * states
    without_states = call_backward(gradients, arguments, mask)
    assert_identical(without_states[:-states], found[:-states])
    assert without_states[-states:] == (None,) * states


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@REVERSE
def test_the_carried_state_may_be_float32_beside_16_bits(device, products, dtype, cell, reverse):
    options = {"lengths": True, "reset": True, "reverse": reverse, "cell_dtype": torch.float32, "cell": cell}
    arguments = make(Sizes(5, 6, 5, 7), dtype, device, **options)
    gradients = make_gradients(arguments)
    assert gradients[len(cell.states)].dtype == torch.float32
    found = by_autograd(arguments, gradients)
    assert found[-1].dtype == torch.float32
    assert_gradients_close(found, gradients, arguments)


@REVERSE
def test_what_is_beyond_the_length_is_never_used(device, products, dtype, cell, reverse):
    """Neither inputs nor incoming gradients beyond the length are used: 0 * NaN would give NaN in d_weights."""
    arguments = make(Sizes(6, 11, 3, 21), dtype, device, reset=True, reverse=reverse, cell=cell)
    arguments, poisoned, beyond = ragged(arguments)
    gradients = make_gradients(arguments)
    spoil = [t.masked_fill(beyond.unsqueeze(2), torch.nan) if t.dim() == 3 else t for t in gradients]
    found = by_autograd(poisoned, spoil)
    assert_identical(found, by_autograd(arguments, gradients))
    assert found[0][beyond].eq(0).all()
    # A row that is not run passes its gradients on.
    of_states = len(cell.states)
    assert_identical([g[0] for g in found[-of_states:]], [g[0] for g in gradients[1 : 1 + of_states]])


def test_d_input_beyond_the_length_is_zero_whatever_the_weights(device, dtype, cell):
    arguments, _, beyond = ragged(make(Sizes(6, 5, 3, 4), dtype, device, cell=cell))
    name = WEIGHTS[cell.operator]
    arguments = arguments._replace(**{name: torch.full_like(getattr(arguments, name), torch.nan)})
    d_input = by_autograd(arguments, make_gradients(arguments))[0]
    assert d_input[beyond].eq(0).all() and d_input[~beyond].isnan().all()


def test_gradients_stop_at_a_reset(device, dtype, cell):
    arguments = make(Sizes(6, 3, 5, 7), dtype, device, cell=cell)
    reset = torch.zeros(6, 3, dtype=torch.bool, device=device)
    reset[2, 0] = True
    arguments = arguments._replace(reset=reset)
    gradients = make_gradients(arguments, (False, True, True, False))
    d_input, *others = by_autograd(arguments, gradients)
    of_states = others[-len(cell.states) :]
    assert d_input[:2, 0].eq(0).all() and d_input[2, 0].ne(0).any() and d_input[:2, 1].ne(0).any()
    assert not any(gradient[0].any() for gradient in of_states) and of_states[-1][1].ne(0).all()


@pytest.mark.parametrize("keep", [False, True])
def test_gates_and_unkept_cells_have_no_gradient(device, cell, keep):
    arguments = make(Sizes(5, 6, 5, 7), device=device, cell=cell).require_grad()
    for name, result in zip(cell.outputs, call(arguments, keep), strict=True):
        assert result.requires_grad == (name != "gates" and (keep or name != "cells")), name
        if name in ("cells", "gates"):
            assert result.size(0) == (5 if keep else 0), name


@pytest.mark.parametrize(("cell", "name"), [(c, n) for c in CELLS for n in CELLS[c].names], indirect=["cell"])
def test_one_argument_that_requires_a_gradient(device, cell, name):
    arguments = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True, cell=cell)
    gradients = make_gradients(arguments)
    leaves = arguments.require_grad([name])
    torch.autograd.backward(call(leaves, keep=True)[:-1], gradients)
    found, k = getattr(leaves, name).grad, cell.names.index(name)
    expected = expected_gradients(gradients, arguments)[k]
    assert_close(found, expected, gradient_dtypes(arguments)[k], f"gradient of {name}")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_under_checkpointing(device, cell, use_reentrant):
    arguments = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True, cell=cell)
    leaves, plain = arguments.require_grad(), arguments.require_grad()

    def loss(*tensors):
        output, *last = call(arguments._replace(**dict(zip(cell.names, tensors, strict=True))))[: 1 + len(cell.states)]
        return (output.sum() * sum(state.sum() for state in last)).sin()

    checkpoint(loss, *leaves.leaves(), use_reentrant=use_reentrant).backward()
    loss(*plain.leaves()).backward()
    assert_identical([leaf.grad for leaf in leaves.leaves()], [leaf.grad for leaf in plain.leaves()])


@pytest.mark.parametrize("sizes", [(0, 6, 5, 7), (5, 0, 5, 7)], ids=str)
def test_nothing_to_run_gives_zero_parameter_gradients(device, dtype, cell, sizes):
    arguments = make(sizes, dtype, device, lengths=True, reset=True, cell=cell)
    gradients = make_gradients(arguments)
    for results in (by_autograd(arguments, gradients), call_backward(gradients, arguments)):
        of_states = len(cell.states)
        assert not any(gradient.any() for gradient in results[1:-of_states])
        assert_identical(results[-of_states:], gradients[1 : 1 + of_states])


def test_through_many_steps(device):
    """Steps that share the weights."""
    arguments = reference.make_arguments((4, 3, 6), torch.float64, device)
    inputs = torch.randn(7, 4, 3, dtype=torch.float64, device=device)

    def run(step, arguments):
        weights, bias, h, cell = arguments[1:]
        for x in inputs:
            h, cell, _ = step(x, weights, bias, h, cell)
        return (h * cell).sum()

    leaves, expected = arguments.require_grad(), arguments.require_grad()
    run(torch.ops.lltm.forward, leaves).backward()
    run(reference.forward, expected).backward()
    for leaf, value in zip(leaves[1:], expected[1:], strict=True):
        torch.testing.assert_close(leaf.grad, value.grad)
