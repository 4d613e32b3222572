"""The demo's picture: how the agents learn, over steps and over time, and how long their updates take."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cartpole import LIMIT
from ppo import Report

sys.path.append(str(Path(__file__).parents[1]))

import pictures
from pictures import Curve

LABELS = {f"lltm.{name}": f"lltm.{name} with reset" for name in ("LLTM", "LSTM", "GRU")}
LABELS["nn.LSTM"] = "nn.LSTM in pieces"

Runs = Mapping[str, Sequence[Sequence[Report]]]
"""The reports of each run of each agent."""


def seconds(report: Report) -> float:
    return report.collecting + report.learning


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def learning_speedups(runs: Runs) -> dict[str, float]:
    """How many times as long the updates of nn.LSTM take as those of each other layer."""
    times = {name: mean([reports[-1].learning for reports in agent_runs]) for name, agent_runs in runs.items()}
    return {name: times["nn.LSTM"] / time for name, time in times.items() if name != "nn.LSTM"}


def curves(runs: Runs, by_time: bool) -> list[Curve]:
    """The length of the episodes: for each agent the mean of its runs and, without a label, each run."""
    found = []
    for name, agent_runs in runs.items():
        for reports in agent_runs:
            x = [seconds(report) if by_time else report.steps / 1e3 for report in reports]
            found.append(Curve(name, x, [report.length for report in reports]))
        steps = list(zip(*agent_runs, strict=True))  # the reports of all runs after each rollout
        x = [mean([seconds(report) if by_time else report.steps / 1e3 for report in reports]) for reports in steps]
        found.append(Curve(name, x, [mean([report.length for report in reports]) for reports in steps], LABELS[name]))
    return found


def times(runs: Runs) -> dict[str, dict[str, float]]:
    """The processor time of a rollout and of the updates with it, in milliseconds."""
    return {
        name: {
            title: mean([1e3 * getattr(reports[-1], part) / len(reports) for reports in agent_runs])
            for part, title in (("collecting", "rollout"), ("learning", "updates"))
        }
        for name, agent_runs in runs.items()
    }


def draw(path: Path, runs: Runs, parameters: Mapping[str, int]) -> None:
    """Writes the picture as a PNG: the reports of each run, and the number of parameters of each agent's layer."""
    sizes = ", ".join(f"{name} ({count:,})" for name, count in parameters.items())
    count = len(next(iter(runs.values())))
    caption = f"Parameters: {sizes}. Thick lines: the mean of {count} seeds; thin lines: each seed"
    with pictures.figure(path, "Recurrent PPO on CartPole without velocities", caption) as figure:
        left, middle, right = pictures.panels(figure)
        title = f"Episode length (at most {LIMIT})"
        pictures.draw_curves(left, curves(runs, by_time=False), title, "environment steps, thousands")
        pictures.draw_curves(middle, curves(runs, by_time=True), f"{title}, by time", "seconds of processor time")
        for axis in (left, middle):
            axis.axhline(LIMIT, color=pictures.MUTED, linewidth=0.8, linestyle=":")
            axis.set_ylim(0, LIMIT * 1.04)
        left.legend(frameon=False, loc="lower right")
        pictures.draw_bars(right, times(runs), "Time per iteration, ms")
