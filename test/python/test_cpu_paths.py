"""Every path of the CPU kernels, forced by the environment, in a process of its own: see cpu_path.py."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lltm

PROGRAM = Path(__file__).parent / "cpu_path.py"
SEQUENCE_PROGRAM = Path(__file__).parent / "cpu_sequence_path.py"
TRAPPING_PROGRAM = Path(__file__).parent / "trapping.py"
# As PyTorch names them, of the machine: the lesser ones run too. Without a name it is all that the machine has, which
# may be more than the name says.
CAPABILITIES = {"AVX512": ["avx512", "avx2", "default"], "AVX2": ["avx2", "default"]}


def run(*arguments: str, program: Path = PROGRAM, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name not in ("LLTM_CPU_GEMM", "ATEN_CPU_CAPABILITY")}
    return subprocess.run(
        [sys.executable, program, *arguments], env=kept | environment, capture_output=True, text=True, timeout=600
    )


FORCED = [None, *CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), ["default"])]


def assert_all_holds(result: subprocess.CompletedProcess) -> None:
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


def named(capability: str | None) -> dict[str, str]:
    return {"ATEN_CPU_CAPABILITY": capability} if capability else {}


@pytest.mark.parametrize("capability", FORCED)
def test_own_products(capability):
    assert_all_holds(run(LLTM_CPU_GEMM="own", **named(capability)))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="floating-point exceptions need not trap elsewhere")
@pytest.mark.parametrize("capability", FORCED)
def test_finite_arguments_raise_no_floating_point_exception(capability):
    result = run(program=TRAPPING_PROGRAM, LLTM_CPU_GEMM="own", **named(capability))
    assert result.returncode == 0, f"died at {result.stdout.splitlines()[-1]}: {result.stderr}"


@pytest.mark.parametrize("capability", FORCED)
def test_sequences_by_own_kernels(capability):
    assert_all_holds(run(program=SEQUENCE_PROGRAM, LLTM_CPU_GEMM="own", **named(capability)))


def test_sequences_by_products_of_aten():
    assert_all_holds(run(program=SEQUENCE_PROGRAM, LLTM_CPU_GEMM="aten"))


def test_choice_is_read_at_every_call():
    program = f"""
import os, sys, torch
sys.path.insert(0, {str(PROGRAM.parent)!r})
import conftest
from reference import call, make_arguments
arguments = make_arguments((2, 3, 4))
call(arguments)
os.environ["LLTM_CPU_GEMM"] = "fastest"
try:
    call(arguments)
except RuntimeError as error:
    assert "got fastest" in str(error)
else:
    raise AssertionError("nobody read it again")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr


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
