"""A run over sequences: every case and every peer, in time per step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import timing
import torch
from cases import Work
from results import Log, failure
from roofline import measure_rates
from torch import nn
from workload import switches

from .cases import SequenceCase
from .peers import SequenceInputs, applicable

if TYPE_CHECKING:
    from rich.progress import Progress

INPUT_SETS = 2
REPLAYS = 5
"""How often a sample replays a graph of one call; once if that takes longer than LONG_REPLAY."""
LONG_REPLAY = 0.1
"""Seconds."""


@dataclass(frozen=True)
class Entry:
    """One case: microseconds per step by peer."""

    device: str
    threads: int
    dtype: str
    variant: str
    work: str
    shape: str
    clock: str
    """"wall", or "device": by replay of a graph."""
    medians: dict[str, float]
    minima: dict[str, float]
    failures: dict[str, str] = field(default_factory=dict)
    limit: float | None = None
    """The least time of a step's products: on a CPU at the rate of the cores in registers, on a GPU at that of a large
    product of the dtype. None where it is not known."""
    seed: int | None = None
    """The seed that the shape was drawn with."""

    @property
    def times(self) -> dict[str, float]:
        """The minima on a CPU, where other processes disturb long calls, and the medians on a GPU."""
        return self.minima if self.device == "cpu" else self.medians


def run(
    cases: list[SequenceCase],
    peers: list[str],
    budget: timing.Budget,
    path: Path,
    progress: Progress,
    seconds: float | None = None,
) -> list[Entry]:
    """Measure, and log every case to `path` as soon as it is known."""
    start = time.perf_counter()
    entries: list[Entry] = []
    rates = _rates(cases)
    task = progress.add_task("sequences", total=len(cases))
    with Log(path) as log:
        for case in cases:
            if seconds and time.perf_counter() - start > seconds:
                progress.console.print(f"[yellow]{len(entries)} of {len(cases)} cases within {seconds:.0f} s")
                break
            progress.update(task, description=str(case))
            entries.append(_measure(case, peers, budget, rates))
            if case.device == "cuda" and 2 * torch.cuda.memory_reserved() > torch.cuda.mem_get_info()[1]:
                timing.release_graph_memory()
            for name, message in entries[-1].failures.items():
                progress.console.print(f"[red]{case}, {name}: {message}")
            log.write(entries[-1])
            progress.advance(task)
    return entries


def _rates(cases: list[SequenceCase]) -> dict[tuple[str, str], float]:
    """Multiply-adds per microsecond, and on a CPU per thread, by device and dtype."""
    rates = {}
    if any(case.device == "cpu" and case.dtype == "float32" for case in cases):
        rates["cpu", "float32"] = torch.ops.lltm_peers.multiply_add_rate()
    if dtypes := list(dict.fromkeys(case.dtype for case in cases if case.device == "cuda")):
        rates |= {("cuda", dtype): rate for dtype, rate in measure_rates(dtypes).items()}
    return rates


def _limit(case: SequenceCase, rates: dict[tuple[str, str], float]) -> float | None:
    """Microseconds per step for the multiply-adds alone."""
    rate = rates.get((case.device, case.dtype))
    if rate is None:
        return None
    products = 3 if case.work is Work.TRAINING else 1
    return products * case.multiply_adds / (rate * (case.threads if case.device == "cpu" else 1))


def _graph_sampler(call: Callable[[], object]) -> timing.Sampler:
    once = timing.graph_sampler(call, calls=1)
    return once if once.sample() > 1e6 * LONG_REPLAY else timing.graph_sampler(call, calls=1, replays=REPLAYS)


def _measure(case: SequenceCase, names: list[str], budget: timing.Budget, rates: dict[tuple[str, str], float]) -> Entry:
    if case.device == "cuda":
        budget = timing.SEVEN_ROUNDS
    samplers: dict[str, timing.Sampler] = {}
    failures: dict[str, str] = {}
    synchronize = torch.cuda.synchronize if case.device == "cuda" else lambda: None
    with switches(case.threads, case.dtype == "tf32", case.work is Work.TRAINING):
        for peer in applicable(case, names):
            try:
                call = _make_call(case, peer.make(case))
                samplers[peer.name] = (
                    _graph_sampler(call) if case.clock == "device" else timing.wall_sampler(call, budget, synchronize)
                )
            except Exception as error:  # the other peers are still measured
                failures[peer.name] = failure(error)
        timings = timing.interleave(samplers, budget) if samplers else {}
    steps = case.shape.steps
    return Entry(
        device=case.device,
        threads=case.threads,
        dtype=case.dtype,
        variant=case.variant,
        work=str(case.work),
        shape=str(case.shape),
        clock=case.clock,
        medians={name: found.median / steps for name, found in timings.items()},
        minima={name: found.minimum / steps for name, found in timings.items()},
        failures=failures,
        limit=_limit(case, rates),
        seed=case.seed,
    )


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
