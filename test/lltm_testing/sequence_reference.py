"""A sequence of any cell as a loop of its formula in float64, over the rows and steps within the lengths."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from lltm_testing import bounds, reference
from lltm_testing.bounds import Precision


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

each_size_and_flags = pytest.mark.parametrize(
    ("sizes", "flags"),
    [
        # Long ones take most of the time, so only a release has each option by itself.
        pytest.param(sizes, flags, marks=pytest.mark.release if sizes.steps > 100 and len(flags) in (1, 2) else ())
        for sizes in SIZES
        for flags in FLAGS
    ],
    ids=str,
)

# More than a chunk of steps, and more than a block of rows. Only a release has both directions of each, and no masks:
# the parts are the same.
CHUNKS, BLOCKS = Sizes(300, 16, 33, 64), Sizes(3, 16500, 3, 32)
each_chunked = pytest.mark.parametrize(
    ("sizes", "reverse", "masked"),
    [
        pytest.param(
            sizes, reverse, masked, marks=() if masked and reverse == (sizes == CHUNKS) else pytest.mark.release
        )
        for sizes in (CHUNKS, BLOCKS)
        for reverse in (True, False)
        for masked in (True, False)
    ],
    ids=str,
)


class Fields:
    """What the arguments of lltm::sequence, lltm::lstm and lltm::gru, except keep, have in common."""

    operator: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    """The floating-point arguments, in the order of the gradients."""
    outputs: ClassVar[tuple[str, ...]] = ("output", "h_n", "c_n", "cells", "gates")
    states: ClassVar[tuple[str, ...]] = ("h0", "c0")
    """The initial states. Steps carry the last one in float32, and it may be float32 beside 16 bits."""
    gates: ClassVar[int]
    """The rows of the weights for each element of the state."""
    saved: ClassVar[int]
    """The numbers that `gates` has for each element of the state."""
    step: ClassVar[Callable]
    """The cell's formula: the new states and gates of an input, the weights, the biases and the old states."""
    bounds: ClassVar[bounds.Cell | bounds.Gru]

    @classmethod
    def weight_names(cls) -> tuple[str, ...]:
        return tuple(name for name in cls.names if name.startswith("weight"))

    @classmethod
    def bias_names(cls) -> tuple[str, ...]:
        return tuple(name for name in cls.names if name.startswith("bias"))

    @classmethod
    def incoming(cls) -> tuple[str, ...]:
        """The names of the gradients of the results. gates has none."""
        return tuple(f"grad_{name}" for name in cls.outputs[:-1])

    def weights_and_biases(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, name) for name in self.names[1 : -len(self.states)])

    def initial_states(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, name) for name in self.states)

    def state_dtypes(self) -> tuple[torch.dtype, ...]:
        """Those of the last states, and of the gradients of the initial ones."""
        carried = self.initial_states()[-1]
        dtype = self.input.dtype
        return (*(dtype,) * (len(self.states) - 1), dtype if carried is None else carried.dtype)

    def beyond(self) -> Tensor:
        """Which rows of which steps are not run, (steps, batch)."""
        steps, batch, _ = self.input.shape
        lengths = torch.full((batch,), steps) if self.lengths is None else self.lengths
        return torch.arange(steps, device=lengths.device)[:, None] >= lengths

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

    operator, names, gates, saved = "sequence", NAMES, 3, 3
    step, bounds = staticmethod(reference.forward), bounds.LLTM


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

    operator, names, gates, saved = "lstm", LstmFields._fields[:6], 4, 4
    step, bounds = staticmethod(reference.lstm), bounds.LSTM


class GruFields(NamedTuple):
    input: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    h0: Tensor | None = None
    lengths: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False


class Gru(Fields, GruFields):
    """The arguments of lltm::gru except keep."""

    operator, names, gates, saved = "gru", GruFields._fields[:6], 3, 4
    outputs, states = ("output", "h_n", "gates"), ("h0",)
    step, bounds = staticmethod(reference.gru), bounds.GRU


