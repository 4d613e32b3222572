"""Shared by all tests: the devices, dtypes and paths, and a fixed seed."""

import subprocess

import hypothesis
import pytest
import torch
from lltm_testing import settings  # finds lltm
from lltm_testing.named_arguments import NAMES
from lltm_testing.sequence_reference import CELLS
from lltm_testing.steps import STEPS, Step

# The same examples in every run, so that failures are reproducible.
hypothesis.settings.register_profile("lltm", deadline=None, derandomize=True, max_examples=30, database=None)
hypothesis.settings.load_profile("lltm")


NO_CUDA = None if settings.WITH_CUDA else "no GPU, or lltm was built without CUDA"


def pytest_report_header():
    return NO_CUDA and f"cuda: {NO_CUDA}, so tests on a GPU are left out"


def pytest_collection_modifyitems(config, items):
    """It takes long to hand thousands of tests to the processes of pytest-xdist only to skip them."""
    if NO_CUDA:
        deselected = {item for item in items if "needs_cuda" in item.fixturenames}
        config.hook.pytest_deselected(items=list(deselected))
        items[:] = [item for item in items if item not in deselected]


@pytest.fixture(scope="session")
def needs_cuda():
    if NO_CUDA:
        pytest.skip(NO_CUDA)


@pytest.fixture(scope="session", params=["cpu", "cuda"] if settings.WITH_CUDA else ["cpu"])
def device(request) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(
    scope="session", params=[torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:]
)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(scope="session", params=CELLS)
def cell(request) -> type:
    """The arguments of lltm::sequence, or of lltm::lstm."""
    return CELLS[request.param]


@pytest.fixture(scope="session", params=STEPS)
def step(request) -> Step:
    """A step of a cell, in every way to compute it."""
    return STEPS[request.param]


@pytest.fixture(scope="session", params=NAMES)
def operator(request) -> str:
    """The name of an operator. Marks of named_arguments.py choose among them."""
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


@pytest.fixture
def set_tf32():
    """Lets float32 products use TF32 or not until the test ends."""
    yield settings.allow_tf32
    settings.allow_tf32(False)


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
