"""Build the operators ahead of time with setuptools, into a Python package that contains the library.

python3 -m pip install --no-build-isolation examples/operators
python3 -c "import torch, example_ops; print(torch.ops.example_ops.cube(torch.arange(4.0)))"
"""

import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sources import CXX_FLAGS, NVCC_FLAGS, SOURCES, WITH_CUDA

extension = CUDAExtension if WITH_CUDA else CppExtension
setup(
    name="example_ops",
    version="0.1.0",
    description="Operators of PyTorch, to learn from",
    packages=["example_ops"],
    package_dir={"": "python"},
    ext_modules=[
        extension(
            "example_ops.libexample_ops",
            SOURCES,
            extra_compile_args={"cxx": CXX_FLAGS, "nvcc": NVCC_FLAGS},
            # The library contains no Python: it does not link PyTorch's Python bindings, and any Python can load it.
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
