"""Streams, graphs and several devices on a GPU."""

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.named_arguments import NAMES, WEIGHTS, leaves_of
from lltm_testing.reference import (
    assert_forward_close,
    assert_gradients_close,
    assert_identical,
    assert_same_up_to_rounding,
    call,
    call_backward,
    make_arguments,
    make_gradients,
)

import lltm

pytestmark = pytest.mark.usefixtures("needs_cuda")

each_operator = pytest.mark.parametrize("operator", NAMES)
# A few elements, and aligned rows of more.
each_size = pytest.mark.parametrize("sizes", [(6, 5, 7, 4), (9, 64, 128, 256)], ids=str)
several_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")


def check_graph(operator, sizes, dtype):
    """Captured once, and replayed with other values, lengths and resets."""
    arguments = named_arguments.make(operator, "cuda", dtype, sizes=sizes)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        named_arguments.call(operator, arguments)  # warm-up: cuBLAS allocates its workspace
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = named_arguments.call(operator, arguments)
    for _ in range(2):
        for name, value in named_arguments.make(operator, "cuda", dtype, sizes=sizes).items():
            arguments[name].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert_same_up_to_rounding(results, named_arguments.call(operator, arguments))


@each_operator
@each_size
def test_graph(dtype, operator, sizes):
    check_graph(operator, sizes, dtype)


@each_operator
@each_size
def test_side_stream(operator, sizes):
    """All work is on the current stream, after pending work of that stream on the arguments."""
    arguments = named_arguments.make(operator, "cuda", sizes=sizes)
    expected = named_arguments.call(operator, arguments)
    late = {name: torch.zeros_like(t) for name, t in arguments.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for name, t in arguments.items():
            late[name].copy_(t)
        results = named_arguments.call(operator, late)
    stream.synchronize()
    assert_same_up_to_rounding(results, expected)


@each_operator
def test_no_synchronisation(operator):
    arguments = named_arguments.make(operator, "cuda")
    named_arguments.call(operator, arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        named_arguments.call(operator, arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@several_gpus
@each_operator
def test_second_gpu(operator):
    """The call runs on the tensors' device, not the current one, and so does autograd."""
    arguments = named_arguments.make(operator, "cuda:1")
    assert torch.cuda.current_device() == 0
    results = named_arguments.call(operator, arguments)
    assert all(result.device == torch.device("cuda:1") for result in results)
    expected = named_arguments.call(operator, {name: t.to("cuda:0") for name, t in arguments.items()})
    assert_same_up_to_rounding([result.to("cuda:0") for result in results], expected)
    leaves = leaves_of(arguments)
    sum(result.sum() for result in named_arguments.call(operator, leaves) if result.requires_grad).backward()
    assert leaves[WEIGHTS[operator]].grad.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    name = WEIGHTS[operator]
    with pytest.raises(RuntimeError, match=f"expected {name} on input's device cuda:1, got cuda:0"):
        named_arguments.call(operator, arguments | {name: arguments[name].to("cuda:0")})


# Sizes that every group of kernels supports, with aligned rows and with others, which Hopper's kernels pack first.
GROUP_SIZES = [(5, 256, 512), (130, 72, 264), (66, 33, 129)]


@pytest.mark.parametrize("sizes", GROUP_SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("operator", ["forward", "backward"])
def test_graph_of_every_group(path, operator, sizes, dtype):
    check_graph(operator, (1, *sizes), dtype)


@pytest.mark.parametrize("sizes", GROUP_SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_two_streams_at_once(path, sizes, dtype):
    """Concurrent calls on two streams give the same results as separate calls."""
    both = [make_arguments(sizes, dtype, "cuda") for _ in range(2)]
    grads = make_gradients(both[0])
    expected = [(*call(arguments), *call_backward(*grads, arguments)) for arguments in both]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in both]
    found = [[], []]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[i].append((*call(both[i]), *call_backward(*grads, both[i])))
    torch.cuda.synchronize()
    for results, wanted in zip(found, expected, strict=True):
        for result in results:
            assert_identical(result, wanted)


@several_gpus
@pytest.mark.parametrize("sizes", GROUP_SIZES, ids=str)
def test_second_gpu_of_every_group(path, sizes):
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        arguments = make_arguments(sizes, torch.float32, device)
        grads = make_gradients(arguments)
        assert_forward_close(call(arguments), arguments)
        assert_gradients_close(call_backward(*grads, arguments), *grads, arguments)
    assert torch.cuda.current_device() == 0


def test_overlapping_rows(path):
    """Overlapping rows (windows of a signal), which TMA cannot describe."""
    plain = make_arguments((30, 512, 264), torch.float32, "cuda")
    arguments = plain._replace(input=torch.randn(256 * 31, device="cuda").unfold(0, 512, 256))
    copies = arguments.map(torch.Tensor.contiguous)
    assert_forward_close(call(arguments), copies)
    grads = make_gradients(copies)
    assert_gradients_close(call_backward(*grads, arguments), *grads, copies)


def test_graphed_module():
    cell = lltm.LLTMCell(5, 7, device="cuda")
    reference = lltm.LLTMCell(5, 7, device="cuda")
    reference.load_state_dict(cell.state_dict())
    x, h, c = (torch.randn(6, size, device="cuda") for size in (5, 7, 7))

    class Flat(torch.nn.Module):
        def __init__(self, cell):
            super().__init__()
            self.cell = cell

        def forward(self, x, h, c):
            return self.cell(x, (h, c))

    graphed = torch.cuda.make_graphed_callables(Flat(cell), (x, h, c))
    x, h, c = (torch.randn(6, size, device="cuda") for size in (5, 7, 7))
    found, expected = graphed(x, h, c), reference(x, (h, c))
    (found[0].sum() + found[1].sum()).backward()
    (expected[0].sum() + expected[1].sum()).backward()
    torch.testing.assert_close(found, expected)
    for a, b in zip(cell.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_memory_is_only_what_is_returned():
    """After a forward, only the three results stay allocated."""
    arguments = make_arguments((256, 64, 128), torch.float32, "cuda").require_grad()
    call(arguments)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    results = call(arguments)
    held = sum(-(-result.untyped_storage().nbytes() // 512) * 512 for result in results)
    assert torch.cuda.memory_allocated() - before == held
