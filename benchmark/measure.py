"""The time of every peer for every case: of cells at fixed shapes also the errors, and of sequences per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import timing
import torch
from cases import FEW_STEPS, Case
from peers import PEERS, applicable
from results import Row, Task
from roofline import Rates, limit, measure_rates
from workload import environment, errors, make_call

REPLAYS = 5
"""How often a sample replays a graph of one sequence; once if that takes longer than LONG_REPLAY."""
LONG_REPLAY = 0.1
"""Seconds."""


def tasks(section: str, cases: list[Case], peers: list[str], budget: timing.Budget) -> list[Task]:
    rates = measure_rates(cases)
    return [(str(case), partial(_measure, section, case, peers, budget, rates)) for case in cases]


def _measure(section: str, case: Case, names: list[str], budget: timing.Budget, rates: Rates) -> Iterator[Row]:
    _forget_earlier_cases(case)
    if case.variant and case.device == "cuda":
        budget = timing.SEVEN_ROUNDS
    peers = applicable(case, names)
    timings: dict[str, dict[str, timing.Timing]] = {}
    with environment(case):
        modules, failures = timing.attempt(case, {peer.name: partial(peer.make, case) for peer in peers})
        found_errors = {} if case.variant else errors(case, {PEERS[name]: cell for name, cell in modules.items()})
        calls, failed = timing.attempt(case, {name: partial(make_call, case, of) for name, of in modules.items()})
        failures += failed
        for clock in case.clocks:
            makers = {name: partial(_sampler, case, clock, call, budget) for name, call in calls.items()}
            samplers, failed = timing.attempt(case, makers)
            timings[clock] = timing.interleave(samplers, budget) if samplers else {}
            failures += failed
    for clock, found in timings.items():
        least = limit(case, rates, clock)
        for name, peer_times in found.items():
            # On a CPU, where other processes disturb long calls, the minimum.
            us = peer_times.minimum if case.variant and case.device == "cpu" else peer_times.median
            low, us, high = (value / case.shape.steps for value in (peer_times.low, us, peer_times.high))
            mean, largest = found_errors.get(name, (None, None))
            yield Row(
                section,
                **case.columns(),
                peer=name,
                us=us,
                low=low,
                high=high,
                clock=clock,
                limit=least,
                error_mean=mean,
                error_max=largest,
            )
    yield from failures


def _forget_earlier_cases(case: Case) -> None:
    # Compiled code is specialized on sizes and threads. Reset, to stay within Dynamo's limit of recompilations.
    torch._dynamo.reset()
    torch._inductor.config.cpp.threads = case.threads
    if case.device == "cuda" and 2 * torch.cuda.memory_reserved() > torch.cuda.mem_get_info()[1]:
        timing.release_graph_memory()


def _sampler(case: Case, clock: str, call: Callable[[], object], budget: timing.Budget) -> timing.Sampler:
    if clock != "device":
        synchronize = torch.cuda.synchronize if case.device == "cuda" else lambda: None
        return timing.wall_sampler(
            call, budget, synchronize, time.process_time if clock == "processor" else time.perf_counter
        )
    if case.shape.steps <= max(FEW_STEPS):
        return timing.graph_sampler(call)
    once = timing.graph_sampler(call, calls=1)
    return once if once.sample() > 1e6 * LONG_REPLAY else timing.graph_sampler(call, calls=1, replays=REPLAYS)
