"""The operators as functions of their differentiable arguments, beside the formula, in float64."""

import itertools
from collections.abc import Callable
from functools import partial, reduce
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lltm_testing import reference, sequence_reference


class Function(NamedTuple):
    operator: Callable[..., tuple[Tensor, ...]]
    """The differentiable results of the operator, those of a sequence by default with keep."""
    formula: Callable[..., tuple[Tensor, ...]]
    """The same as a composition of PyTorch's operations."""
    tensors: tuple[Tensor, ...]


def make_function(arguments, operator: Callable, formula: Callable) -> Function:
    """Of all floating-point arguments that are given."""
    names = [n for n, t in arguments._asdict().items() if isinstance(t, Tensor) and t.is_floating_point()]

    def of(run: Callable) -> Callable[..., tuple[Tensor, ...]]:
        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            *results, _gates = run(arguments._replace(**dict(zip(names, tensors, strict=True))))
            return tuple(results)

        return function

    return Function(of(operator), of(formula), tuple(getattr(arguments, name) for name in names))


def of_cell(device, sizes=(4, 2, 3), bias=True) -> Function:
    arguments = reference.make_arguments(sizes, torch.float64, device, bias)
    return make_function(arguments, reference.call, lambda given: reference.forward(*given))


def of_sequence(device, sizes=(3, 3, 1, 2), lengths=True, reset=True, keep=True, **options) -> Function:
    arguments = sequence_reference.make(sizes, torch.float64, device, lengths=lengths, reset=reset, **options)
    return make_function(arguments, partial(sequence_reference.call, keep=keep), sequence_reference.run)


FUNCTIONS = {
    "cell": of_cell,
    "cell_without_bias": partial(of_cell, bias=False),
    "sequence": of_sequence,
    "reverse": partial(of_sequence, reverse=True),
    "lstm": partial(of_sequence, cell=sequence_reference.Lstm),
    "lstm_reverse": partial(of_sequence, cell=sequence_reference.Lstm, reverse=True),
    "gru": partial(of_sequence, cell=sequence_reference.Gru),
    "gru_reverse": partial(of_sequence, cell=sequence_reference.Gru, reverse=True),
}
each_function = pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
each_argument = pytest.mark.parametrize(
    ("make", "argnum"),
    [
        pytest.param(make, argnum, id=f"{name}-{argnum}")
        for name, make in FUNCTIONS.items()
        for argnum in range(len(make("cpu").tensors))
    ],
)


def loss(results) -> Tensor:
    """A number that depends nonlinearly on every result."""
    return reduce(torch.add, ((a * b.sin()).sum() for a, b in itertools.pairwise(results)))


def of_loss(run: Callable) -> Callable[..., Tensor]:
    return lambda *tensors: loss(run(*tensors))


def assert_equal(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
