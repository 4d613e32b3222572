"""lltm::lstm and lltm::lstm_backward against nn.LSTM, in float64, and errors of their own."""

import pytest
import torch
from lltm_testing.sequence_reference import (
    Lstm,
    Sizes,
    call,
    call_backward,
    make,
    make_gradients,
)
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


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
