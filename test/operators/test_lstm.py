"""lltm::lstm and lltm::lstm_backward against nn.LSTM, and against the cell's formula in a loop, in float64."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing.layouts import every_other_column
from lltm_testing.reference import assert_no_aliases
from lltm_testing.sequence_reference import (
    SIZES,
    Lstm,
    Sizes,
    assert_gradients_close,
    assert_results_close,
    call,
    call_backward,
    make,
    make_gradients,
    ragged,
)
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

INCOMING = list(itertools.product([False, True], repeat=4))
MASKS = list(itertools.product([False, True], repeat=6))
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def flags_id(flags):
    return "".join("01"[flag] for flag in flags)


def nn_lstm(arguments: Lstm) -> torch.nn.LSTM:
    """A bidirectional layer whose reverse direction has the weights of the arguments, and so has the other."""
    _, features, hidden = *arguments.input.shape[1:], arguments.state_size
    module = torch.nn.LSTM(features, hidden, bidirectional=True, device=arguments.input.device, dtype=torch.float64)
    for suffix in ("", "_reverse"):
        values = {
            "weight_ih_l0": arguments.weight_ih,
            "weight_hh_l0": arguments.weight_hh,
            "bias_ih_l0": arguments.bias,
            "bias_hh_l0": torch.zeros_like(arguments.bias),
        }
        for name, value in values.items():
            getattr(module, name + suffix).data.copy_(value)
    return module


@REVERSE
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_is_nn_lstm(device, reverse, packed):
    """Values, and gradients of the parameters, the input and the states."""
    arguments = make(Sizes(9, 6, 5, 7), torch.float64, device, cell=Lstm, reverse=reverse)
    if packed:
        lengths = torch.tensor([9, 1, 4, 9, 7, 2], device=device)
        arguments = arguments._replace(lengths=lengths)
    module, leaves = nn_lstm(arguments), arguments.require_grad(("input", "h0", "c0"))
    input = leaves.input
    if packed:
        input = pack_padded_sequence(input, arguments.lengths.cpu(), enforce_sorted=False)
    # Of the two directions, this one.
    output, (h_n, c_n) = module(input, (leaves.h0.repeat(2, 1, 1), leaves.c0.repeat(2, 1, 1)))
    if packed:
        output, _ = pad_packed_sequence(output)
    expected = output.chunk(2, dim=2)[reverse], h_n[int(reverse)], c_n[int(reverse)]
    results = call(arguments, keep=True)
    for found, value in zip(results, expected, strict=False):
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-12)

    gradients = make_gradients(arguments, (True, True, True, False))
    torch.autograd.backward(expected, gradients[:3])
    suffix = "_reverse" if reverse else ""
    parameters = [getattr(module, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih")]
    wanted = [leaves.input.grad, *(p.grad for p in parameters), leaves.h0.grad, leaves.c0.grad]
    for found, value in zip(call_backward(gradients, arguments), wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("keep", [False, True], ids=["inference", "keep"])
@pytest.mark.parametrize("flags", [(), ("lengths",), ("reset", "reverse"), ("lengths", "reset", "reverse")], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_is_the_formula(device, dtype, sizes, flags, keep):
    arguments = make(sizes, dtype, device, cell=Lstm, **dict.fromkeys(flags, True))
    assert_results_close(call(arguments, keep), arguments, keep)
    if keep:
        gradients = make_gradients(arguments)
        assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)


@given(
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 40), st.integers(1, 70)),
    flags=st.tuples(*[st.booleans()] * 5),
    incoming=st.tuples(*[st.booleans()] * 4),
    mask=st.tuples(*[st.booleans()] * 6),
)
def test_is_the_formula_at_any_size(device, dtype, sizes, flags, incoming, mask):
    arguments = make(sizes, dtype, device, *flags, cell=Lstm)
    assert_results_close(call(arguments), arguments)
    gradients = make_gradients(arguments, incoming)
    assert_gradients_close(call_backward(gradients, arguments, mask), gradients, arguments, mask)


@pytest.mark.parametrize("given_state", [True, False], ids=["state", "no_state"])
@pytest.mark.parametrize("mask", MASKS, ids=flags_id)
def test_masks(device, products, mask, given_state):
    """d_bias, d_h0 and d_c0 have their shapes even if the argument is absent."""
    arguments = make(
        Sizes(5, 6, 5, 7), device=device, bias=given_state, state=given_state, lengths=True, reset=True, cell=Lstm
    )
    gradients = make_gradients(arguments)
    results = call_backward(gradients, arguments, mask)
    assert_gradients_close(results, gradients, arguments, mask)
    assert_no_aliases(results, (*arguments[:8], *gradients))
    for zeros, result in zip(call_backward([None] * 4, arguments, mask), results, strict=True):
        assert zeros is None if result is None else torch.equal(zeros, torch.zeros_like(result))


@REVERSE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_c0_may_be_float32_beside_16_bits(device, products, dtype, reverse):
    arguments = make(
        Sizes(5, 6, 5, 7), dtype, device, True, True, True, True, reverse, cell_dtype=torch.float32, cell=Lstm
    )
    results = call(arguments, keep=True)
    assert results[2].dtype == torch.float32
    assert_results_close(results, arguments, keep=True)
    gradients = make_gradients(arguments)
    found = call_backward(gradients, arguments)
    assert found[5].dtype == torch.float32
    assert_gradients_close(found, gradients, arguments)


def test_nothing_beyond_a_length_is_used(device, products, dtype):
    """Neither inputs nor gradients; and what is beyond is zero."""
    arguments, poisoned, beyond = ragged(make(Sizes(6, 11, 5, 21), dtype, device, reset=True, cell=Lstm))
    gradients = make_gradients(arguments)
    spoiled = [t.masked_fill(beyond.unsqueeze(2), torch.nan) if t.dim() == 3 else t for t in gradients]
    results, found = call(poisoned, keep=True), call_backward(spoiled, poisoned)
    assert all(map(torch.equal, found, call_backward(gradients, arguments)))
    assert all(map(torch.equal, results[:4], call(arguments, keep=True)))
    assert not any(t[beyond].any() for t in (results[0], results[3], found[0]))


def test_a_reset_replaces_the_state(device, products):
    """It does not multiply it by zero: 0 * NaN would be NaN."""
    arguments = make(Sizes(4, 3, 5, 7), torch.float64, device, cell=Lstm)
    reset = torch.tensor([True, False, False, False], device=device).unsqueeze(1).expand(4, 3)
    spoiled = arguments._replace(h0=arguments.h0 * torch.nan, c0=arguments.c0 * torch.nan, reset=reset)
    expected = arguments._replace(h0=None, c0=None)
    assert all(map(torch.equal, call(spoiled, keep=True), call(expected, keep=True)))
    gradients = make_gradients(expected)
    *found, d_h0, d_c0 = call_backward(gradients, spoiled)
    assert all(map(torch.equal, found, call_backward(gradients, expected)))
    assert not d_h0.any() and not d_c0.any()


def test_strides_and_integers_of_lengths_do_not_matter(device, products, dtype):
    arguments = make(Sizes(6, 5, 6, 8), dtype, device, True, True, True, True, cell=Lstm)
    strided = arguments.map(every_other_column)
    strided = strided._replace(
        lengths=arguments.lengths.int().repeat_interleave(2)[::2], reset=arguments.reset.t().contiguous().t()
    )
    results, gradients = call(arguments, keep=True), make_gradients(arguments)
    for found, value in zip(call(strided, keep=True), results, strict=True):
        torch.testing.assert_close(found, value)
    spread = list(map(every_other_column, gradients))
    for found, value in zip(call_backward(spread, strided), call_backward(gradients, arguments), strict=True):
        torch.testing.assert_close(found, value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_the_cell_state_is_carried_in_float32(device, products, dtype):
    """3,000 small increments, which a state of 16 bits would lose: forget gates of 1, input gates of 1/2."""
    steps, start = 3000, 64.0
    bias = torch.tensor([0.0, 40.0, 0.01, 0.0], device=device, dtype=dtype)
    weights, c0 = bias.new_zeros(4, 2), bias.new_full((2, 1), start)
    c_n = torch.ops.lltm.lstm(bias.new_zeros(steps, 2, 2), weights, weights[:, :1], bias, None, c0)[2]
    end = start + steps * torch.tanh(bias[2].float()).item() / 2
    assert abs(c_n.float() / end - 1).max() < torch.finfo(dtype).eps


def test_an_unknown_choice_of_products_is_an_error(monkeypatch):
    monkeypatch.setenv("LLTM_CPU_GEMM", "mine")
    with pytest.raises(RuntimeError, match="LLTM_CPU_GEMM to be auto, own or aten, got mine$"):
        call(make(Sizes(2, 3, 4, 5), cell=Lstm))


@pytest.mark.usefixtures("needs_cuda")
@pytest.mark.parametrize("path", ["block", "cluster"])
def test_a_kernel_for_all_steps_that_there_is_not_is_an_error(monkeypatch, path):
    monkeypatch.setenv("LLTM_CUDA_PATH", path)
    arguments = make(Sizes(2, 3, 4, 5), torch.float64, "cuda", cell=Lstm)
    with pytest.raises(RuntimeError, match=f"^lltm::lstm: LLTM_CUDA_PATH={path} "):
        call(arguments)


@pytest.mark.parametrize("incoming", INCOMING[1:], ids=flags_id)
def test_some_incoming_gradients(device, products, incoming):
    arguments = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True, cell=Lstm)
    gradients = make_gradients(arguments, incoming)
    assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)
