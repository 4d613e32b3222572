"""What is measured of the cell besides its time at fixed shapes: memory, the ways to call it, the tutorial's table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import calls
import timing
import torch
from cases import TUTORIAL_SHAPES, Case, Work
from peers import PEERS, Peer
from results import Row, Task
from workload import environment, kept_bytes

SECTIONS = ("memory", "calls", "tutorial")


def tasks(devices: list[str], sections: list[str], names: list[str], budget: timing.Budget) -> list[Task]:
    peers = [PEERS[name] for name in names]
    measure = {
        "memory": lambda device: _memory(device, peers),
        "calls": lambda device: _calls(device, budget),
        "tutorial": lambda device: _tutorial(device, peers, budget),
    }
    return [
        (f"{device} {section}", partial(measure[section], device))
        for device in devices
        for section in SECTIONS
        if section in sections
    ]


def _memory(device: str, peers: list[Peer]) -> Iterator[Row]:
    for shape in TUTORIAL_SHAPES:
        case = Case(device, torch.get_num_threads(), Work.TRAINING, "float32", shape)
        torch._dynamo.reset()
        with environment(case):
            for peer in peers:
                total, beyond = kept_bytes(case, peer.make(case))
                yield Row("memory", **case.columns(), peer=peer.name, bytes=total, bytes_beyond_results=beyond)


def _calls(device: str, budget: timing.Budget) -> Iterator[Row]:
    for caller, found in calls.python_calls(device, budget).items():
        yield Row("calls", device, work=str(Work.FORWARD), shape=str(TUTORIAL_SHAPES[0]), peer=caller, us=found.median)


def _tutorial(device: str, peers: list[Peer], budget: timing.Budget) -> Iterator[Row]:
    torch._dynamo.reset()
    for name, times in calls.tutorial_table(device, peers, budget).items():
        for work, us in zip(("forward", "backward"), times, strict=True):
            yield Row("tutorial", device, work=work, shape=str(TUTORIAL_SHAPES[0]), peer=name, us=us)
