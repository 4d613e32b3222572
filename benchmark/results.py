"""The measurements of a run: rows of JSON, in a file that an interrupted run keeps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class Row:
    """What one peer takes for one case. Report.py makes a data frame of rows."""

    section: str
    """"cell", "sweep", "sequence", "hidden size", "sequence sweep", "models", "step", "few steps", "step sweep",
    "few steps sweep", "transforms"; "memory", "calls", "tutorial"; "failure"."""
    device: str = ""
    threads: int = 1
    dtype: str = "float32"
    work: str = ""
    shape: str = ""
    peer: str = ""
    us: float | None = None
    """Microseconds per call, of a sequence per step."""
    low: float | None = None
    high: float | None = None
    """The quartiles of the samples."""
    clock: str = "wall"
    """"wall"; "processor"; or "device": the time on the GPU, by replay of a graph."""
    variant: str = ""
    """Of sequences and models: cases.VARIANTS."""
    seed: int = 0
    """The seed that a random shape was drawn with."""
    limit: float | None = None
    """The least time that the multiply-adds (of a cell on a GPU, or the bytes) take at the rates of the machine."""
    speedup: float | None = None
    """Only of transcribed tables, whose times are rounded: otherwise it follows from the times."""
    error_mean: float | None = None
    error_max: float | None = None
    """Of the peer's worst result, against float64, relative to that result's mean magnitude."""
    bytes: int | None = None
    """What autograd keeps between forward and backward, without parameters and arguments."""
    bytes_beyond_results: int | None = None
    message: str = ""
    """Of a failure."""


def line_of(row: Row) -> str:
    """In JSON, without what a Row has by default."""
    kept = {field.name: of for field in fields(row) if (of := getattr(row, field.name)) != field.default}
    return json.dumps(kept)


def failure(error: Exception) -> str:
    """The type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


Task = tuple[str, Callable[[], Iterable[Row]]]
"""A name for the progress bar and for failures, and what measures the rows."""


def run(
    tasks: Sequence[Task], path: Path, machine: dict[str, str], progress: Progress, seconds: float | None = None
) -> None:
    """Write the machine and the rows of every task to `path` as soon as they are known. No task begins later than after
    this many seconds; if one fails, the others still run."""
    start = time.perf_counter()
    bar = progress.add_task("", total=len(tasks))
    with path.open("w") as file:
        file.write(json.dumps({"machine": machine}) + "\n")
        for done, (name, task) in enumerate(tasks):
            if seconds and time.perf_counter() - start > seconds:
                progress.console.print(f"[yellow]{done} of {len(tasks)} cases within {seconds:.0f} s")
                break
            progress.update(bar, description=name)
            try:
                rows = list(task())
            except Exception as error:  # whatever a peer raises
                rows = [Row("failure", message=f"{name}: {failure(error)}")]
            for row in rows:
                file.write(line_of(row) + "\n")
                if row.section == "failure":
                    progress.console.print(f"[red]{row.message}", highlight=False)
            file.flush()
            progress.advance(bar)
