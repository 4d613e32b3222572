"""What makes our modules leaves of ``torch.fx.symbolic_trace``, as those of torch.nn are.

The default tracer takes only modules of ``torch.nn`` for leaves and steps into all others, where the first look at a
shape fails. A module of ours that is called with a proxy records the call of itself instead.
"""

from typing import Any

import torch
from torch import fx


def is_symbolic(module: torch.nn.Module, *arguments: Any) -> bool:
    """Whether a tracer called the module, on the way through a model that contains it."""
    proxies = [value for value in _flatten(arguments) if isinstance(value, fx.Proxy)]
    return bool(proxies) and proxies[0].tracer.root is not module


def record_call(module: torch.nn.Module, *arguments: Any) -> fx.Proxy:
    """The proxy of the module's results: a ``call_module`` node. Trailing arguments that are None are left out."""
    while arguments[-1] is None:
        arguments = arguments[:-1]
    tracer = next(value for value in _flatten(arguments) if isinstance(value, fx.Proxy)).tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, {})


def _flatten(arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments, and what is in those that are tuples or lists: a state is a pair."""
    flat: list[Any] = []
    for argument in arguments:
        flat.extend(argument if isinstance(argument, tuple | list) else (argument,))
    return flat
