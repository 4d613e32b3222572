"""The operators of ``libexample_ops.so``, and modules for those that are layers.

Importing this package loads the library that EXAMPLE_OPS_LIBRARY names, else the one inside the package, where setup.py
puts it, else the one that CMake built in ``build/operators``. It loads nothing if the operators are registered already,
for example by a just-in-time build with cpp_extension.
"""

import os
from pathlib import Path

import torch

from .modules import FusedConvBatchNorm2D, Linear

__all__ = ["FusedConvBatchNorm2D", "Linear"]

_NAME = "libexample_ops.so"


def _load() -> None:
    # Loading the same operators from a second file would abort the process.
    if hasattr(torch.ops.example_ops, "elementwise_mult"):
        return
    here = Path(__file__).resolve()
    libraries = [here.parent / _NAME]
    if len(here.parents) > 4:
        libraries.append(here.parents[4] / "build" / "operators" / _NAME)
    if "EXAMPLE_OPS_LIBRARY" in os.environ:
        libraries = [Path(os.environ["EXAMPLE_OPS_LIBRARY"])]
    library = next(filter(Path.is_file, libraries), None)
    if library is None:
        raise ImportError(
            f"example_ops: the library is missing, looked for {', '.join(map(str, libraries))}. Build it "
            "(examples/operators/README.md says how), or let EXAMPLE_OPS_LIBRARY name it."
        )
    torch.ops.load_library(library)


_load()
