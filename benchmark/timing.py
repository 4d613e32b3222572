"""Clocks: the time of one call of each of several peers, measured such that the times are comparable.

The peers take turns, round by round, in one process, so a temporary slowdown of the machine affects all of them. A
sample is the mean of a few successive calls. The result is the median of the samples, and the spread their quartiles.
"""

import gc
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from math import inf
from statistics import median, quantiles
from typing import TypeVar

import torch
from results import Row, failure

Call = Callable[[], object]
T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """The time to spend on one case with all its peers."""

    seconds: float
    min_rounds: int
    max_rounds: int
    sample_seconds: float
    """A sample repeats its call until it lasts about this long."""


FULL = Budget(seconds=3.0, min_rounds=7, max_rounds=41, sample_seconds=2e-3)
QUICK = Budget(seconds=0.8, min_rounds=5, max_rounds=21, sample_seconds=1e-3)
# Seven rounds, however long a call takes.
SEVEN_ROUNDS = Budget(seconds=0.0, min_rounds=7, max_rounds=7, sample_seconds=1e-3)
# For many cases, in the rounds of a race.
BRIEF = Budget(seconds=0.1, min_rounds=3, max_rounds=5, sample_seconds=1e-3)


@dataclass(frozen=True)
class Timing:
    """Microseconds per call."""

    median: float
    low: float
    high: float
    rounds: int
    calls_per_sample: int
    minimum: float


@dataclass(frozen=True)
class Sampler:
    """Takes one sample of `calls` calls, and returns microseconds per call."""

    sample: Callable[[], float]
    calls: int


def interleave(samplers: dict[str, Sampler], budget: Budget) -> dict[str, Timing]:
    """Take one sample of every sampler per round."""
    names = list(samplers)
    start = time.perf_counter()
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    with _no_garbage_collection():
        for round_ in range(budget.max_rounds):
            if round_ >= budget.min_rounds and time.perf_counter() - start > budget.seconds:
                break
            # Each round begins with another one, so that no peer always follows the same one.
            first = round_ % len(names)
            for name in names[first:] + names[:first]:
                samples[name].append(samplers[name].sample())
    timings = {}
    for name, values in samples.items():
        low, _, high = quantiles(values, n=4, method="inclusive")
        timings[name] = Timing(median(values), low, high, len(values), samplers[name].calls, min(values))
    return timings


def attempt(case: object, makers: dict[str, Callable[[], T]]) -> tuple[dict[str, T], list[Row]]:
    """What is made for the peers, and a row for each one that fails: the others are still measured."""
    made, failures = {}, []
    for name, make in makers.items():
        try:
            made[name] = make()
        except Exception as error:  # whatever a peer raises
            failures.append(Row("failure", message=f"{case}, {name}: {failure(error)}"))
    return made, failures


@dataclass(frozen=True)
class Race:
    """The rules for comparing peers quickly."""

    budget: Budget = BRIEF
    margin: float = 1.25
    """After two rounds, peers that are slower than the fastest by more than this factor are no longer sampled."""
    result: Callable[[list[float]], float] = median
    """The result of a peer's samples."""


GPU_RACE = Race()
# On a CPU, other processes disturb single samples: no peer is stopped, and the minimum is the time of the call itself.
CPU_RACE = Race(margin=inf, result=min)


def race(samplers: dict[str, Sampler], keep: Collection[str], rules: Race) -> dict[str, float]:
    """Microseconds per call, from few samples. Those in `keep` are never stopped."""
    with _no_garbage_collection():
        start = time.perf_counter()
        samples = {name: [sampler.sample()] for name, sampler in samplers.items()}
        for name, sampler in samplers.items():
            samples[name].append(sampler.sample())
        limit = rules.margin * min((min(values) for values in samples.values()), default=0.0)
        ahead = [name for name, values in samples.items() if name in keep or min(values) <= limit]
        for round_ in range(2, rules.budget.max_rounds):
            if round_ >= rules.budget.min_rounds and time.perf_counter() - start > rules.budget.seconds:
                break
            for name in ahead:
                samples[name].append(samplers[name].sample())
    return {name: rules.result(values) for name, values in samples.items()}


class _no_garbage_collection:
    def __enter__(self) -> None:
        self.was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self.was_enabled:
            gc.enable()


def _calls_per_sample(call: Call, synchronize: Call, budget: Budget) -> int:
    """Warm up, and determine the number of calls per sample."""
    deadline = time.perf_counter() + 25 * budget.sample_seconds
    best = float("inf")
    for done in range(1000):
        start = time.perf_counter()
        call()
        synchronize()
        end = time.perf_counter()
        best = min(best, end - start)
        if done >= 2 and end > deadline:
            break
    return max(1, round(budget.sample_seconds / best))


def wall_sampler(
    call: Call, budget: Budget, synchronize: Call = lambda: None, clock: Callable[[], float] = time.perf_counter
) -> Sampler:
    """The time in a Python loop: successive calls, with one synchronization at the end."""
    count = _calls_per_sample(call, synchronize, budget)

    def sample() -> float:
        call()  # not timed: the heap and the caches are in the state that the previous peer left
        synchronize()
        start = clock()
        for _ in range(count):
            call()
        synchronize()
        return (clock() - start) * 1e6 / count

    return Sampler(sample, count)


def wall(calls: dict[str, Call], budget: Budget, synchronize: Call = lambda: None) -> dict[str, Timing]:
    gc.collect()
    return interleave({name: wall_sampler(call, budget, synchronize) for name, call in calls.items()}, budget)


CALLS_PER_GRAPH = 20


def graph_sampler(call: Call, calls: int = CALLS_PER_GRAPH, replays: int = 1) -> Sampler:
    """The time on the device: replays of a captured graph of several calls, timed by events."""
    graph = _capture(call, calls)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample() -> float:
        # The first replay keeps the device busy while the events and the other replays are enqueued.
        graph.replay()
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / (calls * replays)

    return Sampler(sample, calls * replays)


def release_graph_memory() -> None:
    """Return the memory of captured graphs that no longer exist to the driver."""
    _graph_memory.cache_clear()
    gc.collect()
    torch.cuda.empty_cache()


def cuda_graph(calls: dict[str, Call], budget: Budget) -> dict[str, Timing]:
    gc.collect()
    samplers = {name: graph_sampler(call) for name, call in calls.items()}
    for sampler in samplers.values():
        sampler.sample()
    return interleave(samplers, budget)


@cache
def _graph_memory() -> tuple[torch.cuda.CUDAGraph, tuple[int, int], torch.cuda.Stream]:
    """A graph that keeps the memory pool alive, the pool, and the stream; all captures share them. No graph reads what
    another one wrote, so they may share memory. torch.cuda.graph would return the pool's memory to the driver at each
    capture, and a sweep captures thousands of graphs."""
    graph, pool, stream = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        torch.empty(1, device="cuda").zero_()
    return graph, pool, stream


def _capture(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    _, pool, stream = _graph_memory()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graph.capture_begin(pool=pool)
        try:
            for _ in range(calls):
                call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph
