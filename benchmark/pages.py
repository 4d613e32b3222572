"""The generated parts of the pages: each stands between two comments of Markdown.

<!-- tables: h100/sequence.jsonl -->     all tables of these files in results/, and what is known of their machines
<!-- speedups: h100/sequence.jsonl -->   one table: speedup by shape and dtype
<!-- speedups of lltm.LSTM: h100/sequence.jsonl -->   the same of lltm.LSTM over nn.LSTM; also of lltm.GRU and cells
<!-- headline: h100/sequence-sweep.jsonl -->   a sentence on random shapes; headline of lltm.LSTM, lltm.GRU: the same
<!-- gru: xeon/sequence.jsonl -->    a sentence: nn.GRU and a single step on a CPU
<!-- projects: xeon/projects.json --> the models of benchmark/projects; headline of projects: a sentence
<!-- resets: xeon/resets.json -->     the rollouts of examples/rl/reset_speed.py
<!-- limits: h200-80-virtual/limits.json -->   the steps of limits.py, with the limits of smaller GPUs
<!-- method -->                          how each kind of table was measured
<!-- quality: quality.json -->           the scores of benchmark/quality
<!-- serving: xeon/serving.json -->      the latencies of benchmark/serving
<!-- end -->

The picture of speed, docs/_static/speed.svg and speed-narrow.svg, is drawn from the same files.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
PAGES_OF_DOCS = ("index", "lstm", "performance", "reinforcement-learning", "serving", "the-cell")
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmark" / "RESULTS.md",
    *(ROOT / "docs" / f"{name}.md" for name in PAGES_OF_DOCS),
]

SPEED = {2: ROOT / "docs" / "_static" / "speed.svg", 1: ROOT / "docs" / "_static" / "speed-narrow.svg"}
"""The pictures of speed, by the number of their columns."""
SPEED_OF = "h200/sequence.jsonl"
"""The measurements that they show."""

OF = {"": "speedup"} | {f" of lltm.{name}": f"{name} speedup" for name in ("LSTM", "GRU", "LSTMCell", "GRUCell")}
"""The column of the tables that a kind with such an ending shows."""
SPEEDUPS, HEADLINES = ({f"{kind}{of}": column for of, column in OF.items()} for kind in ("speedups", "headline"))
KINDS = (
    "method",
    "tables",
    *SPEEDUPS,
    *HEADLINES,
    "gru",
    "projects",
    "headline of projects",
    "resets",
    "limits",
    "quality",
    "serving",
)
BLOCK = re.compile(rf"(<!-- ({'|'.join(map(re.escape, KINDS))})(?:: (.*?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def content(kind: str, files: str | None) -> str:
    """What belongs between the comments."""
    paths = [RESULTS / name for name in (files or "").split()]
    if kind == "quality":
        from quality import scores

        return scores.tables(json.loads(paths[0].read_text())).strip()
    if kind == "serving":
        from serving import latency

        return latency.table(json.loads(paths[0].read_text()))
    if kind in ("projects", "headline of projects"):
        from projects import table

        results = json.loads(paths[0].read_text())
        return table.table(results) if kind == "projects" else table.headline(results)
    if kind == "resets":
        return resets(*(json.loads(path.read_text()) for path in paths))
    if kind == "limits":
        return limits(json.loads(paths[0].read_text())["rows"])
    import report  # only here: what writes the other kinds has no pandas

    if kind == "method":
        return "\n\n".join(f"**{section.capitalize()}.** {text}" for section, text in report.METHOD.items())
    found = report.read(paths)
    if kind in SPEEDUPS:
        return report.speedups(found.rows, SPEEDUPS[kind])
    if kind == "gru":
        return report.beside_gru(found)
    if kind in HEADLINES:
        return report.headline(found, HEADLINES[kind])
    below_the_headings_of_the_page = re.sub("^#", "##", report.tables(found, with_method=False), flags=re.MULTILINE)
    return f"{report.facts(found.machines)}\n\n{below_the_headings_of_the_page}"


def resets(*runs: dict) -> str:
    """Times as fast as nn.LSTM without resets."""
    machine, rows = runs[0]["machine"], [row for run in runs for row in run["rows"]]
    names = [name for name in dict.fromkeys(row["name"] for row in rows) if name != runs[0]["baseline"]]
    lines = []
    for shape in dict.fromkeys(tuple(row["shape"]) for row in rows):
        of = {row["name"]: row["us"] for row in rows if tuple(row["shape"]) == shape}
        base = of[runs[0]["baseline"]]
        speedups = [" / ".join(f"{b / us:.2g}" for b, us in zip(base, of[name], strict=True)) for name in names]
        lines.append([", ".join(map(str, shape)), *speedups])
    columns = ["T, N, I, H", *names]
    return "\n".join(
        [
            f"On {machine.get('GPU', machine['CPU'])}, {runs[0]['dtype']}, PyTorch {machine['PyTorch']}:",
            "",
            *("| " + " | ".join(line) + " |" for line in (columns, [":---"] * len(columns), *lines)),
        ]
    )


def limits(rows: list[dict]) -> str:
    """Microseconds a step, a column for each number of multiprocessors."""
    from report import DTYPE_TITLES, number

    times = {(row["cell"], tuple(row["shape"]), row["dtype"], row["multiprocessors"]): row["us"] for row in rows}
    limits = dict.fromkeys((row["multiprocessors"], row["kib"]) for row in rows)
    columns = ["layer", "steps, batch, input, hidden", "dtype", *(f"{count}, {kib} KiB" for count, kib in limits)]
    lines = [columns, [":---"] * len(columns)]
    for cell, shape, dtype in dict.fromkeys(case[:3] for case in times):
        us = [" / ".join(map(number, times[cell, shape, dtype, count])) for count, _ in limits]
        lines.append([f"lltm.{cell}", ", ".join(map(str, shape)), DTYPE_TITLES[dtype], *us])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def written(text: str) -> str:
    """The text of a page with the tables of the present measurements."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{content(block[2], block[3])}\n\n{block[4]}", text)


def digest_of_speed() -> str:
    """Identifies what the picture of speed is drawn from: matplotlib's versions draw differently."""
    return hashlib.sha256((RESULTS / SPEED_OF).read_bytes()).hexdigest()


def draw_speed() -> None:
    import report
    import speed

    found = report.read([RESULTS / SPEED_OF])
    for columns, path in SPEED.items():
        path.write_text(speed.svg(found.rows, found.machines[0]["GPU"], digest_of_speed(), columns))


def publish(machine: str, measurements: Sequence[Path]) -> None:
    """Keep these files as the machine's, instead of earlier ones of the same names, and write the tables anew."""
    folder = RESULTS / machine
    folder.mkdir(parents=True, exist_ok=True)
    for path in measurements:
        shutil.copy(path, folder)
    for page in PAGES:
        page.write_text(written(page.read_text()))
    draw_speed()
