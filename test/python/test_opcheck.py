"""PyTorch's own checks of a custom operator: schema, fake tensors, autograd registration, AOT dispatch."""

import pytest
import torch
from reference import NAMES, call, make_arguments, make_gradients
from torch.library import opcheck

BIAS = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
SIZES = pytest.mark.parametrize("sizes", [(4, 5, 7), (0, 5, 7), (3, 0, 1)], ids=str)


@BIAS
@SIZES
@pytest.mark.parametrize("names", [(), NAMES, ("weights", "old_h")], ids=["none", "all", "some"])
def test_forward(device, sizes, bias, names):
    opcheck(torch.ops.lltm.forward.default, make_arguments(sizes, device=device, bias=bias).require_grad(names))


def test_forward_of_every_dtype(device, dtype):
    opcheck(torch.ops.lltm.forward.default, make_arguments((4, 5, 7), dtype, device).require_grad())


def check_backward(sizes, device, bias=True, incoming=(True, True), mask=(True,) * 5):
    arguments = make_arguments(sizes, device=device, bias=bias)
    _, new_cell, gates = call(arguments)
    grads = [g if given else None for g, given in zip(make_gradients(arguments), incoming, strict=True)]
    opcheck(torch.ops.lltm.backward.default, (*grads, new_cell, gates, *arguments[:4], list(mask)))


@BIAS
@SIZES
def test_backward(device, sizes, bias):
    check_backward(sizes, device, bias)


@pytest.mark.parametrize("incoming", [(True, True), (True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize(
    "mask", [(True,) * 5, (False, True, False, True, False), (False,) * 5], ids=["all", "some", "none"]
)
def test_backward_of_what_is_wanted(device, incoming, mask):
    check_backward((4, 5, 7), device, incoming=incoming, mask=mask)


def test_backward_with_gradients(device):
    arguments = make_arguments((4, 5, 7), torch.float64, device)
    _, new_cell, gates = call(arguments)
    differentiable = [t.requires_grad_() for t in (*make_gradients(arguments), new_cell, *arguments[:4])]
    opcheck(torch.ops.lltm.backward.default, (*differentiable[:3], gates, *differentiable[3:], [True] * 5))
