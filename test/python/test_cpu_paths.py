"""Every path of the CPU kernels, forced by the environment, in a process of its own: see cpu_path.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lltm

PROGRAM = Path(__file__).parent / "cpu_path.py"
# As PyTorch names them, of the machine: the lesser ones run too. Without a name it is all that the machine has, which
# may be more than the name says.
CAPABILITIES = {"AVX512": ["avx512", "avx2", "default"], "AVX2": ["avx2", "default"]}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name not in ("LLTM_CPU_GEMM", "ATEN_CPU_CAPABILITY")}
    return subprocess.run(
        [sys.executable, PROGRAM, *arguments], env=kept | environment, capture_output=True, text=True, timeout=600
    )


def assert_all_holds(result: subprocess.CompletedProcess) -> None:
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("capability", [None, *CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), ["default"])])
def test_own_products(capability):
    named = {"ATEN_CPU_CAPABILITY": capability} if capability else {}
    assert_all_holds(run(LLTM_CPU_GEMM="own", **named))


def test_products_of_aten():
    assert_all_holds(run(LLTM_CPU_GEMM="aten"))


def test_accuracy_is_not_behind_eager():
    assert_all_holds(run("--accuracy"))


def test_unknown_choice_of_products():
    result = run(LLTM_CPU_GEMM="fastest")
    assert "expected LLTM_CPU_GEMM to be own or aten, or not set, got fastest" in result.stderr


def test_work_is_spread_over_threads():
    """ATen's parallel_for is a template: compiled without OpenMP, it runs every task in the calling thread, and the
    results tell nothing of it."""
    assert b"GOMP_parallel" in lltm.library_path.read_bytes()
