"""lltm::sequence_backward and lltm::lstm_backward, called by autograd and directly, against autograd of the loop in
float64."""

import gc
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import (
    CELLS,
    FLAGS,
    SIZES,
    Sizes,
    assert_close,
    assert_gradients_close,
    call,
    call_backward,
    cell_dtype_of,
    expected_gradients,
    make,
    make_gradients,
    ragged,
)
from torch.utils.checkpoint import checkpoint

REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def by_autograd(arguments, gradients):
    """The gradients by autograd, None for absent arguments."""
    leaves = arguments.require_grad()
    output, h_n, c_n, cells, _ = call(leaves, keep=True)
    pairs = [(r, g) for r, g in zip((output, h_n, c_n, cells), gradients, strict=True) if g is not None]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return [None if (leaf := getattr(leaves, name)) is None else leaf.grad for name in arguments.names]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_autograd_is_the_formula(device, dtype, cell, sizes, flags):
    arguments = make(sizes, dtype, device, cell=cell, **dict.fromkeys(flags, True))
    gradients = make_gradients(arguments)
    assert_gradients_close(by_autograd(arguments, gradients), gradients, arguments)


@given(
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 40), st.integers(1, 70)),
    flags=st.tuples(*[st.booleans()] * 5),
    incoming=st.tuples(*[st.booleans()] * 4),
    mask=st.tuples(*[st.booleans()] * 6),
)
def test_is_the_formula_at_any_size(device, dtype, cell, sizes, flags, incoming, mask):
    arguments, mask = make(sizes, dtype, device, *flags, cell=cell), mask[: len(cell.names)]
    gradients = make_gradients(arguments, incoming)
    assert_gradients_close(call_backward(gradients, arguments, mask), gradients, arguments, mask)


@pytest.fixture
def one_thread(set_threads):
    """With more threads, a chunk has more steps."""
    set_threads(1)


@pytest.mark.slow
@REVERSE
@pytest.mark.parametrize("sizes", [Sizes(300, 16, 33, 64), Sizes(3, 16500, 3, 32)], ids=["chunks", "blocks"])
def test_is_the_formula_in_chunks_of_steps_and_blocks_of_rows(products, one_thread, sizes, reverse):
    """The CPU takes at most 512 KiB or, with ATen's products, 4 MiB of steps and 16 MiB of rows at once."""
    for masked in (False, True):
        arguments = make(sizes, torch.float64, lengths=masked, reset=masked, reverse=reverse)
        gradients = make_gradients(arguments)
        found = call_backward(gradients, arguments)
        assert_gradients_close(found, gradients, arguments)
        # Between two chunks, the gradient of h is needed even if that of h0 is not.
        without_state = call_backward(gradients, arguments, (True, True, True, False, False))
        assert all(torch.equal(a, b) for a, b in zip(without_state[:3], found, strict=False))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@REVERSE
def test_c0_may_be_float32_beside_16_bits(device, products, dtype, cell, reverse):
    options = {"lengths": True, "reset": True, "reverse": reverse, "cell_dtype": torch.float32, "cell": cell}
    arguments = make(Sizes(5, 6, 5, 7), dtype, device, **options)
    gradients = make_gradients(arguments)
    assert gradients[2].dtype == torch.float32
    found = by_autograd(arguments, gradients)
    assert found[-1].dtype == torch.float32
    assert_gradients_close(found, gradients, arguments)


@REVERSE
def test_what_is_beyond_the_length_is_never_used(device, products, dtype, cell, reverse):
    """Neither inputs nor incoming gradients beyond the length are used: 0 * NaN would give NaN in d_weights."""
    arguments = make(Sizes(6, 11, 3, 21), dtype, device, reset=True, reverse=reverse, cell=cell)
    arguments, poisoned, beyond = ragged(arguments)
    gradients = make_gradients(arguments)
    spoil = [t.masked_fill(beyond.unsqueeze(2), torch.nan) if t.dim() == 3 else t for t in gradients]
    found = by_autograd(poisoned, spoil)
    assert_identical(found, by_autograd(arguments, gradients))
    assert found[0][beyond].eq(0).all()
    # A row that is not run passes its gradients on.
    assert torch.equal(found[-2][0], gradients[1][0]) and torch.equal(found[-1][0], gradients[2][0])


