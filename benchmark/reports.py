"""Tables and plots from the files of earlier runs. Does not need the library."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import load
import plots
from report import markdown
from results import Results, read_logs
from sequence import measure as sequence_measure
from sequence import report as sequence_report
from sweep import measure as sweep_measure
from sweep import report as sweep_report


@dataclass(frozen=True)
class _Log:
    """How to read and show the log of a kind of run."""

    entry: type
    markdown: Callable[[list, str], str]
    draw: Callable[[list, Path], None] | None = None


_LOGS = {
    "sweep": _Log(sweep_measure.Entry, sweep_report.markdown, sweep_report.draw),
    "named": _Log(sweep_measure.Entry, sweep_report.named_markdown),
    "sequence-sweep": _Log(sequence_measure.Entry, sequence_report.sweep_markdown, sequence_report.draw_sweep),
    "sequence": _Log(sequence_measure.Entry, sequence_report.markdown, sequence_report.draw),
    "load": _Log(load.Entry, load.markdown),
}


def write_again(paths: list[Path], tables: Path, pictures: Path | None) -> None:
    """Write the tables and plots of earlier runs: for each results.json, and for the pooled logs of each kind. The
    beginning of a file's name is its kind."""
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    parts = []
    for path in (path for path in paths if path.suffix == ".json"):
        run = Results.load(path)
        parts.append(markdown(run))
        if pictures:
            plots.draw(run, pictures)
    logs: dict[str, list[Path]] = {}
    for path in (path for path in paths if path.suffix != ".json"):
        logs.setdefault(next((kind for kind in _LOGS if path.stem.startswith(kind)), path.stem), []).append(path)
    for kind, of_kind in logs.items():
        if kind not in _LOGS:
            raise ValueError(f"expected results.json, or a log whose name begins with {', '.join(_LOGS)}; got {kind}")
        log = _LOGS[kind]
        entries = read_logs(of_kind, log.entry)
        parts.append(log.markdown(entries, ", ".join(dict.fromkeys(str(path.parent) for path in of_kind))))
        if pictures and log.draw:
            log.draw(entries, pictures / f"{kind}.png")
    tables.write_text("\n".join(parts))