Arguments = Sequence | Lstm | Gru
CELLS = {"lltm": Sequence, "lstm": Lstm, "gru": Gru}


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
) -> Arguments:
    """Random arguments of a cell; the state that is carried in float32 has cell_dtype, or the others' dtype."""
    steps, batch, input_features, state_size = sizes

    def normal(*shape, dtype=dtype):
        return torch.randn(shape, dtype=torch.float64).to(device=device, dtype=dtype)

    scale = max(1, state_size + input_features) ** 0.5
    gates = cell.gates * state_size
    columns = [state_size + input_features] if cell is Sequence else [input_features, state_size]
    return cell(
        normal(steps, batch, input_features),
        *(normal(gates, number) / scale for number in columns),
        *(normal(gates) if bias else None for _ in cell.bias_names()),
        *(
            normal(batch, state_size, dtype=(name == cell.states[-1] and cell_dtype) or dtype) if state else None
            for name in cell.states
        ),
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
    arguments = arguments._replace(lengths=lengths)
    beyond = arguments.beyond()
    input = arguments.input.masked_fill(beyond.unsqueeze(2), torch.nan)
    reset = beyond if arguments.reset is None else arguments.reset | beyond
    return arguments, arguments._replace(input=input, reset=reset), beyond


def assert_carries_the_state_in_float32(function, dtype: torch.dtype, device, steps: int, cell=Sequence) -> None:
    """The function of the floating-point arguments gives the last state after many small changes, which the state would
    lose if it were rounded after each of them."""
    arguments = make((steps, 2, 1, 1), torch.float64, device, cell=cell).map(torch.zeros_like)
    # The input gate is 1/2, the forget gate 1, and the candidate 0.01, or its tanh. The update gate of a GRU, whose
    # state decays from 64, is 1 - 1e-4.
    bias = {Sequence: [0.0, 0.0, 0.01], Lstm: [0.0, 40.0, 0.01, 0.0], Gru: [0.0, 9.2, 0.0]}[cell]
    values = {cell.bias_names()[0]: arguments[1].new_tensor(bias), cell.states[-1]: arguments[1].new_full((2, 1), 64.0)}
    arguments = arguments._replace(**values).map(lambda tensor: tensor.to(dtype))
    with torch.no_grad():
        expected = run(arguments.map(Tensor.double))[len(cell.states)]
    carried = function(*arguments[: len(cell.names)])
    assert (carried.double() / expected - 1).abs().max() < torch.finfo(dtype).eps


def call(arguments: Arguments, keep: bool = False) -> tuple[Tensor, ...]:
    return getattr(torch.ops.lltm, arguments.operator)(*arguments, keep=keep)


def taken(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """These rows. None are all, for which autograd needs no nodes: most of a gradient's time."""
    return tensor if rows is None else tensor[rows]


def replaced(tensor: Tensor, rows: Tensor | None, values: Tensor) -> Tensor:
    return values if rows is None else tensor.index_put((rows,), values)


def run(arguments: Arguments, step=None) -> tuple[Tensor, ...]:
    """The results of a loop over `step`, by default the cell's formula, with keep. Differentiable, in the
    arguments' dtype. Whether a row runs is decided on the host, row by row, so that nothing beyond its length is used.
    """
    input, *_, lengths, reset, reverse = arguments
    step = step or arguments.step
    steps, batch, _ = input.shape
    numbers = *(1 for _ in arguments.states), arguments.saved
    zeros = [input.new_zeros(batch, number * arguments.state_size) for number in numbers]
    states = [zeros[0] if s is None else s for s in arguments.initial_states()]
    counts = torch.full((batch,), steps) if lengths is None else lengths.cpu().clamp(0, steps)
    results = [[None] * steps for _ in zeros]
    for t in reversed(range(steps)) if reverse else range(steps):
        runs = counts > t
        rows = None if runs.all() else runs.nonzero().flatten().to(input.device)
        old = [taken(state, rows) for state in states]
        if reset is not None:
            again = taken(reset[t], rows).unsqueeze(1)
            old = [torch.where(again, torch.zeros_like(state), state) for state in old]
        new = step(taken(input[t], rows), *arguments.weights_and_biases(), *old)
        states = [replaced(state, rows, value) for state, value in zip(states, new, strict=False)]
        for of_steps, nothing, value in zip(results, zeros, new, strict=True):
            of_steps[t] = replaced(nothing, rows, value)
    output, *others = (
        torch.stack(of_steps) if steps else nothing.new_zeros(0, *nothing.shape)
        for of_steps, nothing in zip(results, zeros, strict=True)
    )
    return output, *states, *others


def kept_of(arguments: Arguments, results) -> tuple[Tensor, ...]:
    """The results that the backward operator reads: output, cells, if there are any, and gates."""
    return results[0], *results[1 + len(arguments.states) :]


def make_gradients(arguments: Arguments, given=(True,) * 4) -> list[Tensor | None]:
    """Random gradients of all results but gates, None for those that are not given."""
    *results, _gates = call(arguments, keep=True)
    return [torch.randn_like(t) if flag else None for t, flag in zip(results, given, strict=False)]


def call_backward(gradients, arguments: Arguments, mask=None) -> tuple[Tensor | None, ...]:
    """The backward operator after the forward with the same arguments. By default, all gradients are wanted."""
    kept = kept_of(arguments, call(arguments, keep=True))
    backward = getattr(torch.ops.lltm, f"{arguments.operator}_backward")
    return backward(*gradients, *kept, *arguments, list(mask or [True] * len(arguments.names)))


def reference_gradients(gradients, arguments: Arguments, step=None) -> list[Tensor]:
    """The gradients of the loop in float64 by autograd. Absent states and biases are replaced by zeros."""
    steps, batch, _ = arguments.input.shape
    state_size = arguments.state_size
    exact = arguments.map(Tensor.double)
    zeros = dict.fromkeys(arguments.bias_names(), (arguments.gates * state_size,))
    zeros |= dict.fromkeys(arguments.states, (batch, state_size))
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


def expected_results(arguments: Arguments, precision: Precision | None = None) -> list[Expected]:
    """The results, with keep. Differentiable. `precision` defaults to that of the arguments."""
    precision = precision or reference.precision_of(arguments.input)
    exact = arguments.map(Tensor.double)
    with torch.no_grad():
        others = run(exact, noisy(arguments.step))
    return [with_tolerance(*pair, precision) for pair in zip(run(exact), others, strict=True)]


def expected_gradients(gradients, arguments: Arguments, precision: Precision | None = None) -> list[Expected]:
    """The gradients. Absent states and biases are replaced by zeros."""
    precision = precision or reference.precision_of(arguments.input)
    rows = arguments.input.size(0) * arguments.input.size(1)
    values = reference_gradients(gradients, arguments)
    others = reference_gradients(gradients, arguments, noisy(arguments.step))
    return [
        with_tolerance(value, other, precision, rows if name.startswith(("weight", "bias")) else 0)
        for name, value, other in zip(arguments.names, values, others, strict=True)
    ]


def result_dtypes(arguments: Arguments) -> list[torch.dtype]:
    dtype, states = arguments.input.dtype, arguments.state_dtypes()
    return [dtype, *states, *[dtype] * (len(arguments.outputs) - 1 - len(states))]


def gradient_dtypes(arguments: Arguments) -> list[torch.dtype]:
    states = arguments.state_dtypes()
    return [*[arguments.input.dtype] * (len(arguments.names) - len(states)), *states]


def specified(arguments: Arguments, results) -> list[Tensor]:
    """The results, with zeros where the gates of a GRU are unspecified: beyond the lengths."""
    *others, gates = results
    if isinstance(arguments, Gru) and gates.size(0):
        gates = gates.masked_fill(arguments.beyond().to(gates.device).unsqueeze(2), 0)
    return [*others, gates]


def assert_close(actual: Tensor | None, expected: Expected, dtype, name: str) -> None:
    value, tolerance = expected
    assert actual is not None, f"{name} is None"
    assert actual.dtype == dtype, f"{name} is {actual.dtype}"
    assert actual.shape == value.shape, f"{name} is {tuple(actual.shape)}"
    if value.numel() == 0:
        return
    error = (actual.detach().double() - value.detach().to(actual.device)).abs().max().item()
    assert error <= tolerance.item(), f"{name} is off by {error:.3g}, more than {tolerance.item():.3g}"


def assert_results_close(actual, arguments: Arguments, keep: bool = False) -> None:
    expected = zip(specified(arguments, actual), result_dtypes(arguments), expected_results(arguments), strict=True)
    for name, (result, dtype, value) in zip(arguments.outputs, expected, strict=True):
        if name in ("cells", "gates") and not keep:
            assert result.shape == (0, *value.value.shape[1:]) and result.dtype == dtype, name
        else:
            assert_close(result, value, dtype, name)


def assert_gradients_close(actual, gradients, arguments: Arguments, mask=None) -> None:
    expected = expected_gradients(gradients, arguments)
    mask = mask or [True] * len(expected)
    for name, found, dtype, value, wanted in zip(
        arguments.names, actual, gradient_dtypes(arguments), expected, mask, strict=True
    ):
        if wanted:
            assert_close(found, value, dtype, f"gradient of {name}")
        else:
            assert found is None, name
