"""Derivatives of the operators, in float64: first and second gradients against finite differences, and derivatives of
derivatives by torch.autograd and its forward-mode AD, in every order, against those of the formula.

test_transforms.py does the same by torch.func.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from lltm_testing.differentiable import (
    FUNCTIONS,
    assert_equal,
    each_argument,
    each_function,
    loss,
    of_cell,
    of_loss,
    of_sequence,
)
from lltm_testing.reference import call, make_arguments, make_gradients
from lltm_testing.sequence_reference import CELLS, kept_of
from lltm_testing.sequence_reference import call as call_sequence
from lltm_testing.sequence_reference import make as make_sequence
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.functional import hessian

import lltm

Function = Callable[..., Tensor]
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])

each_frozen = pytest.mark.parametrize(
    ("make", "frozen"),
    [
        pytest.param(make, frozen, id=f"{name}-{frozen}")
        for name, make in FUNCTIONS.items()
        for frozen in (None, *range(len(make("cpu").tensors)))
    ],
)


def leaves_of(tensors, frozen=None) -> list[Tensor]:
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


SPECIAL_CASES = {
    "cell_without_input": partial(of_cell, sizes=(2, 0, 3)),
    "cell_of_ones": partial(of_cell, sizes=(1, 1, 1)),
} | {
    f"{case}_{name}": partial(of_sequence, cell=cell, **options)
    for name, cell in CELLS.items()
    for case, options in {
        "plain": {"lengths": False, "reset": False},
        "one_step_without_input": {"sizes": (1, 2, 0, 2)},
    }.items()
}


@pytest.mark.parametrize("make", SPECIAL_CASES.values(), ids=SPECIAL_CASES)
def test_gradients_of_special_cases(device, make):
    operator, _, tensors = make(device)
    assert gradcheck(operator, leaves_of(tensors)) and gradgradcheck(operator, leaves_of(tensors))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("output", [0, 1], ids=["new_h", "new_cell"])
def test_second_gradients_of_one_result_of_the_cell(device, output, bias):
    """The gradient of the other one is undefined."""
    operator, _, tensors = of_cell(device, bias=bias)
    assert gradgradcheck(lambda *t: operator(*t)[output], leaves_of(tensors))


@pytest.mark.parametrize(
    ("cell", "absent", "output"),
    [
        (name, absent, output)
        for name, cell in CELLS.items()
        for absent in (*cell.bias_names(), *cell.states)
        for output in cell.outputs[:-1]
    ],
    indirect=["cell"],
)
def test_second_gradients_of_one_result_of_a_sequence(device, cell, output, absent):
    arguments = make_sequence((3, 3, 1, 2), torch.float64, device, lengths=True, reset=True, cell=cell)
    arguments = arguments._replace(**{absent: None}).require_grad()
    names, k = arguments.given(), cell.outputs.index(output)

    def result(*tensors):
        return call_sequence(arguments._replace(**dict(zip(names, tensors, strict=True))), keep=output == "cells")[k]

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


@REVERSE
def test_gradients_of_the_backward_of_a_sequence(device, cell, reverse):
    """As a separate operator. gates are recomputed from the inputs, as in a sequence."""
    options = {"lengths": True, "reset": True, "reverse": reverse, "cell": cell}
    arguments = make_sequence((3, 3, 1, 2), torch.float64, device, **options)
    results = call_sequence(arguments, keep=True)
    output, *cells, gates = kept_of(arguments, results)
    incoming = [torch.randn_like(t) for t in results[:-1]]
    # Values beyond the length are not used.
    runs = torch.arange(3, device=device)[:, None, None] < arguments.lengths[:, None]
    names = cell.names[1:]
    leaves = leaves_of((*incoming, *cells, *(getattr(arguments, name) for name in names)))

    def backward(*tensors):
        grads, kept = tensors[: len(incoming)], tensors[len(incoming) : -len(names)]
        given = arguments._replace(**dict(zip(names, tensors[-len(names) :], strict=True)))
        operator = getattr(torch.ops.lltm, f"{cell.operator}_backward")
        return operator(*grads, output, *(t * runs for t in kept), gates, *given, [True] * len(cell.names))

    assert gradcheck(lambda *g: backward(*g, *leaves[len(incoming) :]), leaves[: len(incoming)])
    # With respect to the other arguments, this is the double backward, which recomputes the gates.
    found = torch.autograd.grad(sum(r.sum() for r in backward(*leaves)), leaves, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in found)


@pytest.mark.parametrize("name", ["cell", "sequence", "lstm", "gru"])
def test_masked_second_gradients(device, name):
    """The gradient of any one of the gradients, or of all others, is that of the formula."""
    operator, formula, tensors = FUNCTIONS[name](device)

    def second(run, chosen, alone):
        leaves = leaves_of(tensors)
        wanted = [leaf for k, leaf in enumerate(leaves) if (k == chosen) == alone]
        first = torch.autograd.grad(loss(run(*leaves)), wanted, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves, allow_unused=True)

    for chosen in range(len(tensors)):
        for alone in (True, False):
            assert_equal(second(operator, chosen, alone), second(formula, chosen, alone))


def dual(leaves: list[Tensor], directions: dict[int, Tensor]) -> list[Tensor]:
    return [forward_ad.make_dual(t, directions[k]) if k in directions else t for k, t in enumerate(leaves)]


def tangent(tensor: Tensor) -> Tensor:
    found = forward_ad.unpack_dual(tensor).tangent
    return torch.zeros_like(tensor) if found is None else found


def gradients(result: Tensor, leaves, **options) -> tuple[Tensor, ...]:
    return torch.autograd.grad(result, leaves, materialize_grads=True, **options)


def reverse_over_reverse(function: Function, tensors, directions: dict[int, Tensor]) -> tuple[Tensor, ...]:
    leaves = leaves_of(tensors)
    first = gradients(function(*leaves), leaves, create_graph=True)
    return gradients(sum((first[k] * v).sum() for k, v in directions.items()), leaves)


def forward_over_reverse(function: Function, tensors, directions: dict[int, Tensor]) -> tuple[Tensor, ...]:
    leaves = leaves_of(tensors)
    with forward_ad.dual_level():
        return tuple(map(tangent, gradients(function(*dual(leaves, directions)), leaves)))


def forward_over_reverse_of_duals(function: Function, tensors, directions: dict[int, Tensor]) -> tuple[Tensor, ...]:
    """The gradients of the dual tensors instead of their primals', with a graph that could be differentiated again."""
    leaves = leaves_of(tensors)
    with forward_ad.dual_level():
        duals = dual(leaves, directions)
        return tuple(map(tangent, gradients(function(*duals), duals, create_graph=True)))


