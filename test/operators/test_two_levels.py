"""Derivatives of derivatives by torch.autograd and its forward-mode AD, in every order, against those of the formula.

test_transforms.py does the same by torch.func.
"""

from collections.abc import Callable

import pytest
import torch
from lltm_testing.differentiable import assert_equal, each_argument, each_function, loss, of_cell, of_loss, of_sequence
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.functional import hessian

import lltm

pytestmark = pytest.mark.pytorch

Function = Callable[..., Tensor]


def leaves_of(tensors) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


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
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_without_the_steps(device, order, reverse):
    """The caller asks for neither cells nor gates, but the derivatives need them."""
    operator, formula, tensors = of_sequence(device, reverse=reverse, keep=False)
    directions = {k: torch.randn_like(t) for k, t in enumerate(tensors)}
    expected = reverse_over_reverse(lambda *t: loss(formula(*t)[:3]), tensors, directions)
    assert_equal(order(lambda *t: loss(operator(*t)[:3]), tensors, directions), expected)


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
