"""The recurrence across the grid on a GPU that it does not have to itself. Its blocks wait for each other, so it would
hang if only some of them ran; it has to be delayed, or to take another path where it has no room.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lltm_testing import isolated
from lltm_testing.building import with_lltm
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


HANGS = 300
"""After so many seconds, processes that share a GPU have not been delayed: they wait for each other."""


@pytest.fixture
def module_across_the_grid(monkeypatch):
    """Lets a module as in other processes run across the grid."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    try:
        lltm.LSTM(64, 512, device="cuda")(torch.zeros(64, 32, 64, device="cuda"))[0].sum().backward()
    except RuntimeError as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def multi_process_service(folder: Path):
    """The environment of processes whose kernels run at the same time, as those of one process do."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("no nvidia-cuda-mps-control")
    environment = os.environ | {f"CUDA_MPS_{name}_DIRECTORY": str(folder) for name in ("PIPE", "LOG")}
    with (folder / "said").open("w") as said:  # a pipe would stay open as long as the service runs
        if subprocess.run([control, "-d"], env=environment, stdout=said, stderr=said, timeout=HANGS).returncode != 0:
            pytest.skip(f"the service does not start: {(folder / 'said').read_text()}")
    try:
        probe = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
        probed = subprocess.run(probe, env=environment, capture_output=True, text=True, timeout=HANGS)
        if probed.returncode != 0:
            pytest.skip(f"the service takes no process: {probed.stderr.strip().splitlines()[-1]}")
        yield environment
    finally:
        subprocess.run([control], input="quit\n", env=environment, text=True, timeout=HANGS)


@pytest.mark.usefixtures("module_across_the_grid")
@pytest.mark.parametrize("percentage", [None, 50], ids=["all", "half"])
def test_under_the_multi_process_service(percentage, tmp_path):
    """Two processes at once, each on all multiprocessors, or on half of them."""
    with multi_process_service(tmp_path) as environment:
        environment |= {name: str(value) for name, value in with_lltm().items()}
        if percentage is not None:
            environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
        command = [sys.executable, "-c", REPEAT]
        processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        try:
            assert [process.communicate(timeout=HANGS)[0].strip() for process in processes] == ["same"] * 2
        finally:
            for process in processes:
                process.kill()


def check_gradients_beside_all_reduces(rank: int, folder: str) -> None:
    """DistributedDataParallel averages the gradients of layers while those before them run. In each of two processes,
    they are those of both halves of the batch, to the bit."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", f"file://{folder}/group", rank=rank, world_size=2)
    large = torch.zeros(64 << 20, device=device)
    for make_layers in (lltm.LSTM, lltm.GRU, lltm.LLTM):
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            rnn = make_layers(64, 512, num_layers=3, dtype=dtype).to(device)
            halves = [half.to(device, dtype) for half in torch.randn(2, 64, 16, 64)]
            of_halves = [
                torch.autograd.grad(rnn(half)[0].float().square().mean(), list(rnn.parameters())) for half in halves
            ]
            expected = [first / 2 + second / 2 for first, second in zip(*of_halves, strict=True)]
            parallel = torch.nn.parallel.DistributedDataParallel(rnn, bucket_cap_mb=1)
            for _ in range(10):
                reduced = dist.all_reduce(large, async_op=True)
                parallel(halves[rank])[0].float().square().mean().backward()
                reduced.wait()
                assert_identical([parameter.grad for parameter in rnn.parameters()], expected)
                rnn.zero_grad()
    dist.destroy_process_group()


@pytest.mark.usefixtures("module_across_the_grid")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.skipif(not (dist.is_available() and dist.is_nccl_available()), reason="PyTorch without NCCL")
def test_beside_all_reduces(tmp_path):
    check = torch.multiprocessing.spawn(check_gradients_beside_all_reduces, (str(tmp_path),), nprocs=2, join=False)
    end = time.monotonic() + HANGS
    try:
        while not check.join(timeout=1):
            assert time.monotonic() < end, "it hangs"
    finally:
        for process in check.processes:
            process.kill()
