"""Fit the planner's cost model of the CUDA kernels to a GPU. See `python tools/tune/tune.py --help`, and README.md."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
# Use the library of the build tree. Must precede any import of lltm.
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmark")]

app = typer.Typer(add_completion=False)
console = Console()

BuildDir = Annotated[Path, typer.Option(help="Build tree with liblltm_ops.so.")]


def names(given: str, known: tuple[str, ...], what: str) -> list[str]:
    """The comma-separated names, all known ones if there are none."""
    chosen = [name.strip() for name in given.split(",")] if given else list(known)
    for name in chosen:
        if name not in known:
            raise typer.BadParameter(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return chosen


@app.command()
def measure(
    count: Annotated[int, typer.Argument(min=1, help="Random shapes of each seed.")],
    build_dir: BuildDir = ROOT / "build",
    output: Annotated[Path, typer.Option(help="The CSV to write.")] = Path("candidates.csv"),
    seed: Annotated[list[int] | None, typer.Option(help="Repeat for more; 1 by default.")] = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="Every number of ranks, which a fit needs.")] = False,
    directions: Annotated[str, typer.Option(help="forward,backward,step,step_backward,lstm,lstm_step.")] = "",
    dtypes: Annotated[str, typer.Option(help="float32,tf32,float16,bfloat16.")] = "",
    seconds: Annotated[float | None, typer.Option(min=0, help="In all.")] = None,
) -> None:
    """Measure every candidate of the planner, forced, at random shapes."""
    os.environ["LLTM_LIBRARY"] = str(build_dir.resolve() / "liblltm_ops.so")
    import candidates
    import fit as fitting
    import torch
    from cases import DTYPES
    from sweep import draw

    if not torch.cuda.is_available():
        raise typer.BadParameter("the candidates are measured on a GPU, and there is none")
    shapes = [shape for of in seed or [1] for shape in draw(count, of)]
    with Progress(console=console) as progress:
        rows = fitting.measure(
            shapes,
            names(dtypes, DTYPES["cuda"], "dtype"),
            names(directions, candidates.DIRECTIONS, "direction"),
            output,
            progress,
            seconds,
            ranks,
        )
    _show(fitting.markdown(fitting.required_model(), rows))
    console.print(f"Measurements: {output}")


@app.command()
def fit(
    measurements: Annotated[list[Path], typer.Argument(help="CSV files of one or several runs.")],
    build_dir: BuildDir = ROOT / "build",
    only: Annotated[str, typer.Option(help="A regular expression: other constants stay as they are.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the constants to src/cuda/plan.")] = False,
) -> None:
    """Fit the constants of the cost model to measurements, and print them."""
    os.environ["LLTM_LIBRARY"] = str(build_dir.resolve() / "liblltm_ops.so")
    import fit as fitting
    from model import write_costs, write_times

    try:
        known, rows = fitting.required_model(), fitting.read(measurements)
        costs = fitting.fit(known, rows, only=only)
        _show(fitting.markdown(known, rows, costs))
        if write:
            plan = ROOT / "src" / "cuda" / "plan"
            header, tables = plan / "costs.h", (plan / "forward.cpp", plan / "sequence_gradients.cpp")
            header.write_text(write_costs(header.read_text(), costs, fitting.measured_on(rows)))
            for table in tables:
                table.write_text(write_times(table.read_text(), costs))
            console.print("Constants:", *map(str, (header, *tables)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _show(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    app()
