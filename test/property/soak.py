"""Calls every operator many times, from several threads at once, and monitors the process.

    python3 test/property/soak.py --calls 1000000 --threads 8
    python3 test/property/soak.py --device cuda --calls 1000000 --threads 8 --streams 4
    python3 test/property/soak.py --device cuda:0 cuda:1 --calls 1000000 --threads 8

Each thread repeats its own calls, and checks that each of them gives the same bits as the first time. The calls are in
a TorchScript function, so that no thread waits for the GIL. On CUDA the threads of a device share some streams, and a
captured graph of the same calls is replayed at the same time; with several devices, the threads alternate between them.
At the end, the process must not use more memory and file descriptors than after the first tenth of the calls. Exits
with status 1 on failure.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lltm_testing.settings  # noqa: F401  finds lltm
import torch
from lltm_testing import sequence_reference
from lltm_testing.reference import make_arguments, make_gradients
from torch import Tensor

SIZES = {
    "cpu": [(1, 5, 7), (3, 8, 16), (16, 32, 128), (17, 33, 31)],
    "cuda": [(1, 5, 7), (3, 8, 16), (16, 32, 128), (17, 33, 31), (64, 128, 256)],
}
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
# The number of rounds before a thread checks the results, so that the GPU's queue stays bounded.
ROUNDS_AT_ONCE = 50
# The memory that an allocator may keep for threads that have ended.
MOST_GROWTH = 24 << 20


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", nargs="+", type=torch.device, default=[torch.device("cpu")])
    parser.add_argument("--calls", type=int, default=1_000_000, help="of each operator, by all threads together")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4, help="of each device, on CUDA")
    return parser.parse_args()


@torch.jit.script
def call_each(
    cell: list[Tensor],
    grads: list[Tensor],
    sequence: list[Tensor],
    sequence_grads: list[Tensor],
    lstm: list[Tensor],
    lstm_grads: list[Tensor],
    gru: list[Tensor],
    gru_grads: list[Tensor],
) -> list[Tensor]:
    """Calls each operator once."""
    everything = [True, True, True, True, True]
    input, weights, bias, old_h, old_cell = cell
    grad_h, grad_cell = grads
    new_h, new_cell, gates = torch.ops.lltm.forward(input, weights, bias, old_h, old_cell)
    results = [new_h, new_cell, gates]
    gradients = torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, everything)

    inputs, weights, bias, h0, c0, lengths, reset = sequence
    grad_output, grad_h_n, grad_c_n, grad_cells = sequence_grads
    output, h_n, c_n, cells, gates = torch.ops.lltm.sequence(inputs, weights, bias, h0, c0, lengths, reset, False, True)
    results += [output, h_n, c_n, cells, gates]
    of_sequence = torch.ops.lltm.sequence_backward(
        grad_output, grad_h_n, grad_c_n, grad_cells, output, cells, gates,
        inputs, weights, bias, h0, c0, lengths, reset, False, everything,
    )  # fmt: skip

    inputs, weight_ih, weight_hh, bias, h0, c0, lengths, reset = lstm
    grad_output, grad_h_n, grad_c_n, grad_cells = lstm_grads
    output, h_n, c_n, cells, gates = torch.ops.lltm.lstm(
        inputs, weight_ih, weight_hh, bias, h0, c0, lengths, reset, False, True
    )
    results += [output, h_n, c_n, cells, gates]
    of_lstm = torch.ops.lltm.lstm_backward(
        grad_output, grad_h_n, grad_c_n, grad_cells, output, cells, gates,
        inputs, weight_ih, weight_hh, bias, h0, c0, lengths, reset, False, [True] + everything,
    )  # fmt: skip

    inputs, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset = gru
    grad_output, grad_h_n = gru_grads
    output, h_n, gates = torch.ops.lltm.gru(
        inputs, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset, False, True
    )
    # Beyond the lengths, gates are unspecified.
    steps = torch.arange(inputs.size(0), device=lengths.device)
    results += [output, h_n, gates.masked_fill((steps.unsqueeze(1) >= lengths).unsqueeze(2), 0)]
    of_gru = torch.ops.lltm.gru_backward(
        grad_output, grad_h_n, output, gates,
        inputs, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset, False, [True] + everything,
    )  # fmt: skip
    for gradient in gradients + of_sequence + of_lstm + of_gru:
        assert gradient is not None
        results.append(gradient)
    return results


@contextlib.contextmanager
def as_written():
    """Without autograd, and without TorchScript's optimizer, which would compile and allocate in the meantime."""
    with torch.no_grad(), torch.jit.optimized_execution(False):
        yield


class Case(NamedTuple):
    """Arguments on which all operators are called."""

    cell: list[Tensor]
    grads: list[Tensor]
    sequence: list[Tensor]
    sequence_grads: list[Tensor]
    lstm: list[Tensor]
    lstm_grads: list[Tensor]
    gru: list[Tensor]
    gru_grads: list[Tensor]

    @staticmethod
    def of(sizes, dtype: torch.dtype, device: torch.device) -> "Case":
        cell = make_arguments(sizes, dtype, device)
        arguments = [list(cell), list(make_gradients(cell))]
        for cell in sequence_reference.CELLS.values():
            sequence = sequence_reference.make((3, *sizes), dtype, device, lengths=True, reset=True, cell=cell)
            arguments.append([argument for argument in sequence if isinstance(argument, Tensor)])
            arguments.append(list(sequence_reference.make_gradients(sequence)))
        return Case(*arguments)


