"""The initialization of the modules' parameters."""

import math
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize


def _placements(tensor: Tensor) -> tuple[Any, ...] | None:
    """The placements of a DTensor; None if it is none."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return tensor.placements if distributed is not None and isinstance(tensor, distributed.DTensor) else None


def shards_columns(weights: Tensor) -> bool:
    """Whether it is a DTensor whose processes do not have whole rows."""
    return any(not (p.is_replicate() or p.is_shard(0)) for p in _placements(weights) or ())


def uniform(module: torch.nn.Module, state_size: int) -> None:
    """Initialize all parameters of a module uniformly in +-1/sqrt(state_size), in their order, as nn.LSTM does."""
    bound = 1 / math.sqrt(state_size)
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, -bound, bound)


def reset_parameters(module: torch.nn.Module, names: list[str], state_size: int, leak: float) -> None:
    """Initialize all parameters of a module uniformly in +-1/sqrt(state_size), and subtract the leak from the weights
    with these names, (3 * state_size, state_size + input_features).

    Raises:
        RuntimeError: weights are computed from other parameters in a way that cannot be inverted.
    """
    uniform(module, state_size)
    if leak:
        with torch.no_grad():
            for name in names:
                _subtract_leak(module, name, state_size, leak)


def _subtract_leak(module: torch.nn.Module, name: str, state_size: int, leak: float) -> None:
    """Subtract it from the weight of each h in the candidate of its own cell."""
    weights = getattr(module, name)
    if name in module._parameters:
        weights.sub_(_leak_like(weights, state_size, leak))
        return
    kind = type(module).__name__
    advice = f"; {kind}.reset_parameters(leak=0) initializes without a leak"
    if not parametrize.is_parametrized(module, name):
        raise RuntimeError(
            f"{kind}.reset_parameters: {name} is no parameter, but computed from others by a hook, into which the leak "
            f"cannot be written: reset the parameters before the hook is registered{advice}"
        )
    expected = weights - _leak_like(weights, state_size, leak)
    try:
        setattr(module, name, expected)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"{kind}.reset_parameters: the parametrization of {name} has no right_inverse for the leak{advice}"
        ) from error
    found = getattr(module, name)
    if not found.is_meta and not torch.allclose(found, expected, rtol=1e-2, atol=1e-2 * leak):
        raise RuntimeError(f"{kind}.reset_parameters: the parametrization of {name} does not keep the leak{advice}")


def _leak_like(weights: Tensor, state_size: int, leak: float) -> Tensor:
    """A tensor like the weights, a DTensor if they are one: the leak where they multiply h into its own candidate, and
    zero elsewhere."""
    full = torch.zeros(weights.shape, dtype=weights.dtype, device=weights.device)
    full[2 * state_size :, :state_size].fill_diagonal_(leak)
    placements = _placements(weights)
    if placements is None:
        return full
    from torch.distributed.tensor import DTensor, Replicate

    mesh = weights.device_mesh  # type: ignore[attr-defined]
    replicated = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(mesh, placements)
