"""What a bug report needs to know."""

import os
import platform
import re
from collections.abc import Iterator, Sequence

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


def what_is_missing(architectures: Sequence[str], capability: tuple[int, int]) -> str:
    """Of what a GPU of this compute capability has, what a library for these CUDA architectures does not use on it:
    ``"code for 8.0, without clusters, early starts and wgmma"``, or nothing.

    Machine code runs on its own capability and newer ones of the same major version, code for 9.0a only on 9.0, and PTX
    on all newer ones, where there is no machine code.
    """
    running = []
    for architecture in architectures:
        match = re.fullmatch(r"(\d+)([af]?)(-real|-virtual)?", architecture)
        if match is None:
            continue
        number, specific, kind = match.groups()
        code = divmod(int(number), 10)
        machine_code = kind != "-virtual" and (code == capability if specific == "a" else code[0] == capability[0])
        ptx = kind != "-real" and not specific
        if code <= capability and (machine_code or ptx):
            running.append((machine_code, code, specific))
    if not running:
        return ""
    _, code, specific = max(running)
    missing = [
        *(["clusters", "early starts"] if code < (9, 0) <= capability else []),
        *(["wgmma"] if capability == (9, 0) and specific != "a" else []),
    ]
    *first, last = missing or [""]
    return f"code for {code[0]}.{code[1]}, without {', '.join(first)}{' and ' * bool(first)}{last}" if missing else ""


def missing_on(capability: tuple[int, int]) -> str:
    """What :func:`what_is_missing` says of the library that is loaded."""
    from . import build_info

    return "" if build_info is None else what_is_missing(build_info.architectures, capability)


def _gpus() -> Iterator[tuple[str, str]]:
    if not torch.cuda.is_available():
        yield "GPU", "none that PyTorch can use"
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        missing = missing_on((facts.major, facts.minor))
        # wgmma needs 90a; other GPUs from 9.0 on run the PTX of 90.
        advice = "90a" if "wgmma" in missing else "90-virtual"
        yield (
            f"GPU {index}",
            f"{facts.name}, compute capability {facts.major}.{facts.minor}, {facts.total_memory >> 30} GiB"
            + (f"; {missing}: build for {advice}, too" if missing else ""),
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
    for cell, lstm, setting in (
        ("LSTM", True, "cudnn.rnn.fp32_precision"),
        ("LLTM", False, "cuda.matmul.fp32_precision"),
    ):
        precision = "TF32" if torch.ops.lltm._allows_tf32(lstm) else "float32"
        yield f"{cell} in float32 on GPUs", f"products in {precision}, by torch.backends.{setting}"
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
