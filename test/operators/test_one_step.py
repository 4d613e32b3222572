"""A sequence of a single step on the CPU, which runs as the cell does: with resets, lengths and a float32 cell state,
it gives the loop's results, and does not pack the weights."""

import pytest
import torch
from lltm_testing.sequence_reference import Sizes, assert_results_close, call, kept_of, make, ragged

SIXTEEN_BITS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
BATCHES = pytest.mark.parametrize("batch", [5, 40], ids=["rows", "panels"])
OPTIONS = {
    "reset": {"reset": True},
    "lengths": {"lengths": True},
    "both": {"reset": True, "lengths": True, "reverse": True},
    "stateless": {"reset": True, "lengths": True, "state": False},
}
options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@options
@BATCHES
@pytest.mark.parametrize("keep", [False, True], ids=["inference", "keep"])
def test_resets_and_lengths(products, dtype, cell, batch, keep, options):
    arguments = make(Sizes(1, batch, 19, 37), dtype, cell=cell, **options)
    assert_results_close(call(arguments, keep), arguments, keep)


@options
@BATCHES
@SIXTEEN_BITS
@pytest.mark.parametrize("keep", [False, True], ids=["inference", "keep"])
def test_a_float32_cell_state(products, dtype, cell, batch, keep, options):
    arguments = make(Sizes(1, batch, 19, 37), dtype, cell=cell, cell_dtype=torch.float32, **options)
    assert_results_close(call(arguments, keep), arguments, keep)


@BATCHES
@SIXTEEN_BITS
def test_a_float32_cell_state_is_not_rounded(products, dtype, cell, batch):
    """The candidate is 0, and the forget gate, or the update gate of a GRU, is 1."""
    state = torch.randn(batch, 21)
    z = torch.tensor([0.0, 0.0 if cell.operator == "sequence" else 40.0, 0.0, 0.0][: cell.gates], dtype=dtype)
    arguments = make(Sizes(1, batch, 3, 21), dtype, cell=cell, cell_dtype=torch.float32)
    values = {cell.bias_names()[0]: z.repeat_interleave(21), cell.states[-1]: state}
    results = call(arguments.map(torch.zeros_like)._replace(**values), keep=True)
    assert torch.equal(results[len(cell.states)], state)
    assert torch.equal(kept_of(arguments, results)[len(cell.states) - 1][0], state.to(dtype))


@BATCHES
def test_rows_that_do_not_run_are_not_read(products, dtype, cell, batch):
    arguments = make(Sizes(1, batch, 19, 37), dtype, reset=True, cell=cell)
    arguments, with_nan, beyond = ragged(arguments)
    states = {name: getattr(arguments, name).masked_fill(beyond[0].unsqueeze(1), torch.nan) for name in cell.states}
    with_nan = with_nan._replace(**states)
    expected = call(arguments, keep=True)
    for found, value in zip(call(with_nan, keep=True), expected, strict=True):
        assert torch.equal(found[..., ~beyond[0], :], value[..., ~beyond[0], :])
    results = call(with_nan, keep=True)
    assert not any(of_steps[beyond].any() for of_steps in kept_of(arguments, results)[:-1])
    assert all(last[beyond[0]].isnan().all() for last in results[1 : 1 + len(cell.states)])


def largest_allocation(function) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("option", ["reset", "lengths", "float32_cell_state"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_weights_are_not_packed(monkeypatch, dtype, cell, option):
    monkeypatch.setenv("LLTM_CPU_GEMM", "own")
    cell_dtype = torch.float32 if option == "float32_cell_state" else dtype
    some = {"reset": option == "reset", "lengths": option == "lengths"}
    arguments = make(Sizes(1, 2, 96, 128), dtype, cell=cell, cell_dtype=cell_dtype, **some)
    call(arguments)
    assert largest_allocation(lambda: call(arguments)) < arguments.input.itemsize * 128 * 128
