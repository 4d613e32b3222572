"""A sweep: every shape, dtype and kind of work, compared with the peers and the planner's other candidates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import candidates
import timing
import torch
from cases import DTYPES, Case, Shape, Work
from peers import OURS, PEERS, applicable, prepare_dynamic_compilation
from results import Log, failure
from workload import environment, make_call

from .shapes import Draw

if TYPE_CHECKING:
    from rich.progress import Progress

REPETITIONS = 3
"""How often a case is measured if a peer is faster."""


@dataclass(frozen=True)
class Entry:
    """One case: microseconds per call by peer (device time on a GPU, wall time on a CPU)."""

    seed: int | None
    device: str
    threads: int
    dtype: str
    work: str
    shape: str
    times: dict[str, float]
    speedup: float | None
    """The time of the fastest peer over ours; the median of three if the first one is below 1."""
    candidates: dict[str, float] = field(default_factory=dict)
    """Device microseconds of this work's operator (lltm::backward for work with gradients) by forced candidate."""
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def best_peer(self) -> str | None:
        return min((name for name in self.times if name != OURS), key=self.times.__getitem__, default=None)

    @property
    def chosen_over_best(self) -> float | None:
        """The time of the planner's choice over that of the best candidate; None if they were not measured."""
        if len(self.candidates) < 2 or candidates.AUTO not in self.candidates:
            return None
        return self.candidates[candidates.AUTO] / min(self.candidates.values())


@dataclass(frozen=True)
class Sweep:
    """What to measure."""

    cases: list[tuple[Draw, Case]]
    peers: list[str]
    with_candidates: bool = True
    seconds: float | None = None
    """The run ends at the first case that would begin later than this."""


def cases_of(
    draws: list[Draw], devices: list[str], threads: list[int], dtypes: list[str], works: list[Work]
) -> list[tuple[Draw, Case]]:
    """The cases, shape by shape, so that an interrupted run has equally many shapes for every dtype."""
    return [
        (draw, Case(device, count, work, dtype, draw.shape))
        for draw in draws
        for device in devices
        for count in (threads if device == "cpu" else threads[:1])
        for dtype in DTYPES[device]
        if dtype in dtypes
        for work in works
    ]


def run(sweep: Sweep, path: Path, progress: Progress) -> list[Entry]:
    """Measure, and log every case to `path` as soon as it is known."""
    prepare_dynamic_compilation()
    start = time.perf_counter()
    entries: list[Entry] = []
    cases = sweep.cases
    with Log(path) as log:
        task = progress.add_task("compiling", total=len(cases))
        _compile(cases, sweep.peers)
        progress.console.print(f"compiled the peers in {time.perf_counter() - start:.0f} s")
        for draw, case in cases:
            if sweep.seconds and time.perf_counter() - start > sweep.seconds:
                progress.console.print(f"[yellow]{len(entries)} of {len(cases)} cases within {sweep.seconds:.0f} s")
                break
            progress.update(task, description=str(case))
            entries.append(_measure(draw, case, sweep))
            log.write(entries[-1])
            progress.advance(task)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    progress.console.print(f"{len(entries)} cases in {time.perf_counter() - start:.0f} s; {graphs} graphs compiled")
    return entries


# Even with dynamic shapes, the compiler optimizes for the first shape that it sees.
_TYPICAL = Shape(256, 520, 504)


def _compile(cases: list[tuple[Draw, Case]], peers: list[str]) -> None:
    """Compile what the peers compile once per dtype and kind of work."""
    if "dynamic" not in peers:
        return
    for case in dict.fromkeys(Case(c.device, c.threads, c.work, c.dtype, _TYPICAL) for _, c in cases):
        with environment(case):
            make_call(case, PEERS["dynamic"].make(case.shape, case.device, case.torch_dtype))()


def calls_per_graph(case: Case) -> int:
    """The number of calls in a graph of about 100 microseconds, so that small cells are measured precisely and large
    ones quickly; a multiple of the number of alternating inputs."""
    work = case.shape.multiply_adds_of_a_gate
    if case.work is Work.TRAINING:
        return 12 if work < 1e8 else 4
    return 20 if work < 3e7 else 12 if work < 3e8 else 4


def _measure(draw: Draw, case: Case, sweep: Sweep) -> Entry:
    samplers: dict[str, timing.Sampler] = {}
    failures: dict[str, str] = {}
    with environment(case):
        for peer in applicable(case, [OURS, *sweep.peers]):
            try:
                call = make_call(case, peer.make(case.shape, case.device, case.torch_dtype))
                samplers[peer.name] = _sampler(case, call)
            except Exception as error:  # the other peers are still measured
                failures[peer.name] = failure(error)
        times, speedup = _speedup(samplers, timing.GPU_RACE if case.device == "cuda" else timing.CPU_RACE)
        found = candidates.Candidates({}, {})
        if sweep.with_candidates and case.device == "cuda":
            direction = "backward" if case.work is Work.TRAINING else "forward"
            try:
                found = candidates.measure(case, direction, calls_per_graph(case))
            except Exception as error:
                failures["candidates"] = failure(error)
    return Entry(
        seed=draw.seed,
        device=case.device,
        threads=case.threads,
        dtype=case.dtype,
        work=str(case.work),
        shape=str(case.shape),
        times=times,
        speedup=speedup,
        candidates=found.times,
        failures=failures,
    )


def _sampler(case: Case, call: Callable[[], object]) -> timing.Sampler:
    if case.device == "cuda":
        return timing.graph_sampler(call, calls_per_graph(case))
    return timing.wall_sampler(call, timing.BRIEF)


def _speedup(samplers: dict[str, timing.Sampler], rules: timing.Race) -> tuple[dict[str, float], float | None]:
    """Times by peer, and the speedup over the fastest. If it is below 1, measures twice more and takes the median."""
    if OURS not in samplers or len(samplers) < 2:
        return timing.race(samplers, {OURS}, rules), None

    def measure() -> tuple[float, dict[str, float]]:
        times = timing.race(samplers, {OURS}, rules)
        return min(time for name, time in times.items() if name != OURS) / times[OURS], times

    results = [measure()]
    if results[0][0] < 1:
        results += [measure() for _ in range(REPETITIONS - 1)]
    speedup = median(speedup for speedup, _ in results)
    times = next(times for found, times in results if found == speedup)
    return times, speedup