class Buffer(NamedTuple):
    """A single block of memory for all results, so that comparing them takes few launches."""

    integers: Tensor
    places: list[Tensor]
    """The results, in the memory of `integers`."""

    @staticmethod
    def holding(results: list[Tensor]) -> "Buffer":
        integers_of = [-(-result.nbytes // 8) for result in results]
        integers = torch.zeros(sum(integers_of), dtype=torch.int64, device=results[0].device)
        places = [
            piece.view(torch.uint8)[: result.nbytes].view(result.dtype).view(result.shape)
            for piece, result in zip(integers.split(integers_of), results, strict=True)
        ]
        torch._foreach_copy_(places, results)
        return Buffer(integers, places)


@torch.jit.script
def count_other_bits(wrong: Tensor, first: Tensor, buffer: Buffer, case: Case, rounds: int) -> None:
    """Calls each operator `rounds` times, and adds to `wrong` how often the bits differed from `first`."""
    for _ in range(rounds):
        results = call_each(*case)
        torch._foreach_copy_(buffer.places, results)
        wrong += (buffer.integers != first).any()


class Worker(threading.Thread):
    """Calls its case until it is told to stop."""

    def __init__(self, case: Case, stream: torch.cuda.Stream | None):
        super().__init__(daemon=True)
        self.case, self.stream = case, stream
        with as_written():
            self.buffer = Buffer.holding(call_each(*case))
        self.first = self.buffer.integers.clone()
        self.wrong = torch.zeros((), dtype=torch.int64, device=self.first.device)
        self.rounds, self.wrong_rounds = 0, 0
        self.stopped = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        torch.set_num_threads(1)
        try:
            with as_written(), torch.cuda.stream(self.stream):
                while not self.stopped.is_set():
                    self.make_rounds(ROUNDS_AT_ONCE)
                    self.wrong_rounds = self.wrong.item()
                    self.rounds += ROUNDS_AT_ONCE
        except Exception as error:
            self.error = error

    def make_rounds(self, rounds: int) -> None:
        count_other_bits(self.wrong, self.first, self.buffer, self.case, rounds)


class Replayer(Worker):
    """Replays a captured graph of a round, with pauses, because it would otherwise take most of the GPU."""

    def __init__(self, case: Case, stream: torch.cuda.Stream):
        super().__init__(case, stream)
        torch.cuda.synchronize(stream.device)
        with as_written(), torch.cuda.stream(stream):
            super().make_rounds(1)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with as_written(), torch.cuda.device(stream.device), torch.cuda.graph(self.graph, stream=stream):
            super().make_rounds(1)

    def make_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            self.graph.replay()
        self.stopped.wait(0.05)


class Usage:
    """The memory and file descriptors that the process uses."""

    def __init__(self):
        with open("/proc/self/statm") as statm:
            self.memory = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.descriptors = len(os.listdir("/proc/self/fd"))
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        self.device_memory = sum(map(torch.cuda.memory_reserved, devices))

    def growth_since(self, earlier: "Usage") -> list[str]:
        """A description of everything that has grown too much."""
        growth = {
            "memory": (self.memory - earlier.memory, MOST_GROWTH),
            "descriptors": (self.descriptors - earlier.descriptors, 0),
            "memory of the devices": (self.device_memory - earlier.device_memory, MOST_GROWTH),
        }
        return [f"{name} grew by {more:,}" for name, (more, most) in growth.items() if more > most]

    def __str__(self) -> str:
        return f"{self.memory >> 20} MiB, {self.descriptors} descriptors, {self.device_memory >> 20} MiB of the devices"


def make_workers(arguments: argparse.Namespace) -> list[Worker]:
    """Makes the threads, alternating between the devices."""
    devices = arguments.device
    streams = {
        device: [torch.cuda.Stream(device) for _ in range(arguments.streams)]
        for device in devices
        if device.type == "cuda"
    }
    workers = []
    for k in range(arguments.threads):
        device = devices[k % len(devices)]
        sizes = SIZES[device.type]
        case = Case.of(sizes[k % len(sizes)], DTYPES[k % len(DTYPES)], device)
        stream = streams[device][k // len(devices) % arguments.streams] if device in streams else None
        workers.append(Worker(case, stream))
    return workers


def make_replayers(arguments: argparse.Namespace) -> list[Replayer]:
    return [
        Replayer(Case.of((16, 32, 128), torch.float32, device), torch.cuda.Stream(device))
        for device in arguments.device
        if device.type == "cuda"
    ]


def rounds_of(workers: list[Worker]) -> int:
    return sum(worker.rounds for worker in workers)


def has_failed(threads: list[Worker]) -> bool:
    return any(thread.error for thread in threads)


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workers = make_workers(arguments)
    replayers = make_replayers(arguments)
    threads = [*workers, *replayers]
    for device in arguments.device:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    start = time.monotonic()
    for thread in threads:
        thread.start()
    usages = []
    for tenth in range(1, 11):
        while rounds_of(workers) < arguments.calls * tenth // 10 and not has_failed(threads):
            time.sleep(0.05)
        usages.append(Usage())
        print(f"{rounds_of(workers):13,} calls: {usages[-1]}", flush=True)
    for thread in threads:
        thread.stopped.set()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    wrong = sum(thread.wrong_rounds for thread in threads)
    problems = usages[-1].growth_since(usages[0]) + [repr(thread.error) for thread in threads if thread.error]
    if wrong:
        problems.append(f"{wrong:,} rounds of calls gave other bits")
    print(f"{rounds_of(workers):,} calls of each operator from {len(workers)} threads in {seconds:.0f} s")
    if replayers:
        print(f"{rounds_of(replayers):,} replays of a graph of them")
    print("\n".join(problems) or "the same bits every time, and nothing has grown")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
