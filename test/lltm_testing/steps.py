"""A single step of a cell, in every way to compute it, against the bounds of bounds.py."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lltm_testing import sequence_reference
from lltm_testing.bounds import Bounded
from lltm_testing.reference import SIZES, assert_close, precision_of
from lltm_testing.sequence_reference import Arguments, Sequence
from lltm_testing.settings import WITH_CUDA


class Step(NamedTuple):
    """The arguments are those of a sequence of one step."""

    cell: type[Arguments]
    steps: int
    """0: lltm::forward. Otherwise the sequence has this many steps, and its row the length 1."""

    def make(self, sizes, dtype=torch.float32, device="cpu", bias=True) -> Arguments:
        """Random arguments of these (batch, input_features, state_size)."""
        return sequence_reference.make((1, *sizes), dtype, device, bias, cell=self.cell)

    def of_preactivations(self, gates: dict[int, list[float]], state, dtype, device) -> Arguments:
        """A batch of one with exactly these pre-activations, 1 where none are given, and this carried state: the
        input is 1, and the weights are z."""
        state_size = len(state)
        z = torch.ones(self.cell.gates, state_size, dtype=torch.float64)
        for gate, values in gates.items():
            z[gate] = torch.tensor(values, dtype=torch.float64)
        arguments = self.make((1, 1, state_size), torch.float64, bias=False).map(torch.zeros_like)
        arguments.input.fill_(1)
        arguments[1][:, -1] = z.flatten()
        states = {self.cell.states[-1]: torch.tensor([state], dtype=torch.float64)}
        return arguments._replace(**states).map(lambda t: t.to(device, dtype))

    def call(self, arguments) -> tuple[Tensor, ...]:
        """The new states and gates."""
        if self.steps == 0:
            input, *others = arguments[: len(self.cell.names)]
            return torch.ops.lltm.forward(input[0], *others)
        _, *states_and_steps, gates = sequence_reference.call(self._in_a_sequence(arguments), keep=True)
        return *states_and_steps[: len(arguments.states)], gates[0]

    def call_backward(self, grads, arguments, *kept, mask=None) -> tuple[Tensor | None, ...]:
        """The gradients of those of the new states, by default after the step with the same arguments. `kept` are the
        results that it reads beside new_h."""
        new_h, *found = self.call(arguments)
        kept = kept or found
        mask = list(mask or [True] * len(self.cell.names))
        if self.steps == 0:
            input, *others, _ = arguments[: len(self.cell.names)]
            d_input, *others = torch.ops.lltm.backward(*grads, *kept, input[0], *others, mask)
            return None if d_input is None else d_input[None], *others
        given = self._in_a_sequence(arguments)
        kept = (t[None].repeat(self.steps, 1, 1) for t in (new_h, *kept))
        backward = getattr(torch.ops.lltm, f"{self.cell.operator}_backward")
        of_steps = [None] * (len(self.cell.states) - 1)
        d_input, *others = backward(None, *grads, *of_steps, *kept, *given, mask)
        return None if d_input is None else d_input[:1], *others

    def _in_a_sequence(self, arguments):
        if self.steps == 1:
            return arguments
        lengths = torch.ones(arguments.input.size(1), dtype=torch.int64, device=arguments.input.device)
        return arguments._replace(input=arguments.input.expand(self.steps, -1, -1), lengths=lengths)

    def bounded(self, arguments) -> tuple[Bounded, ...]:
        """The expected new states and gates."""
        exact = precision_of(arguments.input).exact
        return self.cell.bounds.forward(exact(arguments.input[0]), *map(exact, self._others(arguments)))

    def bounded_backward(self, grads, arguments, *kept) -> tuple[Bounded, ...]:
        """The expected gradients of exactly what is kept, or of the formula's results, with the errors of the step."""
        exact = precision_of(arguments.input).exact
        _, *of_formula = (result.stored() for result in self.bounded(arguments))
        weights = (getattr(arguments, name) for name in self.cell.weight_names())
        states = arguments.initial_states()[: self.cell.bounds.matrices]
        given = (arguments.input[0], *weights, *states)
        return self.cell.bounds.backward(
            *map(exact, grads), *(map(exact, kept) if kept else of_formula), *map(exact, given)
        )

    def _others(self, arguments) -> tuple[Tensor, ...]:
        return arguments[1 : len(self.cell.names)]

    def assert_close(self, actual, arguments) -> None:
        names = (*(f"new {name}" for name in self.cell.states), "gates")
        for name, result, value in zip(names, actual, self.bounded(arguments), strict=True):
            assert_close(result, value, arguments.input.dtype, name)

    def assert_gradients_close(self, actual, grads, arguments, *kept) -> None:
        """None in `actual` is a gradient that was not requested."""
        d_input, *others = self.bounded_backward(grads, arguments, *kept)
        actual = [None if actual[0] is None else actual[0][0], *actual[1:]]
        for name, gradient, value in zip(self.cell.names, actual, (d_input, *others), strict=True):
            if gradient is not None:
                assert_close(gradient, value, arguments.input.dtype, f"gradient of {name}")


def make_gradients(arguments) -> tuple[Tensor, ...]:
    """Random gradients of the new states."""
    return tuple(map(torch.randn_like, arguments.initial_states()))


STEPS = {
    "forward": Step(Sequence, 0),
    **{cell.operator: Step(cell, 1) for cell in sequence_reference.CELLS.values()},
    **{f"{cell.operator}_of_3": Step(cell, 3) for cell in sequence_reference.CELLS.values()},
}
# More rows than a grid of CUDA's has blocks in y and z. On the CPU, they take no path of their own.
many_rows = () if WITH_CUDA else pytest.mark.release
each_step_and_size = pytest.mark.parametrize(
    ("step", "sizes"),
    [
        pytest.param(name, sizes, marks=many_rows if sizes[0] > 65535 else ())
        for name in STEPS
        for sizes in SIZES
        if STEPS[name].steps < 3 or sizes[0] < 1000
    ],
    indirect=["step"],
    ids=str,
)
