"""Every path of the CPU kernels, forced by the environment, each in a separate process: cpu_paths.py runs the tests of
cpu_path.py and cpu_sequence_path.py, and then trapping.py."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lltm_testing.building import HANGS
from lltm_testing.random_calls.cases import CPU_CAPABILITIES
from lltm_testing.reference import (
    assert_identical,
    backward,
    call,
    call_backward,
    forward,
    make_arguments,
    make_gradients,
)

import lltm

EVERY_TEST_OF_A_PATH = Path(__file__).parent / "cpu_paths.py"


def run(*arguments: str, program: Path | str, **environment: str) -> subprocess.CompletedProcess:
    chosen_here = ("LLTM_CPU_GEMM", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
    kept = {name: value for name, value in os.environ.items() if name not in chosen_here}
    return subprocess.run(
        [sys.executable, program, *arguments], env=kept | environment, capture_output=True, text=True, timeout=HANGS
    )


NAMED = CPU_CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), ("default",))
FORCED = [{}, *({"ATEN_CPU_CAPABILITY": name} for name in NAMED)]
if torch.cpu._is_amx_tile_supported():
    FORCED.append({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"})  # without tile registers


def run_every_test(**environment: str) -> None:
    result = run(program=EVERY_TEST_OF_A_PATH, **environment)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("held_to", "sizes"),
    [
        ({}, "0:1"),
        *((held_to, f"{i % 3}:3") for i, held_to in enumerate(FORCED[1:])),
        pytest.param(FORCED[1], "0:1", marks=pytest.mark.release),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value.values()), "everything"),
)
def test_own_kernels(held_to, sizes):
    """Every size on what the machine has, and a third of them on each capability; before a release, every size on its
    highest one."""
    run_every_test(LLTM_CPU_GEMM="own", SIZES=sizes, **held_to)


@pytest.mark.parametrize("sizes", ["1:3", pytest.param("0:1", marks=pytest.mark.release)])
def test_products_of_aten(sizes):
    """Whose tiles have edges of their own; so a third of the sizes, which are around those of this library's."""
    run_every_test(LLTM_CPU_GEMM="aten", SIZES=sizes)


RESULTS_OF_BFLOAT16 = """
import torch
import lltm
torch.manual_seed(0)
arguments = [torch.randn(shape).bfloat16() for shape in ((64, 96), (192, 160), (192,), (64, 64), (64, 64))]
print(torch.cat([result.flatten() for result in torch.ops.lltm.forward(*arguments)]).float().tolist())
"""


def test_a_capability_that_names_nothing_does_not_hold_back():
    """Dot products of bfloat16, where the machine has them, give other bits than AVX-512 without them."""
    everything, empty = (
        run(RESULTS_OF_BFLOAT16, program="-c", LLTM_CPU_GEMM="own", **chosen)
        for chosen in ({}, {"ATEN_CPU_CAPABILITY": ""})
    )
    assert everything.returncode == 0, everything.stderr
    assert everything.stdout == empty.stdout


def test_choice_is_read_at_every_call(monkeypatch):
    arguments = make_arguments((2, 3, 4))
    call(arguments)
    monkeypatch.setenv("LLTM_CPU_GEMM", "fastest")
    expected = "lltm: expected the environment variable LLTM_CPU_GEMM to be auto, own or aten, got fastest"
    with pytest.raises(RuntimeError, match=expected):
        call(arguments)


@pytest.mark.parametrize("value", ["", "auto"], ids=["empty", "auto"])
def test_automatic_choice_of_products(value, monkeypatch):
    arguments = make_arguments((16, 32, 48))
    monkeypatch.delenv("LLTM_CPU_GEMM", raising=False)
    expected = call(arguments)
    monkeypatch.setenv("LLTM_CPU_GEMM", value)
    assert_identical(call(arguments), expected)


