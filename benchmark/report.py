"""Tables and pictures of runs: one data frame of all rows, and a pivot of it for each table."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas
from cases import AMP, MODELS, SEQUENCE_VARIANTS, WORK_TITLES, Shape, Work
from pandas import DataFrame, Series
from peers import BASELINES, CELLS, COUNTERPARTS, LSTM_MODULE, MODULE, OURS, PEERS
from results import Row

GROUP = ["section", "device", "threads", "dtype", "clock"]
ERRORS_OF = ["device", "threads", "dtype", "shape", "work"]
CASE = [*GROUP, "variant", "seed", "shape"]
TITLES = {name: peer.title for name, peer in PEERS.items()}
WORST = 5

DTYPE_TITLES = {name: name for name in ("tf32", "float16", "float32", "bfloat16", *AMP)} | {"tf32": "TF32"}
"""In the order of the pages: first what users run by default, last where cuDNN is slow."""

METHOD = {
    "cell": "Microseconds per call, forward / forward and backward: the median of samples that the peers take in turns."
    " *speedup* is over the fastest baseline, nn.LSTMCell with its four gates among them. *limit* is the least time"
    " for this GPU at its measured rates of a large product (float32: on the CUDA cores) and of a copy.",
    "sweep": "Random shapes (batch, input size, hidden size): speedup over the fastest baseline. A shape whose"
    " speedup is below 1 is measured three times, and counts with the median.",
    "sequence": "Microseconds per step, forward / forward and backward with the gradients of input and all parameters."
    " Shape: steps, batch, input size, hidden size. *speedup* is that of lltm.LLTM over the faster of nn.LSTM and"
    " nn.GRU, *LSTM speedup* that of lltm.LSTM over nn.LSTM, *GRU speedup* that of lltm.GRU over nn.GRU. On a GPU:"
    " device time, a graph of one call, five replays a sample, the median of seven samples; and the wall time of calls"
    " from Python. On a CPU: processor time with one thread, wall time with more, the minimum of the samples."
    " *limit*: the multiply-adds of three gates alone, as fast as the cores"
    " do them in registers, or the GPU in a large product.\n\n"
    + "\n".join(f"- {name}: {variant.what}" for name, variant in SEQUENCE_VARIANTS.items()),
    "hidden size": "Sequences that differ only in their hidden size, as docs/_static/speed.svg shows them.",
    "sequence sweep": "Random sequences (steps, batch, input size, hidden size): the *speedup* of lltm.LLTM over the"
    " faster of nn.LSTM and nn.GRU, the *LSTM speedup* of lltm.LSTM over nn.LSTM, the *GRU speedup* of lltm.GRU over"
    " nn.GRU, and microseconds per step, measured as fixed sequences are.",
    "models": "The recurrent layers of typical models, called from Python: microseconds per step, forward / forward"
    " and backward. On a GPU wall time; on a CPU processor time with one thread, the minimum of the samples.\n\n"
    + "\n".join(f"- {name}: {model.what}" for name, model in MODELS.items()),
    "step": "One step of a cell from given states, ours beside torch.nn's: microseconds per call, forward / forward and"
    " backward with the gradients of input, states and parameters, the median of seven samples. On a GPU device time,"
    " a graph of 20 calls, and the wall time of calls from Python. Shape: batch, input size, hidden size.",
    "few steps": "Layers that run one to eight steps, ours beside torch.nn's, measured as single steps are:"
    " microseconds per step.",
    "step sweep": "Random single steps (batch, input size, hidden size): the speedup of a cell over torch.nn's, in"
    " device time, on a CPU in wall time. A shape whose speedup is below 1 is measured three times, and counts with the"
    " median.",
    "few steps sweep": "Layers over one to eight steps (steps, batch, input size, hidden size) of the same shapes.",
    "transforms": "Milliseconds in float32, wall time. *loop*: the same calls in Python, without the copies of a stack;"
    " *plain*: one call that does not tell the examples apart, such as the gradient of the whole batch.",
    "memory": "Bytes that autograd keeps between forward and backward beyond the parameters and the arguments, in"
    " float32: all / those that are no result of forward either.",
    "calls": "Microseconds of a forward call by caller: (16,32,128), float32, no gradients, one thread; wall time.",
    "tutorial": "The tutorial's own table, in microseconds: (16,32,128), float32, forward, and backward of"
    " `new_h.sum() + new_cell.sum()`, each synchronized.",
}


class Measurements(NamedTuple):
    rows: DataFrame
    machines: list[dict[str, str]]
    published: list[dict]
    """Tables whose rows were not kept: `columns` and `rows`, and perhaps a `title` and a `text`."""


def read(paths: Sequence[Path]) -> Measurements:
    """The lines of several files. Of rows that were measured repeatedly, the tables show the last ones."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    machines, published = ([line[name] for line in lines if name in line] for name in ("machine", "published"))
    rows = [vars(Row(**line)) for line in lines if "section" in line]
    return Measurements(DataFrame(rows, columns=[field.name for field in fields(Row)]), machines, published)


