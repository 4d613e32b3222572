"""LLTM, a fused recurrent cell and whole sequences of it, as operators of PyTorch.

:class:`LLTM` takes the place of :class:`torch.nn.LSTM`; :class:`LLTMCell` is a single step. Importing this package
loads the operator library, which registers ``torch.ops.lltm.sequence``, ``torch.ops.lltm.forward`` and their gradients,
unless the process has them already. ``LLTM_LIBRARY`` names another library than the one inside the package. ImportError
says what is wrong: no library, or one built for another PyTorch.

What a library was built with can be read without loading it: ``_build_info.py``, in this folder, is plain Python.
"""

import torch

from . import _loader, flops, sharding
from ._loader import BuildInfo
from .cell import LLTMCell
from .module import LLTM
from .operators import backward, forward, sequence

__all__ = [
    "BuildInfo",
    "LLTM",
    "LLTMCell",
    "__version__",
    "backward",
    "build_info",
    "cmake_prefix_path",
    "forward",
    "has_cuda",
    "library_path",
    "sequence",
]

library_path, build_info = _loader.load(list(__path__))
"""File of the library and what it was built with; None where a program brought the operators and it cannot be told."""

flops.register()
sharding.register_if_loaded()

__version__: str = _loader.package_version(build_info)
"""Version of lltm."""

has_cuda: bool = torch.ops.lltm.has_cuda()
"""Whether the library has CUDA kernels; whether there is a GPU is another question (torch.cuda.is_available)."""

cmake_prefix_path: str | None = _loader.find_cmake_prefix(library_path)
"""What a C++ build passes in CMAKE_PREFIX_PATH for ``find_package(lltm)``; None for a library in a build tree."""
