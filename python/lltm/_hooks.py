"""The forward pre-hooks that compute parameters, for methods that are not the module's call."""

from collections.abc import Iterable

import torch
from torch.nn.utils import parametrize

_SUFFIXES = ("_g", "_v", "_orig")
"""weight_norm, spectral_norm and prune compute a parameter from those with its name and these suffixes."""


def compute_parameters(module: torch.nn.Module, names: Iterable[str]) -> None:
    """Run the hooks that compute the parameters with these names: those of weight_norm, spectral_norm and prune in
    torch.nn.utils. Without them, the values would be those of the last call.

    They run in the order in which a call runs them, also those that compute what another takes: prune of weight_norm's
    g.

    Raises:
        RuntimeError: a parameter is neither a parameter nor parametrized, and an unknown hook may compute it.
    """
    computed = {name for name in names if not _is_given(module, name)}
    if not computed:
        return
    pending = list(computed)
    while pending:
        sources = {pending[-1] + suffix for suffix in _SUFFIXES}
        pending[-1:] = {name for name in sources - computed if hasattr(module, name) and not _is_given(module, name)}
        computed.update(pending)
    unknown = []
    for hook in list(module._forward_pre_hooks.values()):
        name = getattr(hook, "name", getattr(hook, "_tensor_name", None))
        if name in computed:
            hook(module, ())
            computed.discard(name)
        elif name is None:
            unknown.append(hook)
    if computed and unknown:
        raise RuntimeError(
            f"{type(module).__name__}: {', '.join(sorted(computed))} may be computed by the forward pre-hook "
            f"{unknown[0]!r}, which only a call of the module runs"
        )


def _is_given(module: torch.nn.Module, name: str) -> bool:
    of_replica = module.__dict__.get("_former_parameters", ())  # nn.DataParallel's replicas have plain tensors
    return (
        name in module._parameters
        or name in module._buffers
        or name in of_replica
        or parametrize.is_parametrized(module, name)
    )