def reverse_over_forward(function: Function, tensors, directions: dict[int, Tensor]) -> tuple[Tensor, ...]:
    leaves = leaves_of(tensors)
    with forward_ad.dual_level():
        derivative = tangent(function(*dual(leaves, directions)))
    return gradients(derivative, leaves)


ORDERS = (reverse_over_reverse, forward_over_reverse, forward_over_reverse_of_duals, reverse_over_forward)
each_order = pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)


@each_order
@each_argument
def test_in_the_direction_of_one_argument(device, make, argnum, order):
    operator, formula, tensors = make(device)
    directions = {argnum: torch.randn_like(tensors[argnum])}
    expected = reverse_over_reverse(of_loss(formula), tensors, directions)
    assert_equal(order(of_loss(operator), tensors, directions), expected)


@each_order
@each_function
def test_in_the_direction_of_all_arguments(device, make, order):
    operator, formula, tensors = make(device)
    directions = {k: torch.randn_like(t) for k, t in enumerate(tensors)}
    expected = reverse_over_reverse(of_loss(formula), tensors, directions)
    assert_equal(order(of_loss(operator), tensors, directions), expected)


@each_order
@REVERSE
def test_without_the_steps(device, cell, order, reverse):
    """The caller asks for neither cells nor gates, but the derivatives need them."""
    operator, formula, tensors = of_sequence(device, reverse=reverse, keep=False, cell=cell)
    of_last = 1 + len(cell.states)
    directions = {k: torch.randn_like(t) for k, t in enumerate(tensors)}
    expected = reverse_over_reverse(lambda *t: loss(formula(*t)[:of_last]), tensors, directions)
    assert_equal(order(lambda *t: loss(operator(*t)[:of_last]), tensors, directions), expected)


@each_order
@pytest.mark.parametrize(
    ("cls", "bidirectional"),
    [(lltm.LLTM, False), (lltm.LLTM, True), (lltm.LSTM, True)],
    ids=["LLTM", "bidirectional_LLTM", "bidirectional_LSTM"],
)
def test_module(device, order, cls, bidirectional):
    """Against the second gradients, which have tests of their own."""
    rnn = cls(3, 4, num_layers=2, bidirectional=bidirectional, device=device, dtype=torch.float64)
    names = [name for name, _ in rnn.named_parameters()]
    lengths = torch.tensor([5, 2, 0], device=device)

    def function(input: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        output, (h_n, c_n) = torch.func.functional_call(rnn, given, (input,), {"lengths": lengths})
        return loss((output, output * 2)) + loss((h_n, c_n))

    tensors = [torch.randn(5, 3, 3, device=device, dtype=torch.float64), *rnn.parameters()]
    directions = {k: torch.randn_like(t) for k, t in enumerate(tensors)}
    expected = reverse_over_reverse(function, tensors, directions)
    assert_equal(order(function, tensors, directions), expected)


@each_function
def test_hessian_by_forward_mode(device, make):
    operator, formula, tensors = make(device)
    found = hessian(of_loss(operator), tensors, vectorize=True, outer_jacobian_strategy="forward-mode")
    assert_equal(found, hessian(of_loss(formula), tensors))


@each_order
def test_the_second_derivative_of_the_candidate_at_zero_is_that_of_elu(device, order):
    """Zeros everywhere: every z is exactly 0, where ELU's second derivative jumps from 0 to 1."""
    for operator, formula, tensors in (of_cell(device), of_sequence(device)):
        zeros = [torch.zeros_like(t) for t in tensors]
        zeros[-1] = torch.randn_like(tensors[-1])  # the cell state, or the gradients vanish
        directions = {k: torch.randn_like(t) for k, t in enumerate(tensors)}
        expected = reverse_over_reverse(of_loss(formula), zeros, directions)
        assert_equal(order(of_loss(operator), zeros, directions), expected)
