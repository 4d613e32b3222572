"""If a GPU runs out of memory, a call raises PyTorch's error and leaks nothing, and the next call is correct."""

import contextlib
import gc
import itertools
import time
from functools import partial

import pytest
import torch
from lltm_testing import reference, sequence_reference
from lltm_testing.reference import assert_identical, make_arguments

pytestmark = [
    pytest.mark.usefixtures("needs_cuda"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]

SIZES = (2048, 256, 1024)  # the gates of float32 take 24 MiB
STEP = 4 << 20


@contextlib.contextmanager
def room_for(bytes_more: int):
    """Limits PyTorch to this many bytes of GPU memory beyond what it holds."""
    gc.collect()  # a graph in a traceback holds memory
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + bytes_more) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def fill_what_is_free() -> list[torch.Tensor]:
    """Allocates all memory that PyTorch holds but does not use, so that the next allocation needs new GPU memory."""
    blocks = []
    size = 1 << 30
    with room_for(0):
        while size >= 512:
            try:
                blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
    return blocks


def is_soon_allocated(wanted: int) -> bool:
    """Waits up to a minute: autograd's thread may release the tensors of a failed call after it has raised."""
    end = time.monotonic() + 60
    while torch.cuda.memory_allocated() != wanted and time.monotonic() < end:
        time.sleep(0.001)
    return torch.cuda.memory_allocated() == wanted


def prepare_forward(dtype):
    arguments = make_arguments(SIZES, dtype, "cuda")
    return lambda: reference.call(arguments)


def prepare_backward(dtype):
    arguments = make_arguments(SIZES, dtype, "cuda")
    grads = reference.make_gradients(arguments)
    _, new_cell, gates = reference.call(arguments)
    return lambda: torch.ops.lltm.backward(*grads, new_cell, gates, *arguments[:4], [True] * 5)


def prepare_autograd(dtype):
    arguments = make_arguments(SIZES, dtype, "cuda").require_grad()
    grads = reference.make_gradients(arguments)
    return lambda: torch.autograd.grad(reference.call(arguments)[:2], arguments, grads)


def make_sequence(cell, dtype):
    batch, input_features, state_size = SIZES
    sizes = 3, batch // 2, input_features, state_size
    return sequence_reference.make(sizes, dtype, "cuda", lengths=True, reset=True, cell=cell)


def prepare_sequence(cell, dtype):
    arguments = make_sequence(cell, dtype)
    return lambda: sequence_reference.call(arguments, keep=True)


def prepare_sequence_backward(cell, dtype):
    arguments = make_sequence(cell, dtype)
    grads = sequence_reference.make_gradients(arguments)
    kept = sequence_reference.kept_of(arguments, sequence_reference.call(arguments, keep=True))
    backward = getattr(torch.ops.lltm, f"{cell.operator}_backward")
    return lambda: backward(*grads, *kept, *arguments, [True] * len(cell.names))


def prepare_sequence_autograd(cell, dtype):
    arguments = make_sequence(cell, dtype).require_grad()
    count = 1 + len(cell.states)
    grads = sequence_reference.make_gradients(arguments)[:count]
    return lambda: torch.autograd.grad(sequence_reference.call(arguments)[:count], arguments.leaves(), grads)


PREPARED = {"forward": prepare_forward, "backward": prepare_backward, "autograd": prepare_autograd} | {
    cell.operator + suffix: partial(prepare, cell)
    for cell in sequence_reference.CELLS.values()
    for suffix, prepare in {
        "": prepare_sequence,
        "_backward": prepare_sequence_backward,
        "_autograd": prepare_sequence_autograd,
    }.items()
}
calls = pytest.mark.parametrize("prepare", PREPARED.values(), ids=PREPARED)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def assert_same_bits(results, expected) -> None:
    assert_identical(results, expected)


def with_ever_more_room(attempt, run, expected):
    """Repeats `attempt` with increasing room until it succeeds, and returns its result.

    Until then every allocation that needs new GPU memory fails in turn. Checks that each failure leaks nothing and that
    the next run is correct.
    """
    allocated = torch.cuda.memory_allocated()
    for failures in itertools.count():
        try:
            with room_for(failures * STEP):
                result = attempt()
            break
        except torch.OutOfMemoryError as error:
            assert str(error).startswith("CUDA out of memory. Tried to allocate")
        assert is_soon_allocated(allocated)
        assert_same_bits(run(), expected)
    assert failures >= 3
    return result


@calls
@dtypes
def test_there_is_ever_more_room(path, prepare, dtype):
    run = prepare(dtype)
    run()  # cuBLAS takes its workspace
    expected = run()
    blocks = fill_what_is_free()
    allocated = torch.cuda.memory_allocated()
    with_ever_more_room(run, run, expected)
    assert is_soon_allocated(allocated)
    del blocks


def capture(run, stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = run()
    return graph, results


@calls
@dtypes
def test_while_a_graph_is_captured(path, prepare, dtype):
    """During graph capture: the capture fails with PyTorch's error, and later calls, captures and replays are
    correct."""
    run = prepare(dtype)
    run()  # cuBLAS allocates its workspace, one per stream
    expected = run()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    before, results = capture(run, stream)  # with the first graph, PyTorch's random generator allocates memory
    blocks = fill_what_is_free()
    allocated = torch.cuda.memory_allocated()
    after, results_after = with_ever_more_room(lambda: capture(run, stream), run, expected)
    for graph, found in ((before, results), (after, results_after)):
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(found, expected)
    del after, results_after, graph, found
    assert is_soon_allocated(allocated)
    del blocks
