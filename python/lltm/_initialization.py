"""The initialization of the modules' parameters."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize


def _placements(tensor: Tensor) -> tuple[Any, ...] | None:
    """The placements of a DTensor; None if it is none."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return tensor.placements if distributed is not None and isinstance(tensor, distributed.DTensor) else None


def shards_columns(weights: Tensor) -> bool:
    """Whether it is a DTensor whose processes do not have whole rows, or only summands of them."""
    return any(not (p.is_replicate() or p.is_shard(0)) for p in _placements(weights) or ())


def uniform(module: torch.nn.Module, state_size: int) -> None:
    """Initialize all parameters of a module uniformly in +-1/sqrt(state_size), in their order, as nn.LSTM does.

    Raises:
        RuntimeError: a parameter is a partial DTensor. Nothing has changed, nor has the random state.
    """
    for name, parameter in module.named_parameters():
        if any(placement.is_partial() for placement in _placements(parameter) or ()):
            raise RuntimeError(
                f"{type(module).__name__}.reset_parameters: {name} is a DTensor with the placements "
                f"{_placements(parameter)}, whose processes would draw summands: redistribute it first"
            )
    bound = 1 / math.sqrt(state_size)
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, -bound, bound)


def reset_parameters(module: torch.nn.Module, names: list[str], state_size: int, leak: float) -> None:
    """Initialize all parameters of a module uniformly in +-1/sqrt(state_size), and subtract the leak from the weights
    with these names, (3 * state_size, state_size + input_features).

    Raises:
        RuntimeError: weights are computed from other parameters in a way that cannot be inverted, or a parameter is a
            partial DTensor. Nothing has changed, nor has the random state.
    """
    if not leak:
        uniform(module, state_size)
    elif all(name in module._parameters for name in names):
        uniform(module, state_size)
        _subtract_leak(module, names, state_size, leak)
    else:
        _refuse_hooks(module, names)
        with _undone_on_error(module):  # only writing the leak shows whether a parametrization keeps it
            uniform(module, state_size)
            _subtract_leak(module, names, state_size, leak)


def _refuse_hooks(module: torch.nn.Module, names: list[str]) -> None:
    kind = type(module).__name__
    for name in names:
        if name not in module._parameters and not parametrize.is_parametrized(module, name):
            raise RuntimeError(
                f"{kind}.reset_parameters: {name} is no parameter, but computed from others by a hook, into which the "
                f"leak cannot be written: reset the parameters before the hook is registered{_advice(kind)}"
            )


def _advice(kind: str) -> str:
    return f"; {kind}.reset_parameters(leak=0) initializes without a leak"


@contextmanager
def _undone_on_error(module: torch.nn.Module) -> Iterator[None]:
    """If the block raises, the module's parameters and buffers, and the random state, are as before."""
    tensors = list(chain(module.parameters(), module.buffers()))
    values = [tensor.detach().clone() for tensor in tensors]
    random_state = torch.get_rng_state()
    devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
    random_states = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}
    try:
        yield
    except Exception:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        torch.set_rng_state(random_state)
        for device, state in random_states.items():
            torch.get_device_module(device).set_rng_state(state, device)
        raise


@torch.no_grad()
def _subtract_leak(module: torch.nn.Module, names: list[str], state_size: int, leak: float) -> None:
    """Subtract it from the weight of each h in the candidate of its own cell."""
    for name in names:
        weights = getattr(module, name)
        difference = _leak_like(weights, state_size, leak)
        if name in module._parameters:
            weights.sub_(difference)
        else:
            _write_parametrized(module, name, weights - difference, leak)


def _write_parametrized(module: torch.nn.Module, name: str, expected: Tensor, leak: float) -> None:
    kind = type(module).__name__
    try:
        setattr(module, name, expected)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"{kind}.reset_parameters: the parametrization of {name} has no right_inverse for the leak{_advice(kind)}"
        ) from error
    found = getattr(module, name)
    if not found.is_meta and not torch.allclose(found, expected, rtol=1e-2, atol=1e-2 * leak):
        raise RuntimeError(
            f"{kind}.reset_parameters: the parametrization of {name} does not keep the leak{_advice(kind)}"
        )


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
