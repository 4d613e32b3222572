"""Microseconds a step of lltm.LSTM and lltm.GRU with the multiprocessors and the shared memory of smaller GPUs.

    LLTM_LIBRARY=build-80-virtual/liblltm_ops.so PYTHONPATH=python python benchmark/limits.py --output limits.json

A green context has some of this GPU's multiprocessors, on which all kernels run. The shared memory that a block may
have is what PyTorch has asked the driver, and the planner reads. Clock, caches and bandwidth stay as they are. The
library has the kernels of the smaller GPUs if it was built for them: make build ARCH=80-virtual.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import machine
import torch

import lltm

LIMITS = [(132, 227), (108, 163), (58, 99)]
"""Multiprocessors, and KiB of a block: of an H200, an A100 and an L4."""
SHAPES = [(256, 32, 256, 256), (256, 32, 512, 512)]
DTYPES = {"tf32": torch.float32, "float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLES, CALLS = 7, 20

RESOURCE_OF_MULTIPROCESSORS, SPLIT_ANYWHERE, DEFAULT_STREAM = 1, 1, 1  # enumerators of cuda.h
RESOURCE_BYTES, RESOURCE_COUNT_AT = 144, 96  # of CUdevResource


def driver(name: str, *arguments: object) -> None:
    if error := getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments):
        raise RuntimeError(f"{name} returned {error}")


@contextlib.contextmanager
def green_context(multiprocessors: int) -> Iterator[None]:
    """This thread's context, in which torch.cuda.green_contexts would have a multiple of eight multiprocessors."""
    whole, part, rest = (ctypes.create_string_buffer(RESOURCE_BYTES) for _ in range(3))
    groups = ctypes.c_uint(1)
    description, green, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuDeviceGetDevResource", 0, whole, RESOURCE_OF_MULTIPROCESSORS)
    driver("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, SPLIT_ANYWHERE, multiprocessors)
    (found,) = struct.unpack_from("I", part, RESOURCE_COUNT_AT)
    if found != multiprocessors:
        raise RuntimeError(f"the driver gives {found} multiprocessors, not {multiprocessors}")
    driver("cuDevResourceGenerateDesc", ctypes.byref(description), part, 1)
    driver("cuGreenCtxCreate", ctypes.byref(green), description, 0, DEFAULT_STREAM)
    driver("cuCtxFromGreenCtx", ctypes.byref(context), green)
    driver("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        torch.cuda.synchronize()
        driver("cuCtxPopCurrent_v2", ctypes.byref(context))


def limit_shared_memory(kib: int) -> None:
    """In PyTorch's copy of the driver's answers, before the library reads it."""
    of_pytorch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
    properties = of_pytorch["_ZN2at4cuda26getCurrentDevicePropertiesEv"]
    properties.restype = ctypes.c_void_p
    words = (ctypes.c_size_t * 120).from_address(properties())
    (place,) = [i for i, word in enumerate(words) if word == shared_memory_of_a_block()]
    words[place] = kib * 1024
    assert shared_memory_of_a_block() == kib * 1024


def shared_memory_of_a_block() -> int:
    return torch.cuda.get_device_properties(0).shared_memory_per_block_optin


def time_of(call: Callable[[], object]) -> float:
    """Microseconds of a call, by events."""
    samples = []
    for _ in range(SAMPLES + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        call()  # keeps the device busy while others are enqueued
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / CALLS)
    return median(samples[1:])


def rows_here() -> Iterator[dict]:
    """The measurements in the current context."""
    for cell, shape, (dtype, of_tensors) in itertools.product(("LSTM", "GRU"), SHAPES, DTYPES.items()):
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        steps, batch, features, hidden = shape
        rnn = getattr(lltm, cell)(features, hidden, device="cuda", dtype=of_tensors)
        input = torch.randn(steps, batch, features, device="cuda", dtype=of_tensors, requires_grad=True)
        incoming, leaves = torch.randn_like(rnn(input)[0]), [input, *rnn.parameters()]

        def forward(rnn=rnn, input=input) -> None:
            with torch.no_grad():
                rnn(input)

        def training(rnn=rnn, input=input, incoming=incoming, leaves=leaves) -> None:
            torch.autograd.grad(rnn(input)[0], leaves, incoming)

        with torch.no_grad():
            plan = getattr(lltm.ops, f"{cell.lower()}_plan")(input, rnn.weight_ih_l0, rnn.weight_hh_l0)
        us = [time_of(work) / steps for work in (forward, training)]
        yield {"cell": cell, "shape": shape, "dtype": dtype, "us": us, "plan": plan}


def measure(multiprocessors: int, kib: int) -> list[dict]:
    """In a process of its own."""
    torch.zeros(1, device="cuda")  # makes the device's own context
    torch.autograd.set_multithreading_enabled(False)  # the context is that of one thread
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    if kib * 1024 != shared_memory_of_a_block():
        limit_shared_memory(kib)
    with contextlib.nullcontext() if multiprocessors == whole else green_context(multiprocessors):
        return [{"multiprocessors": multiprocessors, "kib": kib} | row for row in rows_here()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("limits.json"))
    output = parser.parse_args().output
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        rows = [row for part in pool.map(measure, *zip(*LIMITS, strict=True)) for row in part]
    output.write_text(json.dumps({"machine": machine.describe(["cuda"]), "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
