"""What a bug report needs to know."""

import os
import platform
from collections.abc import Iterator

import torch

__all__ = ["show_config"]

VARIABLES = (
    "LLTM_LIBRARY",
    "LLTM_CACHE",
    "LLTM_CPU_ONLY",
    "LLTM_CPU_GEMM",
    "LLTM_CUDA_PATH",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
)


def _gpus() -> Iterator[tuple[str, str]]:
    if not torch.cuda.is_available():
        yield "GPU", "none that PyTorch can use"
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        yield (
            f"GPU {index}",
            f"{facts.name}, compute capability {facts.major}.{facts.minor}, {facts.total_memory >> 30} GiB",
        )


def _lines() -> Iterator[tuple[str, str]]:
    from . import __version__, build_info, library_path

    yield "lltm", __version__
    yield "library", str(library_path)
    yield "built with", str(build_info)
    yield "PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda}"
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    yield "CPU", f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    yield from _gpus()
    for name in VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]


def show_config() -> None:
    """Print what is installed, and what was set: the versions of lltm, PyTorch and Python, the library, the CPU, the
    GPUs, and the environment variables that choose a path. Please include it in bug reports.

    Example::

        >>> lltm.show_config()  # doctest: +ELLIPSIS
        lltm: ...
        library: ...
    """
    for name, value in _lines():
        print(f"{name}: {value}")
