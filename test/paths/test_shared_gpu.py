"""The recurrence across the grid on a GPU that it does not have to itself. Its blocks wait for each other, so it would
hang if only some of them ran; it has to be delayed, or to take another path where it has no room.
"""

import contextlib
import threading
from pathlib import Path

import pytest
import torch
from lltm_testing import isolated
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import Sizes, call, call_backward, make, make_gradients

import lltm

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.usefixtures("needs_cuda")

SIZES = Sizes(64, 32, 64, 512)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def arguments(request, cell, monkeypatch):
    """Of a sequence that runs across the grid, forward and backward."""
    arguments = make(SIZES, request.param, "cuda", cell=cell, lengths=True, reset=True)
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    try:
        run(arguments, make_gradients(arguments))
    except RuntimeError as error:
        pytest.skip(str(error))
    return arguments


def run(arguments, gradients):
    results = call(arguments)[: 1 + len(arguments.states)]
    return (*results, *call_backward(gradients, arguments))


def test_on_two_streams_at_once(arguments):
    gradients = make_gradients(arguments)
    expected = run(arguments, gradients)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(run(arguments, gradients))
    torch.cuda.synchronize()
    for results in found:
        assert_identical(results, expected)


@triton.jit
def occupy(out, rounds):
    x = tl.load(out + tl.program_id(0))
    for _ in range(rounds):
        x = tl.sin(x) + 1
    tl.store(out + tl.program_id(0), x)


def test_beside_a_kernel_on_half_of_the_gpu(arguments):
    """Which is there before the sequence, and ends after it has begun to wait."""
    gradients = make_gradients(arguments)
    expected = run(arguments, gradients)
    blocks = torch.cuda.get_device_properties().multi_processor_count // 2
    out, other = torch.zeros(blocks, device="cuda"), torch.cuda.Stream()
    occupy[(blocks,)](out, 1, num_warps=32)  # compiles
    torch.cuda.synchronize()
    for rounds in (100_000, 1_000_000):
        with torch.cuda.stream(other):
            occupy[(blocks,)](out, rounds, num_warps=32)
        found = run(arguments, gradients)
        torch.cuda.synchronize()
        assert_identical(found, expected)


@contextlib.contextmanager
def green_context(multiprocessors: int):
    green_contexts = pytest.importorskip("torch.cuda.green_contexts")
    try:
        context = green_contexts.GreenContext.create(multiprocessors, 0)
    except RuntimeError as error:
        pytest.skip(str(error))
    context.set_context()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        context.pop_context()


@pytest.mark.parametrize("multiprocessors", [8, 64])
def test_in_a_green_context(cell, multiprocessors):
    """It has fewer multiprocessors than the GPU. What does not fit on them takes another path."""
    arguments = make(SIZES, torch.float32, "cuda", cell=cell)
    gradients = make_gradients(arguments)
    expected = run(arguments, gradients)
    torch.cuda.synchronize()
    with green_context(multiprocessors):
        found = run(arguments, gradients)
        torch.cuda.synchronize()
        again = run(arguments, gradients)
    assert_identical(found, again)
    for result, whole in zip(found, expected, strict=True):
        assert (result - whole).abs().max() <= 1e-4 * (1 + whole.abs().max())


REPEAT = """
import lltm, torch

rnn = lltm.LSTM(64, 512, device="cuda")
x = torch.randn(64, 32, 64, device="cuda")

def run():
    output, _ = rnn(x)
    return output, *torch.autograd.grad(output.sum(), list(rnn.parameters()))

expected = run()
for _ in range(200):
    assert all(map(torch.equal, run(), expected))
torch.cuda.synchronize()
print("same")
"""


def test_beside_another_process(arguments):
    gradients = make_gradients(arguments)
    expected = run(arguments, gradients)
    where = {"package": Path(lltm.__file__).parent.parent, "library": lltm.library_path}
    said = []
    other = threading.Thread(target=lambda: said.append(isolated.run(REPEAT, **where)))
    other.start()
    while other.is_alive():
        assert_identical(run(arguments, gradients), expected)
    other.join()
    assert said == ["same"]
