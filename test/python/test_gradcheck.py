"""First and second gradients against finite differences, in float64."""

import itertools

import pytest
import torch
from reference import NAMES, call, forward, make_arguments, make_gradients
from torch.autograd import gradcheck, gradgradcheck

BIAS = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
FROZEN = pytest.mark.parametrize("frozen", [None, *NAMES])


def arguments_with_frozen(device, bias, frozen, sizes=(3, 2, 4)):
    if frozen == "bias" and not bias:
        pytest.skip("there is no bias to freeze")
    names = [name for name in NAMES if name != frozen]
    return tuple(make_arguments(sizes, torch.float64, device, bias).require_grad(names))


def state(*arguments):
    new_h, new_cell, _ = torch.ops.lltm.forward(*arguments)
    return new_h, new_cell


@BIAS
@FROZEN
def test_gradients(device, bias, frozen):
    arguments = arguments_with_frozen(device, bias, frozen)
    assert gradcheck(state, arguments, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)


@BIAS
@FROZEN
def test_second_gradients(device, bias, frozen):
    arguments = arguments_with_frozen(device, bias, frozen)
    assert gradgradcheck(state, arguments, check_batched_grad=True)


@BIAS
@pytest.mark.parametrize("output", [0, 1], ids=["new_h", "new_cell"])
def test_second_gradients_of_one_output(device, bias, output):
    """The gradient of the other output is undefined."""
    arguments = arguments_with_frozen(device, bias, None)
    assert gradgradcheck(lambda *arguments: state(*arguments)[output], arguments)


@pytest.mark.parametrize("sizes", [(2, 0, 3), (1, 1, 1)], ids=str)
def test_gradients_at_odd_sizes(device, sizes):
    arguments = arguments_with_frozen(device, True, None, sizes)
    assert gradcheck(state, arguments)
    assert gradgradcheck(state, arguments)


@BIAS
@pytest.mark.parametrize("frozen", [None, "grad_h", "grad_cell", "new_cell", "input", "weights", "bias", "old_h"])
def test_gradients_of_backward(device, bias, frozen):
    """lltm::backward as a separate operator. gates is not differentiable, but follows from the inputs."""
    names = ("grad_h", "grad_cell", "new_cell", "input", "weights", "bias", "old_h")
    arguments = make_arguments((3, 2, 4), torch.float64, device, bias)
    _, new_cell, _ = call(arguments)
    values = (*make_gradients(arguments), new_cell, *arguments[:4])
    values = [
        None if t is None else t.detach().clone().requires_grad_(name != frozen)
        for name, t in zip(names, values, strict=True)
    ]

    def run(grad_h, grad_cell, new_cell, *inputs):
        gates = torch.ops.lltm.forward(*inputs, new_cell)[2]
        return torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, *inputs, [True] * 5)

    assert gradcheck(run, values)


@pytest.mark.parametrize(
    "mask", list(itertools.product([False, True], repeat=5)), ids=lambda m: "".join("01"[f] for f in m)
)
def test_masked_second_gradients(device, mask):
    """The gradient of any subset of the gradients is that of the formula."""
    arguments = make_arguments((3, 2, 4), torch.float64, device)
    wanted = [name for name, flag in zip(NAMES, mask, strict=True) if flag]
    if not wanted:
        return

    def second(step):
        leaves = arguments.require_grad()
        new_h, new_cell, _ = step(*leaves)
        first = torch.autograd.grad(
            (new_h * new_cell).sum(), [getattr(leaves, name) for name in wanted], create_graph=True
        )
        return torch.autograd.grad(sum((gradient**2).sum() for gradient in first), leaves, allow_unused=True)

    for found, expected in zip(second(torch.ops.lltm.forward), second(forward), strict=True):
        torch.testing.assert_close(found, expected)
