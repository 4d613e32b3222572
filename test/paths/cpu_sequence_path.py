"""Tests of sequences on the CPU path that the environment selects, as in cpu_path.py for the cell."""

import os

import pytest
import torch
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import (
    CELLS,
    Lstm,
    Sequence,
    assert_gradients_close,
    assert_results_close,
    call,
    call_backward,
    make,
    make_gradients,
    ragged,
)

# Around the edges of every tile: 4, 8 and 16 lanes; tiles of 4, 6 and 8 rows; panels of 2 and 4 vectors; blocks of 128
# and 256 operands; chunks of 128 rows of input; a single row; d_weights of more rows than are summed at once; with AMX,
# tiles of 16 rows, which overlap if the batch is not a multiple, and of 32 terms, and blocks of 512.
EDGES = [
    (3, 1, 1, 1), (2, 1, 300, 33), (5, 3, 7, 19), (2, 4, 16, 16), (3, 5, 17, 15), (2, 7, 0, 47), (2, 8, 130, 48),
    (3, 9, 33, 49), (2, 12, 129, 64), (2, 13, 5, 65), (2, 16, 64, 31), (2, 17, 31, 129), (3, 33, 9, 70),
    (130, 1, 3, 5), (40, 15, 20, 24), (2, 129, 6, 8), (2, 3, 258, 260), (90, 15, 37, 50), (2, 35, 545, 173),
]  # fmt: skip
# A part of them: the first, and the distance to the next.
FIRST, STEP = map(int, os.environ.get("SIZES", "0:1").split(":"))
OWN = os.environ.get("LLTM_CPU_GEMM") == "own"


each_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


@pytest.mark.parametrize(
    ("cell", "masked"),
    [(Sequence, False), (Sequence, True), (Lstm, True)],
    ids=["lltm-plain", "lltm-masked", "lstm-masked"],
)
@pytest.mark.parametrize("number", range(FIRST, len(EDGES), STEP), ids=lambda number: str(EDGES[number]))
def test_is_the_formula(dtype, number, cell, masked):
    """Every size once without options, and once with all of them, in one of the directions; of the LSTM, the second."""
    turn = 4 * number + [torch.float64, torch.float32, torch.float16, torch.bfloat16].index(dtype)
    options = {}
    if masked:
        options = {"lengths": True, "reset": True, "bias": turn % 3 > 0, "state": turn % 5 > 0, "reverse": turn % 2 > 0}
    arguments, keep = make(EDGES[number], dtype, cell=cell, **options), not masked or turn % 2 == 0
    assert_results_close(call(arguments, keep), arguments, keep)
    gradients = make_gradients(arguments)
    assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)


@pytest.mark.parametrize("number", range(FIRST, len(EDGES), STEP), ids=lambda number: str(EDGES[number][1:]))
def test_the_only_step_of_an_lstm_is_the_formula(dtype, number):
    """It has kernels that do not pack the weights. cpu_path.py tests those of the LLTM."""
    keep = number % 2 == 0
    arguments = make((1, *EDGES[number][1:]), dtype, cell=Lstm, bias=number % 3 > 0, state=number % 5 > 0)
    assert_results_close(call(arguments, keep), arguments, keep)


@each_cell
def test_nothing_beyond_a_length_is_read(dtype, cell):
    """Neither inputs nor gradients."""
    arguments, poisoned, beyond = ragged(make((6, 11, 5, 21), dtype, cell=cell))
    gradients = make_gradients(arguments)
    spoil = [t.masked_fill(beyond.unsqueeze(2), torch.nan) if t.dim() == 3 else t for t in gradients]
    found = [*call(poisoned, True), *call_backward(spoil, poisoned)]
    assert_identical(found, [*call(arguments, True), *call_backward(gradients, arguments)])


@pytest.mark.skipif(not OWN, reason="ATen's results are reproducible only for the same number of threads")
@pytest.mark.parametrize(
    "sizes", [(9, 40, 70, 130), (12, 20, 130, 128), (400, 1, 130, 128), (3, 3, 700, 900)][FIRST::STEP], ids=str
)
@each_cell
def test_bits_do_not_depend_on_threads(dtype, sizes, cell, set_threads):
    """With rows for all threads, rows for some, and one row."""
    arguments = make(sizes, dtype, lengths=True, reset=True, cell=cell)
    gradients = make_gradients(arguments)

    def results(threads: int) -> list[torch.Tensor]:
        set_threads(threads)
        return [*call(arguments, True), *call_backward(gradients, arguments)]

    first = results(1)
    for threads in (2, 3, 8):
        assert all(torch.equal(a, b) for a, b in zip(first, results(threads), strict=True)), f"with {threads} threads"
