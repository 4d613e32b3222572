"""A sequence of either cell as a loop of its formula in float64, over the rows and steps within the lengths."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lltm_testing import bounds, reference
from lltm_testing.bounds import Precision

OUTPUTS = ("output", "h_n", "c_n", "cells", "gates")


class Sizes(NamedTuple):
    steps: int
    batch: int
    input_features: int
    state_size: int


# Powers of two and their neighbors, ones and zeros, and more rows or steps than in a block or a chunk.
SIZES = [
    Sizes(*sizes)
    for sizes in [
        (7, 6, 5, 4),
        (1, 1, 1, 1),
        (1, 3, 5, 7),
        (3, 17, 33, 65),
        (12, 2, 0, 3),
        (0, 3, 2, 4),
        (4, 0, 2, 4),
        (0, 0, 2, 4),
        (200, 6, 3, 8),
        (2, 5000, 3, 2),
    ]
]

FLAGS = [(), ("lengths",), ("reset", "reverse"), ("lengths", "reset", "reverse")]
"""The options of `make` that a test of all sizes takes."""


class Fields:
    """What the arguments of lltm::sequence and lltm::lstm, except keep, have in common."""

    operator: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    """The floating-point arguments, in the order of the gradients."""
    gates: ClassVar[int]
    step: ClassVar[Callable]
    """The cell's formula: new_h, new_cell and gates of an input, the weights, the bias, old_h and old_cell."""
    bounds: ClassVar[bounds.Cell]

    @property
    def weights_and_bias(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, name) for name in self.names[1:-2])

    @property
    def state_size(self) -> int:
        return self[1].size(0) // self.gates

    def map(self, function):
        """Applies the function to the floating-point tensors."""
        return self._replace(**{name: function(getattr(self, name)) for name in self.given()})

    def given(self) -> list[str]:
        """The names of the floating-point arguments that are not None."""
        return [name for name in self.names if getattr(self, name) is not None]

    def require_grad(self, names=None):
        """New leaves with the same values. The named ones, by default all, require gradients."""
        leaves = self.map(lambda tensor: tensor.detach().clone())
        for name in set(self.names if names is None else names).intersection(self.given()):
            getattr(leaves, name).requires_grad_()
        return leaves

    def leaves(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.given() if getattr(self, name).requires_grad]


class SequenceFields(NamedTuple):
    input: Tensor
    weights: Tensor
    bias: Tensor | None = None
    h0: Tensor | None = None
    c0: Tensor | None = None
    lengths: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False


NAMES = SequenceFields._fields[:5]


class Sequence(Fields, SequenceFields):
    """The arguments of lltm::sequence except keep."""

    operator, names, gates, step = "sequence", NAMES, 3, staticmethod(reference.forward)
    bounds = bounds.LLTM


class LstmFields(NamedTuple):
    input: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias: Tensor | None = None
    h0: Tensor | None = None
    c0: Tensor | None = None
    lengths: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False


class Lstm(Fields, LstmFields):
    """The arguments of lltm::lstm except keep."""

    operator, names, gates, step = "lstm", LstmFields._fields[:6], 4, staticmethod(reference.lstm)
    bounds = bounds.LSTM


CELLS = {"lltm": Sequence, "lstm": Lstm}


def make(
    sizes,
    dtype=torch.float32,
    device="cpu",
    bias=True,
    state=True,
    lengths=False,
    reset=False,
    reverse=False,
    cell_dtype=None,
    cell=Sequence,
) -> Sequence | Lstm:
    """Random arguments of a cell; c0 has cell_dtype, or the others' dtype."""
    steps, batch, input_features, state_size = sizes

    def normal(*shape, dtype=dtype):
        return torch.randn(shape, dtype=torch.float64).to(device=device, dtype=dtype)

    scale = max(1, state_size + input_features) ** 0.5
    gates = cell.gates * state_size
    columns = [state_size + input_features] if cell is Sequence else [input_features, state_size]
    return cell(
        normal(steps, batch, input_features),
        *(normal(gates, number) / scale for number in columns),
        bias=normal(gates) if bias else None,
        h0=normal(batch, state_size) if state else None,
        c0=normal(batch, state_size, dtype=cell_dtype or dtype) if state else None,
        # Including values beyond both ends, as lengths are clamped.
        lengths=torch.randint(-1, steps + 2, (batch,)).to(device) if lengths else None,
        reset=(torch.rand(steps, batch) < 0.25).to(device) if reset else None,
        reverse=reverse,
    )


