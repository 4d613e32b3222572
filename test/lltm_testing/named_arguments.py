"""The tensor arguments of the operators by the names in their schemas, and calls with them.

By default, T = 7, N = 6, I = 5, H = 4: weights are (12, 9), weight_ih (16, 5) and weight_hh (16, 4).
"""

from typing import Any

import pytest
import torch
from torch import Tensor

# settings finds lltm, also in a process that only imports this.
from lltm_testing import reference, sequence_reference, settings  # noqa: F401

FORWARDS = ("forward", *(cell.operator for cell in sequence_reference.CELLS.values()))


def backward_of(operator: str) -> str:
    return "backward" if operator == "forward" else f"{operator}_backward"


BACKWARDS = tuple(map(backward_of, FORWARDS))
ARGUMENTS = {
    name: getattr(torch.ops.lltm, name).default._schema.arguments
    for pair in zip(FORWARDS, BACKWARDS, strict=True)
    for name in pair
}


def names_of(operator: str, *types) -> tuple[str, ...]:
    return tuple(argument.name for argument in ARGUMENTS[operator] if argument.type in types)


TENSOR, OPTIONAL_TENSOR, BOOL = torch.TensorType.get(), torch.OptionalType.ofTensor(), torch.BoolType.get()
NAMES = {operator: names_of(operator, TENSOR, OPTIONAL_TENSOR) for operator in ARGUMENTS}
CELLS = dict.fromkeys(("forward", "backward"), sequence_reference.Sequence) | {
    cell.operator + suffix: cell for cell in sequence_reference.CELLS.values() for suffix in ("", "_backward")
}
WEIGHTS = {name: [n for n in CELLS[name].names if n.startswith("weight")][-1] for name in NAMES}

each_forward = pytest.mark.parametrize("operator", FORWARDS)
each_backward = pytest.mark.parametrize("operator", BACKWARDS)


def optional(operator: str) -> tuple[str, ...]:
    """The names of the arguments that may be None."""
    return names_of(operator, OPTIONAL_TENSOR)


def flags(operator: str) -> tuple[str, ...]:
    """The names of the arguments that are True or False."""
    return names_of(operator, BOOL)


def make(operator: str, device="cpu", dtype=torch.float32, cell_dtype=None, sizes=(7, 6, 5, 4)) -> dict[str, Tensor]:
    """Valid arguments, none of them absent. A state carried in float32 has cell_dtype, or the others' dtype."""
    if operator in ("forward", "backward"):
        arguments = reference.make_arguments(sizes[1:], dtype, device)
        _, new_cell, gates = reference.call(arguments)
        grad_h, grad_cell = reference.make_gradients(arguments)
        values = {"new_cell": new_cell, "gates": gates, "grad_h": grad_h, "grad_cell": grad_cell}
    else:
        options = {"lengths": True, "reset": True, "cell_dtype": cell_dtype, "cell": CELLS[operator]}
        arguments = sequence_reference.make(sizes, dtype, device, **options)
        values = dict(zip(arguments.outputs, sequence_reference.call(arguments, keep=True), strict=True))
        values |= zip(arguments.incoming(), sequence_reference.make_gradients(arguments), strict=True)
    values |= arguments._asdict()
    return {name: values[name] for name in NAMES[operator]}


def leaves_of(arguments: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """New leaves with the same values. All require gradients but gates, lengths and reset, which have none."""
    return {
        name: t.detach().clone().requires_grad_() if t is not None and t.is_floating_point() and name != "gates" else t
        for name, t in arguments.items()
    }


def call(operator: str, arguments: dict[str, Any], mask=None):
    """`arguments` are in the order of NAMES. A sequence keeps its cells and gates."""
    return getattr(torch.ops.lltm, operator)(*arguments.values(), *after_tensors(operator, mask))


def mask_of(operator: str, first) -> list[bool]:
    """An output_mask that begins with these flags. The others are True."""
    sizes = {argument.name: argument.N for argument in ARGUMENTS[operator]}
    return [*first, *[True] * (sizes.get("output_mask", 0) - len(first))]


def after_tensors(operator: str, mask=None) -> list:
    """The arguments that follow the tensors. By default, all gradients are wanted."""
    others = [{"reverse": False, "keep": True}[name] for name in flags(operator)]
    if operator.endswith("backward"):
        others.append(mask_of(operator, ()) if mask is None else list(mask))
    return others
