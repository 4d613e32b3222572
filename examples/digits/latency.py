"""The latency of the served model: runs latency.cpp, and writes tables of what it has measured.

    python examples/digits/latency.py examples/digits/latency.json

writes the table of docs/serving.md from a file of results, such as the demo's build/digits/latency.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import torch
from export import WAYS
from programs import run

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BEGIN, END = "<!-- written by examples/digits/latency.py -->\n", "<!-- end of what it writes -->\n"


def measure(
    program: Path,
    device: torch.device,
    images: Path,
    models: Mapping[str, Path],
    missing: Mapping[str, str],
    seconds: float,
) -> dict:
    """Measures the models, of which each way has one, and describes the machine.

    missing has the ways that cannot be measured, with the reasons. Each case is measured for some seconds: two numbers
    of images per call, and one to three loads for each way.
    """
    output = run(program, device, images, seconds, *chain.from_iterable(models.items()), quiet=True)
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else None,
        "torch": torch.__version__,
        "missing": dict(missing),
        "rows": [json.loads(line) for line in output.splitlines()],
    }


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    # aarch64 has no such line.
    return f"{names[0] if names else platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"


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


def write_table(page: Path, results: dict) -> None:
    """Replaces the part of the page between the two marks."""
    before, rest = page.read_text().split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{table(results)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Writes the table of docs/{PAGE.name}.")
    parser.add_argument("results", type=Path, help="a file that the demo has written")
    write_table(PAGE, json.loads(parser.parse_args().results.read_text()))


if __name__ == "__main__":
    main()
