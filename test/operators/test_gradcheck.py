"""First and second gradients against finite differences, in float64."""

import itertools
from functools import partial

import pytest
import torch
from lltm_testing.differentiable import FUNCTIONS, assert_equal, loss, of_cell, of_sequence
from lltm_testing.reference import call, make_arguments, make_gradients
from lltm_testing.sequence_reference import NAMES
from lltm_testing.sequence_reference import call as call_sequence
from lltm_testing.sequence_reference import make as make_sequence
from torch.autograd import gradcheck, gradgradcheck

pytestmark = pytest.mark.pytorch

each_frozen = pytest.mark.parametrize(
    ("make", "frozen"),
    [
        pytest.param(make, frozen, id=f"{name}-{frozen}")
        for name, make in FUNCTIONS.items()
        for frozen in (None, *range(len(make("cpu").tensors)))
    ],
)


def leaves_of(tensors, frozen=None):
    return [None if t is None else t.detach().clone().requires_grad_(k != frozen) for k, t in enumerate(tensors)]


@each_frozen
def test_gradients(device, make, frozen):
    operator, _, tensors = make(device)
    leaves = leaves_of(tensors, frozen)
    assert gradcheck(operator, leaves, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)


@each_frozen
def test_second_gradients(device, make, frozen):
    operator, _, tensors = make(device)
    assert gradgradcheck(operator, leaves_of(tensors, frozen), check_batched_grad=True)


@pytest.mark.parametrize(
    "make",
    [
        *(partial(of_cell, sizes=sizes) for sizes in [(2, 0, 3), (1, 1, 1)]),
        partial(of_sequence, lengths=False, reset=False),
        partial(of_sequence, sizes=(1, 2, 0, 2)),
    ],
    ids=["cell_without_input", "cell_of_ones", "plain_sequence", "one_step_without_input"],
)
def test_gradients_of_special_cases(device, make):
    operator, _, tensors = make(device)
    assert gradcheck(operator, leaves_of(tensors)) and gradgradcheck(operator, leaves_of(tensors))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("output", [0, 1], ids=["new_h", "new_cell"])
def test_second_gradients_of_one_result_of_the_cell(device, output, bias):
    """The gradient of the other one is undefined."""
    operator, _, tensors = of_cell(device, bias=bias)
    assert gradgradcheck(lambda *t: operator(*t)[output], leaves_of(tensors))


@pytest.mark.parametrize("absent", NAMES[2:])
@pytest.mark.parametrize("output", range(4), ids=["output", "h_n", "c_n", "cells"])
def test_second_gradients_of_one_result_of_a_sequence(device, output, absent):
    arguments = make_sequence((3, 3, 1, 2), torch.float64, device, lengths=True, reset=True)
    arguments = arguments._replace(**{absent: None}).require_grad()
    names = arguments.given()

    def result(*tensors):
        return call_sequence(arguments._replace(**dict(zip(names, tensors, strict=True))), keep=output == 3)[output]

    assert gradgradcheck(result, arguments.leaves(), fast_mode=True)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("frozen", [None, *range(7)])
def test_gradients_of_backward(device, bias, frozen):
    """lltm::backward as a separate operator. gates is not differentiable, but follows from the inputs."""
    arguments = make_arguments((3, 2, 4), torch.float64, device, bias)
    _, new_cell, _ = call(arguments)

    def run(grad_h, grad_cell, new_cell, *inputs):
        gates = torch.ops.lltm.forward(*inputs, new_cell)[2]
        return torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, *inputs, [True] * 5)

    assert gradcheck(run, leaves_of((*make_gradients(arguments), new_cell, *arguments[:4]), frozen))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_gradients_of_sequence_backward(device, reverse):
    """lltm::sequence_backward as a separate operator. gates are recomputed from the inputs, as in a sequence."""
    arguments = make_sequence((3, 3, 1, 2), torch.float64, device, lengths=True, reset=True, reverse=reverse)
    output, h_n, c_n, cells, gates = call_sequence(arguments, keep=True)
    incoming = [torch.randn_like(t) for t in (output, h_n, c_n, cells)]
    # Values beyond the length are not used.
    runs = torch.arange(3, device=device)[:, None, None] < arguments.lengths[:, None]
    leaves = leaves_of((*incoming, cells, *arguments[1:4], arguments.c0))

    def backward(grad_output, grad_h_n, grad_c_n, grad_cells, cells, weights, bias, h0, c0):
        return torch.ops.lltm.sequence_backward(
            grad_output, grad_h_n, grad_c_n, grad_cells, output, cells * runs, gates, arguments.input, weights, bias,
            h0, c0, arguments.lengths, arguments.reset, reverse, [True] * 5,
        )  # fmt: skip

    assert gradcheck(lambda *g: backward(*g, *leaves[4:]), leaves[:4])
    # With respect to the other arguments, this is the double backward, which recomputes the gates.
    found = torch.autograd.grad(sum(r.sum() for r in backward(*leaves)), leaves, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in found)


@pytest.mark.parametrize(
    "mask", list(itertools.product([False, True], repeat=5))[1:], ids=lambda m: "".join("01"[f] for f in m)
)
def test_masked_second_gradients(device, mask):
    """The gradient of any subset of the gradients is that of the formula."""
    operator, formula, tensors = of_cell(device)

    def second(run):
        leaves = leaves_of(tensors)
        wanted = [leaf for leaf, flag in zip(leaves, mask, strict=True) if flag]
        first = torch.autograd.grad(loss(run(*leaves)), wanted, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves, allow_unused=True)

    assert_equal(second(operator), second(formula))
