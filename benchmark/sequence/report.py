"""Tables of a run over sequences."""

from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cases import Work
from tables import pair, ratio, table, verdict
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
    lines = [
        f"- {entry.device} {entry.dtype} {entry.shape} {entry.variant}, {entry.work}, {name}: {message}"
        for entry in entries
        for name, message in entry.failures.items()
    ]
    return "\n\n".join([*parts, *(["## Failures", "\n".join(lines)] if lines else [])]) + "\n"


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
