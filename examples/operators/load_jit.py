"""Build the operators just in time and load them, which is convenient while an operator changes often.

    python3 examples/operators/load_jit.py [BUILD_FOLDER]

A second call compiles only what has changed.
"""

import sys
from pathlib import Path

import torch
from sources import CXX_FLAGS, FOLDER, NVCC_FLAGS, SOURCES, WITH_CUDA
from torch.utils import cpp_extension


def load(build_folder: str | None = None) -> None:
    if build_folder:
        Path(build_folder).mkdir(parents=True, exist_ok=True)
    cpp_extension.load(
        "libexample_ops",
        [str(FOLDER / source) for source in SOURCES],
        extra_cflags=CXX_FLAGS,
        extra_cuda_cflags=NVCC_FLAGS,
        build_directory=build_folder,
        with_cuda=WITH_CUDA,
        is_python_module=False,  # a library of operators, without a Python module
    )


if __name__ == "__main__":
    load(*sys.argv[1:])
    print(torch.ops.example_ops.cube(torch.arange(4.0)))
