"""The demo's picture: how both models learn, over updates and over time, and how fast they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from stream import Report

matplotlib.use("Agg")  # write a file without opening a window

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

MUTED, GRID = "#6e7781", "#e4e7eb"
COLORS = {"LLTM": "#1f6feb", "LSTM": "#bf8700"}
LABELS = {"LLTM": "lltm.LLTM", "LSTM": "nn.LSTM"}

STYLE = Path(__file__).parents[1] / "picture.mplstyle"


def draw_loss(axis: Axes, curves: Mapping[str, Sequence[Report]], title: str, by_time: bool) -> None:
    """Bits per byte: a line for the held-out files, a faint one for the training text."""
    for name, reports in curves.items():
        x = [report.seconds if by_time else report.step for report in reports]
        axis.plot(x, [report.loss for report in reports], color=COLORS[name], linewidth=1, alpha=0.4)
        axis.plot(x, [report.held_out for report in reports], color=COLORS[name], linewidth=2.2, label=LABELS[name])
    last = min(min(report.held_out, report.loss) for reports in curves.values() for report in reports)
    first = max(reports[min(1, len(reports) - 1)].held_out for reports in curves.values())
    axis.set(title=title, xlabel="seconds of training" if by_time else "updates", ylim=(last - 0.15, first + 0.15))
    axis.set_xlim(left=0)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)


def draw_speed(axis: Axes, curves: Mapping[str, Sequence[Report]], bytes_per_step: int) -> None:
    for position, (name, reports) in enumerate(curves.items()):
        last = reports[-1]
        speed = last.step * bytes_per_step / last.seconds / 1e3
        axis.bar(position, speed, color=COLORS[name], width=0.6)
        axis.annotate(
            f"{speed:.1f}", (position, speed), ha="center", va="bottom", fontweight="bold", color=COLORS[name]
        )
    axis.set(title="Training speed, kB/s", xticks=range(len(curves)), yticks=[], xlim=(-0.7, len(curves) - 0.3))
    axis.set_xticklabels([LABELS[name] for name in curves])
    axis.spines["left"].set_visible(False)


def draw(
    path: Path, curves: Mapping[str, Sequence[Report]], parameters: Mapping[str, int], bytes_per_step: int
) -> None:
    """Writes the picture as a PNG: the reports of each model's training, and its number of parameters."""
    with plt.style.context(STYLE):
        figure = plt.figure(figsize=(12, 5), dpi=150, facecolor="white")
        grid = figure.add_gridspec(
            1, 3, left=0.055, right=0.98, top=0.73, bottom=0.12, wspace=0.2, width_ratios=(4, 4, 2)
        )
        caption = ", ".join(
            f"{LABELS[name]} of {parameters[name]:,} parameters at {reports[-1].held_out:.2f} bits per byte"
            for name, reports in curves.items()
        )
        figure.text(0.055, 0.9, "Two byte-level models of Python's standard library", fontsize=17, fontweight="bold")
        figure.text(0.055, 0.845, f"{caption} on held-out files; the thin lines are the training text", color=MUTED)
        left, middle, right = (figure.add_subplot(cell) for cell in grid)
        draw_loss(left, curves, "Bits per byte, by updates", by_time=False)
        left.legend(frameon=False, loc="upper right")
        draw_loss(middle, curves, "Bits per byte, by time", by_time=True)
        draw_speed(right, curves, bytes_per_step)
        figure.savefig(path)
        plt.close(figure)
