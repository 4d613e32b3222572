"""Makes lltm's modules leaves of ``torch.fx.symbolic_trace``, like the modules of torch.nn.

The default tracer treats only ``torch.nn`` modules as leaves. It traces into all others, and fails at the first use of
a shape. An lltm module that is called with a proxy records a call to itself instead.
"""

from typing import Any

import torch
from torch import fx


def is_symbolic(module: torch.nn.Module, *arguments: Any) -> bool:
    """Whether a tracer is tracing a model that contains the module."""
    proxies = [value for value in _flatten(arguments) if isinstance(value, fx.Proxy)]
    return bool(proxies) and proxies[0].tracer.root is not module


def record_call(module: torch.nn.Module, *arguments: Any) -> fx.Proxy:
    """Record a ``call_module`` node and return its proxy. Trailing arguments that are None are omitted."""
    while arguments[-1] is None:
        arguments = arguments[:-1]
    tracer = next(value for value in _flatten(arguments) if isinstance(value, fx.Proxy)).tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, {})


def _flatten(arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments, with tuples and lists (a state is a pair) flattened."""
    flat: list[Any] = []
    for argument in arguments:
        flat.extend(argument if isinstance(argument, tuple | list) else (argument,))
    return flat
