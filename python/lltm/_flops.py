"""FLOP formulas of the operators, for ``torch.utils.flop_counter.FlopCounterMode``.

As in PyTorch's own formulas, a multiply-add of a matrix product counts as two, and elementwise operations count as
none. Steps beyond a row's length are counted, because the lengths are on the device.

The formulas are registered when both this package and ``torch.utils.flop_counter`` have been imported, in either order.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from .ops import DIFFERENTIABLE

__all__ = ["register"]


Values = dict[str, Any]
"""The arguments of a call by name: shapes instead of tensors."""


def _sizes(values: Values) -> tuple[int, int, int]:
    """The numbers of gates, of features of the state, and of features of the input."""
    if "weights" in values:
        gates, columns = values["weights"]
        return gates, gates // 3, columns - gates // 3
    gates, state_size = values["weight_hh"]
    return gates, state_size, values["weight_ih"][1]


def _forward(values: Values) -> int:
    """One step, input (N, I), or a whole sequence, input (T, N, I)."""
    gates, state_size, input_features = _sizes(values)
    return 2 * prod(values["input"][:-1]) * gates * (state_size + input_features)


def _backward(values: Values, wanted: set[str]) -> int:
    gates, state_size, input_features = _sizes(values)
    *steps, batch, _ = values["input"]
    columns = {
        "d_input": input_features,
        "d_weights": state_size + input_features,
        "d_weight_ih": input_features,
        "d_weight_hh": state_size,
        "d_old_h": state_size,
    }
    products = prod([*steps, batch]) * sum(columns.get(gradient, 0) for gradient in wanted)
    if steps:
        # Between steps the gradient of h always passes through the weights; before the first step, only for d_h0.
        recurrent_steps = steps[0] if "d_h0" in wanted else max(steps[0] - 1, 0)
        products += recurrent_steps * batch * state_size
    return 2 * gates * products


def _formula(operator: torch._ops.OpOverloadPacket) -> Callable[..., int]:
    schema = operator.default._schema
    names = [argument.name for argument in schema.arguments]
    results = [result.name for result in schema.returns]

    def formula(*args: Any, **kwargs: Any) -> int:
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        if not names[-1].endswith("_mask"):
            return _forward(values)
        mask = values[names[-1]]  # of the last results: d_gates is always computed
        gradients = results[-len(mask) :]
        return _backward(values, {name for name, is_wanted in zip(gradients, mask, strict=True) if is_wanted})

    return formula


def register() -> None:
    """Register the formulas, unless an earlier import of this package did. Imports ``torch.utils.flop_counter``."""
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    for name in DIFFERENTIABLE:
        operator = getattr(torch.ops.lltm, name)
        if operator not in flop_registry:
            register_flop_formula(operator)(_formula(operator))
