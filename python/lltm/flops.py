"""Floating-point operations of the operators, for ``torch.utils.flop_counter.FlopCounterMode``.

Counted as PyTorch counts its own: two for each multiply-add of the matrix products, nothing for what is done element by
element. Steps beyond a row's length are counted, as lengths are on the device.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

Shape = Sequence[int]


def _product(rows: int, weights: Shape, columns: int) -> int:
    """[rows, 3H] times so many columns of the weights, or their gradient: the count is the same."""
    return 2 * rows * weights[0] * columns


def _features(weights: Shape) -> tuple[int, int]:
    """Columns of the weights that belong to the state and to the input."""
    state_size = weights[0] // 3
    return state_size, weights[1] - state_size


def _forward(input: Shape, weights: Shape, *args: Any, **kwargs: Any) -> int:
    """One step (N, I), or all of a sequence (T, N, I)."""
    return _product(prod(input[:-1]), weights, weights[1])


def _backward(
    grad_h: Shape | None,
    grad_cell: Shape | None,
    new_cell: Shape,
    gates: Shape,
    input: Shape,
    weights: Shape,
    bias: Shape | None,
    old_h: Shape,
    output_mask: Sequence[bool],
    **kwargs: Any,
) -> int:
    d_input, d_weights, _, d_old_h, _ = output_mask
    state_size, input_features = _features(weights)
    columns = d_weights * weights[1] + d_input * input_features + d_old_h * state_size
    return _product(input[0], weights, columns)


def _sequence_backward(
    grad_output: Shape | None,
    grad_h_n: Shape | None,
    grad_c_n: Shape | None,
    grad_cells: Shape | None,
    output: Shape,
    cells: Shape,
    gates: Shape,
    input: Shape,
    weights: Shape,
    bias: Shape | None,
    h0: Shape | None,
    c0: Shape | None,
    lengths: Shape | None,
    reset: Shape | None,
    reverse: bool,
    output_mask: Sequence[bool],
    **kwargs: Any,
) -> int:
    d_input, d_weights, _, d_h0, _ = output_mask
    steps, batch = input[0], input[1]
    state_size, input_features = _features(weights)
    # From step to step the gradient of h goes through the weights whatever is wanted; at the first step d_h0 alone is.
    recurrent_steps = steps if d_h0 else max(steps - 1, 0)
    recurrence = _product(recurrent_steps * batch, weights, state_size)
    return recurrence + _product(steps * batch, weights, d_weights * weights[1] + d_input * input_features)


def register() -> None:
    """Register the formulas of the operators, unless an earlier import of this package has."""
    formulas = {
        "forward": _forward,
        "backward": _backward,
        "sequence": _forward,
        "sequence_backward": _sequence_backward,
    }
    for name, formula in formulas.items():
        operator = getattr(torch.ops.lltm, name)
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)
