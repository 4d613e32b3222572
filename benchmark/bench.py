"""Measure this library beside its peers. `python benchmark/bench.py --help`; `make bench` builds first."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# The library of the build tree, before anything imports lltm.
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

app = typer.Typer(add_completion=False, no_args_is_help=False)
console = Console()

BuildDir = Annotated[Path, typer.Option(help="Build tree with liblltm_ops.so and benchmark/.")]


def _choice(given: list[str] | None, known: list[str], what: str) -> list[str]:
    for name in given or []:
        if name not in known:
            raise typer.BadParameter(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return given or known


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    build_dir: BuildDir = ROOT / "build",
    output: Annotated[Path | None, typer.Option(help="Folder for the results; BUILD_DIR/bench by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two shapes, float32, all cores, short samples.")] = False,
    devices: Annotated[list[str] | None, typer.Option("--devices", help="cpu, cuda; repeat for both.")] = None,
    threads: Annotated[
        list[int] | None, typer.Option("--threads", help="CPU threads; 1 and all cores by default.")
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option("--cases", help="forward, training, autocast, memory, calls, tutorial.")
    ] = None,
    dtypes: Annotated[list[str] | None, typer.Option("--dtypes", help="float32, tf32, bfloat16, float16.")] = None,
    shapes: Annotated[list[str] | None, typer.Option("--shapes", help="BATCH,INPUT_FEATURES,STATE_SIZE.")] = None,
    peers: Annotated[list[str] | None, typer.Option("--peers", help="Peers to measure beside lltm.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Time for one case, all its peers together.")] = None,
) -> None:
    """Measure, and leave results.json, results.md and pictures in the output folder."""
    if context.invoked_subcommand:
        return
    library = build_dir.resolve() / "liblltm_ops.so"
    os.environ["LLTM_LIBRARY"] = str(library)

    import session
    from cases import DTYPES, QUICK_SHAPES, SHAPES, UGLY_SHAPES, Shape
    from peers import OURS, PEERS
    from results import Results

    cores = len(os.sched_getaffinity(0))
    available = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    chosen_peers = _choice(peers, list(PEERS), "peer")
    settings = session.Settings(
        build_dir=build_dir.resolve(),
        devices=_choice(devices, available, "device"),
        threads=threads or sorted({cores} if quick else {1, cores}),
        sections=_choice(cases, list(session.SECTIONS), "case"),
        dtypes=_choice(dtypes, sorted({name for names in DTYPES.values() for name in names}), "dtype")
        if dtypes or not quick
        else ["float32"],
        shapes=[Shape.parse(text) for text in shapes]
        if shapes
        else list(QUICK_SHAPES if quick else (*SHAPES, *UGLY_SHAPES)),
        peers=[OURS, *(name for name in chosen_peers if name != OURS)],
        quick=quick,
        seconds=seconds,
    )
    folder = output or build_dir / "bench"
    folder.mkdir(parents=True, exist_ok=True)

    def save(results: Results) -> None:
        (folder / "results.json").write_text(json.dumps(asdict(results), indent=1))

    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console,
    ) as progress:  # fmt: skip
        session.measure(settings, progress, save)

    _write_report([folder / "results.json"], folder / "results.md", folder)
    console.print(f"Results: {folder}/results.json, results.md and pictures (*.png)")


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="results.json of one or several runs.")],
    output: Annotated[Path, typer.Option(help="Where to write the tables.")] = Path("results.md"),
    pictures: Annotated[Path | None, typer.Option(help="Folder for the pictures; none by default.")] = None,
) -> None:
    """Write the tables (and pictures) of earlier runs again."""
    _write_report(results, output, pictures)
    console.print(f"Tables: {output}")


def _write_report(paths: list[Path], tables: Path, pictures: Path | None) -> None:
    import plots
    from report import markdown
    from results import Results

    runs = [Results.load(path) for path in paths]
    tables.write_text("\n".join(markdown(run) for run in runs))
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
        for run in runs:
            plots.draw(run, pictures)


if __name__ == "__main__":
    app()
