"""The error message on a GPU whose architecture was not built says what to do."""

import os
import shutil
import sys

import pytest
import torch
from lltm_testing.building import ROOT, run

CALL_FORWARD = """
import sys, torch
torch.ops.load_library(sys.argv[1])
shapes = [(2, 4), (9, 7), (9,), (2, 3), (2, 3)]
torch.ops.lltm.forward(*(torch.randn(shape, device="cuda") for shape in shapes))
torch.cuda.synchronize()
"""


@pytest.mark.usefixtures("needs_cuda")
@pytest.mark.skipif(not (shutil.which("nvcc") and shutil.which("cmake")), reason="needs nvcc and cmake")
def test_a_build_for_another_architecture_says_how_to_rebuild(tmp_path):
    major, minor = torch.cuda.get_device_capability()
    other = "80" if major != 8 else "90"
    run(
        "cmake", "-S", ROOT, "-B", tmp_path, "-DLLTM_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={other}-real",
        "-DBUILD_TESTING=OFF", f"-DPython3_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    run("cmake", "--build", tmp_path, "--parallel", os.cpu_count())

    output = run(sys.executable, "-c", CALL_FORWARD, tmp_path / "liblltm_ops.so", fails=True)
    assert f"lltm was built for the CUDA architectures {other}-real, which do not run on this GPU" in output
    assert f"architecture {major}{minor}" in output
    assert f"Rebuild the library with -DCMAKE_CUDA_ARCHITECTURES={major}{minor}" in output
