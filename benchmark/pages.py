"""The tables of the pages that show committed measurements: each stands between two comments of Markdown.

<!-- tables: h200/sequence.jsonl -->     all tables of these files in results/, and what is known of their machines
<!-- speedups: h200/sequence.jsonl -->   one table: speedup by shape and dtype
<!-- method -->                          how each kind of table was measured
<!-- end -->

The picture of speed, docs/_static/speed.svg, is drawn from the same files.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import report
import speed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
PAGES = [ROOT / "README.md", ROOT / "docs" / "performance.md", ROOT / "benchmark" / "RESULTS.md"]

SPEED = ROOT / "docs" / "_static" / "speed.svg"
SPEED_OF = "h100/sequence.jsonl"
"""The measurements that the picture of speed shows."""

BLOCK = re.compile(r"(<!-- (method|tables|speedups)(?:: (.*?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def content(kind: str, files: str | None) -> str:
    """What belongs between the comments."""
    if kind == "method":
        return "\n\n".join(f"**{section.capitalize()}.** {text}" for section, text in report.METHOD.items())
    found = report.read([RESULTS / name for name in (files or "").split()])
    if kind == "speedups":
        return report.speedups(found.rows)
    below_the_headings_of_the_page = re.sub("^#", "##", report.tables(found, with_method=False), flags=re.MULTILINE)
    return f"{report.facts(found.machines)}\n\n{below_the_headings_of_the_page}"


def speed_picture() -> str:
    """The picture of speed, as SVG."""
    found = report.read([RESULTS / SPEED_OF])
    return speed.svg(found.rows, found.machines[0]["GPU"])


def written(text: str) -> str:
    """The text of a page with the tables of the present measurements."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{content(block[2], block[3])}\n\n{block[4]}", text)


def publish(machine: str, measurements: Sequence[Path]) -> None:
    """Keep these files as the machine's, instead of earlier ones of the same names, and write the tables anew."""
    folder = RESULTS / machine
    folder.mkdir(parents=True, exist_ok=True)
    for path in measurements:
        shutil.copy(path, folder)
    for page in PAGES:
        page.write_text(written(page.read_text()))
    SPEED.write_text(speed_picture())
