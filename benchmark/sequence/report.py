"""Tables of a run over sequences, and of a sweep over random ones."""

from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy
from cases import WORK_TITLES, Work
from tables import number, pair, ratio, table, verdict
from targets import SEQUENCE_ON_CPU, SEQUENCE_OVER_LOOP

from .cases import VARIANTS
from .measure import Entry
from .peers import BASELINES, MODULE, OPERATOR, PEERS

Group = tuple[str, int, str]
"""device, threads, dtype"""
Case = tuple[str, str]
"""variant, shape"""


def speedup(entry: Entry | None) -> float | None:
    """The time of the faster of nn.LSTM and nn.GRU over ours: lltm.LLTM's, or the operator's if there is no module."""
    if entry is None:
        return None
    baselines = [entry.times[name] for name in BASELINES if name in entry.times]
    ours = entry.times.get(MODULE, entry.times.get(OPERATOR))
    return min(baselines) / ours if baselines and ours else None


def over_loop(entry: Entry | None) -> float | None:
    """The time of a loop of cells over ours."""
    ours = entry.times.get(MODULE, entry.times.get(OPERATOR)) if entry else None
    return entry.times["loop"] / ours if ours and "loop" in entry.times else None


def groups(entries: list[Entry]) -> dict[Group, dict[Case, dict[str, Entry]]]:
    """Entries by machine part and dtype, then by variant and shape, then by work."""
    found: dict[Group, dict[Case, dict[str, Entry]]] = defaultdict(lambda: defaultdict(dict))
    for entry in entries:
        found[entry.device, entry.threads, entry.dtype][entry.variant, entry.shape][entry.work] = entry
    return found


def title(group: Group) -> str:
    device, threads, dtype = group
    return f"{'GPU' if device == 'cuda' else f'CPU, {threads} thread' + 's' * (threads > 1)}, {dtype}"


def markdown(entries: list[Entry], on: str) -> str:
    how = {
        "cpu": "CPU: wall time, the minimum of the samples; *limit*: the multiply-adds of three gates alone, as fast as"
        " the cores do them in registers.",
        "cuda": "GPU: device time by replay of a graph, the median of the samples; packed: wall time.",
    }
    parts = [
        f"# Sequences, {on}",
        "Microseconds per step, forward / forward and backward with the gradients of input and all parameters. Shape:"
        " steps, batch, input features, state size. Speedup over the faster of nn.LSTM and nn.GRU. "
        + " ".join(how[device] for device in dict.fromkeys(entry.device for entry in entries)),
        "\n".join(f"- {name}: {what}" for name, what in VARIANTS.items()),
    ]
    for group, cases in groups(entries).items():
        limits = any(entry.limit for works in cases.values() for entry in works.values())
        names = [name for name in PEERS if any(name in e.medians for works in cases.values() for e in works.values())]
        rows = [
            _row(group, case, works, names, limits)
            for case, works in sorted(cases.items(), key=lambda item: _order(*item[0]))
        ]
        header = [
            "variant",
            "shape",
            *names,
            *(["limit"] if limits else []),
            "speedup",
            "target" if group[0] == "cpu" else "over the loop, target",
        ]
        parts += [f"## {title(group)}", table(header, rows)]
    return "\n\n".join([*parts, *_failures(entries)]) + "\n"


def _failures(entries: list[Entry]) -> list[str]:
    lines = [
        f"- {entry.device} {entry.dtype} {entry.shape} {entry.variant}, {entry.work}, {name}: {message}"
        for entry in entries
        for name, message in entry.failures.items()
    ]
    return ["## Failures", "\n".join(lines)] if lines else []


def _order(variant: str, shape: str) -> tuple:
    return (list(VARIANTS).index(variant), *(int(size) for size in reversed(shape.split(","))))


def _row(group: Group, case: Case, works: dict[str, Entry], names: list[str], limits: bool) -> list[str]:
    forward, training = works.get(Work.FORWARD.value), works.get(Work.TRAINING.value)

    def of(entry: Entry | None, name: str) -> float | None:
        return entry.times.get(name) if entry else None

    ratios = [speedup(forward), speedup(training)]
    row = [*case, *(pair(of(forward, name), of(training, name)) for name in names)]
    if limits:
        row.append(pair(*(entry.limit if entry else None for entry in (forward, training))))
    row.append(" / ".join(ratio(value) or "-" for value in ratios) if any(ratios) else "")
    if group[0] == "cpu":
        return [*row, _verdicts(ratios, SEQUENCE_ON_CPU.get((group[2], *case), {}))]
    ratios = [over_loop(forward), over_loop(training)]
    return [
        *row,
        " / ".join(f"{value:.2f}, {verdict(value, limit)}" for value, limit in _given(ratios, SEQUENCE_OVER_LOOP)),
    ]


