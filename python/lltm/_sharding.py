"""The operators on DTensors: the batch can be sharded, everything else is replicated.

Rows are independent, so each process runs the operator on its own rows, forward and backward, without communication;
the gradients of weights and bias are partial sums. Tensors with any other placement are redistributed first: if one
argument is sharded over the batch, all arguments with a batch dimension are, and tensors sharded over features or
steps are gathered.

The rules are registered when both this package and ``torch.distributed.tensor`` have been imported, in either order.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

__all__ = ["register"]

_OPERATORS = (
    "forward",
    "backward",
    "sequence",
    "sequence_backward",
    "_sequence_gate_gradients",
    "lstm",
    "lstm_backward",
    "_lstm_gate_gradients",
)

_PARAMETERS = {"weights", "weight_ih", "weight_hh", "bias"}
"""The arguments that all rows share."""

_WITH_STEPS = {"input", "output", "cells", "gates", "grad_output", "grad_cells", "reset"}
"""The arguments and results that have steps before the batch, in the operators of a sequence."""


def _batch_dimension(name: str, is_sequence: bool) -> int | None:
    """The batch dimension of an argument or a result; None for parameters and their gradients."""
    name = name.removeprefix("d_")
    return None if name in _PARAMETERS else int(is_sequence and name in _WITH_STEPS)


def register() -> None:
    """Register the rules, unless an earlier import of this package did. Imports ``torch.distributed.tensor``."""
    from torch.distributed.tensor import DTensor

    for name in _OPERATORS:
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
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    schema = operator._schema
    values = [*args, *(kwargs.get(rest.name, rest.default_value) for rest in schema.arguments[len(args) :])]
    names = [argument.name for argument in schema.arguments if "Tensor" in str(argument.type)]
    batch_of_arguments = [_batch_dimension(name, "h0" in names) for name in names]
    tensors = values[: len(names)]
    given = [(tensor, batch) for tensor, batch in zip(tensors, batch_of_arguments, strict=True) if tensor is not None]
    for argument, tensor in zip(schema.arguments, tensors, strict=False):
        if tensor is not None and not isinstance(tensor, DTensor):
            raise RuntimeError(
                f"{schema.name}: expected every tensor to be a DTensor where one is, but {argument.name} is a "
                f"{type(tensor).__name__}; torch.distributed.tensor.distribute_tensor makes it one"
            )
    mesh = given[0][0].device_mesh
    # For each dimension of the mesh, whether it splits the batch.
    splits = [
        any(batch is not None and tensor.placements[k].is_shard(batch) for tensor, batch in given)
        for k in range(mesh.ndim)
    ]

    def placements(batch: int | None, without_batch: "Placement") -> list["Placement"]:
        on_split = without_batch if batch is None else Shard(batch)
        return [on_split if split else Replicate() for split in splits]

    def local_part(tensor: "DTensor", batch: int | None) -> Tensor:
        wanted = placements(batch, Replicate())
        # Outside of autograd, PyTorch 2.11 fails to redistribute a tensor that has this placement already.
        return (tensor if list(tensor.placements) == wanted else tensor.redistribute(mesh, wanted)).to_local()

    local = [
        None if tensor is None else local_part(tensor, batch)
        for tensor, batch in zip(tensors, batch_of_arguments, strict=True)
    ]
    results = operator(*local, *values[len(local) :])

    rows = next(tensor.size(batch) for tensor, batch in given if batch is not None)

    def whole(result: Tensor | None, batch: int | None) -> "DTensor | None":
        if result is None:
            return None
        shape = list(result.shape)
        if batch is not None:
            shape[batch] = rows
        # The shape is passed because processes may have different numbers of rows.
        stride = torch.empty(shape, device="meta").stride()
        # Each process has the gradients of parameters summed over its own rows.
        placed = placements(batch, Partial())
        return DTensor.from_local(result, mesh, placed, run_check=False, shape=torch.Size(shape), stride=stride)

    batch_of_results = [_batch_dimension(result.name, "h0" in names) for result in schema.returns]
    return tuple(whole(result, batch) for result, batch in zip(results, batch_of_results, strict=True))
