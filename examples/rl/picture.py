"""The demo's picture: how both agents learn, over steps and over time, and how long their updates take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from cartpole import LIMIT
from ppo import Report

matplotlib.use("Agg")  # write a file without opening a window

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

MUTED, GRID = "#6e7781", "#e4e7eb"
COLORS = {"LLTM": "#1f6feb", "LSTM": "#bf8700"}
LABELS = {"LLTM": "lltm.LLTM with reset", "LSTM": "nn.LSTM in pieces"}

STYLE = Path(__file__).parents[1] / "picture.mplstyle"

Runs = Mapping[str, Sequence[Sequence[Report]]]
"""The reports of each run of each agent."""


def seconds(report: Report) -> float:
    return report.collecting + report.learning


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def learning_speedup(runs: Runs) -> float:
    """How many times as long the updates of the LSTM take as those of the LLTM."""
    times = {name: mean([reports[-1].learning for reports in of_agent]) for name, of_agent in runs.items()}
    return times["LSTM"] / times["LLTM"]


def draw_learning(axis: Axes, runs: Runs, title: str, by_time: bool) -> None:
    """A faint line for each run, and one for the mean of the runs of an agent."""
    for name, of_agent in runs.items():
        steps = list(zip(*of_agent, strict=True))  # the reports of all runs after each rollout
        for reports in of_agent:
            x = [seconds(report) if by_time else report.steps for report in reports]
            axis.plot(x, [report.length for report in reports], color=COLORS[name], linewidth=0.8, alpha=0.35)
        x = [mean([seconds(report) for report in reports]) if by_time else reports[0].steps for reports in steps]
        y = [mean([report.length for report in reports]) for reports in steps]
        axis.plot(x, y, color=COLORS[name], linewidth=2.2, label=LABELS[name])
    axis.axhline(LIMIT, color=MUTED, linewidth=0.8, linestyle=":")
    axis.set(title=title, xlabel="seconds of training" if by_time else "steps", ylim=(0, LIMIT * 1.04))
    axis.set_xlim(left=0)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)


def draw_times(axis: Axes, runs: Runs) -> None:
    """The processor time of a rollout and of the updates with it, in milliseconds."""
    for position, (name, of_agent) in enumerate(runs.items()):
        base = 0.0
        for part, alpha in (("collecting", 0.4), ("learning", 1.0)):
            time = mean([1e3 * getattr(reports[-1], part) / len(reports) for reports in of_agent])
            axis.bar(position, time, bottom=base, color=COLORS[name], alpha=alpha, width=0.6)
            axis.annotate(f"{part}\n{time:.0f}", (position, base + time / 2), ha="center", va="center", fontsize=9)
            base += time
    axis.set(title="A rollout, ms", xticks=range(len(runs)), yticks=[], xlim=(-0.6, len(runs) - 0.4))
    axis.set_xticklabels(runs)
    axis.spines["left"].set_visible(False)


def draw(path: Path, runs: Runs, parameters: Mapping[str, int]) -> None:
    """Writes the picture as a PNG: the reports of each run, and the number of parameters of each agent's layer."""
    with plt.style.context(STYLE):
        figure = plt.figure(figsize=(12, 5), dpi=150, facecolor="white")
        grid = figure.add_gridspec(
            1, 3, left=0.055, right=0.98, top=0.73, bottom=0.12, wspace=0.2, width_ratios=(4, 4, 2)
        )
        count = len(next(iter(runs.values())))
        caption = ", ".join(f"{LABELS[name]} ({parameters[name]:,} parameters)" for name in runs)
        caption += f", whose updates take {learning_speedup(runs):.1f} times as long; {count} runs each"
        figure.text(0.055, 0.9, "Recurrent PPO balances poles whose velocity it cannot see", fontsize=17, weight="bold")
        figure.text(0.055, 0.845, caption, color=MUTED)
        left, middle, right = (figure.add_subplot(cell) for cell in grid)
        draw_learning(left, runs, "Steps of an episode, by steps", by_time=False)
        left.legend(frameon=False, loc="lower right")
        draw_learning(middle, runs, "Steps of an episode, by time", by_time=True)
        draw_times(right, runs)
        figure.savefig(path)
        plt.close(figure)