def times(rows: DataFrame) -> DataFrame:
    """By case and kind of work: the time of every peer, the limit and the speedup."""
    index = [*CASE, "work"]
    wide = rows.pivot_table(index=index, columns="peer", values="us", aggfunc="last", sort=False)
    wide = wide[[name for name in TITLES if name in wide]]
    baselines = [name for name in wide if name in BASELINES or (name in CELLS and name not in (OURS, *COUNTERPARTS))]
    ours = wide.reindex(columns=[MODULE, OURS]).bfill(axis=1).iloc[:, 0]
    given = rows.groupby(index, sort=False)[["limit", "speedup"]].max().astype(float)
    speedup = given["speedup"].fillna(wide[baselines].min(axis=1) / ours)
    of_pairs = {
        f"{theirs} speedup": wide[theirs] / wide[name]
        for name, theirs in COUNTERPARTS.items()
        if {name, theirs} <= set(wide)
    }
    return wide.assign(limit=given["limit"], speedup=speedup, **of_pairs)


def number(value: float) -> str:
    """Three significant digits."""
    return "-" if pandas.isna(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def ratio(value: float, digits: int = 2) -> str:
    return "-" if pandas.isna(value) else f"{value:.{digits}f}"


def pairs(values: Series, form: Callable[[float], str] = number) -> Series:
    """`forward / forward and backward` for every case: the values of its kinds of work."""
    works = [str(work) for work in Work if str(work) in values.index.unique("work")]
    wide = values.unstack("work").reindex(values.index.droplevel("work").unique())[works]
    return wide.apply(lambda row: "" if row.isna().all() else " / ".join(map(form, row)), axis=1)


def table(frame: DataFrame) -> str:
    text = frame.to_markdown(index=False, disable_numparse=True)
    return re.sub(r"-{3,}", "---", re.sub(r" +\|", " |", text))


def title(group: tuple, work: str = "") -> str:
    section, device, threads, dtype, clock = group
    where = f"CPU, {threads} thread{'s' if threads > 1 else ''}" if device == "cpu" else "GPU"
    parts = [
        where,
        dtype,
        *([] if device == "cpu" else [f"{clock} time"]),
        *([WORK_TITLES[Work(work)]] if work else []),
        *(["by hidden size"] if section == "hidden size" else []),
    ]
    return ", ".join(parts)


def _cases(rows: DataFrame) -> Iterator[str]:
    """The times of fixed cases, a table for each dtype; and of cells also the errors."""
    for works in (["forward", "training"], ["autocast"]):
        chosen = rows[rows["work"].isin(works)]
        for group, wide in times(chosen).groupby(GROUP, sort=False) if len(chosen) else ():
            present = [name for name in wide if wide[name].notna().any()]
            columns = {name: pairs(wide[name]) for name in present if "speedup" not in name}
            columns |= {name: pairs(wide[name], ratio) for name in present if "speedup" in name}
            shown = DataFrame(columns).reset_index()
            hidden = [*GROUP, "seed", *(["variant"] if not shown["variant"].any() else [])]
            yield f"## {title(group, 'autocast' if works == ['autocast'] else '')}"
            yield table(shown.drop(columns=hidden))
    if rows["error_mean"].notna().any():
        yield "## Errors"
        yield "Mean error against float64 of the worst result, gradients among them, relative to its mean magnitude."
        once = rows[rows["error_mean"].notna()].drop_duplicates([*ERRORS_OF, "peer"])
        wide = once.pivot_table(index=ERRORS_OF, columns="peer", values="error_mean", sort=False)
        yield table(DataFrame({name: pairs(wide[name], lambda error: f"{error:.1e}") for name in wide}).reset_index())


def _sweep(rows: DataFrame) -> Iterator[str]:
    """The quantiles of the speedup, and the worst shapes."""
    wide = times(rows)
    quantiles = {"worst": 0, "10th percentile": 0.1, "median": 0.5, "best": 1}
    yield f"Seeds {', '.join(map(str, sorted(rows['seed'].unique())))}, pooled."
    columns = [name for name in wide if "speedup" in name and wide[name].notna().any()]
    for column in columns:
        by_group = wide[column].dropna().groupby([*GROUP, "work"], sort=False)
        summary = DataFrame({name: by_group.quantile(fraction).map(ratio) for name, fraction in quantiles.items()})
        summary["below 1"] = by_group.apply(lambda values: f"{(values < 1).sum()} of {len(values)}")
        summary.insert(0, column, [title(key[:-1], key[-1]) for key in summary.index])
        yield table(summary)
    # By the LLTM's speedup, where it is measured; otherwise by that of any cell.
    wide["least"] = wide[["speedup"] if "speedup" in columns else columns].min(axis=1)
    for key, group_rows in wide.groupby([*GROUP, "work"], sort=False):
        shown = group_rows.nsmallest(WORST, "least").drop(columns="least").dropna(axis=1, how="all")
        formed = {name: shown[name].map(ratio if "speedup" in name else number) for name in shown}
        yield f"## {title(key[:-1], key[-1])}: worst shapes"
        yield table(DataFrame(formed).reset_index()[["shape", *formed]])


def _transforms(rows: DataFrame) -> Iterator[str]:
    """Milliseconds, and how many times as long as the loop and the plain call a transform takes."""
    for (device, threads), of in rows.groupby(["device", "threads"], sort=False):
        wide = of.pivot_table(index=["variant", "shape"], columns="peer", values="us", aggfunc="last", sort=False) / 1e3
        wide = wide.reindex(columns=["transform", "loop", "plain"])
        quotients = {f"/ {other}": (wide["transform"] / wide[other]).map(ratio) for other in ("loop", "plain")}
        yield f"## {title(('', device, threads, 'float32', 'wall'))}"
        yield table(DataFrame({name: wide[name].map(number) for name in wide} | quotients).reset_index())


def _memory(rows: DataFrame) -> Iterator[str]:
    kept = rows.assign(
        kept=[f"{a:.0f} / {b:.0f}" for a, b in zip(rows["bytes"], rows["bytes_beyond_results"], strict=True)]
    )
    yield table(kept.pivot(index=["device", "shape"], columns="peer", values="kept").reset_index())


def _calls(rows: DataFrame) -> Iterator[str]:
    yield table(rows.pivot(index="peer", columns="device", values="us").map(number).reset_index())


def _tutorial(rows: DataFrame) -> Iterator[str]:
    wide = rows.pivot(index=["device", "peer"], columns="work", values="us")[["forward", "backward"]]
    yield table(wide.map(number).reset_index())


SECTIONS = {
    "cell": _cases,
    "sweep": _sweep,
    "sequence": _cases,
    "hidden size": _cases,
    "sequence sweep": _sweep,
    "models": _cases,
    "step": _cases,
    "few steps": _cases,
    "step sweep": _sweep,
    "few steps sweep": _sweep,
    "transforms": _transforms,
    "memory": _memory,
    "calls": _calls,
    "tutorial": _tutorial,
}


def facts(machines: list[dict[str, str]]) -> str:
    """What is known of each machine and its run, as items of a list."""
    items = []
    for machine in machines:
        named = "; ".join(f"{name} {value}" for name, value in machine.items() if name not in ("command", "notes"))
        command = f"`{machine['command']}`" if "command" in machine else None
        items += filter(None, [named, command, machine.get("notes")])
    return "\n".join(f"- {item}" for item in items)


def tables(found: Measurements, with_method: bool = True) -> str:
    """All tables."""
    parts = []
    for section, of in SECTIONS.items():
        section_rows = found.rows[found.rows["section"] == section]
        if len(section_rows):
            parts += [*([METHOD[section]] if with_method else []), *of(section_rows)]
    for kept in found.published:
        heading = f"## {kept['title']}" if "title" in kept else ""
        parts += filter(None, [heading, kept.get("text"), table(DataFrame(kept["rows"], columns=kept["columns"]))])
    if len(failures := found.rows[found.rows["section"] == "failure"]):
        parts += ["## Failures", "\n".join(f"- {message}" for message in failures["message"])]
    return "\n\n".join(parts)


def markdown(found: Measurements) -> str:
    """A page with all tables."""
    heading = " and ".join(dict.fromkeys(machine.get("GPU", machine["CPU"]) for machine in found.machines))
    return f"# {heading}\n\n{facts(found.machines)}\n\n{tables(found)}\n"


def speedups(rows: DataFrame, column: str = "speedup") -> str:
    """One table: the speedup of each shape, forward / with gradients, by dtype; on a CPU, with all threads. That of a
    layer or cell over torch.nn's is a column of its own, on a CPU also packed, and with one thread."""
    sections = ["cell", "sequence", "models", "step", "few steps"]
    rows = rows[rows["section"].isin(sections) & rows["work"].isin(["forward", "training"])]
    of_pair, is_cpu, packed = column != "speedup", rows["device"] == "cpu", rows["variant"] == "packed"
    threads = rows["threads"] == (rows["threads"].min() if of_pair else rows["threads"].max())
    of_models = rows["section"] == "models"
    plain = rows["variant"].isin(["", "padded"]) | (of_pair & is_cpu & packed)
    wide = times(rows[(plain & is_cpu & threads) | (plain & (rows["clock"] == "device")) | of_models])
    wide = wide[wide[column].notna()]
    shown = pairs(wide[column], lambda value: ratio(value, 1)).reset_index(name="speedup")
    by_dtype = shown.pivot(index=["variant", "shape"], columns="dtype", values="speedup")
    order = list(dict.fromkeys(zip(shown["variant"], shown["shape"], strict=True)))
    dtypes = [dtype for dtype in DTYPE_TITLES if dtype in by_dtype]
    by_dtype = by_dtype.reindex(order)[dtypes].fillna("").rename(columns=DTYPE_TITLES)
    sizes = "batch, input, hidden" if order[0][1].count(",") == 2 else "steps, batch, input, hidden"
    names = [shape.replace(",", ", ") + (", packed" if variant == "packed" else "") for variant, shape in order]
    by_dtype.insert(0, sizes, names)
    if of_models.all():
        by_dtype.insert(0, "model", [f"{variant}: {MODELS[variant].what}" for variant, _ in order])
    return table(by_dtype)


def gpu_name(found: Measurements) -> str:
    return re.sub(r" \d+GB.*", "", found.machines[0]["GPU"])


def headline(found: Measurements, column: str) -> str:
    """Of a layer on a GPU: the median and the range of the speedups of random sequences, forward and backward, in
    device time, over the shapes that were measured in both dtypes."""
    chosen = {"section": "sequence sweep", "work": "training", "clock": "device"}
    rows = found.rows[(found.rows[list(chosen)] == Series(chosen)).all(axis=1)]
    wide = times(rows)[column].unstack("dtype")[["tf32", "float16"]].dropna()
    shapes = [Shape.parse(shape) for shape in wide.index.unique("shape")]
    tf32, float16 = (
        f"{of.median():.1f} times ({of.min():.1f} to {of.max():.1f})" for of in (wide["tf32"], wide["float16"])
    )
    layer, peer = column.split()[0], "cuDNN's with PyTorch's defaults, float32 in"
    if column == "speedup":
        layer, peer = "LLTM", "the faster of cuDNN's LSTM and GRU in"
    return (
        f"On an {gpu_name(found)}, forward + backward of `lltm.{layer}` is {tf32} as fast as {peer}\nTF32, and"
        f" {float16} in float16: the median (and range) of {len(shapes)} random shapes with hidden sizes up to"
        f" {max(shape.state_size for shape in shapes):,}."
    )


def beside_gru(found: Measurements) -> str:
    """On a CPU: what training with nn.GRU takes beside lltm.LSTM, and one step of both LSTMs."""
    rows = found.rows[(found.rows["section"] == "sequence") & (found.rows["threads"] == 1)]
    wide = times(rows[rows["dtype"] == "float32"])
    training = wide.xs("training", level="work")
    steps = wide[wide.index.get_level_values("shape").str.startswith("1,1,")]
    gru = (training["GRU"] / training[LSTM_MODULE]).dropna()
    step = steps["LSTM speedup"].xs("forward", level="work").iloc[0]
    return (
        f"In float32, training with `nn.GRU` takes {gru.min():.1f} to {gru.max():.0f} times as long as with `lltm.LSTM`"
        f" at these shapes. A single step, as in\nstreaming, is {step:.1f} times as fast as with `nn.LSTM`."
    )


def draw(rows: DataFrame, folder: Path) -> None:
    """A picture of each section that has times of peers."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"cell": _bars, "sweep": _distribution, "sequence": _bars, "sequence sweep": _against_state_size}
    for section, picture in pictures.items():
        section_rows = rows[rows["section"] == section]
        if len(section_rows) and len(wide := times(section_rows)):
            picture(wide).savefig(folder / f"{section.replace(' ', '-')}.png", dpi=110)
            plt.close("all")


def _bars(wide: DataFrame) -> plt.Figure:
    """The speedup of every case, forward and with gradients."""
    speedups = wide["speedup"].unstack("work").reindex(wide.index.droplevel("work").unique()).iloc[::-1]
    labels = [" ".join([title(key[: len(GROUP)]), *filter(None, key[len(GROUP) :: 2])]) for key in speedups.index]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.4 * len(labels)), layout="constrained")
    speedups.set_axis(labels).rename(columns=WORK_TITLES).plot.barh(ax=axes, width=0.8, fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xlabel="speedup over the fastest baseline", ylabel="")
    axes.legend(fontsize=8)
    return figure


def _panels(wide: DataFrame, by: list[str]) -> tuple[plt.Figure, Iterator]:
    """A figure with a column of panels for each kind of work, and the rows of each panel."""
    groups = list(wide.groupby([*by, "work"], sort=False))
    works = list(wide.index.unique("work"))
    lines = list(dict.fromkeys(key[:-1] for key, _ in groups))
    size = (5.5 * len(works), 4.2 * len(lines))
    figure, panels = plt.subplots(len(lines), len(works), figsize=size, squeeze=False, layout="constrained")
    return figure, ((panels[lines.index(key[:-1]), works.index(key[-1])], key, of) for key, of in groups)


def _distribution(wide: DataFrame) -> plt.Figure:
    """The fraction of shapes below each speedup."""
    figure, panels = _panels(wide, [])
    for axes, (work,), work_rows in panels:
        for group, speedups in work_rows["speedup"].dropna().groupby(GROUP, sort=False):
            shares = [(index + 0.5) / len(speedups) for index in range(len(speedups))]
            axes.plot(sorted(speedups), shares, label=f"{title(group)} (n = {len(speedups)})")
        axes.axvline(1, color="black", linewidth=1)
        axes.set(xscale="log", xlabel="speedup over the fastest baseline", ylabel="share of shapes with less")
        axes.set_title(WORK_TITLES[Work(work)])
        axes.legend(fontsize=8)
    return figure


def _against_state_size(wide: DataFrame) -> plt.Figure:
    """The time per step of every peer against the state size, beside the limit."""
    figure, panels = _panels(wide, GROUP)
    for axes, key, of in panels:
        sizes = of.index.get_level_values("shape").str.rpartition(",").get_level_values(2).astype(int)
        for name in (name for name in of if name in TITLES):
            axes.scatter(sizes, of[name], s=14, label=TITLES[name])
        axes.scatter(sizes, of["limit"], s=30, color="black", marker="_", label="multiply-adds alone")
        axes.set(xscale="log", yscale="log", xlabel="state size", ylabel="microseconds per step")
        axes.set_title(title(key[:-1], key[-1]), fontsize=10)
        axes.grid(True, which="both", alpha=0.25)
        axes.legend(fontsize=7)
    return figure


def write(paths: Sequence[Path], page: Path, pictures: Path | None) -> None:
    """The tables and pictures of the rows in these files, pooled."""
    found = read(paths)
    page.write_text(markdown(found))
    if pictures:
        draw(found.rows, pictures)
