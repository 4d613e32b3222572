"""Build the operators as a user would, out of tree against an installed lltm, and define shared fixtures.

The library is built in ``operators`` in the build folder of lltm, so a second run builds nothing.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

# Threads wait without spinning, which makes many small calls much faster on a busy machine. Set before torch loads
# OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "python", ROOT / "examples" / "operators" / "python"):
    sys.path.append(str(folder))
os.environ.setdefault("LLTM_LIBRARY", str(ROOT / "build" / "liblltm_ops.so"))

import lltm  # noqa: E402


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items):
    """Their library takes minutes to build, and they test examples: .ci/full runs them."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.release)


def run(*command) -> None:
    process = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.returncode == 0, f"{command}:\n{process.stdout}"


def build() -> Path:
    build_folder = lltm.library_path.parent
    prefix = lltm.cmake_prefix_path
    if prefix is None:  # the library of a build tree: install it
        prefix = build_folder / "operators-prefix"
        run("cmake", "--install", build_folder, "--prefix", prefix)
    folder = build_folder / "operators"
    run(
        "cmake", "-S", ROOT / "examples" / "operators", "-B", folder, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DLLTM_CUDA={'ON' if lltm.has_cuda else 'OFF'}",
        f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(lltm.build_info.architectures)}",
        "-DBUILD_TESTING=ON",
        "-DLLTM_WERROR=ON",
    )  # fmt: skip
    run("cmake", "--build", folder)
    return folder / "libexample_ops.so"


@pytest.fixture(scope="session", autouse=True)
def library() -> Path:
    if "EXAMPLE_OPS_LIBRARY" not in os.environ:
        # If several processes run tests in parallel, one of them builds, and the others wait for it.
        with (lltm.library_path.parent / "operators.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.environ["EXAMPLE_OPS_LIBRARY"] = str(build())
    import example_ops  # noqa: F401

    return Path(os.environ["EXAMPLE_OPS_LIBRARY"])


@pytest.fixture(scope="session", params=["cpu", "cuda"])
def device(request) -> torch.device:
    if request.param == "cuda" and not (torch.cuda.is_available() and lltm.has_cuda):
        pytest.skip("no GPU, or built without CUDA")
    return torch.device(request.param)


@pytest.fixture(
    scope="session", params=[torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:]
)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(autouse=True)
def exact_products():
    """No TF32, because the reference is in float64, and deterministic results, which gradcheck requires."""
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
