"""The steps of sequences by every kernel, and at sizes at its limits. test_cuda.py has graphs, streams and devices."""

import pytest
import torch
from lltm_testing.gpus import has_wgmma, kernels_of, skip_without_wgmma, wgmma_kernels
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import (
    Gru,
    Lstm,
    Sequence,
    Sizes,
    assert_gradients_close,
    assert_results_close,
    call,
    call_backward,
    make,
    make_gradients,
)

import lltm

pytestmark = pytest.mark.usefixtures("needs_cuda")
each_cell = pytest.mark.parametrize("cell", [Sequence, Lstm])


# Around the tiles of every kernel; rows that start at multiples of 16 bytes and rows that do not; one row and few rows;
# ranks that share K; more input than fits a chunk of time.
STEP_SIZES = [
    Sizes(*sizes)
    for sizes in [
        (1, 5, 7, 4),
        (5, 16, 128, 128),
        (4, 1, 512, 512),
        (4, 3, 60, 64),
        (3, 8, 1000, 40),
        (3, 70, 33, 65),
        (4, 130, 72, 264),
        (3, 300, 0, 248),
        (3, 257, 16, 1044),
        (35, 500, 257, 8),
    ]
]


@pytest.mark.parametrize(
    ("rows_of_their_own", "reverse"), [(False, False), (True, False), (True, True)], ids=["plain", "rows", "reverse"]
)
@pytest.mark.parametrize("sizes", STEP_SIZES, ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_steps_by_every_kernel(path, dtype, cell, sizes, rows_of_their_own, reverse):
    flags = {"lengths": rows_of_their_own, "reset": rows_of_their_own, "reverse": reverse}
    arguments = make(sizes, dtype, "cuda", cell=cell, **flags)
    results = call(arguments, keep=True)
    assert_results_close(results, arguments, keep=True)
    states = 1 + len(cell.states)
    assert_identical(call(arguments)[:states], results[:states])


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("state_size", [64, 63])
@each_cell
def test_gradients_from_zeros(dtype, cell, state_size, reverse):
    """Large products, which read h where the output has it, if its rows are aligned and no state was given."""
    arguments = make((24, 300, 70, state_size), dtype, "cuda", state=False, reverse=reverse, cell=cell)
    gradients = make_gradients(arguments)
    assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)


def test_h_is_not_copied():
    arguments = make((24, 300, 72, 64), torch.bfloat16, "cuda", state=False, cell=Lstm)
    zeros = torch.zeros(300, 64, dtype=torch.bfloat16, device="cuda")
    gradients = make_gradients(arguments)
    for of, copies in ((arguments, False), (arguments._replace(h0=zeros), True)):
        kernels = kernels_of(lambda of=of: call_backward(gradients, of))
        assert any("old_states" in name for name in kernels) == copies


@pytest.mark.parametrize("allow_tf32", [False, True], ids=["exact", "tf32"])
@pytest.mark.parametrize("sizes", [(3, 70, 33, 65), (4, 130, 72, 264), (5, 260, 16, 1044)], ids=str)
@pytest.mark.parametrize("cell", [Lstm, Gru])
def test_every_step_of_a_cell(dtype, cell, sizes, allow_tf32, set_tf32, monkeypatch):
    """Each forced by its name, where it can compute the dtype."""
    set_tf32(allow_tf32)
    arguments = make(sizes, dtype, "cuda", lengths=True, reset=True, cell=cell)
    names, ran = wgmma_kernels(monkeypatch, cell), 0
    for name in names:
        monkeypatch.setenv("LLTM_CUDA_PATH", name)
        ran += f"kernel={name} " in getattr(lltm.ops, f"{cell.operator}_plan")(*arguments)
        assert_results_close(call(arguments, keep=True), arguments, keep=True)
    if has_wgmma():
        in_float32 = dtype == torch.float32 and not allow_tf32
        expected = [name for name in names if ("float32" in name) == in_float32]
        assert ran == (0 if dtype == torch.float64 else len(expected)) and len(expected) > 1


