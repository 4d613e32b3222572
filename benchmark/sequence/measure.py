"""A run over sequences: every case and every peer, in time per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import timing
import torch
from cases import Work
from results import Row, Task
from roofline import measure_rates
from torch import nn
from workload import switches

from .cases import SequenceCase
from .peers import SequenceInputs, applicable

INPUT_SETS = 2
REPLAYS = 5
"""How often a sample replays a graph of one call; once if that takes longer than LONG_REPLAY."""
LONG_REPLAY = 0.1
"""Seconds."""

Rates = dict[tuple[str, str], float]
"""Multiply-adds per microsecond, and on a CPU per thread, by device and dtype."""


def tasks(section: str, cases: list[SequenceCase], peers: list[str], budget: timing.Budget) -> list[Task]:
    rates = _rates(cases)
    return [(str(case), partial(_measure, section, case, peers, budget, rates)) for case in cases]


def _rates(cases: list[SequenceCase]) -> Rates:
    rates = {}
    if any(case.device == "cpu" and case.dtype == "float32" for case in cases):
        rates["cpu", "float32"] = torch.ops.lltm_peers.multiply_add_rate()
    if dtypes := list(dict.fromkeys(case.dtype for case in cases if case.device == "cuda")):
        rates |= {("cuda", dtype): rate for dtype, rate in measure_rates(dtypes).items()}
    return rates


def _limit(case: SequenceCase, rates: Rates) -> float | None:
    """Microseconds per step for the multiply-adds alone."""
    rate = rates.get((case.device, case.dtype))
    if rate is None:
        return None
    products = 3 if case.work is Work.TRAINING else 1
    return products * case.multiply_adds / (rate * (case.threads if case.device == "cpu" else 1))


def _graph_sampler(call: Callable[[], object]) -> timing.Sampler:
    once = timing.graph_sampler(call, calls=1)
    return once if once.sample() > 1e6 * LONG_REPLAY else timing.graph_sampler(call, calls=1, replays=REPLAYS)


def _measure(section: str, case: SequenceCase, names: list[str], budget: timing.Budget, rates: Rates) -> Iterator[Row]:
    if case.device == "cuda":
        budget = timing.SEVEN_ROUNDS
        if 2 * torch.cuda.memory_reserved() > torch.cuda.mem_get_info()[1]:
            timing.release_graph_memory()
    synchronize = torch.cuda.synchronize if case.device == "cuda" else lambda: None

    def sampler(module: nn.Module) -> timing.Sampler:
        call = _make_call(case, module)
        return _graph_sampler(call) if case.clock == "device" else timing.wall_sampler(call, budget, synchronize)

    with switches(case.threads, case.dtype == "tf32", case.work is Work.TRAINING):
        peers = applicable(case, names)
        samplers, failures = timing.samplers(case, {p.name: lambda p=p: sampler(p.make(case)) for p in peers})
        timings = timing.interleave(samplers, budget) if samplers else {}
    for name, found in timings.items():
        # On a CPU, where other processes disturb long calls, the minimum.
        us = found.minimum if case.device == "cpu" else found.median
        low, us, high = (value / case.shape.steps for value in (found.low, us, found.high))
        limit, clock = _limit(case, rates), case.clock
        yield Row(section, **case.columns(), peer=name, us=us, low=low, high=high, clock=clock, limit=limit)
    yield from failures


def _make_call(case: SequenceCase, module: nn.Module) -> Callable[[], object]:
    """A call that computes the output and, with gradients, those of the input and all parameters."""
    wants_gradient = case.work is Work.TRAINING
    sets = cycle([SequenceInputs(case, seed, wants_gradient) for seed in range(INPUT_SETS)])
    if not wants_gradient:
        return lambda: module(next(sets))
    parameters = tuple(module.parameters())
    _, output = module(next(sets))
    grad_output = torch.randn_like(output)

    def call() -> tuple[torch.Tensor, ...]:
        input, output = module(next(sets))
        return torch.autograd.grad(output, (input, *parameters), grad_output)

    return call
