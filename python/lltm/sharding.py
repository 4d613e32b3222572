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

_SUM = -1
"""Used instead of a batch dimension: each process has the sum over its own rows."""

_BATCH_OF_ARGUMENTS: dict[str, tuple[int | None, ...]] = {
    "forward": (0, None, None, 0, 0),
    "backward": (0, 0, 0, 0, 0, None, None, 0),
    "sequence": (1, None, None, 0, 0, 0, 1),
    "sequence_backward": (1, 0, 0, 1, 1, 1, 1, 1, None, None, 0, 0, 0, 1),
    "_sequence_gate_gradients": (1, 0, 0, 1, 1, 1, 1, 1, None, None, 0, 0, 0, 1),
    "lstm": (1, None, None, None, 0, 0, 0, 1),
    "lstm_backward": (1, 0, 0, 1, 1, 1, 1, 1, None, None, None, 0, 0, 0, 1),
    "_lstm_gate_gradients": (1, 0, 0, 1, 1, 1, 1, 1, None, None, None, 0, 0, 0, 1),
}
"""The batch dimension of each tensor; None for weights and bias."""

_BATCH_OF_RESULTS: dict[str, tuple[int, ...]] = {
    "forward": (0, 0, 0),
    "backward": (0, _SUM, _SUM, 0, 0),
    "sequence": (1, 0, 0, 1, 1),
    "sequence_backward": (1, _SUM, _SUM, 0, 0),
    "_sequence_gate_gradients": (1, 0, 0),
    "lstm": (1, 0, 0, 1, 1),
    "lstm_backward": (1, _SUM, _SUM, _SUM, 0, 0),
    "_lstm_gate_gradients": (1, 0, 0),
}


def register() -> None:
    """Register the rules, unless an earlier import of this package did. Imports ``torch.distributed.tensor``."""
    from torch.distributed.tensor import DTensor

    for name in _BATCH_OF_ARGUMENTS:
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
    name = schema.name.removeprefix("lltm::")
    values = [*args, *(kwargs.get(rest.name, rest.default_value) for rest in schema.arguments[len(args) :])]
    batch_of_arguments = _BATCH_OF_ARGUMENTS[name]
    tensors = values[: len(batch_of_arguments)]
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

    def placements(batch: int | None) -> list["Placement"]:
        if batch == _SUM:
            return [Partial() if split else Replicate() for split in splits]
        return [Shard(batch) if split and batch is not None else Replicate() for split in splits]

    def local_part(tensor: "DTensor", batch: int | None) -> Tensor:
        wanted = placements(batch)
        # Outside of autograd, PyTorch 2.11 fails to redistribute a tensor that has this placement already.
        return (tensor if list(tensor.placements) == wanted else tensor.redistribute(mesh, wanted)).to_local()

    local = [
        None if tensor is None else local_part(tensor, batch)
        for tensor, batch in zip(tensors, batch_of_arguments, strict=True)
    ]
    results = operator(*local, *values[len(local) :])

    rows = next(tensor.size(batch) for tensor, batch in given if batch is not None)

    def whole(result: Tensor | None, batch: int) -> "DTensor | None":
        if result is None:
            return None
        shape = list(result.shape)
        if batch != _SUM:
            shape[batch] = rows
        # The shape is passed because processes may have different numbers of rows.
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            result, mesh, placements(batch), run_check=False, shape=torch.Size(shape), stride=stride
        )

    return tuple(whole(result, batch) for result, batch in zip(results, _BATCH_OF_RESULTS[name], strict=True))