@pytest.mark.parametrize("state_size", [61, 62, 63, 1018])
@pytest.mark.parametrize("state", [False, True], ids=["zeros", "state"])
def test_few_rows_of_an_odd_state(state_size, state, monkeypatch):
    """Zeros fill up the last vector of h, whatever was in the memory before."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "few_rows")
    for tensor in [torch.empty(1 << 22, device="cuda") for _ in range(4)]:
        tensor.fill_(torch.nan)  # what the allocator will hand out
    arguments = make((5, 3, 12, state_size), torch.float32, "cuda", state=state)
    assert "kernel=forward_few_rows" in lltm.ops.sequence_plan(*arguments)
    assert_results_close(call(arguments, keep=True), arguments, keep=True)


@pytest.mark.parametrize("sizes", STEP_SIZES, ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_steps_in_tf32(path, cell, sizes, set_tf32):
    set_tf32(True)
    arguments = make(sizes, torch.float32, "cuda", lengths=True, reset=True, cell=cell)
    assert_results_close(call(arguments, keep=True), arguments, keep=True)


@pytest.mark.parametrize("state_size", [6, 8, 130, 131])
@each_cell
def test_c0_that_starts_anywhere(path, dtype, cell, state_size):
    """The first step reads one, two or four elements of c0 at once, as state_size is a multiple of this number."""
    sizes = Sizes(3, 20, 16, state_size)
    carried = torch.promote_types(dtype, torch.float32)  # the dtype in which c0 is read in place
    c0 = torch.randn(sizes.batch * state_size + 1, dtype=carried, device="cuda")[1:].view(sizes.batch, state_size)
    arguments = make(sizes, dtype, "cuda", cell=cell)._replace(c0=c0)
    assert_results_close(call(arguments, keep=True), arguments, keep=True)


def test_more_rows_than_a_workspace_has_room_for():
    """Blocks of rows run one after the other; the last rows are the same as in a separate call."""
    arguments = make((3, 40_000, 4, 200), torch.bfloat16, "cuda", lengths=True, reset=True)
    last = arguments._replace(
        input=arguments.input[:, -300:],
        h0=arguments.h0[-300:],
        c0=arguments.c0[-300:],
        lengths=arguments.lengths[-300:],
        reset=arguments.reset[:, -300:],
    )
    output, h_n, c_n, cells, gates = call(arguments, keep=True)
    found = output[:, -300:], h_n[-300:], c_n[-300:], cells[:, -300:], gates[:, -300:]
    for of_all, by_themselves in zip(found, call(last, keep=True), strict=True):
        torch.testing.assert_close(of_all, by_themselves, rtol=0.02, atol=0.02)


# The product of a step with each of the backward's tiles, by one block of a cluster or by several.
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    "sizes", [(3, 37, 20, 203), (3, 130, 9, 333), (3, 64, 8, 730), (2, 300, 7, 520), (2, 2000, 5, 130)], ids=str
)
@each_cell
def test_gradients_by_every_path(path, dtype, cell, sizes, reverse):
    arguments = make(sizes, dtype, "cuda", lengths=True, reset=True, reverse=reverse, cell=cell)
    gradients = make_gradients(arguments)
    found = call_backward(gradients, arguments)
    assert_gradients_close(found, gradients, arguments)
    assert_identical(call_backward(gradients, arguments), found)


# Rows that start at multiples of 16 bytes and rows that do not, no input, and long sums, which are computed in parts.
@pytest.mark.parametrize(
    "sizes", [(7, 9, 33, 50), (3, 130, 0, 96), (30, 200, 72, 128), (40, 100, 21, 102), (50, 90, 20, 101)], ids=str
)
@each_cell
def test_float32_products_over_all_steps(monkeypatch, cell, sizes):
    """By the kernel of the cell's products. A gradient has the same bits whichever others are wanted."""
    skip_without_wgmma()
    monkeypatch.setenv("LLTM_CUDA_PATH", "backward_wgmma_float32")
    arguments = make(sizes, torch.float32, "cuda", lengths=True, reset=True, cell=cell)
    gradients = make_gradients(arguments)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        found = call_backward(gradients, arguments)
        torch.cuda.synchronize()
    assert any("backward_wgmma_float32" in event.name for event in profile.events())
    assert_gradients_close(found, gradients, arguments)
    for i in range(len(found)):
        alone = call_backward(gradients, arguments, [j == i for j in range(len(found))])
        assert torch.equal(alone[i], found[i])


INPUT_LAYOUTS = {
    "strided features": lambda input: torch.stack([input, input], dim=-1).flatten(-2)[..., ::2],
    "rows that start anywhere": lambda input: torch.nn.functional.pad(input, (1, 0))[..., 1:],
    "one row for the batch": lambda input: input[:, :1].expand_as(input),
}


@pytest.mark.parametrize("lengths", [False, True], ids=["plain", "lengths"])
@pytest.mark.parametrize("layout", INPUT_LAYOUTS.values(), ids=INPUT_LAYOUTS.keys())
def test_d_input_has_the_same_bits_whether_d_weights_are_wanted_or_not(dtype, layout, lengths):
    """Only d_weights read input, and with lengths they read a copy, in another layout."""
    arguments = make((20, 64, 256, 256), dtype, "cuda", lengths=lengths)
    arguments = arguments._replace(input=layout(arguments.input))
    gradients = make_gradients(arguments)
    found = call_backward(gradients, arguments)
    assert_gradients_close(found, gradients, arguments)
    alone = call_backward(gradients, arguments, (True, False, False, False, False))
    assert torch.equal(alone[0], found[0])


def test_more_than_two_to_the_31_elements():
    """More steps and rows than a 32-bit index can address: the last rows are as accurate as the first."""
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("the GPU has too little memory that is free")
    steps, batch, state_size = 34, 1 << 18, 256  # 2.3 * 10^9 elements of output
    inputs = torch.randn(steps, batch, 1, device="cuda", dtype=torch.bfloat16)
    inputs[:, -2:] = inputs[:, :2]
    weights = (torch.randn(3 * state_size, state_size + 1, device="cuda") / 16).bfloat16()
    output, h_n, c_n, _, _ = torch.ops.lltm.sequence(inputs, weights)
    assert output.numel() > 2**31
    assert torch.equal(output[:, -2:], output[:, :2]) and torch.equal(h_n[-2:], h_n[:2])
    assert torch.equal(output[-1], h_n) and torch.equal(c_n[-2:], c_n[:2])