@pytest.mark.parametrize("choice", ["auto", "own", "aten"])
@pytest.mark.parametrize("sizes", [(1, 40, 48), (64, 33, 65)], ids=str)
def test_a_sequence_of_one_step_runs_as_the_cell(sizes, dtype, choice, monkeypatch):
    monkeypatch.setenv("LLTM_CPU_GEMM", choice)
    arguments = make_arguments(sizes, dtype)
    new_h, new_cell, gates = call(arguments)
    input, *others = arguments
    results = torch.ops.lltm.sequence(input.unsqueeze(0), *others, keep=True)
    for result, expected in zip(results, (new_h, new_h, new_cell, new_cell, gates), strict=True):
        assert torch.equal(result.view_as(expected), expected)


def test_own_products_are_used_however_large_the_weights(monkeypatch):
    """Not by default: packed, these weights take more of the workspace than a call may use."""
    input, weights = torch.randn(2, 1, 64), torch.randn(3 * 2050, 2050 + 64) / 45

    def products_of_aten(choice: str) -> set[str]:
        monkeypatch.setenv("LLTM_CPU_GEMM", choice)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            output, _, _, cells, gates = torch.ops.lltm.sequence(input, weights, keep=True)
            saved = (output, cells, gates, input, weights, None, None, None, None, None, False)
            torch.ops.lltm.sequence_backward(output, None, None, None, *saved, [False, False, False, True, False])
        return {event.key for event in profile.key_averages()} & {"aten::mm", "aten::addmm", "aten::addmm_"}

    assert products_of_aten("own") == set()
    assert products_of_aten("auto") == products_of_aten("aten") != set()


@pytest.mark.release
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("sizes", [(16, 32, 128), (64, 1024, 128), (8, 512, 512), (64, 512, 512)], ids=str)
def test_accuracy_is_not_behind_eager(dtype, sizes, monkeypatch, set_threads):
    """Over ten seeds, the mean error is no larger than eager PyTorch's, and the largest at most half as large again."""
    monkeypatch.delenv("LLTM_CPU_GEMM", raising=False)
    set_threads(1)
    errors: dict[str, list[list[float]]] = {}
    for seed in range(10):
        torch.manual_seed(seed)
        arguments = make_arguments(sizes, dtype)
        gradients = make_gradients(arguments)
        leaves = arguments.require_grad()
        results = forward(*leaves)
        eager = [*results[:2], *torch.autograd.grad(results[:2], leaves, gradients)]
        ours = [*call(arguments)[:2], *call_backward(*gradients, arguments)]
        exact = [*forward(*arguments.map(torch.Tensor.double))[:2], *backward(*gradients, arguments)]
        names = ("new_h", "new_cell", "d_input", "d_weights", "d_bias", "d_old_h", "d_old_cell")
        for name, *both, want in zip(names, ours, eager, exact, strict=True):
            differences = [(got.double() - want).abs() for got in both]
            errors.setdefault(name, []).append([f(d).item() for f in (torch.mean, torch.max) for d in differences])
    for name, found in errors.items():
        our_mean, mean, our_max, largest = torch.tensor(found).mean(dim=0).tolist()
        # Allow 3 % for the order of summation, in which eager PyTorch differs from CPU to CPU.
        assert our_mean <= 1.03 * mean, name
        assert our_max <= 1.5 * largest, name


def ticks_of_threads() -> dict[str, int]:
    """The processor time that each thread of this process has taken so far."""
    times = {}
    for stat in Path("/proc/self/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        times[stat.parent.name] = int(fields[11]) + int(fields[12])
    return times


@pytest.mark.parametrize("threads", [1, 2])
def test_work_is_spread_over_threads(threads, set_threads, monkeypatch):
    """ATen's parallel_for is a template: compiled without OpenMP, it runs every task in the calling thread, which the
    results do not show.

    Each thread has a fixed part of the rows, and only the time of the processor counts: neither other processes nor a
    single core change the parts."""
    monkeypatch.setenv("LLTM_CPU_GEMM", "own")  # ATen's products have threads anyway
    set_threads(threads)
    arguments = make_arguments((64, 512, 512))
    lltm.ops.forward(*arguments)
    before, start = ticks_of_threads(), time.process_time()
    while time.process_time() - start < 0.5:
        lltm.ops.forward(*arguments)
    taken = [ticks - before.get(name, 0) for name, ticks in ticks_of_threads().items()]
    assert sum(ticks > 0.1 * sum(taken) for ticks in taken) == threads, taken
