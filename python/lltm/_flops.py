"""FLOP formulas of the operators, for ``torch.utils.flop_counter.FlopCounterMode``.

As in PyTorch's own formulas, a multiply-add of a matrix product counts as two, and elementwise operations count as
none. Steps beyond a row's length are counted, because the lengths are on the device.

The formulas are registered when both this package and ``torch.utils.flop_counter`` have been imported, in either order.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

__all__ = ["register"]

Shape = Sequence[int]


def _product(rows: int, weights: Shape, columns: int) -> int:
    """FLOPs of [rows, 3H] times this many columns of the weights, or of the gradient of those columns."""
    return 2 * rows * weights[0] * columns


def _features(weights: Shape) -> tuple[int, int]:
    """The number of columns of the weights that belong to the state and to the input."""
    state_size = weights[0] // 3
    return state_size, weights[1] - state_size


def _forward(input: Shape, weights: Shape, *args: Any, **kwargs: Any) -> int:
    """One step, input (N, I), or a whole sequence, input (T, N, I)."""
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
    state_size, input_features = _features(weights)
    columns = d_weights * weights[1] + d_input * input_features
    return _backward_of_steps(input, weights, state_size, d_h0, columns)


def _backward_of_steps(input: Shape, weights: Shape, state_size: int, d_h0: bool, columns: int) -> int:
    """The recurrence, and the products after it, of all steps with this many columns."""
    steps, batch = input[0], input[1]
    # Between steps the gradient of h always passes through the weights; before the first step, only for d_h0.
    recurrent_steps = steps if d_h0 else max(steps - 1, 0)
    recurrence = _product(recurrent_steps * batch, weights, state_size)
    return recurrence + _product(steps * batch, weights, columns)


def _lstm(input: Shape, weight_ih: Shape, weight_hh: Shape, *args: Any, **kwargs: Any) -> int:
    return _product(prod(input[:-1]), weight_ih, weight_ih[1] + weight_hh[1])


def _lstm_backward(*args: Any, **kwargs: Any) -> int:
    input, weight_ih, weight_hh = args[7:10]
    d_input, d_weight_ih, d_weight_hh, _, d_h0, _ = args[-1]
    columns = (d_input + d_weight_ih) * weight_ih[1] + d_weight_hh * weight_hh[1]
    return _backward_of_steps(input, weight_hh, weight_hh[1], d_h0, columns)


def _sequence_gate_gradients(*args: Any, **kwargs: Any) -> int:
    d_h0, d_c0 = args[-1]
    arguments = (*args[:-1], (False, False, False, d_h0, d_c0))
    return _sequence_backward(*arguments, **kwargs)


def _lstm_gate_gradients(*args: Any, **kwargs: Any) -> int:
    d_h0, d_c0 = args[-1]
    return _lstm_backward(*args[:-1], (False, False, False, False, d_h0, d_c0), **kwargs)


def register() -> None:
    """Register the formulas, unless an earlier import of this package did. Imports ``torch.utils.flop_counter``."""
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    formulas = {
        "forward": _forward,
        "backward": _backward,
        "sequence": _forward,
        "sequence_backward": _sequence_backward,
        "_sequence_gate_gradients": _sequence_gate_gradients,
        "lstm": _lstm,
        "lstm_backward": _lstm_backward,
        "_lstm_gate_gradients": _lstm_gate_gradients,
    }
    for name, formula in formulas.items():
        operator = getattr(torch.ops.lltm, name)
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)  # type: ignore[arg-type]
