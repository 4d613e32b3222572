"""The time of short calls on a CPU while other processes keep its cores busy.

Load affects single calls rather than means: a call that waits for a thread without a core takes as long as the
scheduler lets another process run. Therefore every call is timed separately, and the result is a distribution.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from cases import DTYPES, Case, Shape, Work
from peers import OURS, applicable
from results import Log
from tables import number, table
from workload import environment, make_call

if TYPE_CHECKING:
    from rich.progress import Progress

SHAPES = (Shape(16, 32, 128), Shape(1, 512, 512), Shape(64, 512, 512))
PEERS = (OURS, "eager", "LSTMCell", "addmm")
WARM_UP = 20


@dataclass(frozen=True)
class Entry:
    """Microseconds of single calls of one peer."""

    threads: int
    busy_processes: int
    work: str
    shape: str
    peer: str
    median: float
    ninetieth: float
    ninety_ninth: float
    mean: float
    calls: int


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Runs `count` processes that compute endlessly, one per core if the scheduler is fair."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        if processes:
            time.sleep(0.5)
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def run(
    threads: list[int], works: list[Work], shapes: list[Shape], seconds: float, path: Path, progress: Progress
) -> list[Entry]:
    """Time every peer for `seconds` on an idle machine and under load."""
    cores = len(os.sched_getaffinity(0))
    cases = [
        Case("cpu", count, work, DTYPES["cpu"][0], shape) for shape in shapes for work in works for count in threads
    ]
    task = progress.add_task("load", total=len(cases) * 2)
    entries = []
    with Log(path) as log:
        for busy in (0, cores):
            with busy_processes(busy):
                for case in cases:
                    progress.update(task, description=f"{case}, {busy} busy processes")
                    found = _measure(case, busy, seconds)
                    for entry in found:
                        log.write(entry)
                    entries += found
                    progress.advance(task)
    return entries


def _measure(case: Case, busy: int, seconds: float) -> list[Entry]:
    entries = []
    with environment(case):
        for peer in applicable(case, list(PEERS)):
            call = make_call(case, peer.make(case.shape, case.device, case.torch_dtype))
            for _ in range(WARM_UP):
                call()
            gc.collect()
            times = []
            end = time.perf_counter() + seconds
            while (start := time.perf_counter()) < end:
                call()
                times.append((time.perf_counter() - start) * 1e6)
            quantiles = numpy.quantile(times, (0.5, 0.9, 0.99))
            entries.append(
                Entry(
                    case.threads, busy, str(case.work), str(case.shape), peer.name,
                    *(float(value) for value in quantiles), float(numpy.mean(times)), len(times),
                )
            )  # fmt: skip
    return entries


def markdown(entries: list[Entry], on: str) -> str:
    """Idle and loaded times side by side."""
    rows = []
    idle = {(e.work, e.shape, e.threads, e.peer): e for e in entries if e.busy_processes == 0}
    loaded = {(e.work, e.shape, e.threads, e.peer): e for e in entries if e.busy_processes > 0}
    for (work, shape, threads, peer), entry in idle.items():
        under = loaded.get((work, shape, threads, peer))
        rows.append(
            [
                shape,
                work,
                peer,
                str(threads),
                *(number(v) for v in (entry.median, entry.ninety_ninth, entry.mean)),
                *(number(v) for v in ((under.median, under.ninety_ninth, under.mean) if under else ())),
            ]
        )
    busy = max((entry.busy_processes for entry in entries), default=0)
    header = ["shape", "work", "peer", "threads", "idle: median", "99 %", "mean", "load: median", "99 %", "mean"]
    return "\n\n".join(
        [
            f"# Under load, {on}",
            f"Microseconds of single calls on the CPU, float32, on an idle machine and with {busy} busy"
            " processes: the median, the 99th percentile and the mean.",
            table(header, rows),
            "",
        ]
    )
