"""The forward pre-hooks that compute parameters, for methods that are not the module's call."""

from collections.abc import Iterable

import torch
from torch.nn.utils import parametrize


def compute_parameters(module: torch.nn.Module, names: Iterable[str]) -> None:
    """Run the hooks that compute the parameters with these names: those of weight_norm, spectral_norm and prune in
    torch.nn.utils. Without them, the values would be those of the last call.

    Raises:
        RuntimeError: a parameter is neither a parameter nor parametrized, and an unknown hook may compute it.
    """
    computed = {n for n in names if n not in module._parameters and not parametrize.is_parametrized(module, n)}
    if not computed:
        return
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
