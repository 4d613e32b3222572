"""The table of latencies in docs/serving.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples" / "digits"))

from export import WAYS


def _server(row: dict) -> str:
    runners = f", num_runners={row['runners']}" if row["way"] == "package" else ""
    return WAYS[row["way"]] + runners


def _load(row: dict) -> str:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'s' * (number > 1)}"

    return f"{count(row['callers'], 'caller')}, {count(row['threads'], 'thread')}"


def table(results: dict) -> str:
    """The results in Markdown: a line says where they were measured, and each cell has p50 and p99."""
    rows = results["rows"]
    loads = list(dict.fromkeys(map(_load, rows)))
    cells = {(row["batch"], _server(row), _load(row)): f"{row['p50_us']:,.0f} / {row['p99_us']:,.0f}" for row in rows}
    rates = {}  # under the last load
    for row in rows:
        rates[row["batch"], _server(row)] = f"{row['images_per_second']:,.0f}"
    lines = [["images per call", "served as", *loads, f"images per second, {loads[-1].partition(',')[0]}"]]
    for batch, server in rates:
        lines.append([str(batch), server, *(cells[batch, server, load] for load in loads), rates[batch, server]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    where = f"{results['cpu']}, {results['cores']} cores" + (f", {results['gpu']}" if results["gpu"] else "")
    return "\n".join(
        [
            f"Latency of a call in microseconds, p50 / p99, on {where}, PyTorch {results['torch']}:",
            "",
            *("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines),
            *(f"\nNot measured: {WAYS[way]}. {reason}" for way, reason in results["missing"].items()),
        ]
    )
