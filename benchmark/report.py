"""Tables of a run, as Markdown."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from cases import Shape, Work
from peers import OURS, PEERS
from results import Kept, Measurement, Results
from roofline import roofline
from tables import number, pair, ratio, table

CLOCK_TITLES = {"wall": "wall time", "device": "device time"}
# The facts about the machine that the header shows.
_HEAD = ("PyTorch", "Python", "CPU", "CPU capability of PyTorch", "libraries", "CUDA of PyTorch", "cuDNN", "lltm")

Group = tuple[str, int, str, str]
"""device, threads, dtype, clock"""
Group_of_shapes = dict[str, dict[str, dict[str, Measurement]]]
"""by shape, work and peer"""

METHOD = (
    "Microseconds per call, forward / forward and backward: the median of samples that the peers take in turns."
    " *speedup* is over the fastest baseline, nn.LSTMCell with its four gates among them; `addmm` (the bare product)"
    " and `empty` (an operator that only allocates) are lower bounds, not baselines. *roofline* is the least time for"
    " this GPU at its measured rates of a large product (float32: on the CUDA cores) and of a copy."
)


def best_peer(group: Iterable[Measurement]) -> Measurement | None:
    """The fastest cell of another library."""
    others = [entry for entry in group if entry.peer != OURS and PEERS[entry.peer].is_cell]
    return min(others, key=lambda entry: entry.median, default=None)


def speedup(by_peer: dict[str, Measurement]) -> float | None:
    best, ours = best_peer(by_peer.values()), by_peer.get(OURS)
    return best.median / ours.median if best and ours else None


def groups(run: Results, works: tuple[Work, ...]) -> dict[Group, Group_of_shapes]:
    """The measurements of these kinds of work, in the order of the run."""
    found: dict[Group, Group_of_shapes] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for entry in run.measurements:
        if entry.work in works:
            group = (entry.device, entry.threads, entry.dtype, entry.clock)
            found[group][entry.shape][entry.work][entry.peer] = entry
    return found


def title(group: Group) -> str:
    device, threads, dtype, clock = group
    where = f"CPU, {threads} thread{'s' if threads > 1 else ''}" if device == "cpu" else "GPU"
    return f"{where}, {dtype}{'' if device == 'cpu' else ', ' + CLOCK_TITLES[clock]}"


def _names(shapes: Group_of_shapes) -> list[str]:
    present = {name for by_work in shapes.values() for by_peer in by_work.values() for name in by_peer}
    return [name for name in PEERS if name in present]


def _pairs(by_work: dict[str, dict[str, Measurement]], name: str, works: tuple[Work, ...]) -> str:
    times = [entry.median if (entry := by_work.get(work, {}).get(name)) else None for work in works]
    return number(times[0]) if len(works) == 1 else pair(*times)


def _speedups(by_work: dict[str, dict[str, Measurement]], works: tuple[Work, ...]) -> str:
    found = [speedup(by_work.get(work, {})) for work in works]
    return " / ".join(ratio(value) or "-" for value in found) if any(found) else ""


def _time_table(group: Group, shapes: Group_of_shapes, works: tuple[Work, ...], rates: dict[str, float]) -> str:
    names = _names(shapes)
    rows = []
    for shape, by_work in shapes.items():
        row = [shape, *(_pairs(by_work, name, works) for name in names)]
        if group[3] == "device" and rates:
            limits = [roofline(work, Shape.parse(shape), group[2], rates) for work in works]
            row.append(pair(*limits) if len(limits) > 1 else number(limits[0]))
        rows.append([*row, _speedups(by_work, works)])
    return table(["shape", *names, *(["roofline"] if group[3] == "device" and rates else []), "speedup"], rows)


def _error_table(shapes: Group_of_shapes, works: tuple[Work, ...]) -> str:
    names = [name for name in _names(shapes) if PEERS[name].is_cell]
    rows = []
    for shape, by_work in shapes.items():
        cells = []
        for name in names:
            entries = [by_work.get(work, {}).get(name) for work in works]
            cells.append(" / ".join(f"{e.error_mean:.1e}" if e and e.error_mean is not None else "-" for e in entries))
        rows.append([shape, *cells])
    return table(["mean error", *names], rows)


def _summary(grouped: dict[Group, Group_of_shapes], works: tuple[Work, ...]) -> str:
    shapes = list(dict.fromkeys(shape for of in grouped.values() for shape in of))
    rows = [[title(group), *(_speedups(of.get(shape, {}), works) for shape in shapes)] for group, of in grouped.items()]
    return table(["speedup", *shapes], rows)


def _spread(run: Results) -> str:
    spreads = [entry.spread for entry in run.measurements]
    return (
        f"Half the distance between the quartiles of the samples is {median(spreads):.1%} of the median in the median"
        f" case, and {max(spreads):.0%} at most."
    )


def _memory(kept: list[Kept]) -> str:
    rows = [
        [entry.device, entry.shape, entry.peer, str(entry.total), str(entry.beyond_results),
         number(entry.total / 4 / Shape.parse(entry.shape).batch)]
        for entry in kept
    ]  # fmt: skip
    return table(["device", "shape", "peer", "bytes", "beyond the results", "float32 numbers a row"], rows)


def head(machine: dict[str, str]) -> str:
    """The machine and the software, in two lines."""
    facts = "; ".join(f"{name} {machine[name]}" for name in _HEAD if name in machine)
    settings = "; ".join(f"{name}={machine[name]}" for name in ("LLTM_CPU_GEMM", "LLTM_CUDA_PATH") if name in machine)
    gpu = "; ".join(f"{name} {value}" for name, value in machine.items() if name.startswith("GPU "))
    return "\n".join(f"- {line}" for line in (facts, gpu, settings, f"`{machine['command']}`") if line)


def markdown(run: Results) -> str:
    """The report of a whole run."""
    cell, autocast = (Work.FORWARD, Work.TRAINING), (Work.AUTOCAST,)
    parts = [
        f"# {run.machine.get('GPU', run.machine['CPU'])}, {run.machine['date']}",
        head(run.machine),
    ]
    if run.failures:
        parts += ["## Failures", "\n".join(f"- {failure}" for failure in run.failures)]
    if run.measurements:
        parts += [f"{METHOD} {_spread(run)}"]
    if grouped := groups(run, cell):
        parts += ["## Speedup over the fastest baseline", _summary(grouped, cell)]
        for group, shapes in grouped.items():
            parts += [f"## {title(group)}", _time_table(group, shapes, cell, run.rates)]
            if group[3] == "wall":  # the errors do not depend on the clock
                parts += [
                    "Error against float64 of the worst result (with gradients: they are among the results), relative"
                    " to its mean magnitude.",
                    _error_table(shapes, cell),
                ]
    for group, shapes in groups(run, autocast).items():
        parts += [
            f"## {title(group)}: forward under autocast to bfloat16",
            _time_table(group, shapes, autocast, {}),
        ]
    if run.kept:
        parts += [
            "## Memory",
            "Bytes that autograd keeps between forward and backward beyond the parameters and the arguments: all, and"
            " those that are no result of forward either.",
            _memory(run.kept),
        ]
    if run.calls:
        parts += ["## One forward call by caller", "(16,32,128), float32, no gradients, one thread; wall time."]
        parts += [
            table(["call", device], [[caller, number(time)] for caller, time in callers.items()])
            for device, callers in run.calls.items()
        ]
    if run.tutorial:
        parts += [
            "## The tutorial's own table",
            "(16,32,128), float32: forward, and backward of `new_h.sum() + new_cell.sum()`, each synchronized.",
            table(
                ["device", "peer", "forward", "backward"],
                [
                    [device, PEERS[name].title, number(forward), number(backward)]
                    for device, by_peer in run.tutorial.items()
                    for name, (forward, backward) in by_peer.items()
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"
