"""Shared by all tests: finding lltm, the devices and dtypes, and a fixed seed.

LLTM_LIBRARY and PYTHONPATH select what is tested. The defaults are this checkout's package and the library in build/.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

# Threads wait without spinning. On a busy machine, many small calls then take a tenth of the time. Set before torch
# loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# The processes of pytest-xdist (-n) share the cores. If each of them used all cores, they would mostly wait for each
# other.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // int(workers))))

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("lltm") is None:
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("LLTM_LIBRARY", str(ROOT / "build" / "liblltm_ops.so"))

import lltm  # noqa: E402

# Otherwise, if cuBLAS splits K, it may round the partial sums of a 16-bit product to 16 bits, which exceeds the bounds
# of bounds.py for sums in float32.
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

# The same examples in every run, so that failures are reproducible.
hypothesis.settings.register_profile("lltm", deadline=None, derandomize=True, max_examples=30, database=None)
hypothesis.settings.load_profile("lltm")


@pytest.fixture(scope="session")
def needs_cuda():
    if not (torch.cuda.is_available() and lltm.has_cuda):
        pytest.skip("no GPU, or lltm was built without CUDA")


@pytest.fixture(scope="session", params=["cpu", "cuda"])
def device(request) -> torch.device:
    if request.param == "cuda":
        request.getfixturevalue("needs_cuda")
    return torch.device(request.param)


@pytest.fixture(
    scope="session", params=[torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:]
)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(params=["few_rows", "hopper", "tiles", "library"])
def path(request, monkeypatch) -> str:
    """Forces each group of CUDA kernels."""
    monkeypatch.setenv("LLTM_CUDA_PATH", request.param)
    return request.param


@pytest.fixture(params=["own", "aten"])
def products(request, monkeypatch) -> str:
    """Forces this library's matrix products on the CPU, or ATen's."""
    monkeypatch.setenv("LLTM_CPU_GEMM", request.param)
    return request.param


@pytest.fixture
def set_threads():
    """Sets the number of PyTorch's threads until the test ends."""
    threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler():
    """Resets the compiler before and after the test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def aot_inductor(tmp_path):
    """Skips the test if the compiler links a static libstdc++. Packages then contain a second copy of it, and crash on
    load even without our operators."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    source, library = tmp_path / "stream.cpp", tmp_path / "stream.so"
    source.write_text("#include <iostream>\nvoid print() { std::cout << 1; }\n")
    subprocess.run([get_cpp_compiler(), "-shared", "-fPIC", source, "-o", library], check=True)
    if b"libstdc++.so" not in library.read_bytes():
        pytest.skip(f"{get_cpp_compiler()} links a static libstdc++ into AOTInductor's packages")
