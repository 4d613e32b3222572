"""Random calls of every operator against the formula in float64. For long runs, use fuzz.py."""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lltm_testing import bounds, layouts
from lltm_testing.bounds import Precision
from lltm_testing.building import HANGS
from lltm_testing.random_calls import cells
from lltm_testing.random_calls.checking import Checker, Wrong
from lltm_testing.random_calls.operators import OPERATORS, draw_case
from lltm_testing.random_calls.sequences import SequenceCase
from lltm_testing.reference import forward
from lltm_testing.sequence_reference import Sizes
from lltm_testing.settings import allow_tf32

RESULTS = ("d_input", "d_weights", "d_bias", "d_old_h", "d_old_cell")

FUZZ = Path(__file__).parent / "fuzz.py"


@pytest.fixture
def process_state():
    """Restores the process's state after the calls."""
    threads, path = torch.get_num_threads(), os.environ.get("LLTM_CUDA_PATH")
    yield
    torch.set_num_threads(threads)
    allow_tf32(False)
    os.environ.pop("LLTM_CUDA_PATH", None)
    if path is not None:
        os.environ["LLTM_CUDA_PATH"] = path


@pytest.mark.parametrize("examples", [40, pytest.param(120, marks=pytest.mark.release)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_random_calls(process_state, device, operator, examples):
    checker = Checker(batch=1)

    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(st.randoms(use_true_random=False))
    def check(random):
        checker.check(draw_case(random, device.type, [operator]))
        checker.finish()

    check()


def run_fuzz(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, FUZZ, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=HANGS
    )


def test_every_path_of_the_cpu():
    result = run_fuzz("--calls", "250", "--jobs", "2", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "calls in" in result.stdout and "none wrong" in result.stdout


def draw_small_case(device):
    """A case in which a wrong element is noticeable."""
    cases = (draw_case(random.Random(seed), device.type, ["backward"]) for seed in itertools.count())
    small = next(c for c in cases if c.dtype == torch.float32 and 1 <= min(c.sizes) <= max(c.sizes) <= 9)
    return dataclasses.replace(
        small, scale=1.0, grad_mode="enabled", mask=(True,) * 5, absent=(), repeated=True, callers=1, tf32=False
    )


@pytest.mark.parametrize("index", range(5), ids=RESULTS)
@pytest.mark.parametrize(("wrong_call", "message"), [(1, ""), (2, " of another call")], ids=["value", "bits"])
def test_a_wrong_element_is_found(process_state, monkeypatch, device, index, wrong_call, message):
    """In the first call by comparing with the formula, in the second by comparing bits."""
    right = OPERATORS["backward"]
    calls = itertools.count(1)

    def prepare(case):
        call = right.prepare(case)

        def run():
            results = list(call.run())
            if next(calls) == wrong_call:
                results[index].view(-1)[-1] += 2e-3
            return results

        return dataclasses.replace(call, run=run)

    monkeypatch.setitem(OPERATORS, "backward", dataclasses.replace(right, prepare=prepare))
    checker = Checker()
    checker.check(draw_small_case(device))
    with pytest.raises(Wrong, match=f"^{RESULTS[index]}{message} is off by"):
        checker.finish()


@pytest.mark.parametrize(("error", "refused"), [("LLTM_CUDA_PATH=grid has no kernel", True), ("something", False)])
def test_a_call_that_its_path_has_no_kernel_for_does_not_count(process_state, monkeypatch, error, refused):
    def prepare(case):
        raise RuntimeError(f"lltm::backward: {error} for float64")

    monkeypatch.setitem(OPERATORS, "backward", dataclasses.replace(OPERATORS["backward"], prepare=prepare))
    checker = Checker()
    case = dataclasses.replace(draw_small_case(torch.device("cpu")), path="grid")
    with contextlib.nullcontext() if refused else pytest.raises(RuntimeError, match="something"):
        checker.check(case)
    assert checker.refused == refused and not checker.calls


def test_a_path_of_cuda_is_no_path_of_the_cpu():
    result = run_fuzz("--path", "grid")
    assert result.returncode == 2 and "--path selects kernels of --device cuda" in result.stderr


def test_a_failure_can_be_made_again():
    """A key makes the same call in another process."""
    key = "0:1:2"
    drawn = dataclasses.replace(draw_case(random.Random(key), "cpu"), origin=key)
    result = run_fuzz("--only", key)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith(f"{drawn}\nright: ")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_values_may_overflow(process_state, dtype):
    """In float16, elements of d_bias of this call, and only these, are beyond the largest number."""
    case = SequenceCase(
        operator="sequence_backward",
        device="cpu",
        seed=44,
        dtype=dtype,
        sizes=Sizes(steps=38, batch=9, input_features=0, state_size=33),
        bias=False,
        scale=1.0,
        layouts=(),
        absent=("grad_cells",),
        mask=(True,) * 5,
        grad_mode="inference",
        autocast=None,
        threads=1,
        callers=1,
        repeated=True,
        poison=(),
        path=None,
        tf32=False,
        state=False,
        cell_dtype=torch.float32,
        lengths=False,
        reset=False,
        reverse=True,
        keep=False,
    )
    call = OPERATORS[case.operator].prepare(case)
    d_bias = call.run()[2]
    assert d_bias.isinf().any() == (dtype == torch.float16)
    checker = Checker()
    checker.check(case)
    checker.finish()


def test_what_may_overflow_has_no_bound():
    def excess(value, actual):
        return Precision.of(torch.float16).exact(torch.tensor([value])).excess(torch.tensor([actual])).item()

    assert excess(70000.0, torch.inf) == 0
    assert excess(60000.0, torch.inf) == torch.inf
    assert excess(60000.0, 60000.0) == 0


def test_sequences_repeat_inputs_for_a_few_steps_only():
    """The errors of equal steps add up, which the bounds of sequences do not allow for."""
    drawn = [draw_case(random.Random(seed), "cpu", ["sequence_backward"]) for seed in range(4000)]
    repeating = [c.sizes for c in drawn if dict(c.layouts).get("input") in {f.__name__ for f in layouts.REPEATING}]
    assert len(repeating) > 100
    assert all(sizes.steps <= 8 and sizes.steps * sizes.batch <= 64 for sizes in repeating)


def gradients_without(smallest: float, z: float, dtype) -> list[float]:
    """The errors of d_input, d_weights, d_bias and d_old_h as fractions of their bounds, if a kernel replaces each
    exponential below `smallest` with zero. All pre-activations of the input gate are z."""
    generator = torch.Generator().manual_seed(0)
    batch, input_features, state_size = 21, 47, 31

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    dh, dc, new_cell = (normal(batch, state_size) for _ in range(3))
    gates = torch.cat([torch.full((batch, state_size), z), torch.full((batch, 2 * state_size), 20.0)], dim=1).to(dtype)
    old_h, input = normal(batch, state_size), normal(batch, input_features)
    weights = normal(3 * state_size, state_size + input_features)
    exact = Precision.of(dtype).exact
    expected = bounds.LLTM.backward(*map(exact, (dh, dc, new_cell, gates, input, weights, old_h)))

    z_i, z_o, z_g = gates.double().chunk(3, dim=1)
    e_i, e_o = (torch.where(e < smallest, 0.0, e) for e in (torch.exp(-z_i.abs()), torch.exp(-z_o.abs())))
    t = torch.tanh(new_cell.double())
    d_cell = dc.double() + dh.double() / (1 + e_o) * (1 - t * t)
    i = torch.where(z_i < 0, e_i, 1.0) / (1 + e_i)
    dz = torch.cat([d_cell * z_g * e_i / (1 + e_i) ** 2, dh.double() * t * e_o / (1 + e_o) ** 2, d_cell * i], dim=1)
    dz = dz.to(dtype).double()
    d_h_and_input = dz @ weights.double()
    d_weights = dz.t() @ torch.cat([old_h, input], dim=1).double()
    found = (d_h_and_input[:, state_size:], d_weights, dz.sum(0), d_h_and_input[:, :state_size])
    return [bound.excess(result.to(dtype)).item() for bound, result in zip(expected[:4], found, strict=True)]


def test_each_z_may_cross_the_jump_of_elu(monkeypatch):
    """In TF32, z of several rows may be on the wrong side of 0, where ELU's second derivative jumps. What the jumps
    change may cancel, unless one crosses alone. `fuzz.py --device cuda --only 97:8:530`"""
    monkeypatch.setattr(cells, "precision_on", lambda *_: Precision.of(torch.float32, tf32=True))
    case = draw_case(random.Random(2449), "cpu", ["double_backward"])
    assert case.sizes == (33, 80, 4)
    call = OPERATORS[case.operator].prepare(case)
    expected = call.expected()
    tensors = [tensor.detach().double().requires_grad_() for tensor in call.arguments]
    z_g = forward(*tensors[:5])[2].detach().chunk(3, dim=1)[2]
    rows = (z_g[:, 0].abs() < 0.005).nonzero()
    assert len(rows) > 1
    for row in rows:
        crosses = torch.zeros_like(z_g, dtype=torch.bool)
        crosses[row, 0] = True
        step = functools.partial(forward, elu=cells.elu_across(crosses))
        found = cells.gradients_of_gradients(step, tensors[:5], tensors[5:7], tensors[7:])
        assert max(bound.excess(result).item() for bound, result in zip(expected, found, strict=True)) <= 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_exponentials_may_underflow(dtype):
    """As in the kernels for bfloat16 on CUDA, whose exp(-88) is zero. `fuzz.py --device cuda --only 96:1:1103`"""
    tiny = torch.finfo(dtype).tiny
    z = float(torch.tensor(math.log(tiny) - 0.5, dtype=dtype))
    assert max(gradients_without(tiny, z, dtype)) <= 1
    assert max(gradients_without(tiny, -z, dtype)) <= 1
    # What is a normal number with all its digits may not: here, only d_weights and d_bias have sums of nothing larger.
    assert max(gradients_without(0.0, -70.0, dtype)) <= 1
    assert min(gradients_without(1e-30, -70.0, dtype)[1:3]) > 1