def ragged(arguments):
    """The arguments, of at least five rows, with lengths from none to more than all steps; the same with NaN in the
    input and resets beyond the lengths, which have no effect; and where that is, (steps, batch)."""
    steps, batch, _ = arguments.input.shape
    lengths = torch.tensor([0, 1, steps // 2, steps, steps + 3], device=arguments.input.device)
    lengths = lengths[torch.arange(batch, device=lengths.device) % 5]
    beyond = torch.arange(steps, device=lengths.device)[:, None] >= lengths
    arguments = arguments._replace(lengths=lengths)
    input = arguments.input.masked_fill(beyond.unsqueeze(2), torch.nan)
    reset = beyond if arguments.reset is None else arguments.reset | beyond
    return arguments, arguments._replace(input=input, reset=reset), beyond


def assert_carries_the_cell_in_float32(run, dtype: torch.dtype, device, steps: int, cell=Sequence) -> None:
    """run(input, weights, bias, h0, c0), with two weights for an LSTM, gives c_n after many small increments, which the
    cell state would lose if it were rounded after each of them."""
    start, increment = 64.0, 0.005
    # The input gate is 1/2, the forget gate 1, and the candidate 2 * increment, or its tanh.
    bias = [0.0, 40.0, 2 * increment, 0.0] if cell is Lstm else [0.0, 0.0, 2 * increment]
    bias = torch.tensor(bias, device=device, dtype=dtype)
    candidate = bias[2].double().tanh() if cell is Lstm else bias[2]
    weights = bias.new_zeros(len(bias), 2)
    weights = weights.split(1, dim=1) if cell is Lstm else (weights,)
    c_n = run(bias.new_zeros(steps, 2, 1), *weights, bias, None, bias.new_full((2, 1), start))
    assert abs(c_n.float() / (start + steps * candidate.item() / 2) - 1).max() < torch.finfo(dtype).eps


def call(arguments: Sequence | Lstm, keep: bool = False) -> tuple[Tensor, ...]:
    return getattr(torch.ops.lltm, arguments.operator)(*arguments, keep=keep)


def run(arguments: Sequence | Lstm, step=None) -> tuple[Tensor, ...]:
    """The five results of a loop over `step`, by default the cell's formula, with keep. Differentiable, in the
    arguments' dtype. Whether a row runs is decided on the host, row by row, so that nothing beyond its length is used.
    """
    input, *_, h0, c0, lengths, reset, reverse = arguments
    step = step or arguments.step
    steps, batch, _ = input.shape
    state_size = arguments.state_size
    h = input.new_zeros(batch, state_size) if h0 is None else h0
    cell = input.new_zeros(batch, state_size) if c0 is None else c0
    counts = torch.full((batch,), steps) if lengths is None else lengths.cpu().clamp(0, steps)
    results = [[None] * steps for _ in range(3)]
    for t in reversed(range(steps)) if reverse else range(steps):
        rows = (counts > t).nonzero().flatten().to(input.device)
        old_h, old_cell = h[rows], cell[rows]
        if reset is not None:
            again = reset[t, rows].unsqueeze(1)
            old_h, old_cell = (torch.where(again, torch.zeros_like(s), s) for s in (old_h, old_cell))
        new_h, new_cell, z = step(input[t, rows], *arguments.weights_and_bias, old_h, old_cell)
        h, cell = h.index_put((rows,), new_h), cell.index_put((rows,), new_cell)
        for of_steps, value in zip(results, (new_h, new_cell, z), strict=True):
            of_steps[t] = value.new_zeros(batch, value.size(1)).index_put((rows,), value)
    output, cells, gates = (
        torch.stack(of_steps) if steps else input.new_zeros(0, batch, columns)
        for of_steps, columns in zip(results, (state_size, state_size, arguments.gates * state_size), strict=True)
    )
    return output, h, cell, cells, gates


def cell_dtype_of(arguments: Sequence | Lstm) -> torch.dtype:
    return (arguments.input if arguments.c0 is None else arguments.c0).dtype


def make_gradients(arguments: Sequence | Lstm, given=(True,) * 4) -> list[Tensor | None]:
    """Random gradients of output, h_n, c_n and cells, None for those that are not given."""
    output, h_n, c_n, cells, _ = call(arguments, keep=True)
    return [torch.randn_like(t) if flag else None for t, flag in zip((output, h_n, c_n, cells), given, strict=True)]


def call_backward(gradients, arguments: Sequence | Lstm, mask=None) -> tuple[Tensor | None, ...]:
    """The backward operator after the forward with the same arguments. By default, all gradients are wanted."""
    output, _, _, cells, gates = call(arguments, keep=True)
    backward = getattr(torch.ops.lltm, f"{arguments.operator}_backward")
    return backward(*gradients, output, cells, gates, *arguments, list(mask or [True] * len(arguments.names)))


def reference_gradients(gradients, arguments: Sequence | Lstm, step=None) -> list[Tensor]:
    """The gradients of the loop in float64 by autograd. Absent h0, c0 and bias are replaced by zeros."""
    steps, batch, _ = arguments.input.shape
    state_size = arguments.state_size
    exact = arguments.map(Tensor.double)
    zeros = {"bias": (arguments.gates * state_size,), "h0": (batch, state_size), "c0": (batch, state_size)}
    exact = exact._replace(
        **{name: exact.input.new_zeros(shape) for name, shape in zeros.items() if getattr(exact, name) is None}
    ).require_grad()
    if all(gradient is None for gradient in gradients):
        return [torch.zeros_like(leaf) for leaf in exact.leaves()]
    results = run(exact, step)
    # None stands for zeros, and zero times NaN is NaN.
    loss = sum((r * (0.0 if g is None else g.double())).sum() for r, g in zip(results, gradients, strict=False))
    return list(torch.autograd.grad(loss, exact.leaves(), materialize_grads=True))


class Expected(NamedTuple):
    value: Tensor
    tolerance: Tensor
    """The largest error that is allowed, 0-dimensional."""


NOISE = 2.0**-30


def noisy(step: Callable) -> Callable:
    """The cell's formula with a small random relative error in each element of its results and of their gradients."""
    return lambda *arguments: tuple(result * (1 + NOISE * torch.randn_like(result)) for result in step(*arguments))


def finite(tensor: Tensor) -> Tensor:
    """The tensor with 0 for values that are not finite."""
    return tensor.detach().nan_to_num(0.0, 0.0, 0.0)


def with_tolerance(value: Tensor, noisy: Tensor, precision: Precision, terms: int = 0) -> Expected:
    """The tolerance: a few ulps of the largest number for the sums of products, plus the steps' propagated errors.

    The worst-case bound of bounds.py grows exponentially with the number of steps. Rounding errors usually do not: they
    accumulate like a random walk, over the steps and over the `terms` of a sum. But some sequences amplify them a
    hundredfold. The amplification is measured by the same loop with errors of a known size (Monte Carlo arithmetic,
    D. S. Parker 1997).

    A 16-bit result has the rounding errors of the workspace and of its own dtype instead, at most half a unit each, and
    float32 values next to 16-bit arguments are no more accurate than those. The same holds for the rounded factors of
    TF32 products.
    """
    if value.numel() == 0:
        return Expected(value, value.new_zeros(()))
    unit = max(precision.storage_unit, precision.product_unit)
    units, units_of_a_step = (8, 2) if unit > precision.unit else (32 + terms**0.5, 8)
    largest = finite(value).abs().max().clamp(min=1)
    amplified = finite(noisy - value).abs().max() / NOISE
    return Expected(value, unit * (units * largest + units_of_a_step * amplified))


def expected_results(arguments: Sequence | Lstm, precision: Precision | None = None) -> list[Expected]:
    """The five results, with keep. Differentiable. `precision` defaults to that of the arguments."""
    precision = precision or reference.precision_of(arguments.input)
    exact = arguments.map(Tensor.double)
    with torch.no_grad():
        others = run(exact, noisy(arguments.step))
    return [with_tolerance(*pair, precision) for pair in zip(run(exact), others, strict=True)]


def expected_gradients(gradients, arguments: Sequence | Lstm, precision: Precision | None = None) -> list[Expected]:
    """The gradients. Absent h0, c0 and bias are replaced by zeros."""
    precision = precision or reference.precision_of(arguments.input)
    rows = arguments.input.size(0) * arguments.input.size(1)
    values = reference_gradients(gradients, arguments)
    others = reference_gradients(gradients, arguments, noisy(arguments.step))
    return [
        with_tolerance(value, other, precision, rows if name.startswith("weight") or name == "bias" else 0)
        for name, value, other in zip(arguments.names, values, others, strict=True)
    ]


def assert_close(actual: Tensor | None, expected: Expected, dtype, name: str) -> None:
    value, tolerance = expected
    assert actual is not None, f"{name} is None"
    assert actual.dtype == dtype, f"{name} is {actual.dtype}"
    assert actual.shape == value.shape, f"{name} is {tuple(actual.shape)}"
    if value.numel() == 0:
        return
    error = (actual.detach().double() - value.detach().to(actual.device)).abs().max().item()
    assert error <= tolerance.item(), f"{name} is off by {error:.3g}, more than {tolerance.item():.3g}"


def assert_results_close(actual, arguments: Sequence | Lstm, keep: bool = False) -> None:
    dtype = arguments.input.dtype
    for name, result, expected in zip(OUTPUTS, actual, expected_results(arguments), strict=True):
        if name in ("cells", "gates") and not keep:
            assert result.shape == (0, *expected.value.shape[1:]) and result.dtype == dtype, name
        else:
            assert_close(result, expected, cell_dtype_of(arguments) if name == "c_n" else dtype, name)


def assert_gradients_close(actual, gradients, arguments: Sequence | Lstm, mask=None) -> None:
    expected = expected_gradients(gradients, arguments)
    mask = mask or [True] * len(expected)
    for name, found, value, wanted in zip(arguments.names, actual, expected, mask, strict=True):
        if not wanted:
            assert found is None, name
            continue
        dtype = cell_dtype_of(arguments) if name == "c0" else arguments.input.dtype
        assert_close(found, value, dtype, f"gradient of {name}")
