"""The operators on DTensors: the batch can be sharded, everything else is replicated.

Rows are independent, so each process runs the operator on its own rows, forward and backward, without communication;
the gradients of weights and bias are partial sums. Tensors with any other placement are redistributed first: if one
argument is sharded over the batch, all arguments with a batch dimension are, and tensors sharded over features or
steps are gathered.

The rules are registered when both this package and ``torch.distributed.tensor`` have been imported, in either order.
"""

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .ops import DIFFERENTIABLE

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

__all__ = ["register"]

_PARAMETERS = {"weights", "weight_ih", "weight_hh", "bias", "bias_ih", "bias_hh"}
"""The arguments that all rows share."""

_WITH_STEPS = {"input", "output", "cells", "gates", "grad_output", "grad_cells", "reset"}
"""The arguments and results that have steps before the batch, in the operators of a sequence."""


def _batch_dimension(name: str, is_sequence: bool) -> int | None:
    """The batch dimension of an argument or a result; None for parameters and their gradients."""
    name = name.removeprefix("d_")
    return None if name in _PARAMETERS else int(is_sequence and name in _WITH_STEPS)


@functools.cache
def _tensors_of(operator: torch._ops.OpOverload) -> tuple[list[str], dict[str, int | None]]:
    """The names of an operator's tensors, and the batch dimension of each argument and result."""
    schema = operator._schema
    names = [argument.name for argument in schema.arguments if "Tensor" in str(argument.type)]
    both = (*schema.arguments, *schema.returns)
    return names, {each.name: _batch_dimension(each.name, "h0" in names) for each in both}


def register() -> None:
    """Register the rules, unless an earlier import of this package did. Imports ``torch.distributed.tensor``."""
    from torch.distributed.tensor import DTensor

    for name in DIFFERENTIABLE:
        try:
            torch.library.register_torch_dispatch(f"lltm::{name}", DTensor, _run_on_shards)
        except RuntimeError as error:
            if "already has" not in str(error):
                raise


@torch.no_grad()  # autograd has handled this call, and must not record the redistribution
def _run_on_shards(
    cls: type, operator: torch._ops.OpOverload, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple["DTensor | None", ...]:
    """Call the operator on this process's shards of the arguments, and wrap the results in DTensors."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    schema = operator._schema
    values = [*args, *(kwargs.get(rest.name, rest.default_value) for rest in schema.arguments[len(args) :])]
    names, batch_of = _tensors_of(operator)
    tensors = dict(zip(names, values, strict=False))
    _check_all_are_dtensors(schema.name, tensors)
    given = [(tensor, batch_of[name]) for name, tensor in tensors.items() if tensor is not None]
    mesh = given[0][0].device_mesh
    # For each dimension of the mesh, whether it splits the batch.
    splits = [
        any(batch is not None and tensor.placements[k].is_shard(batch) for tensor, batch in given)
        for k in range(mesh.ndim)
    ]

    def placements(name: str, without_batch: "Placement") -> list["Placement"]:
        batch = batch_of[name]
        return [(without_batch if batch is None else Shard(batch)) if split else Replicate() for split in splits]

    local = [_local_part(tensor, placements(name, Replicate())) for name, tensor in tensors.items()]
    results = operator(*local, *values[len(local) :])

    rows = next(tensor.size(batch) for tensor, batch in given if batch is not None)
    # Each process has the gradients of parameters summed over its own rows.
    return tuple(
        _whole(result, batch_of[each.name], rows, mesh, placements(each.name, Partial()))
        for result, each in zip(results, schema.returns, strict=True)
    )


def _check_all_are_dtensors(operator: str, tensors: dict[str, Any]) -> None:
    from torch.distributed.tensor import DTensor

    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, DTensor):
            raise RuntimeError(
                f"{operator}: expected every tensor to be a DTensor where one is, but {name} is a "
                f"{type(tensor).__name__}; torch.distributed.tensor.distribute_tensor makes it one"
            )


def _local_part(tensor: "DTensor | None", wanted: list["Placement"]) -> Tensor | None:
    if tensor is None:
        return None
    # Outside of autograd, PyTorch 2.11 fails to redistribute a tensor that requires a gradient, or has this placement.
    if list(tensor.placements) != wanted:
        tensor = cast("DTensor", tensor.detach()).redistribute(tensor.device_mesh, wanted)
    return tensor.to_local()


def _whole(
    result: Tensor | None, batch: int | None, rows: int, mesh: "DeviceMesh", placements: list["Placement"]
) -> "DTensor | None":
    """The DTensor of which a process has this result, with this number of rows in all."""
    from torch.distributed.tensor import DTensor

    if result is None:
        return None
    shape = list(result.shape)
    if batch is not None:
        shape[batch] = rows
    # The shape is passed because processes may have different numbers of rows.
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(result, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
