"""The picture of speed: microseconds per step against the hidden size, as an SVG in light and dark.

It shows the section "hidden size" of the measurements, whose sequences differ in nothing else. Without it, it shows the
fixed sequences of the section "sequence", which also differ in their numbers of steps and rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from pandas import DataFrame

DTYPES = ("float32", "bfloat16")
SERIES = {
    "lltm.LSTM": ("lstm", "lltm.LSTM"),
    "LLTM": ("ours", "lltm.LLTM"),
    "LSTM": ("cudnn-lstm", "nn.LSTM (cuDNN)"),
    "GRU": ("cudnn-gru", "nn.GRU (cuDNN)"),
}
"""The class of the style and the label of each peer, in the order in which they are drawn."""

FASTER, BASELINE = "lltm.LSTM", "LSTM"
"""The peers, of the same cell, whose speedup stands above each point of the baseline."""

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 16px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a }
  .title { font-size: 18px; font-weight: 600; fill: #1f2328 }
  .panel { font-weight: 600; fill: #1f2328 }
  .small { font-size: 15px }
  .right { text-anchor: end } .middle { text-anchor: middle }
  .grid { stroke: #d8dee4; stroke-width: 1 }
  .line { fill: none; stroke-width: 2.5 } .link { stroke: #d0d7de; stroke-width: 1.5 }
  .ours { --series: #0969da } .lstm { --series: #1a7f37 }
  .cudnn-lstm { --series: #bc4c00 } .cudnn-gru { --series: #8250df }
  .line { stroke: var(--series) } circle, text.peer { fill: var(--series) } .lstm { font-weight: 700 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d }
    text { fill: #9da7b3 } .title, .panel { fill: #e6edf3 }
    .grid, .link { stroke: #30363d }
    .ours { --series: #58a6ff } .lstm { --series: #3fb950 }
    .cudnn-lstm { --series: #f0883e } .cudnn-gru { --series: #bc8cff }
  }
"""

WIDTH, HEIGHT = 780, 416
TOP, BOTTOM = 136, 350
PANELS = {"float32": (106, 430), "bfloat16": (448, 772)}
"""The left and the right edge of each dtype's panel."""


class Point(NamedTuple):
    peer: str
    steps: int
    batch: int
    hidden_size: int
    us: float


class Scale(NamedTuple):
    """Maps values to coordinates, logarithmically."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def points(rows: DataFrame, dtype: str) -> list[Point]:
    """Forward and backward of sequences, in device time."""
    chosen = rows[(rows["dtype"] == dtype) & (rows["work"] == "training") & (rows["clock"] == "device")]
    chosen = chosen[(chosen["variant"] == "padded") & chosen["peer"].isin(SERIES)]
    series = chosen[chosen["section"] == "hidden size"]
    shown = series if len(series) else chosen[chosen["section"] == "sequence"]
    found = []
    for peer, shape, us in zip(shown["peer"], shown["shape"], shown["us"], strict=True):
        steps, batch, _, hidden_size = map(int, shape.split(","))
        found.append(Point(peer, steps, batch, hidden_size, us))
    return sorted(found, key=lambda point: (point.hidden_size, point.batch))


def text(x: float, y: float, content: str, classes: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{classes}{chr(34)}" if classes else ""}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{classes}"/>'


def panel(dtype: str, found: list[Point], y: Scale) -> Iterator[str]:
    left, right = PANELS[dtype]
    is_first = dtype == DTYPES[0]  # the labels on its left are those of both panels
    yield text(left, TOP - 12, dtype, "panel")
    for exponent in range(math.ceil(math.log10(y.low)), math.floor(math.log10(y.high)) + 1):
        height = y(10**exponent)
        yield line(left, height, right, height, "grid")
        if is_first:
            yield text(left - 8, height + 5, f"{10**exponent:g}", "right")
    shapes: dict[tuple[int, int, int], dict[str, float]] = {}
    for point in found:
        shapes.setdefault(point[1:4], {})[point.peer] = point.us
    sizes = [size for _, _, size in shapes]
    one_series = len({shape[:2] for shape in shapes}) == 1
    x = Scale(sizes[0], sizes[-1], left + 24, right - 24)
    step = (right - left) / len(shapes)
    # The sizes of a series are to scale. Other shapes have equal distances, and their batch below.
    places = [x(size) if one_series else left + step * (index + 0.5) for index, size in enumerate(sizes)]
    for place, (_, batch, size), us in zip(places, shapes, shapes.values(), strict=True):
        speedup = us[BASELINE] / us[FASTER]
        if not one_series or math.log2(size).is_integer():
            yield text(place, y(max(us.values())) - 14, f"{speedup:.1f}x", f"peer {SERIES[FASTER][0]} small middle")
            yield text(place, BOTTOM + 24, str(size), "small middle")
        if not one_series:
            yield line(place, y(min(us.values())), place, y(max(us.values())), "link")
            yield text(place, BOTTOM + 46, str(batch), "small middle")
    if is_first:
        yield text(left - 8, BOTTOM + 24, "hidden size", "small right")
        if not one_series:
            yield text(left - 8, BOTTOM + 46, "batch", "small right")
    for peer, (name, _) in SERIES.items():
        peer_points = [(place, y(us[peer])) for place, us in zip(places, shapes.values(), strict=True) if peer in us]
        if one_series and peer_points:
            yield f'<polyline points="{" ".join(f"{a},{b}" for a, b in peer_points)}" class="line {name}"/>'
        yield from (f'<circle cx="{a}" cy="{b}" r="{4 if one_series else 6}" class="{name}"/>' for a, b in peer_points)


def legend(peers: Iterable[str]) -> Iterator[str]:
    x = 24
    for peer in peers:
        name, label = SERIES[peer]
        yield f'<circle cx="{x + 6}" cy="88" r="6" class="{name}"/>'
        yield text(x + 18, 93.5, label, f"peer {name}")
        x += 46 + 9 * len(label)


def svg(rows: DataFrame, gpu: str) -> str:
    """The picture of these rows."""
    dtype_points = {dtype: points(rows, dtype) for dtype in DTYPES}
    every = [point for found in dtype_points.values() for point in found]
    y = Scale(min(point.us for point in every) / 2.4, max(point.us for point in every) * 1.2, BOTTOM, TOP)
    calls = {point[1:3] for point in every}
    sizes = "{} steps, batch {}; ".format(*next(iter(calls))) if len(calls) == 1 else ""
    shown = [peer for peer in SERIES if any(point.peer == peer for point in every)]
    name = re.sub(r" \d+GB.*", "", gpu)
    parts = [
        text(24, 38, f"Microseconds per step, forward + backward, {name}", "title"),
        text(24, 63, f"{sizes}input size = hidden size. Green: lltm.LSTM's speedup over nn.LSTM.", "small"),
        *legend(shown),
        *(part for dtype, found in dtype_points.items() for part in panel(dtype, found, y)),
    ]
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" aria-label="Microseconds per step against the hidden size">\n<style>{STYLE}</style>\n'
        f'  <rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" class="card"/>\n{body}\n</svg>\n'
    )
