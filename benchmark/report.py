"""Tables of a run, as Markdown."""

from collections import defaultdict
from collections.abc import Iterable

from cases import WORK_TITLES, Shape, Work
from peers import OURS, PEERS
from results import Measurement, Results
from roofline import roofline

CLOCK_TITLES = {"wall": "by the wall", "device": "device time"}

METHOD = """\
Times are microseconds a call: the median of samples taken in turns, peer by peer, in one process, and after `±` half
the distance between the quartiles. *ratio* is the best peer's time over ours (above 1: we are faster), the best of
every peer that computes a cell, nn.LSTMCell with its four gates among them. `addmm` (the bare product) and `empty` (an
operator that only allocates) are floors, not peers. Errors are against float64, of the worst result (with gradients:
they are among the results), relative to its mean magnitude: mean / largest. *roofline*: the least time for a GPU,
as fast as it was at a product of 4096 by 4096 by 4096 in this dtype and at a copy (float32: the CUDA cores' rate).\
"""


def best_peer(group: Iterable[Measurement]) -> Measurement | None:
    """The fastest cell that is not ours."""
    others = [entry for entry in group if entry.peer != OURS and PEERS[entry.peer].is_cell]
    return min(others, key=lambda entry: entry.median, default=None)


def groups(run: Results) -> dict[tuple, dict[str, dict[str, Measurement]]]:
    """Measurements by (device, threads, work, dtype, clock), then by shape, then by peer, in the order of the run."""
    found: dict[tuple, dict[str, dict[str, Measurement]]] = defaultdict(lambda: defaultdict(dict))
    for entry in run.measurements:
        found[entry.group][entry.shape][entry.peer] = entry
    return found


def title(group: tuple) -> str:
    device, threads, work, dtype, clock = group
    where = f"CPU, {threads} thread{'s' if threads > 1 else ''}" if device == "cpu" else "GPU"
    how = "" if device == "cpu" else f", {CLOCK_TITLES[clock]}"
    return f"{where}: {WORK_TITLES[Work(work)]}, {dtype}{how}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _time_table(group: tuple, shapes: dict[str, dict[str, Measurement]], names: list[str], rates: dict) -> str:
    _, _, work, dtype, clock = group
    limits = {
        shape: limit
        for shape in shapes
        if clock == "device" and (limit := roofline(Work(work), Shape.parse(shape), dtype, rates))
    }
    rows = []
    for shape, by_peer in shapes.items():
        best = best_peer(by_peer.values())
        ours = by_peer.get(OURS)
        ratio = f"**{best.median / ours.median:.2f}** ({best.peer})" if best and ours else ""
        times = [
            f"{_number(entry.median)} ±{_number(entry.median * entry.spread)}" if (entry := by_peer.get(name)) else ""
            for name in names
        ]
        rows.append([shape, *times, *([_number(limits[shape])] if limits else []), ratio])
    return _table(["shape", *names, *(["roofline"] if limits else []), "ratio"], rows)


def _error_table(shapes: dict[str, dict[str, Measurement]], names: list[str]) -> str:
    rows = []
    for shape, by_peer in shapes.items():
        entries = [by_peer.get(name) for name in names]
        rows.append([shape, *(f"{e.error_mean:.1e} / {e.error_max:.1e}" if e else "" for e in entries)])
    return _table(["error", *names], rows)


def _ratio_summary(run: Results) -> str:
    grouped = groups(run)
    shapes = list(dict.fromkeys(entry.shape for entry in run.measurements))
    rows = []
    for group, by_shape in grouped.items():
        cells = []
        for shape in shapes:
            best = best_peer(by_shape.get(shape, {}).values())
            ours = by_shape.get(shape, {}).get(OURS)
            cells.append(f"{best.median / ours.median:.2f}" if best and ours else "")
        rows.append([title(group), *cells])
    return _table(["best peer / ours", *shapes], rows)


def markdown(run: Results) -> str:
    """The whole run."""
    parts = [
        f"# {run.machine.get('GPU', run.machine['CPU'])}, {run.machine['date']}",
        "\n".join(f"- {name}: {value}" for name, value in run.machine.items()),
        METHOD,
    ]
    if run.failures:
        parts += ["## What failed", "\n".join(f"- {failure}" for failure in run.failures)]
    if run.measurements:
        parts += ["## Ratios", _ratio_summary(run)]
    for group, shapes in groups(run).items():
        present = {name for by_peer in shapes.values() for name in by_peer}
        names = [name for name in PEERS if name in present]
        parts += [f"## {title(group)}", _time_table(group, shapes, names, run.rates)]
        if group[4] == "wall":  # the errors are the same by every clock
            parts.append(_error_table(shapes, [name for name in names if PEERS[name].is_cell]))
    if run.kept:
        parts += [
            "## Memory",
            "Bytes that autograd keeps between forward and backward beyond the parameters and what the caller gave:"
            " all, and those that are no result of forward either; all in float32 numbers a row of the batch.",
            _table(
                ["device", "shape", "peer", "kept", "beyond the results", "numbers a row"],
                [
                    [
                        k.device,
                        k.shape,
                        k.peer,
                        str(k.total),
                        str(k.beyond_results),
                        _number(k.total / 4 / int(k.shape.split(",")[0])),
                    ]
                    for k in run.kept
                ],
            ),
        ]
    if run.calls:
        parts += [
            "## One forward call by the way it comes in",
            "Shape 16,32,128, float32, no gradients, one thread; wall time, microseconds.",
        ]
        parts += [
            _table(["call", device], [[door, _number(time)] for door, time in doors.items()])
            for device, doors in run.calls.items()
        ]
    if run.tutorial:
        parts += [
            "## The tutorial's own table",
            "Batch 16, 32 input features, state 128, float32; forward, and backward of `new_h.sum() + new_cell.sum()`;"
            " synchronised after each; microseconds.",
            _table(
                ["device", "peer", "forward", "backward"],
                [
                    [device, PEERS[name].title, _number(forward), _number(backward)]
                    for device, by_peer in run.tutorial.items()
                    for name, (forward, backward) in by_peer.items()
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"
