"""The results of a sweep: quantiles, the worst shapes, and a plot of the distribution."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy
from candidates import AUTO
from cases import WORK_TITLES, Shape, Work
from peers import OURS, PEERS
from tables import number, ratio, table, verdict
from targets import CHOSEN_OVER_BEST, NAMED, SWEEP

from .measure import Entry

WORST = 10
CLOCK = {"cuda": "device time", "cpu": "wall time"}

Group = tuple[str, int, str, str]
"""device, threads, dtype, work"""


def quantile(values: Sequence[float], fraction: float) -> float:
    """A quantile with linear interpolation: 0 is the minimum and 1 the maximum."""
    return float(numpy.quantile(values, fraction))


def pool(entries: list[Entry]) -> dict[Group, list[Entry]]:
    """The entries of all runs by group. Repeated measurements of a seed's shape count once, with the last result."""
    found: dict[Group, dict[tuple[int | None, str], Entry]] = defaultdict(dict)
    for entry in entries:
        found[entry.device, entry.threads, entry.dtype, entry.work][entry.seed, entry.shape] = entry
    return {group: list(by_shape.values()) for group, by_shape in found.items()}


def _label(group: Group) -> str:
    device, threads, dtype, _ = group
    where = "GPU" if device == "cuda" else f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    return f"{where}, {dtype}"


def title(group: Group) -> str:
    return f"{_label(group)}, {WORK_TITLES[Work(group[3])]}"


def markdown(entries: list[Entry], on: str) -> str:
    """All tables of a sweep that was measured on the machine `on`."""
    groups = pool(entries)
    seeds = sorted({entry.seed for entry in entries if entry.seed is not None})
    clocks = " and ".join(sorted({CLOCK[entry.device] for entry in entries}))
    parts = [
        f"# Sweep, {on}",
        f"Random shapes, seeds {', '.join(map(str, seeds))}: speedup over the fastest baseline ({clocks})."
        " A shape whose speedup is below 1 is measured three times, and counts with the median.",
        _summary(groups),
    ]
    if any(entry.chosen_over_best for entry in entries):
        parts += [
            "Time of the planner's choice over that of the best forced candidate, of the operator alone.",
            _choice_summary(groups),
        ]
    for group, of_group in groups.items():
        parts += [f"## {title(group)}: worst shapes", _worst(of_group)]
        if any(entry.chosen_over_best for entry in of_group):
            parts += ["Furthest from the best candidate:", _worst_choices(of_group)]
    return "\n\n".join([*parts, *_failures(entries)]) + "\n"


def _summary(groups: dict[Group, list[Entry]]) -> str:
    rows = []
    for group, entries in groups.items():
        speedups = [entry.speedup for entry in entries if entry.speedup is not None]
        if not speedups:
            continue
        worst, median = min(speedups), quantile(speedups, 0.5)
        must = SWEEP.get(group[2]) if group[0] == "cuda" else None
        rows.append(
            [
                title(group),
                ratio(worst),
                ratio(quantile(speedups, 0.1)),
                ratio(median),
                ratio(max(speedups)),
                f"{sum(speedup < 1 for speedup in speedups)} of {len(speedups)}",
                *([verdict(worst, must["worst"]), verdict(median, must[group[3]])] if must else ["", ""]),
            ]
        )
    header = ["", "worst", "10th percentile", "median", "best", "below 1", "worst, target", "median, target"]
    return table(header, rows)


def _choice_summary(groups: dict[Group, list[Entry]]) -> str:
    rows = []
    for group, entries in groups.items():
        found = [value for entry in entries if (value := entry.chosen_over_best)]
        if found:
            ninth = quantile(found, 0.9)
            rows.append(
                [
                    f"{_label(group)}, {'backward' if group[3] == Work.TRAINING else 'forward'}",
                    ratio(quantile(found, 0.5)),
                    ratio(ninth),
                    ratio(max(found)),
                    verdict(ninth, CHOSEN_OVER_BEST, at_least=False),
                ]
            )
    return table(["chosen / best", "median", "90th percentile", "worst", "90th percentile, target"], rows)


def _worst(entries: list[Entry]) -> str:
    ordered = sorted((entry for entry in entries if entry.speedup is not None), key=lambda entry: entry.speedup)
    peers = [name for name in PEERS if name != OURS and any(name in entry.times for entry in entries)]
    rows = [
        [entry.shape, ratio(entry.speedup), *(number(entry.times.get(name)) for name in (OURS, *peers))]
        for entry in ordered[:WORST]
    ]
    return table(["shape", "speedup", OURS, *peers], rows)


def _worst_choices(entries: list[Entry]) -> str:
    measured = [entry for entry in entries if entry.chosen_over_best]
    rows = []
    for entry in sorted(measured, key=lambda entry: -entry.chosen_over_best)[:WORST]:
        best = min(entry.candidates, key=entry.candidates.__getitem__)
        times = (number(entry.candidates[AUTO]), number(entry.candidates[best]))
        rows.append([entry.shape, ratio(entry.chosen_over_best), *times, best])
    return table(["shape", "chosen / best", "chosen", "best", "best candidate"], rows)


def _failures(entries: list[Entry]) -> list[str]:
    lines = [
        f"- {entry.device} {entry.dtype} {entry.work} {entry.shape}, {name}: {message}"
        for entry in entries
        for name, message in entry.failures.items()
    ]
    return ["## Failures", "\n".join(lines)] if lines else []


def named_markdown(entries: list[Entry], on: str) -> str:
    """The named shapes and their targets."""
    parts = [f"# Named shapes, {on}", "Device microseconds (on a CPU: wall time), the target and whether it is met."]
    for group, of_group in pool(entries).items():
        rows = []
        for entry in of_group:
            target = NAMED[entry.dtype, Shape.parse(entry.shape)][entry.work]
            ours = entry.times.get(OURS)
            rows.append(
                [
                    entry.shape,
                    number(ours),
                    verdict(ours, target, at_least=False) if ours and entry.device == "cuda" else number(target),
                    f"{number(entry.times[entry.best_peer])} ({entry.best_peer})" if entry.best_peer else "",
                    ratio(entry.speedup),
                    ratio(entry.chosen_over_best),
                ]
            )
        header = ["shape", OURS, "target", "fastest baseline", "speedup", "chosen / best candidate"]
        parts += [f"## {title(group)}", table(header, rows)]
    return "\n\n".join([*parts, *_failures(entries)]) + "\n"


def draw(entries: list[Entry], path: Path) -> None:
    """The cumulative distribution of the speedup: the fraction of shapes below each speedup."""
    groups = pool(entries)
    works = list(dict.fromkeys(group[3] for group in groups))
    figure, panels = plt.subplots(1, len(works), figsize=(6.5 * len(works), 4.5), squeeze=False, layout="constrained")
    for axes, work in zip(panels[0], works, strict=True):
        for group, of_group in groups.items():
            speedups = sorted(entry.speedup for entry in of_group if entry.speedup is not None)
            if group[3] == work and speedups:
                shares = [(index + 0.5) / len(speedups) for index in range(len(speedups))]
                axes.plot(speedups, shares, label=f"{_label(group)} (n = {len(speedups)})", linewidth=1.8)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axes.set_xlabel("speedup over the fastest baseline")
        axes.set_ylabel("share of shapes with less")
        axes.set_ylim(0, 1)
        axes.set_title(WORK_TITLES[Work(work)])
        axes.grid(True, which="both", alpha=0.25)
        axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=130)
    plt.close(figure)
