"""The operators of ``libexample_ops.so``, and modules for those that are layers.

Importing this package loads the library that EXAMPLE_OPS_LIBRARY names, or the one that CMake has made in
``build/operators``; where the process has the operators already, just in time from cpp_extension for example, it
loads nothing.
"""

import os
from pathlib import Path

import torch

from .modules import FusedConvBatchNorm2D, Linear

__all__ = ["FusedConvBatchNorm2D", "Linear"]


def _load() -> None:
    # The same operators from a second file would abort the process, so ask first.
    if hasattr(torch.ops.example_ops, "round_ste"):
        return
    default = Path(__file__).parents[4] / "build" / "operators" / "libexample_ops.so"
    library = Path(os.environ.get("EXAMPLE_OPS_LIBRARY", default))
    if not library.is_file():
        raise ImportError(
            f"example_ops: there is no {library}. Build it (examples/operators/README.md says how), "
            "or let EXAMPLE_OPS_LIBRARY name the library."
        )
    torch.ops.load_library(library)


_load()