def _given(values: list[float | None], limits: dict[str, float]) -> list[tuple[float, float]]:
    """The measured values that have a limit, forward first."""
    return [(value, limit) for value, limit in zip(values, limits.values(), strict=False) if value]


def _verdicts(values: list[float | None], limits: dict[str, float]) -> str:
    return " / ".join(verdict(value, limit) for value, limit in _given(values, limits))


def draw(entries: list[Entry], path: Path) -> None:
    """The speedup of every case, forward and with gradients."""
    rows = [
        (f"{title(group)}: {variant} {shape}", speedup(works.get("forward")), speedup(works.get("training")))
        for group, cases in groups(entries).items()
        for (variant, shape), works in cases.items()
    ]
    rows = [row for row in reversed(rows) if row[1] or row[2]]
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.4 * len(rows)), layout="constrained")
    for index, (label, color) in enumerate((("forward", "C0"), ("forward and backward", "C1"))):
        places = [place + 0.2 - 0.4 * index for place in range(len(rows))]
        axes.barh(places, [row[1 + index] or 0 for row in rows], height=0.38, color=color, label=label)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("speedup over the faster of nn.LSTM and nn.GRU")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


WORST = 10
CLOCK = {
    "cuda": "device time: a graph of one call, five replays a sample, the median of seven samples",
    "cpu": "wall time, the minimum of the samples",
}


def pool(entries: list[Entry]) -> dict[tuple[Group, str], list[Entry]]:
    """The entries by machine part and dtype, and by work."""
    found: dict[tuple[Group, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        found[(entry.device, entry.threads, entry.dtype), entry.work].append(entry)
    return found


def sweep_markdown(entries: list[Entry], on: str) -> str:
    """The quantiles of the speedup, and the worst shapes."""
    seeds = sorted({entry.seed for entry in entries if entry.seed is not None})
    clocks = "; ".join(CLOCK[device] for device in dict.fromkeys(entry.device for entry in entries))
    parts = [
        f"# Random sequences, {on}",
        f"Seeds {', '.join(map(str, seeds))}, pooled. Microseconds per step ({clocks}); speedup over the faster of"
        " nn.LSTM and nn.GRU. Shape: steps, batch, input features, state size. *floor*: the multiply-adds alone.",
    ]
    summary, worst = [], []
    for (group, work), of_group in pool(entries).items():
        name = f"{title(group)}, {WORK_TITLES[Work(work)]}"
        ordered = sorted((entry for entry in of_group if speedup(entry)), key=speedup)
        speedups = [speedup(entry) for entry in ordered]
        if not ordered:
            continue
        quantiles = [float(numpy.quantile(speedups, fraction)) for fraction in (0, 0.1, 0.5, 1)]
        below = f"{sum(value < 1 for value in speedups)} of {len(speedups)}"
        summary.append([name, *map(ratio, quantiles), below])
        peers = [peer for peer in PEERS if any(peer in entry.times for entry in of_group)]
        rows = [
            [entry.shape, ratio(speedup(entry)), *(number(entry.times.get(peer)) for peer in peers)]
            + [number(entry.limit)]
            for entry in ordered[:WORST]
        ]
        worst += [f"## {name}: worst shapes", table(["shape", "speedup", *peers, "floor"], rows)]
    parts += [table(["speedup", "worst", "10th percentile", "median", "best", "below 1"], summary), *worst]
    return "\n\n".join([*parts, *_failures(entries)]) + "\n"


def draw_sweep(entries: list[Entry], path: Path) -> None:
    """The time per step against the state size, beside the floor."""
    pooled = pool(entries)
    groups_, works = (list(dict.fromkeys(key[index] for key in pooled)) for index in (0, 1))
    size = (5.5 * len(groups_), 4.5 * len(works))
    figure, panels = plt.subplots(len(works), len(groups_), figsize=size, squeeze=False, layout="constrained")
    for (group, work), of_group in pooled.items():
        axes = panels[works.index(work), groups_.index(group)]
        series = {name: [(entry.shape, entry.times.get(name)) for entry in of_group] for name in PEERS}
        for index, (name, points) in enumerate(series.items()):
            known = [(int(shape.split(",")[3]), time) for shape, time in points if time]
            if known:
                axes.scatter(*zip(*known, strict=True), s=14, color=f"C{index}", label=PEERS[name].title)
        floors = [(int(entry.shape.split(",")[3]), entry.limit) for entry in of_group if entry.limit]
        if floors:
            axes.scatter(*zip(*floors, strict=True), s=30, color="black", marker="_", label="multiply-adds alone")
        axes.set(xscale="log", yscale="log", xlabel="state size", ylabel="microseconds per step")
        axes.set_title(f"{title(group)}\n{WORK_TITLES[Work(work)]}", fontsize=10)
        axes.grid(True, which="both", alpha=0.25)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)
