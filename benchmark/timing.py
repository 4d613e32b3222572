"""Clocks: what one call of each of several peers takes, measured so that the numbers can be compared.

The peers take turns, round by round, in one process: whatever slows the machine for a while slows all of them. A
sample is the mean of a few calls in a row; the result is the median of the samples, and the spread is their quartiles.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Budget:
    """How long to measure one case with all its peers."""

    seconds: float
    min_rounds: int
    max_rounds: int
    sample_seconds: float
    """A sample repeats its call until it lasts about this long."""


FULL = Budget(seconds=3.0, min_rounds=7, max_rounds=41, sample_seconds=2e-3)
QUICK = Budget(seconds=0.8, min_rounds=5, max_rounds=21, sample_seconds=1e-3)


@dataclass(frozen=True)
class Timing:
    """Microseconds a call."""

    median: float
    low: float
    high: float
    rounds: int
    calls_per_sample: int

    @property
    def spread(self) -> float:
        """Half of the distance between the quartiles, relative to the median."""
        return (self.high - self.low) / (2 * self.median)


def _interleave(samplers: dict[str, Callable[[], float]], calls: dict[str, int], budget: Budget) -> dict[str, Timing]:
    """Let every sampler measure once a round; each returns seconds a call."""
    names = list(samplers)
    start = time.perf_counter()
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    gc_was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for round_ in range(budget.max_rounds):
            if round_ >= budget.min_rounds and time.perf_counter() - start > budget.seconds:
                break
            # Another one begins each round, so that nobody always follows the same peer.
            first = round_ % len(names)
            for name in names[first:] + names[:first]:
                samples[name].append(samplers[name]() * 1e6)
    finally:
        if gc_was_enabled:
            gc.enable()
    timings = {}
    for name, values in samples.items():
        low, _, high = quantiles(values, n=4, method="inclusive")
        timings[name] = Timing(median(values), low, high, len(values), calls[name])
    return timings


def _calls_per_sample(call: Call, synchronize: Call, budget: Budget) -> int:
    """Warm the call up, and find how many of them fill a sample."""
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


def wall(calls: dict[str, Call], budget: Budget, synchronize: Call = lambda: None) -> dict[str, Timing]:
    """What a Python loop sees: calls one after the other, one synchronisation at the end."""
    counts = {name: _calls_per_sample(call, synchronize, budget) for name, call in calls.items()}

    def make_sampler(call: Call, count: int) -> Callable[[], float]:
        def sampler() -> float:
            call()  # not timed: the heap and the caches are as the peer before left them
            synchronize()
            start = time.perf_counter()
            for _ in range(count):
                call()
            synchronize()
            return (time.perf_counter() - start) / count

        return sampler

    return _interleave({name: make_sampler(call, counts[name]) for name, call in calls.items()}, counts, budget)


CALLS_PER_GRAPH = 20


def cuda_graph(calls: dict[str, Call], budget: Budget) -> dict[str, Timing]:
    """What the device needs: replays of a captured graph of 20 calls, timed by events, divided by 20."""
    graphs = {name: _capture(call) for name, call in calls.items()}
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def make_sampler(graph: torch.cuda.CUDAGraph) -> Callable[[], float]:
        def sampler() -> float:
            # The first replay keeps the device busy while the events and the second are enqueued.
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3 / CALLS_PER_GRAPH

        return sampler

    samplers = {name: make_sampler(graph) for name, graph in graphs.items()}
    for sampler in samplers.values():
        sampler()
    return _interleave(samplers, dict.fromkeys(calls, CALLS_PER_GRAPH), budget)


def _capture(call: Call) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS_PER_GRAPH):
            call()
    return graph
