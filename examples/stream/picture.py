"""The demo's picture: how the models learn, over updates and over time, and how fast they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stream import Report

sys.path.append(str(Path(__file__).parents[1]))

import pictures
from pictures import Curve


def curves(reports_of: Mapping[str, Sequence[Report]], by_time: bool) -> list[Curve]:
    """Bits per byte on the held-out files and, without a label, on the training text."""
    found = []
    for name, reports in reports_of.items():
        x = [report.seconds if by_time else report.step for report in reports]
        found.append(Curve(name, x, [report.loss for report in reports]))
        found.append(Curve(name, x, [report.held_out for report in reports], name))
    return found


def draw(
    path: Path, reports_of: Mapping[str, Sequence[Report]], parameters: Mapping[str, int], bytes_per_step: int
) -> None:
    """Writes the picture as a PNG: the reports of each model's training, and its number of parameters."""
    sizes = ", ".join(f"{name} ({count:,})" for name, count in parameters.items())
    caption = f"Parameters: {sizes}. Thick lines: held-out files; thin lines: the training text"
    last = {name: reports[-1] for name, reports in reports_of.items()}
    speeds = {name: {"": report.step * bytes_per_step / report.seconds / 1e3} for name, report in last.items()}
    losses = [loss for reports in reports_of.values() for report in reports for loss in (report.held_out, report.loss)]
    highest = max(reports[min(1, len(reports) - 1)].held_out for reports in reports_of.values())
    with pictures.figure(path, "Byte-level models of Python's standard library", caption) as figure:
        left, middle, right = pictures.panels(figure)
        title = "Cross entropy, bits per byte"
        pictures.draw_curves(left, curves(reports_of, by_time=False), title, "updates")
        pictures.draw_curves(middle, curves(reports_of, by_time=True), f"{title}, by time", "seconds of processor time")
        for axis in (left, middle):
            axis.set_ylim(min(losses) - 0.15, highest + 0.15)
        left.legend(frameon=False, loc="upper right")
        pictures.draw_bars(right, speeds, "Training throughput, kB/s")
