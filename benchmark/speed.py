"""The picture of speed: device time per step against the hidden size, a panel for each dtype, in light and dark.

It shows the section "hidden size" of the measurements, whose sequences differ in nothing else.
"""

from __future__ import annotations

import io
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cases import Shape
from matplotlib.ticker import FuncFormatter, NullLocator
from pandas import DataFrame

PANELS = {"tf32": "float32 in TF32", "float16": "float16", "float32": "float32 without TF32", "bfloat16": "bfloat16"}
COLORS = {
    "lltm.LSTM": ("#1a7f37", "#3fb950"),
    "lltm.GRU": ("#9a6700", "#d29922"),
    "LLTM": ("#0969da", "#58a6ff"),
    "LSTM": ("#bc4c00", "#f0883e"),
    "GRU": ("#8250df", "#bc8cff"),
}
"""Of each peer, in light and dark, in the order in which they are drawn."""
LABELS = {name: name for name in ("lltm.LSTM", "lltm.GRU")} | {"LLTM": "lltm.LLTM"}
LABELS |= {name: f"nn.{name} (cuDNN)" for name in ("LSTM", "GRU")}
MARKERS = {"lltm.LSTM": "o", "lltm.GRU": "D", "LLTM": "s", "LSTM": "^", "GRU": "v"}
PAPER, TEXT, GRID = ("#ffffff", "#0d1117"), ("#24292f", "#d1d7e0"), ("#d8dee4", "#30363d")

FASTER, BASELINE = "lltm.LSTM", "LSTM"
"""The peers, of the same cell, whose speedup stands above each point of the baseline."""

STYLE = {
    "font.size": 11,
    "svg.fonttype": "none",  # text, in the fonts of the reader
    "svg.hashsalt": "lltm",  # the same file for the same measurements
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER[0]),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT[0]),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID[0]),
}


def in_light_and_dark(picture: str) -> str:
    """The picture, whose colors follow the reader's setting."""
    pairs = dict((*COLORS.values(), PAPER, TEXT, GRID))
    names = {color: f"--color-{number}" for number, color in enumerate(pairs)}
    light, dark = (
        "".join(f"{name}: {value}; " for name, value in zip(names.values(), values, strict=True))
        for values in (pairs.keys(), pairs.values())
    )
    picture = re.sub("|".join(pairs), lambda color: f"var({names[color[0]]})", picture)
    style = f"<style>:root {{ {light}}} @media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}</style>"
    return re.sub(r"(<svg [^>]*>)", lambda svg: f"{svg[0]}\n{style}", picture, count=1)


def svg(rows: DataFrame, gpu: str, digest: str, columns: int) -> str:
    """The picture of these rows, its panels in so many columns. `digest` identifies the measurements."""
    series = rows[(rows["section"] == "hidden size") & (rows["clock"] == "device") & rows["peer"].isin(COLORS)]
    shapes = {text: Shape.parse(text) for text in series["shape"]}
    first = next(iter(shapes.values()))
    dtypes = [dtype for dtype in PANELS if dtype in set(series["dtype"])]
    lines = -(-len(dtypes) // columns)
    with plt.rc_context(STYLE):
        size = (4.1 * columns, (0.95 if columns > 1 else 1.4) + 2.2 * lines)
        figure, panels = plt.subplots(
            lines, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
        )
        for axes, dtype in zip(panels.flat, dtypes, strict=False):
            by_size = series.assign(size=[shapes[text].state_size for text in series["shape"]])
            by_size = by_size[by_size["dtype"] == dtype].pivot_table(index="size", columns="peer", values="us")
            for peer in (peer for peer in COLORS if peer in by_size):
                style = {"color": COLORS[peer][0], "marker": MARKERS[peer], "markersize": 4}
                axes.plot(by_size.index, by_size[peer], label=LABELS[peer], **style)
            for hidden_size, us in by_size.iterrows():
                if hidden_size.bit_count() == 1:
                    at, speedup = (hidden_size, us.max()), us[BASELINE] / us[FASTER]
                    style = {"color": COLORS[FASTER][0], "fontsize": 10, "ha": "center"}
                    axes.annotate(f"{speedup:.1f}x", at, (0, 6), textcoords="offset points", **style)
            axes.set_title(PANELS[dtype], fontsize=11, loc="left", fontweight="bold")
            axes.set(xscale="log", yscale="log", ylim=(series["us"].min() / 1.5, series["us"].max() * 2.2))
            axes.set_xticks([size for size in by_size.index if size.bit_count() == 1], minor=False)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_locator(NullLocator())
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.grid(axis="y")
        for axes in panels[-1]:
            axes.set_xlabel("hidden size (log)")
        for axes in panels[:, 0]:
            axes.set_ylabel("µs per step (log)")
        name = re.sub(r" \d+GB.*", "", gpu)
        what = [f"{name}, device time, forward + backward", f"{first.steps} steps, batch {first.batch}"]
        what.append(f"green: {LABELS[FASTER]}'s speedup over nn.LSTM")
        figure.suptitle("; ".join(what) if columns > 1 else "\n".join(what), fontsize=11)
        handles = panels[0, 0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2 * columns, frameon=False)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None, "Description": digest})
        plt.close(figure)
    return in_light_and_dark(picture.getvalue())
