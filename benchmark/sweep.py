"""Sweeps: random shapes, in every dtype and kind of work, compared with the peers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import timing
from cases import Case, Shape, Work, log_uniform
from peers import OURS, PEERS, applicable, prepare_dynamic_compilation
from results import Row, Task
from workload import environment, make_call

SMALLEST = Shape(1, 8, 16)
LARGEST = Shape(4096, 2048, 2048)
WORK_LIMIT = 256 * 4096 * 2048
"""The largest Shape.multiply_adds_of_a_gate: the batch is halved until there are no more."""
MULTIPLE = 8
UNROUNDED_OF_FIVE = 2


def draw(count: int, seed: int, largest: Shape = LARGEST) -> list[Shape]:
    """Draws `count` shapes with log-uniform sizes between SMALLEST and `largest`. In three of five, input features and
    state size are rounded up to a multiple of 8; the others are not rounded, so most of them are unaligned."""
    generator = random.Random(seed)

    def rounded(size: int, high: int) -> int:
        return min(math.ceil(size / MULTIPLE) * MULTIPLE, high)

    shapes = []
    for index in range(count):
        batch = log_uniform(generator, SMALLEST.batch, largest.batch)
        features = log_uniform(generator, SMALLEST.input_features, largest.input_features)
        state = log_uniform(generator, SMALLEST.state_size, largest.state_size)
        if index % 5 >= UNROUNDED_OF_FIVE:
            features, state = rounded(features, largest.input_features), rounded(state, largest.state_size)
        shape = Shape(batch, features, state)
        while shape.batch > 1 and shape.multiply_adds_of_a_gate > WORK_LIMIT:
            shape = replace(shape, batch=shape.batch // 2)
        shapes.append(shape)
    return shapes


SMALLEST_SEQUENCE = Shape(1, 8, 16, steps=16)
LARGEST_SEQUENCE = Shape(1024, 1024, 1024, steps=512)


def draw_sequences(count: int, seeds: list[int], largest: Shape = LARGEST_SEQUENCE) -> list[tuple[int, Shape]]:
    """Draws `count` sequences of each seed, with log-uniform sizes between SMALLEST_SEQUENCE and `largest`. In half of
    them, the input has as many features as the state. The seeds take turns, so that a run that ends early has shapes of
    each."""
    smallest = SMALLEST_SEQUENCE

    def one(generator: random.Random) -> Shape:
        steps = log_uniform(generator, smallest.steps, largest.steps)
        batch = log_uniform(generator, smallest.batch, largest.batch)
        features = log_uniform(generator, smallest.input_features, largest.input_features)
        state = log_uniform(generator, smallest.state_size, largest.state_size)
        return Shape(batch, state if generator.random() < 0.5 else features, state, steps)

    generators = {seed: random.Random(seed) for seed in seeds}
    return [(seed, one(generator)) for _ in range(count) for seed, generator in generators.items()]


LARGEST_STEP = Shape(1024, 1024, 1024)


def draw_steps(count: int, seeds: list[int], largest: Shape = LARGEST_STEP) -> list[tuple[int, Shape]]:
    """Draws `count` shapes of single steps of each seed. The seeds take turns, as those of sequences do."""
    drawn = [[(seed, shape) for shape in draw(count, seed, largest)] for seed in seeds]
    return [each for turn in zip(*drawn, strict=True) for each in turn]


REPETITIONS = 3
"""How often a case is measured if a peer is faster."""


def tasks(cases: list[Case], peers: list[str]) -> list[Task]:
    prepare_dynamic_compilation()
    return [
        ("compiling", partial(_compile, cases, peers)),
        *((str(case), partial(_measure, "sweep", case, OURS, peers)) for case in cases),
    ]


def tasks_of_pairs(section: str, case: Case, pairs: dict[str, str]) -> list[Task]:
    """One for each layer or cell of this library that computes the case, beside its counterpart."""
    return [
        (f"{case}, {ours}", partial(_measure, section, case, ours, [theirs]))
        for ours, theirs in pairs.items()
        if applicable(case, [ours])
    ]


# Even with dynamic shapes, the compiler optimizes for the first shape that it sees.
_TYPICAL = Shape(256, 520, 504)


def _compile(cases: list[Case], peers: list[str]) -> list[Row]:
    """Compile what the peers compile once per dtype and kind of work."""
    if "dynamic" in peers:
        for case in dict.fromkeys(Case(c.device, c.threads, c.work, c.dtype, _TYPICAL) for c in cases):
            with environment(case):
                make_call(case, PEERS["dynamic"].make(case))()
    return []


def calls_per_graph(case: Case) -> int:
    """The number of calls in a graph of about 100 microseconds, so that small cells are measured precisely and large
    ones quickly; a multiple of the number of alternating inputs. Fewer calls of several steps."""
    steps, work = case.shape.steps, case.shape.multiply_adds_of_a_gate
    if case.work is Work.TRAINING:
        calls = 12 if work < 1e8 else 4
    else:
        calls = 20 if work < 3e7 else 12 if work < 3e8 else 4
    return max(4, calls // (4 * steps) * 4)


def _measure(section: str, case: Case, ours: str, others: list[str]) -> Iterator[Row]:
    with environment(case):
        samplers, failures = timing.attempt(
            case,
            {
                peer.name: lambda peer=peer: _sampler(case, make_call(case, peer.make(case)))
                for peer in applicable(case, [ours, *others])
            },
        )
        times = _times(samplers, ours, timing.GPU_RACE if case.device == "cuda" else timing.CPU_RACE)
    clock = "device" if case.device == "cuda" else "wall"
    for name, us in times.items():
        yield Row(section, **case.columns(), peer=name, us=us / case.shape.steps, clock=clock)
    yield from failures


def _sampler(case: Case, call: Callable[[], object]) -> timing.Sampler:
    if case.device == "cuda":
        return timing.graph_sampler(call, calls_per_graph(case))
    return timing.wall_sampler(call, timing.BRIEF)


def _times(samplers: dict[str, timing.Sampler], ours: str, rules: timing.Race) -> dict[str, float]:
    """Times by peer. If one is faster than this library, measures twice more and takes the run with the median of the
    speedups."""

    def speedup(times: dict[str, float]) -> float:
        return min((us for name, us in times.items() if name != ours), default=math.inf) / times[ours]

    runs = [timing.race(samplers, {ours}, rules)]
    if ours in samplers and speedup(runs[0]) < 1:
        runs += [timing.race(samplers, {ours}, rules) for _ in range(REPETITIONS - 1)]
        middle = median(map(speedup, runs))
        return next(times for times in runs if speedup(times) == middle)
    return runs[0]
