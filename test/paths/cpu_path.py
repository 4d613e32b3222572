"""Tests of the cell on the CPU path that the environment selects (ATEN_CPU_CAPABILITY, LLTM_CPU_GEMM).

The former is read once per process, so test_cpu_paths.py runs pytest on this file for every path.
"""

import os

import pytest
import torch
from lltm_testing.reference import (
    assert_close,
    bounded_backward,
    bounded_forward,
    call,
    call_backward,
    make_arguments,
    make_gradients,
)

# Around the edges of every tile: 4, 8 and 16 lanes; multiples of 4 rows up to 12; panels of 1 to 4 vectors, groups of 8
# panels; blocks of 128, 256, 512; one row; odd sizes.
EDGES = [
    (1, 1, 1), (1, 260, 259), (2, 3, 5), (3, 0, 7), (4, 17, 16), (5, 100, 33), (8, 16, 16), (9, 17, 15), (16, 32, 128),
    (17, 5, 31), (33, 65, 129), (37, 77, 200), (48, 7, 48), (64, 250, 10), (65, 30, 48), (130, 64, 64), (257, 5, 9),
    (600, 3, 3), (6, 600, 33), (7, 40, 19), (11, 31, 35), (12, 64, 40), (13, 33, 18),
    (20, 900, 40),
]  # fmt: skip
# A part of them: the first, and the distance to the next.
FIRST, STEP = map(int, os.environ.get("SIZES", "0:1").split(":"))
OWN = os.environ.get("LLTM_CPU_GEMM") == "own"
RESULTS = ("new_h", "new_cell", "gates")
GRADIENTS = ("d_input", "d_weights", "d_bias", "d_old_h", "d_old_cell")


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("sizes", EDGES[FIRST::STEP], ids=str)
def test_is_the_formula(dtype, sizes, bias):
    arguments = make_arguments(sizes, dtype, bias=bias)
    gradients = make_gradients(arguments)
    for name, result, expected in zip(RESULTS, call(arguments), bounded_forward(arguments), strict=True):
        assert_close(result, expected, dtype, name)
    expected = bounded_backward(*gradients, arguments)
    for name, result, value in zip(GRADIENTS, call_backward(*gradients, arguments), expected, strict=True):
        assert_close(result, value, dtype, name)


@pytest.mark.parametrize("sizes", [(1, 260, 259), (33, 65, 129), (70, 300, 130), (300, 40, 24)], ids=str)
def test_has_the_same_bits_again(dtype, sizes, set_threads):
    """And on any number of threads, unless ATen computes the products."""
    arguments = make_arguments(sizes, dtype)
    gradients = make_gradients(arguments)

    def results(threads: int) -> list[torch.Tensor]:
        set_threads(threads)
        return [*call(arguments), *call_backward(*gradients, arguments)]

    for threads in (1, 2, 3, 8):
        first, again = results(1 if OWN else threads), results(threads)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)), f"other bits with {threads} threads"


needs_own = pytest.mark.skipif(not OWN, reason="libraries may handle NaN and infinity differently")
NOT_FINITE = pytest.mark.parametrize(
    "sizes", [(1, 35, 41), (7, 35, 41), (21, 5, 3), (37, 77, 201), (150, 31, 33)], ids=str
)


@needs_own
@NOT_FINITE
def test_nan_stays_in_its_row(dtype, sizes):
    arguments = make_arguments(sizes, dtype)
    grad_h, grad_cell = make_gradients(arguments)
    batch = grad_h.size(0)
    for row in {0, batch // 2, batch - 1}:
        poisoned = arguments._replace(old_h=arguments.old_h.clone(), input=arguments.input.clone())
        poisoned.old_h[row, 0] = poisoned.input[row, -1] = torch.nan
        grad = grad_h.clone()
        grad[row] = torch.nan
        d_input, _, _, d_old_h, _ = call_backward(grad, grad_cell, arguments)
        for result in (*call(poisoned), d_input, d_old_h):
            assert result.isnan().any(1).nonzero().flatten().tolist() == [row]
            assert result[row].isnan().all()


@needs_own
@NOT_FINITE
def test_infinite_weights_only_meet_their_own_factors(dtype, sizes):
    """No padding lane leaks."""
    arguments = make_arguments(sizes, dtype)
    state_size = arguments.old_h.size(1)
    for column in (0, state_size - 1, state_size, -1):
        weights = arguments.weights.clone()
        weights[:, column] = torch.inf
        assert call(arguments._replace(weights=weights))[2].isinf().all(), f"column {column}"


@pytest.mark.parametrize("moving", range(3), ids=["input_gate", "output_gate", "candidate"])
def test_elements(moving):
    """A dense sweep of the pre-activations of one gate, to test the vector math against float64."""
    tiny = torch.logspace(-30, 0, 20_001, dtype=torch.float64)
    wide = torch.linspace(0, 80, 40_001, dtype=torch.float64)
    sweep = torch.cat([tiny, -tiny, wide, -wide]).float()
    z = torch.zeros(3, sweep.numel())
    z[2] = 0.7
    z[moving] = sweep
    i, o, g = torch.sigmoid(z[0].double()), torch.sigmoid(z[1].double()), torch.nn.functional.elu(z[2].double())
    want_cell = (g * i)[None]
    want_h = torch.tanh(want_cell) * o
    for name, got, want in zip(("new_h", "new_cell"), pointwise(z), (want_h, want_cell), strict=True):
        normal = want.abs() > 2 * torch.finfo(torch.float32).tiny
        error = ((got.double() - want).abs() / want.abs())[normal].max() / torch.finfo(torch.float32).eps
        assert error <= 4, f"{name} is off by {error} units of the last place"


def pointwise(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The new state for pre-activations z (3, state_size) and a zero cell: the input is 1, and the weights are z."""
    pieces = []
    for part in z.split(100, dim=1):
        state_size = part.size(1)
        weights = torch.cat([torch.zeros(3 * state_size, state_size), part.reshape(-1, 1)], dim=1)
        zero = torch.zeros(1, state_size)
        pieces.append(torch.ops.lltm.forward(torch.ones(1, 1), weights, None, zero, zero)[:2])
    return tuple(torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True))
