"""lltm::backward, called by autograd and directly, against the formulas in float64."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing.reference import (
    NAMES,
    SIZES,
    assert_gradients_close,
    call,
    call_backward,
    forward,
    gradients,
    make_arguments,
    make_gradients,
)

MASKS = list(itertools.product([False, True], repeat=5))
# Which of the gradients of new_h and new_cell are given.
INCOMING = pytest.mark.parametrize(
    "incoming", [(True, True), (True, False), (False, True)], ids=["both", "grad_h", "grad_cell"]
)


def choose(grads, incoming):
    return tuple(gradient if given else None for gradient, given in zip(grads, incoming, strict=True))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_autograd_is_the_formula(device, dtype, sizes, bias):
    arguments = make_arguments(sizes, dtype, device, bias)
    grads = make_gradients(arguments)
    assert_gradients_close(gradients(arguments, *grads), *grads, arguments)


@given(
    sizes=st.tuples(st.integers(0, 40), st.integers(0, 70), st.integers(1, 70)),
    bias=st.booleans(),
    incoming=st.sampled_from([(True, True), (True, False), (False, True)]),
    mask=st.tuples(*[st.booleans()] * 5),
)
def test_is_the_formula_at_any_size(device, dtype, sizes, bias, incoming, mask):
    arguments = make_arguments(sizes, dtype, device, bias)
    grads = choose(make_gradients(arguments), incoming)
    assert_gradients_close(call_backward(*grads, arguments, mask), *grads, arguments)


@INCOMING
def test_autograd_with_one_incoming_gradient(device, dtype, incoming):
    arguments = make_arguments((6, 5, 7), dtype, device)
    grads = choose(make_gradients(arguments), incoming)
    assert_gradients_close(gradients(arguments, *grads), *grads, arguments)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("wanted", MASKS[1:], ids=lambda mask: "".join("01"[flag] for flag in mask))
def test_autograd_computes_what_is_wanted(device, wanted, bias):
    names = [name for name, flag in zip(NAMES, wanted, strict=True) if flag and (bias or name != "bias")]
    arguments = make_arguments((6, 5, 7), device=device, bias=bias)
    grads = make_gradients(arguments)
    leaves = arguments.require_grad(names)
    new_h, new_cell, gates = call(leaves)
    assert not gates.requires_grad
    assert new_h.requires_grad == new_cell.requires_grad == bool(names)
    if not names:
        return
    torch.autograd.backward((new_h, new_cell), grads)
    results = [None if leaf is None else leaf.grad for leaf in leaves]
    assert [name for name, result in zip(NAMES, results, strict=True) if result is not None] == names
    assert_gradients_close(results, *grads, arguments)


@pytest.mark.parametrize("sizes", [(0, 5, 7), (0, 0, 1)], ids=str)
def test_empty_batch_gives_zero_parameter_gradients(device, dtype, sizes):
    arguments = make_arguments(sizes, dtype, device)
    for grads in (make_gradients(arguments), (None, None)):
        results = call_backward(*grads, arguments)
        for result, argument in zip(results, arguments, strict=True):
            assert torch.equal(result, torch.zeros_like(argument))
    leaves = gradients(arguments, *make_gradients(arguments))
    assert torch.equal(leaves.weights, torch.zeros_like(arguments.weights))
    assert torch.equal(leaves.bias, torch.zeros_like(arguments.bias))


def test_only_gates_are_saved_beyond_what_is_alive(device):
    arguments = make_arguments((6, 5, 7), device=device).require_grad()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        _, new_cell, gates = call(arguments)
    alive = {t.data_ptr() for t in (*arguments, new_cell, gates)}
    assert saved and {t.data_ptr() for t in saved} <= alive


def test_through_many_steps(device):
    """A sequence whose steps share the weights."""
    arguments = make_arguments((4, 3, 6), torch.float64, device)
    inputs = torch.randn(7, 4, 3, dtype=torch.float64, device=device)

    def run(step, arguments):
        weights, bias, h, cell = arguments[1:]
        for x in inputs:
            h, cell, _ = step(x, weights, bias, h, cell)
        return (h * cell).sum()

    leaves, expected = arguments.require_grad(), arguments.require_grad()
    run(torch.ops.lltm.forward, leaves).backward()
    run(forward, expected).backward()
    for leaf, value in zip(leaves[1:], expected[1:], strict=True):
        torch.testing.assert_close(leaf.grad, value.grad)