def test_d_input_beyond_the_length_is_zero_whatever_the_weights(device, dtype):
    arguments, _, beyond = ragged(make(Sizes(6, 5, 3, 4), dtype, device))
    arguments = arguments._replace(weights=torch.full_like(arguments.weights, torch.nan))
    d_input = by_autograd(arguments, make_gradients(arguments))[0]
    assert d_input[beyond].eq(0).all() and d_input[~beyond].isnan().all()


def test_gradients_stop_at_a_reset(device, dtype, cell):
    arguments = make(Sizes(6, 3, 5, 7), dtype, device, cell=cell)
    reset = torch.zeros(6, 3, dtype=torch.bool, device=device)
    reset[2, 0] = True
    arguments = arguments._replace(reset=reset)
    gradients = make_gradients(arguments, (False, True, True, False))
    d_input, *_, d_h0, d_c0 = by_autograd(arguments, gradients)
    assert d_input[:2, 0].eq(0).all() and d_input[2, 0].ne(0).any() and d_input[:2, 1].ne(0).any()
    assert d_h0[0].eq(0).all() and d_c0[0].eq(0).all() and d_c0[1].ne(0).all()


@pytest.mark.parametrize("keep", [False, True])
def test_gates_and_unkept_cells_have_no_gradient(device, cell, keep):
    arguments = make(Sizes(5, 6, 5, 7), device=device, cell=cell).require_grad()
    output, h_n, c_n, cells, gates = call(arguments, keep)
    assert output.requires_grad and h_n.requires_grad and c_n.requires_grad
    assert cells.requires_grad == keep and not gates.requires_grad
    assert cells.size(0) == gates.size(0) == (5 if keep else 0)


@pytest.mark.parametrize(("cell", "name"), [(c, n) for c in CELLS for n in CELLS[c].names], indirect=["cell"])
def test_one_argument_that_requires_a_gradient(device, cell, name):
    arguments = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True, cell=cell)
    gradients = make_gradients(arguments)
    leaves = arguments.require_grad([name])
    torch.autograd.backward(call(leaves, keep=True)[:4], gradients)
    found = getattr(leaves, name).grad
    expected = expected_gradients(gradients, arguments)[cell.names.index(name)]
    assert_close(found, expected, cell_dtype_of(arguments), f"gradient of {name}")


@pytest.mark.parametrize("batch_first", [False, True])
def test_workspace_on_the_cpu_does_not_grow_with_the_steps(one_thread, batch_first):
    """d_gates are only kept for a chunk of steps, and gradients with contiguous features are not copied."""
    arguments = make(Sizes(steps=4000, batch=16, input_features=4, state_size=16))
    output, _, _, cells, gates = call(arguments, keep=True)
    ones = torch.ones(16, 4000, 16).transpose(0, 1) if batch_first else torch.ones(4000, 16, 16)
    gc.collect()  # or tensors of earlier tests might be freed in between
    with torch.profiler.profile(profile_memory=True) as profile:
        results = torch.ops.lltm.sequence_backward(ones, None, None, ones, output, cells, gates, *arguments, [True] * 5)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    of_results = sum(result.nbytes for result in results if result is not None)
    assert sum(changes) == of_results
    assert max(itertools.accumulate(changes)) - of_results < output.nbytes / 2


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_under_checkpointing(device, use_reentrant):
    arguments = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True)
    leaves, plain = arguments.require_grad(), arguments.require_grad()

    def loss(*tensors):
        output, h_n, c_n, _, _ = torch.ops.lltm.sequence(*tensors, arguments.lengths, arguments.reset)
        return (output.sum() * h_n.sum() + c_n.sum()).sin()

    checkpoint(loss, *leaves[:5], use_reentrant=use_reentrant).backward()
    loss(*plain[:5]).backward()
    for a, b in zip(leaves.leaves(), plain.leaves(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("sizes", [(0, 6, 5, 7), (5, 0, 5, 7)], ids=str)
def test_nothing_to_run_gives_zero_parameter_gradients(device, dtype, cell, sizes):
    arguments = make(sizes, dtype, device, lengths=True, reset=True, cell=cell)
    gradients = make_gradients(arguments)
    for results in (by_autograd(arguments, gradients), call_backward(gradients, arguments)):
        _, *of_parameters, d_h0, d_c0 = results
        assert not any(gradient.any() for gradient in of_parameters)
        assert torch.equal(d_h0, gradients[1]) and torch.equal(d_c0, gradients[2])
