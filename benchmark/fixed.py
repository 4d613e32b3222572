"""The cell at fixed shapes: the times and errors of every peer, memory, and the ways to call it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import calls
import timing
import torch
from cases import DTYPES, TUTORIAL_SHAPES, Case, Shape, Work, make_cases
from peers import PEERS, Peer, applicable
from results import Row, Task
from roofline import measure_rates, roofline
from workload import environment, errors, kept_bytes, make_call

SECTIONS = (*(str(work) for work in Work), "memory", "calls", "tutorial")


@dataclass(frozen=True)
class Settings:
    build_dir: Path
    devices: list[str]
    threads: list[int]
    sections: list[str]
    dtypes: list[str]
    shapes: list[Shape]
    peers: list[str]
    quick: bool
    seconds: float | None

    @property
    def budget(self) -> timing.Budget:
        budget = timing.QUICK if self.quick else timing.FULL
        return dataclasses.replace(budget, seconds=self.seconds) if self.seconds else budget


def tasks(settings: Settings) -> list[Task]:
    works = [work for work in Work if str(work) in settings.sections]
    cases = make_cases(settings.devices, settings.threads, works, settings.dtypes, settings.shapes)
    on_gpu = [dtype for dtype in DTYPES["cuda"] if any(c.device == "cuda" and c.dtype == dtype for c in cases)]
    rates = measure_rates(on_gpu) if on_gpu else {}
    peers = [PEERS[name] for name in settings.peers if PEERS[name].is_cell]
    extras = {
        "memory": lambda device: _memory(device, peers),
        "calls": lambda device: _calls(device, settings),
        "tutorial": lambda device: _tutorial(device, peers, settings),
    }
    return [(str(case), partial(_measure, case, settings, rates)) for case in cases] + [
        (f"{device} {section}", partial(extra, device))
        for device in settings.devices
        for section, extra in extras.items()
        if section in settings.sections
    ]


def _measure(case: Case, settings: Settings, rates: dict[str, float]) -> Iterator[Row]:
    # Compiled code is specialized on sizes and threads. Reset, to stay within Dynamo's limit of recompilations.
    torch._dynamo.reset()
    torch._inductor.config.cpp.threads = case.threads
    with environment(case):
        cells = {
            peer: peer.make(case.shape, case.device, case.torch_dtype) for peer in applicable(case, settings.peers)
        }
        found_errors = errors(case, cells)
        step = {peer.name: make_call(case, cell) for peer, cell in cells.items()}
        if case.device == "cuda":
            clocks = {
                "device": timing.cuda_graph(step, settings.budget),
                "wall": timing.wall(step, settings.budget, torch.cuda.synchronize),
            }
        else:
            clocks = {"wall": timing.wall(step, settings.budget)}
    for clock, timings in clocks.items():
        limit = roofline(case.work, case.shape, case.dtype, rates) if clock == "device" else None
        for name, found in timings.items():
            mean, largest = found_errors.get(name, (None, None))
            yield Row(
                "cell",
                **case.columns(),
                peer=name,
                us=found.median,
                low=found.low,
                high=found.high,
                clock=clock,
                limit=limit,
                error_mean=mean,
                error_max=largest,
            )


def _memory(device: str, peers: list[Peer]) -> Iterator[Row]:
    for shape in TUTORIAL_SHAPES:
        case = Case(device, torch.get_num_threads(), Work.TRAINING, "float32", shape)
        torch._dynamo.reset()
        with environment(case):
            for peer in peers:
                total, beyond = kept_bytes(case, peer.make(shape, device, torch.float32))
                yield Row("memory", **case.columns(), peer=peer.name, bytes=total, bytes_beyond_results=beyond)


def _calls(device: str, settings: Settings) -> Iterator[Row]:
    python = {name: found.median for name, found in calls.python_calls(device, settings.budget).items()}
    for caller, us in (python | calls.cpp_calls(settings.build_dir).get(device, {})).items():
        yield Row("calls", device, work=str(Work.FORWARD), shape=str(TUTORIAL_SHAPES[0]), peer=caller, us=us)


def _tutorial(device: str, peers: list[Peer], settings: Settings) -> Iterator[Row]:
    torch._dynamo.reset()
    for name, times in calls.tutorial_table(device, peers, settings.budget).items():
        for work, us in zip(("forward", "backward"), times, strict=True):
            yield Row("tutorial", device, work=work, shape=str(TUTORIAL_SHAPES[0]), peer=name, us=us)
