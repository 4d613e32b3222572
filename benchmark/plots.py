"""Plots of a run: time against state size by peer, and the speedup over the fastest baseline."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cases import WORK_TITLES, Shape, Work
from peers import OURS, PEERS
from report import best_peer, groups, title
from results import Measurement, Results

Bar = tuple[str, float, str]
"""label, speedup, fastest baseline"""

# The color of each peer in all plots.
COLORS = {name: f"C{index}" for index, name in enumerate(PEERS)}


def draw(run: Results, folder: Path) -> None:
    """Write one PNG per group of measurements, and one with the ratios of each device."""
    bars: dict[str, list[Bar]] = {}
    for work in Work:
        for group, shapes in groups(run, (work,)).items():
            by_shape = {shape: by_work[work] for shape, by_work in shapes.items()}
            heading = f"{title(group)}, {WORK_TITLES[work]}"
            if len(by_shape) > 1:
                name = "-".join(str(part) for part in (*group, work))
                _time_against_size(heading, by_shape, folder / f"time-{name}.png")
            for shape, by_peer in by_shape.items():
                best = best_peer(by_peer.values())
                if best and OURS in by_peer:
                    bar = (f"{heading}\n{shape}", best.median / by_peer[OURS].median, best.peer)
                    bars.setdefault(group[0], []).append(bar)
    for device, of_device in bars.items():
        _speedups(of_device, folder / f"speedup-{device}.png")


def _time_against_size(heading: str, shapes: dict[str, dict[str, Measurement]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 5.5), layout="constrained")
    order = sorted(map(Shape.parse, shapes), key=lambda shape: (shape.state_size, shape.multiply_adds_of_a_gate))
    for name in PEERS:
        entries = [shapes[str(shape)][name] for shape in order if name in shapes[str(shape)]]
        if not entries:
            continue
        sizes = [entry.state_size for entry in entries]
        times = [entry.median for entry in entries]
        bars = [[e.median - e.low for e in entries], [e.high - e.median for e in entries]]
        axes.errorbar(
            sizes, times, yerr=bars, label=PEERS[name].title, color=COLORS[name],
            marker="o" if PEERS[name].is_cell else "x", markersize=5, linestyle="none", capsize=2,
            zorder=3 if name == OURS else 2,
        )  # fmt: skip
        best = {size: min(t for s, t in zip(sizes, times, strict=True) if s == size) for size in sizes}
        axes.plot(list(best), list(best.values()), color=COLORS[name], linewidth=2.2 if name == OURS else 1,
                  linestyle="-" if PEERS[name].is_cell else ":")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("state size (several shapes at one size; the line joins the smallest)")
    axes.set_ylabel("microseconds per call")
    axes.set_title(heading)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _speedups(bars: list[Bar], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.3 * len(bars)), layout="constrained")
    labels, ratios, names = zip(*reversed(bars), strict=True)
    positions = range(len(bars))
    axes.barh(positions, ratios, color=[COLORS[name] for name in names], height=0.7)
    for position, ratio, name in zip(positions, ratios, names, strict=True):
        axes.text(ratio, position, f" {ratio:.2f} ({name})", va="center", fontsize=7)
    axes.set_yticks(positions, labels, fontsize=6)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, max(ratios) * 1.15)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_xlabel("speedup over the fastest baseline")
    figure.savefig(path, dpi=110)
    plt.close(figure)
