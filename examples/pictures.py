"""What the pictures of the demos have in common: their style, a figure with a title and a caption, curves and bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")  # write a file without opening a window

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TEXT, MUTED, GRID = "#22272e", "#6e7781", "#e4e7eb"
COLORS = {"lltm.LLTM": "#1f6feb", "lltm.LSTM": "#1a7f37", "nn.LSTM": "#bf8700", "lltm.GRU": "#8250df"}

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": "DejaVu Sans",
    "font.size": 10,
    "text.color": TEXT,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}

LEFT = 0.055


@contextmanager
def figure(path: Path, title: str, caption: str, height: float = 5) -> Iterator[Figure]:
    """A figure 12 inches wide, which is written to the path as a PNG."""
    with plt.style.context(STYLE):
        drawn = plt.figure(figsize=(12, height), dpi=150, facecolor="white")
        drawn.text(LEFT, 1 - 0.5 / height, title, fontsize=17, fontweight="bold")
        drawn.text(LEFT, 1 - 0.775 / height, caption, color=MUTED)
        yield drawn
        drawn.savefig(path)
        plt.close(drawn)


class Curve(NamedTuple):
    name: str
    """A key of COLORS."""
    x: Sequence[float]
    y: Sequence[float]
    label: str | None = None
    """In the legend. A curve without one is thin and faint."""


def draw_curves(axis: Axes, curves: Sequence[Curve], title: str, xlabel: str) -> None:
    for name, x, y, label in curves:
        width, alpha = (2.2, 1) if label else (1, 0.4)
        axis.plot(x, y, color=COLORS[name], linewidth=width, alpha=alpha, label=label)
    axis.set(title=title, xlabel=xlabel)
    axis.set_xlim(left=0)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)


def draw_bars(axis: Axes, bars: Mapping[str, Mapping[str, float]], title: str) -> None:
    """A bar for each name, of labelled parts, the later ones darker."""
    for position, (name, parts) in enumerate(bars.items()):
        base = 0.0
        for index, (part, value) in enumerate(parts.items()):
            alpha = 0.35 if index + 1 < len(parts) else 0.75
            axis.bar(position, value, bottom=base, color=COLORS[name], alpha=alpha, width=0.7)
            axis.annotate(f"{part}\n{value:.3g}".strip(), (position, base + value / 2), ha="center", va="center")
            base += value
    axis.set(title=title, xticks=range(len(bars)), yticks=[], xlim=(-0.6, len(bars) - 0.4))
    axis.set_xticklabels(bars)
    axis.spines["left"].set_visible(False)


def panels(drawn: Figure) -> list[Axes]:
    """Two wide panels, and a narrow one on the right."""
    grid = drawn.add_gridspec(1, 3, left=LEFT, right=0.98, top=0.73, bottom=0.12, wspace=0.2, width_ratios=(4, 4, 3))
    return [drawn.add_subplot(cell) for cell in grid]
