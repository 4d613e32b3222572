"""Autocast on both devices: all five arguments are cast, float64 is not, and gradients have the parameters' dtype."""

import pytest
import torch
from reference import NAMES, Arguments, assert_gradients_close, call, make_arguments, make_gradients

LOWER = pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


def cast(arguments: Arguments, dtype) -> Arguments:
    return arguments.map(lambda tensor: tensor.to(dtype))


@LOWER
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_all_arguments_are_cast(device, lower, bias):
    arguments = make_arguments((6, 5, 7), device=device, bias=bias)
    with torch.autocast(device.type, dtype=lower):
        results = call(arguments)
    for result, expected in zip(results, call(cast(arguments, lower)), strict=True):
        assert result.dtype == lower and torch.equal(result, expected)


@LOWER
@pytest.mark.parametrize("name", NAMES)
def test_a_mixture_is_cast(device, lower, name):
    """The results of an earlier layer under autocast are in the lower precision already."""
    arguments = make_arguments((6, 5, 7), device=device)
    mixture = arguments._replace(**{name: getattr(arguments, name).to(lower)})
    with torch.autocast(device.type, dtype=lower):
        results = call(mixture)
    for result, expected in zip(results, call(cast(arguments, lower)), strict=True):
        assert result.dtype == lower and torch.equal(result, expected)


@LOWER
def test_float64_is_left_alone(device, lower):
    arguments = make_arguments((6, 5, 7), torch.float64, device)
    grads = make_gradients(arguments)
    leaves = arguments.require_grad()
    with torch.autocast(device.type, dtype=lower):
        results = call(leaves)
        torch.autograd.backward(results[:2], grads)
    for result, expected in zip(results, call(arguments), strict=True):
        assert result.dtype == torch.float64 and torch.equal(result, expected)
    assert_gradients_close(leaves.map(lambda leaf: leaf.grad), *grads, arguments)


def test_float64_among_float32_is_an_error(device):
    arguments = make_arguments((6, 5, 7), device=device)
    mixture = arguments._replace(weights=arguments.weights.double())
    with torch.autocast(device.type, dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="expected weights of input's dtype bfloat16, got float64"):
            call(mixture)


@LOWER
@pytest.mark.parametrize("inside", [True, False], ids=["backward_inside", "backward_outside"])
def test_gradients(device, lower, inside):
    """float32 parameters get float32 gradients, with the accuracy of the lower precision."""
    arguments = cast(cast(make_arguments((6, 5, 7), device=device), lower), torch.float32)
    grads = tuple(gradient.to(lower) for gradient in make_gradients(arguments))
    leaves = arguments.require_grad()
    with torch.autocast(device.type, dtype=lower):
        new_h, new_cell, _ = call(leaves)
        if inside:
            torch.autograd.backward((new_h, new_cell), grads)
    if not inside:
        torch.autograd.backward((new_h, new_cell), grads)
    assert all(leaf.grad.dtype == torch.float32 for leaf in leaves)
    assert_gradients_close(leaves.map(lambda leaf: leaf.grad.to(lower)), *grads, cast(arguments, lower))


@pytest.mark.parametrize("differentiable", [False, True])
def test_backward_by_itself_keeps_the_dtype(device, differentiable):
    """Autograd passes it the tensors that forward received after the casts, so nothing is left to cast."""
    arguments = make_arguments((6, 5, 7), device=device)
    _, new_cell, gates = call(arguments)
    weights = arguments.weights.requires_grad_(differentiable)
    given = (*make_gradients(arguments), new_cell, gates, arguments.input, weights, *arguments[2:4])
    with torch.autocast(device.type, dtype=torch.bfloat16):
        results = torch.ops.lltm.backward(*given, [True] * 5)
    for result, expected in zip(results, torch.ops.lltm.backward(*given, [True] * 5), strict=True):
        assert torch.equal(result, expected)


def test_second_gradients(device):
    arguments = make_arguments((6, 5, 7), device=device)
    leaves = arguments.require_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        new_h, new_cell, _ = call(leaves)
        first = torch.autograd.grad((new_h * new_cell).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in (*first, *second))


@LOWER
def test_transforms_cast_too(device, lower):
    arguments = make_arguments((6, 5, 7), device=device)
    expected = call(cast(arguments, lower))[0]
    with torch.autocast(device.type, dtype=lower):
        mapped = torch.func.vmap(lambda x: torch.ops.lltm.forward(x, *arguments[1:])[0])(arguments.input[None])[0]
        gradient, shifted = torch.func.grad_and_value(lambda c: torch.ops.lltm.forward(*arguments[:4], c)[0].sum())(
            arguments.old_cell
        )
        _, tangent = torch.func.jvp(
            lambda c: torch.ops.lltm.forward(*arguments[:4], c)[0], (arguments.old_cell,), (arguments.old_cell,)
        )
    # Not shifted: autocast sums in float32 on CUDA.
    assert mapped.dtype == tangent.dtype == lower and gradient.dtype == torch.float32
    units = 8 * torch.finfo(lower).eps
    torch.testing.assert_close(mapped, expected.to(lower), rtol=units, atol=units)
    torch.testing.assert_close(shifted.double(), expected.double().sum(), rtol=units, atol=units)


def test_parameters_are_cast_once(device):
    """Autocast caches the cast of a leaf, so a loop over steps does not cast the weights in every step."""
    casts = []

    class Casts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._to_copy.default:
                casts.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    arguments = make_arguments((6, 5, 7), device=device).require_grad(["weights", "bias"])
    with Casts(), torch.autocast(device.type, dtype=torch.bfloat16):
        _, weights, bias, h, cell = arguments
        for _ in range(3):
            h, cell, _ = torch.ops.lltm.forward(arguments.input, weights, bias, h, cell)
    assert casts.count(tuple(weights.shape)) == 1 and casts.count(tuple(bias.shape)) == 1


def test_switched_off_inside(device):
    arguments = make_arguments((6, 5, 7), device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16), torch.autocast(device.type, enabled=False):
        assert call(arguments)[0].dtype == torch.float32
