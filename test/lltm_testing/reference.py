"""Arguments, calls, the cell's formula, and assertions that compare calls with the formula in float64."""

import os
from typing import NamedTuple

import torch
from torch import Tensor

from lltm_testing import bounds
from lltm_testing.bounds import Bounded, Precision

# (batch, input_features, state_size): the benchmark's smallest, powers of two and their neighbors, ones and zeros.
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
    (17, 17, 17),
    (70_000, 2, 3),
]


class Arguments(NamedTuple):
    """The arguments of lltm::forward."""

    input: Tensor
    weights: Tensor
    bias: Tensor | None
    old_h: Tensor
    old_cell: Tensor

    def map(self, function) -> "Arguments":
        return Arguments(*(None if tensor is None else function(tensor) for tensor in self))

    def require_grad(self, names=None) -> "Arguments":
        """New leaves with the same values. The named ones, by default all, require gradients."""
        leaves = self.map(lambda tensor: tensor.detach().clone())
        for name in self._fields if names is None else names:
            if getattr(leaves, name) is not None:
                getattr(leaves, name).requires_grad_()
        return leaves


NAMES = Arguments._fields


def make_arguments(sizes, dtype=torch.float32, device="cpu", bias=True) -> Arguments:
    """Random arguments, with weights that are small enough to keep every gate in its nonlinear range."""
    batch, input_features, state_size = sizes

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64, device=device).to(dtype)

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
    """lltm::backward after lltm::forward with the same arguments."""
    _, new_cell, gates = call(arguments)
    return torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, *arguments[:4], mask)


def forward(input, weights, bias, old_h, old_cell, elu=torch.nn.functional.elu) -> tuple[Tensor, Tensor, Tensor]:
    """new_h, new_cell, gates. Differentiable, in the arguments' dtype."""
    z = torch.cat([old_h, input], dim=-1) @ weights.transpose(-1, -2)
    if bias is not None:
        z = z + bias
    z_i, z_o, z_g = z.chunk(3, dim=-1)
    new_cell = old_cell + elu(z_g) * torch.sigmoid(z_i)
    return torch.tanh(new_cell) * torch.sigmoid(z_o), new_cell, z


def lstm(input, weight_ih, weight_hh, bias, old_h, old_cell) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the cell of nn.LSTM."""
    z = input @ weight_ih.transpose(-1, -2) + old_h @ weight_hh.transpose(-1, -2)
    if bias is not None:
        z = z + bias
    z_i, z_f, z_g, z_o = z.chunk(4, dim=-1)
    new_cell = torch.sigmoid(z_f) * old_cell + torch.sigmoid(z_i) * torch.tanh(z_g)
    return torch.sigmoid(z_o) * torch.tanh(new_cell), new_cell, z


def gru(input, weight_ih, weight_hh, bias_ih, bias_hh, old_h) -> tuple[Tensor, Tensor]:
    """new_h and gates of the cell of nn.GRU."""
    linear = torch.nn.functional.linear
    (x_r, x_z, x_n), (h_r, h_z, s_n) = (
        linear(*of).chunk(3, dim=-1) for of in ((input, weight_ih, bias_ih), (old_h, weight_hh, bias_hh))
    )
    n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * s_n)
    return n + torch.sigmoid(x_z + h_z) * (old_h - n), torch.cat([x_r + h_r, x_z + h_z, x_n, s_n], dim=-1)


def library_product_spreads_nan(dtype: torch.dtype) -> bool:
    """oneDNN's 16-bit products with AMX read past the end of an odd row, into the next one, and multiply by 0 there."""
    return dtype.itemsize == 2 and torch.cpu._is_amx_tile_supported()


def precision_on(device: str, dtype: torch.dtype) -> Precision:
    """The precision of calls with the current settings of PyTorch and LLTM_CUDA_PATH."""
    if device == "cpu":
        return Precision.of(dtype)
    # A candidate's name leaves the other direction to the planner.
    may_be_cublas = os.environ.get("LLTM_CUDA_PATH") not in ("few_rows", "hopper", "tiles")
    return Precision.of(dtype, tf32=torch.backends.cuda.matmul.allow_tf32, reduced=may_be_cublas)


def precision_of(tensor: Tensor) -> Precision:
    return precision_on(tensor.device.type, tensor.dtype)


def bounded_forward(arguments: Arguments) -> tuple[Bounded, Bounded, Bounded]:
    """The expected new_h, new_cell and gates."""
    return bounds.LLTM.forward(*arguments.map(precision_of(arguments.input).exact))


