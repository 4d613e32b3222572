"""The cell's formulas in float64, written as in the design, and how near to them a result must be."""

from typing import NamedTuple

import torch
from torch import Tensor

# (batch, input_features, state_size): the benchmark's smallest, powers of two and their neighbours, ones and zeros.
SIZES = [
    (16, 32, 128),
    (1, 1, 1),
    (3, 5, 7),
    (17, 129, 31),
    (2, 63, 65),
    (5, 3, 1),
    (4, 0, 7),
    (0, 5, 7),
    (0, 0, 1),
    (33, 1, 16),
    (70_000, 2, 3),
]

NAMES = ("input", "weights", "bias", "old_h", "old_cell")


class Arguments(NamedTuple):
    """The arguments of lltm::forward."""

    input: Tensor
    weights: Tensor
    bias: Tensor | None
    old_h: Tensor
    old_cell: Tensor

    def map(self, function) -> "Arguments":
        return Arguments(*(None if tensor is None else function(tensor) for tensor in self))

    def require_grad(self, names=NAMES) -> "Arguments":
        """New leaves of the same values, of which the named ones require gradients."""
        leaves = self.map(lambda tensor: tensor.detach().clone())
        for name in names:
            if getattr(leaves, name) is not None:
                getattr(leaves, name).requires_grad_()
        return leaves


def make_arguments(sizes, dtype=torch.float32, device="cpu", bias=True) -> Arguments:
    """Random arguments, with weights small enough that every gate works in its curved part."""
    batch, input_features, state_size = sizes

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64).to(device=device, dtype=dtype)

    return Arguments(
        input=normal(batch, input_features),
        weights=normal(3 * state_size, state_size + input_features) / max(1, state_size + input_features) ** 0.5,
        bias=normal(3 * state_size) if bias else None,
        old_h=normal(batch, state_size),
        old_cell=normal(batch, state_size),
    )


def make_gradients(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """Random gradients of new_h and new_cell."""
    return torch.randn_like(arguments.old_h), torch.randn_like(arguments.old_cell)


def call(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.lltm.forward(*arguments)


def call_backward(
    grad_h: Tensor | None, grad_cell: Tensor | None, arguments: Arguments, mask=(True,) * 5
) -> tuple[Tensor | None, ...]:
    """lltm::backward after lltm::forward of the same arguments."""
    _, new_cell, gates = call(arguments)
    return torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, *arguments[:4], mask)


def forward(input, weights, bias, old_h, old_cell) -> tuple[Tensor, Tensor, Tensor]:
    """new_h, new_cell, gates. Differentiable, in the arguments' own dtype."""
    z = torch.cat([old_h, input], dim=-1) @ weights.transpose(-1, -2)
    if bias is not None:
        z = z + bias
    z_i, z_o, z_g = z.chunk(3, dim=-1)
    new_cell = old_cell + torch.nn.functional.elu(z_g) * torch.sigmoid(z_i)
    return torch.tanh(new_cell) * torch.sigmoid(z_o), new_cell, z


def backward(grad_h: Tensor | None, grad_cell: Tensor | None, arguments: Arguments) -> Arguments:
    """The five gradients, in float64. 1 - sigmoid(z) is written sigmoid(-z), which does not cancel."""
    input, weights, _, old_h, _ = arguments = arguments.map(Tensor.double)
    _, new_cell, z = forward(*arguments)
    dh = torch.zeros_like(new_cell) if grad_h is None else grad_h.double()
    dc = torch.zeros_like(new_cell) if grad_cell is None else grad_cell.double()
    z_i, z_o, z_g = z.chunk(3, dim=1)
    i, o, g, t = torch.sigmoid(z_i), torch.sigmoid(z_o), torch.expm1(z_g), torch.tanh(new_cell)
    g = torch.where(z_g > 0, z_g, g)
    d_cell = dc + dh * o / torch.cosh(new_cell) ** 2
    dz_i = d_cell * g * i * torch.sigmoid(-z_i)
    dz_o = dh * t * o * torch.sigmoid(-z_o)
    dz_g = d_cell * i * torch.exp(z_g.clamp(max=0))
    dz = torch.cat([dz_i, dz_o, dz_g], dim=1)
    d_old_h, d_input = (dz @ weights).split([old_h.size(1), input.size(1)], dim=1)
    return Arguments(d_input, dz.t() @ torch.cat([old_h, input], dim=1), dz.sum(0), d_old_h, d_cell)


def assert_close(
    actual: Tensor | None, expected: Tensor, dtype: torch.dtype, name: str = "result", terms: int = 0
) -> None:
    """Near the formula: off by some units in the last place of the largest number, as the sums of products are.

    The rounding errors of a sum of `terms` numbers grow as the square root of that. A 16-bit result carries the
    rounding of the workspace and of its own dtype instead; the sums in it are float32's.
    """
    assert actual is not None, f"{name} is None"
    assert actual.dtype == dtype, f"{name} is {actual.dtype}"
    assert actual.shape == expected.shape, f"{name} is {tuple(actual.shape)}"
    if expected.numel() == 0:
        return
    units = 8 if dtype in (torch.float16, torch.bfloat16) else 32 + terms**0.5
    bound = units * torch.finfo(dtype).eps * max(1.0, expected.abs().max().item())
    error = (actual.detach().double() - expected.detach().to(actual.device)).abs().max().item()
    assert error <= bound, f"{name} is off by {error:.3g}, more than {bound:.3g}"


def assert_forward_close(actual: tuple[Tensor, ...], arguments: Arguments) -> None:
    expected = forward(*arguments.map(Tensor.double))
    for name, result, value in zip(("new_h", "new_cell", "gates"), actual, expected, strict=True):
        assert_close(result, value, arguments.input.dtype, name)


def assert_gradients_close(actual, grad_h: Tensor | None, grad_cell: Tensor | None, arguments: Arguments) -> None:
    """A None among `actual` is a gradient that was not asked for."""
    expected = backward(grad_h, grad_cell, arguments)
    batch = arguments.input.size(0)
    for name, gradient, value in zip(NAMES, actual, expected, strict=True):
        if gradient is not None:
            terms = batch if name in ("weights", "bias") else 0
            assert_close(gradient, value, arguments.input.dtype, f"gradient of {name}", terms)


def gradients(arguments: Arguments, grad_h: Tensor | None, grad_cell: Tensor | None, run=call) -> Arguments:
    """The five gradients as autograd gives them, None for an argument that requires none."""
    arguments = arguments.map(Tensor.detach).require_grad()
    new_h, new_cell, _ = run(arguments)
    outputs = [(new_h, grad_h), (new_cell, grad_cell)]
    outputs = [(output, gradient) for output, gradient in outputs if gradient is not None]
    torch.autograd.backward(*zip(*outputs, strict=True))
    return arguments.map(lambda tensor: tensor.grad)


def assert_no_aliases(results, arguments) -> None:
    """No two of the results share storage, and none shares it with an argument."""
    pointers = [t.untyped_storage().data_ptr() for t in results if t is not None and t.numel()]
    assert len(set(pointers)) == len(pointers), "two results share storage"
    taken = {t.untyped_storage().data_ptr() for t in arguments if t is not None and t.numel()}
    assert not taken.intersection(pointers), "a result shares storage with an argument"
