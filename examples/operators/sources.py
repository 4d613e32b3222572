"""The sources and flags for setup.py and load_jit.py. CMakeLists.txt lists the same files.

LLTM_CUDA=OFF in the environment builds for the CPU only, like -DLLTM_CUDA=OFF with CMake. On a machine with nvcc but
without a GPU, TORCH_CUDA_ARCH_LIST must name the architectures, such as "8.0 9.0a".
"""

import os
from pathlib import Path

import torch
from torch.utils.cpp_extension import CUDA_HOME

FOLDER = Path(__file__).resolve().parent
WITH_CUDA = os.environ.get("LLTM_CUDA") != "OFF" and torch.version.cuda is not None and CUDA_HOME is not None

SOURCES = [
    "src/conv2d_batch_norm.cpp",
    "src/cube.cpp",
    "src/elementwise.cpp",
    "src/elementwise_mult.cpp",
    "src/layers.cpp",
    "src/linear.cpp",
    "src/mul_constant.cpp",
    "src/peephole.cpp",
    "src/round_ste.cpp",
    "src/elementwise.cu" if WITH_CUDA else "src/elementwise_unavailable.cpp",
]
# PyTorch 2.11 defaults to C++17. Hidden symbols keep the operators of two libraries apart. Python's flags, which
# setuptools uses, include debug information, which takes time to generate.
CXX_FLAGS = ["-O3", "-std=c++20", "-fvisibility=hidden", "-g0"]
NVCC_FLAGS = ["-O3", "-std=c++20"]