def bounded_backward(grad_h: Tensor | None, grad_cell: Tensor | None, arguments: Arguments) -> tuple[Bounded, ...]:
    """The expected five gradients, taking the errors of the forward into account."""
    exact = precision_of(arguments.input).exact
    input, weights, _, old_h, _ = bounded = arguments.map(exact)
    _, new_cell, gates = bounds.LLTM.forward(*bounded)
    return bounds.LLTM.backward(
        exact(grad_h), exact(grad_cell), new_cell.stored(), gates.stored(), input, weights, old_h
    )


def bounded_backward_of(grad_h, grad_cell, new_cell, gates, input, weights, old_h) -> tuple[Bounded, ...]:
    """The five gradients that lltm::backward should compute for exactly these arguments."""
    exact = precision_of(input).exact
    return bounds.LLTM.backward(*map(exact, (grad_h, grad_cell, new_cell, gates, input, weights, old_h)))


def backward(grad_h: Tensor | None, grad_cell: Tensor | None, arguments: Arguments) -> Arguments:
    """The five gradients, in float64."""
    return Arguments(*(gradient.value for gradient in bounded_backward(grad_h, grad_cell, arguments)))


def assert_close(actual: Tensor | None, expected: Bounded, dtype: torch.dtype, name: str = "result") -> None:
    """Within the bounds of bounds.py."""
    assert actual is not None, f"{name} is None"
    assert actual.dtype == dtype, f"{name} is {actual.dtype}"
    assert actual.shape == expected.value.shape, f"{name} is {tuple(actual.shape)}"
    excess = expected.excess(actual).item()
    assert excess <= 1, f"{name} is off by {excess:.3g} times what rounding explains"


def assert_forward_close(actual: tuple[Tensor, ...], arguments: Arguments) -> None:
    for name, result, value in zip(("new_h", "new_cell", "gates"), actual, bounded_forward(arguments), strict=True):
        assert_close(result, value, arguments.input.dtype, name)


def assert_backward_close(actual, grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h) -> None:
    """lltm::backward with exactly these arguments. None in `actual` is a gradient that was not requested."""
    expected = bounded_backward_of(grad_h, grad_cell, new_cell, gates, input, weights, old_h)
    for name, gradient, value in zip(NAMES, actual, expected, strict=True):
        if gradient is not None:
            assert_close(gradient, value, input.dtype, f"gradient of {name}")


def assert_gradients_close(actual, grad_h: Tensor | None, grad_cell: Tensor | None, arguments: Arguments) -> None:
    """None in `actual` is a gradient that was not requested."""
    expected = bounded_backward(grad_h, grad_cell, arguments)
    for name, gradient, value in zip(NAMES, actual, expected, strict=True):
        if gradient is not None:
            assert_close(gradient, value, arguments.input.dtype, f"gradient of {name}")


def gradients(arguments: Arguments, grad_h: Tensor | None, grad_cell: Tensor | None, run=call) -> Arguments:
    """The five gradients by autograd, None for an argument that requires none."""
    arguments = arguments.map(Tensor.detach).require_grad()
    new_h, new_cell, _ = run(arguments)
    outputs = [(new_h, grad_h), (new_cell, grad_cell)]
    outputs = [(output, gradient) for output, gradient in outputs if gradient is not None]
    torch.autograd.backward(*zip(*outputs, strict=True))
    return arguments.map(lambda tensor: tensor.grad)


def assert_identical(found, expected) -> None:
    """Each tensor equals the other, in shape and in every element."""
    for result, value in zip(found, expected, strict=True):
        assert torch.equal(result, value)


def assert_same_up_to_rounding(found, expected) -> None:
    """The results of two calls of one operator. None is a gradient that was not requested."""
    for result, value in zip(found, expected, strict=True):
        if result is None or value is None:
            assert result is value
            continue
        largest = value.abs().max().clamp(min=1).item() if value.numel() else 1
        torch.testing.assert_close(result, value, rtol=0, atol=32 * torch.finfo(value.dtype).eps * largest)


def assert_no_aliases(results, arguments) -> None:
    """No results share storage with each other or with an argument."""
    pointers = [t.untyped_storage().data_ptr() for t in results if t is not None and t.numel()]
    assert len(set(pointers)) == len(pointers), "two results share storage"
    taken = {t.untyped_storage().data_ptr() for t in arguments if t is not None and t.numel()}
    assert not taken.intersection(pointers), "a result shares storage with an argument"
