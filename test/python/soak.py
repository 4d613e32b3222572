"""Calls every operator for long, from several threads at once, and watches the process.

    python3 test/python/soak.py --calls 1000000 --threads 8
    python3 test/python/soak.py --device cuda --calls 1000000 --threads 8 --streams 4

Each thread calls its own cases again and again and demands the bits of the first time. On CUDA the threads share some
streams, and a captured graph is replayed beside them. At the end the memory and the descriptors of the process are
what they were after the first tenth of the calls. Ends with 1 where anything is not so.
"""

import argparse
import os
import sys
import threading
import time

import conftest  # noqa: F401  finds lltm
import sequence_reference
import torch
from random_calls.checking import bits
from reference import call, make_arguments, make_gradients
from torch import Tensor

SIZES = [(1, 5, 7), (3, 8, 16), (16, 32, 128), (17, 33, 31)]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
# What an allocator may keep of threads that came and went.
MOST_GROWTH = 24 << 20


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=1_000_000, help="of each operator, by all threads together")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4, help="on CUDA")
    return parser.parse_args()


class Case:
    """Arguments on which all operators are called, and the bits of the first time."""

    def __init__(self, sizes, dtype: torch.dtype, device: str):
        self.cell = make_arguments(sizes, dtype, device)
        self.grads = make_gradients(self.cell)
        self.sequence = sequence_reference.make((3, *sizes), dtype, device, lengths=True, reset=True)
        self.sequence_grads = sequence_reference.make_gradients(self.sequence)
        self.first = list(map(bits, self.run()))

    def run(self) -> list[Tensor]:
        """Calls each of the four operators once."""
        new_h, new_cell, gates = call(self.cell)
        kept = sequence_reference.call(self.sequence, keep=True)
        output, _, _, cells, steps_gates = kept
        everything = [True] * 5
        return [
            *(new_h, new_cell, gates, *kept),
            *torch.ops.lltm.backward(*self.grads, new_cell, gates, *self.cell[:4], everything),
            *torch.ops.lltm.sequence_backward(
                *self.sequence_grads, output, cells, steps_gates, *self.sequence, everything
            ),
        ]

    def has_other_bits(self, results: list[Tensor]) -> Tensor | bool:
        """On CUDA a 0-dimensional tensor: nobody waits."""
        if results[0].is_cpu:
            return not all(map(torch.equal, map(bits, results), self.first))
        other = [(bits(a) != b).any() for a, b in zip(results, self.first, strict=True)]
        return torch.stack(other).any()


class Worker(threading.Thread):
    """Calls its case until it is told to stop."""

    def __init__(self, case: Case, stream: torch.cuda.Stream | None):
        super().__init__(daemon=True)
        self.case, self.stream = case, stream
        self.rounds, self.wrong_rounds = 0, 0
        self.stopped = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        torch.set_num_threads(1)
        try:
            with torch.no_grad(), torch.cuda.stream(self.stream):
                self.call_until_stopped()
        except Exception as error:
            self.error = error

    def call_until_stopped(self) -> None:
        wrong = torch.zeros((), dtype=torch.int64, device=self.case.cell.input.device)
        while not self.stopped.is_set():
            for _ in range(50):
                wrong += self.case.has_other_bits(self.case.run())
                self.rounds += 1
            self.wrong_rounds = wrong.item()  # the GPU may not fall behind without limit


class Replayer(Worker):
    """Replays a captured graph of the calls."""

    def __init__(self, case: Case, stream: torch.cuda.Stream):
        super().__init__(case, stream)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            case.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, stream=stream):
            self.results = case.run()

    def call_until_stopped(self) -> None:
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        while not self.stopped.is_set():
            for _ in range(50):
                self.graph.replay()
                wrong += self.case.has_other_bits(self.results)
                self.rounds += 1
            self.wrong_rounds = wrong.item()


class Usage:
    """What the process holds."""

    def __init__(self, device: str):
        with open("/proc/self/statm") as statm:
            self.memory = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.device_memory = torch.cuda.memory_reserved() if device == "cuda" else 0

    def growth_since(self, earlier: "Usage") -> list[str]:
        """What is more than it should be."""
        growth = {
            "memory": (self.memory - earlier.memory, MOST_GROWTH),
            "descriptors": (self.descriptors - earlier.descriptors, 0),
            "memory of the device": (self.device_memory - earlier.device_memory, MOST_GROWTH),
        }
        return [f"{name} grew by {more:,}" for name, (more, most) in growth.items() if more > most]

    def __str__(self) -> str:
        return f"{self.memory >> 20} MiB, {self.descriptors} descriptors, {self.device_memory >> 20} MiB of the device"


def make_workers(arguments: argparse.Namespace) -> list[Worker]:
    torch.manual_seed(0)
    count = arguments.threads
    kinds = [(SIZES[k % len(SIZES)], DTYPES[k % len(DTYPES)]) for k in range(count)]
    cases = [Case(sizes, dtype, arguments.device) for sizes, dtype in kinds]
    if arguments.device == "cpu":
        return [Worker(case, None) for case in cases]
    streams = [torch.cuda.Stream() for _ in range(arguments.streams)]
    replayer = Replayer(Case(SIZES[2], torch.float32, "cuda"), torch.cuda.Stream())
    torch.cuda.synchronize()
    return [*(Worker(case, streams[k % len(streams)]) for k, case in enumerate(cases)), replayer]


def rounds_of(workers: list[Worker]) -> int:
    return sum(worker.rounds for worker in workers)


def wait_for(workers: list[Worker], rounds: int) -> None:
    while rounds_of(workers) < rounds and not any(worker.error for worker in workers):
        time.sleep(0.05)


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    workers = make_workers(arguments)
    start = time.monotonic()
    for worker in workers:
        worker.start()
    usages = []
    for tenth in range(1, 11):
        wait_for(workers, arguments.calls * tenth // 10)
        usages.append(Usage(arguments.device))
        print(f"{rounds_of(workers):13,} calls: {usages[-1]}", flush=True)
    for worker in workers:
        worker.stopped.set()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - start
    wrong = sum(worker.wrong_rounds for worker in workers)
    problems = usages[-1].growth_since(usages[0]) + [repr(worker.error) for worker in workers if worker.error]
    if wrong:
        problems.append(f"{wrong:,} rounds of calls gave other bits")
    print(f"{rounds_of(workers):,} calls of each operator from {len(workers)} threads in {seconds:.0f} s")
    print("\n".join(problems) or "the same bits every time, and nothing has grown")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
