"""LLTM, a fused recurrent cell, as operators of PyTorch.

Importing this package loads the operator library, which registers ``torch.ops.lltm.forward`` and
``torch.ops.lltm.backward``; where the process has them already it loads nothing. ``LLTM_LIBRARY`` names another library
than the one inside the package. ImportError says what is wrong: no library, or one built for another PyTorch.

What a library was built with can be read without loading it: ``_build_info.py``, in this folder, is plain Python.
"""

import torch

from . import _loader
from ._loader import BuildInfo
from .cell import LLTMCell
from .operators import backward, forward

__all__ = [
    "BuildInfo",
    "LLTMCell",
    "__version__",
    "backward",
    "build_info",
    "cmake_prefix_path",
    "forward",
    "has_cuda",
    "library_path",
]

library_path, build_info = _loader.load(list(__path__))
"""File of the library and what it was built with; None where a program brought the operators and it cannot be told."""

__version__: str = _loader.package_version(build_info)
"""Version of lltm."""

has_cuda: bool = torch.ops.lltm.has_cuda()
"""Whether the library has CUDA kernels; whether there is a GPU is another question (torch.cuda.is_available)."""

cmake_prefix_path: str | None = _loader.find_cmake_prefix(library_path)
"""What a C++ build passes in CMAKE_PREFIX_PATH for ``find_package(lltm)``; None for a library in a build tree."""
