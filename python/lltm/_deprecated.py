"""Names of the package that keep working in 0.2."""

import importlib
import sys
import warnings
from typing import Any

__all__ = ["alias_modules", "find"]

_FUNCTIONS = {"backward", "sequence_backward"}
_MODULES = {"cell", "flops", "module", "operators", "sharding"}


def alias_modules() -> None:
    """Let the private modules be imported by their names of before. Pickles of whole modules name lltm.module and
    lltm.cell."""
    for name in _MODULES:
        sys.modules[f"lltm.{name}"] = importlib.import_module(f"lltm._{name}")


def find(name: str) -> Any:
    """The attribute of the package, for its ``__getattr__``, with a DeprecationWarning. Raises AttributeError if there
    is none of this name."""
    if name in _FUNCTIONS:
        message, found = f"call torch.ops.lltm.{name}", getattr(importlib.import_module("lltm._operators"), name)
    elif name in _MODULES:
        message, found = "it is private", importlib.import_module(f"lltm._{name}")
    else:
        raise AttributeError(f"module 'lltm' has no attribute {name!r}")
    warnings.warn(f"lltm.{name} is deprecated: {message}", DeprecationWarning, stacklevel=3)
    return found
