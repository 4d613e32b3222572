"""Fast recurrent layers as PyTorch operators: nn.LSTM's and nn.GRU's own cells, and LLTM, without a forget gate.

:class:`LSTM`, :class:`GRU` and their cells replace those of torch.nn with the same parameters and results, and
:func:`convert` converts a model. :class:`LLTM` and :class:`LLTMCell` have the interface but a cell of their own.
The modules are in ``lltm.modules``, too, and the operators in ``lltm.ops``.

Importing this package loads the operator library, unless its operators are registered already. The library is the one
that ``LLTM_LIBRARY`` names, else the package's own, else the one that ``python -m lltm.build`` has made for this
PyTorch. It registers ``torch.ops.lltm.lstm``, ``gru``, ``sequence``, ``forward`` and their
gradients. ImportError is raised if there is no library, or if it was built for another PyTorch; the message says what
to do. With ``LLTM_CPU_ONLY=1``, a wheel's library without CUDA is loaded.

To find out what a library was built with without loading it, read ``liblltm_ops.json`` next to it.
"""

from typing import TYPE_CHECKING, Any

import torch

from . import _deprecated, _flops, _loader, _on_import, _onnx, _sharding, modules, ops
from ._config import show_config
from ._conversion import convert, convert_lstm, revert
from ._decompositions import decompositions
from ._loader import BuildInfo, LibraryPath
from ._onnx import onnx_translation_table
from ._version import VERSION
from .modules import GRU, LLTM, LSTM, GRUCell, LLTMCell, LSTMCell, split_weights

__all__ = [
    "BuildInfo",
    "GRU",
    "GRUCell",
    "LLTM",
    "LLTMCell",
    "LSTM",
    "LSTMCell",
    "__version__",
    "build_info",
    "cmake_prefix_path",
    "convert",
    "convert_lstm",
    "decompositions",
    "has_cuda",
    "library_path",
    "modules",
    "onnx_translation_table",
    "ops",
    "revert",
    "show_config",
    "split_weights",
]

library_path: LibraryPath | None = None
"""Path of the library that was chosen. ``library_path()`` is the same path. None if unknown, because a program may load
the operators itself."""

build_info: BuildInfo | None = None
"""What the library was built with; None if unknown."""

if not _loader.is_build_command():
    library_path, build_info = _loader.load(list(__path__))
    _on_import.call_on_import("torch.utils.flop_counter", _flops.register)
    _on_import.call_on_import("torch.distributed.tensor", _sharding.register)
    _on_import.call_on_import("torch.onnx", _onnx.register_symbolics)
    _on_import.call_on_import("torch.onnx._internal.exporter._registration", _onnx.register_translations)

__version__: str = VERSION
"""Version of lltm."""

has_cuda: bool = _loader.registered() and torch.ops.lltm.has_cuda()
"""Whether the library has CUDA kernels. Use ``torch.cuda.is_available`` to check for a GPU."""

cmake_prefix_path: str | None = _loader.find_cmake_prefix(library_path)
"""What to add to CMAKE_PREFIX_PATH so that ``find_package(lltm)`` succeeds; None for a library in a build tree."""

_deprecated.alias_modules()

if TYPE_CHECKING:
    from .ops import forward, gru, lstm, lstm_plan, sequence, sequence_plan  # noqa: F401
else:

    def __getattr__(name: str) -> Any:
        return _deprecated.find(name)
