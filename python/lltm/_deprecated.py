"""Names of the package that keep working in 0.2."""

import importlib
import sys
import warnings
from typing import Any

__all__ = ["alias_modules", "find"]

# What has moved to lltm.ops, and what only torch.ops.lltm has.
_OPERATORS = {"forward", "gru", "lstm", "lstm_plan", "sequence", "sequence_plan"}
_BACKWARD = {"backward", "sequence_backward"}
# Where modules are now, by their names of before.
_MODULES = {
    "_cell": "modules.cell",
    "_gru": "modules.gru",
    "_lstm": "modules.lstm",
    "_module": "modules.lltm",
    "_operators": "ops",
    "cell": "modules.cell",
    "flops": "_flops",
    "module": "modules.lltm",
    "operators": "ops",
    "sharding": "_sharding",
}


def alias_modules() -> None:
    """Let modules be imported by their names of before. Pickles of whole modules name lltm.module, lltm.cell and
    those with an underscore."""
    for name, now in _MODULES.items():
        sys.modules[f"lltm.{name}"] = importlib.import_module(f"lltm.{now}")


def find(name: str) -> Any:
    """The attribute of the package, for its ``__getattr__``, with a DeprecationWarning. Raises AttributeError if there
    is none of this name."""
    if name in _OPERATORS:
        message, found = f"call lltm.ops.{name}", getattr(importlib.import_module("lltm.ops"), name)
    elif name in _BACKWARD:
        message, found = f"call torch.ops.lltm.{name}", getattr(importlib.import_module("lltm.ops"), name)
    elif name in _MODULES:
        now = _MODULES[name]
        found = importlib.import_module(f"lltm.{now}")
        message = "it is private" if now.startswith("_") else f"import lltm.{now}"
    else:
        raise AttributeError(f"module 'lltm' has no attribute {name!r}")
    warnings.warn(f"lltm.{name} is deprecated: {message}", DeprecationWarning, stacklevel=3)
    return found
