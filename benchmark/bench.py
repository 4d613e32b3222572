"""Compare this library with its peers. See `python benchmark/bench.py --help`; `make bench` builds it first."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

# Use the library of the build tree. Must precede any import of lltm.
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

app = typer.Typer(add_completion=False)
console = Console()

DEFAULT_COUNT = 32  # random shapes of a seed
RANDOM, WHAT, HOW = "Random shapes", "What to measure", "How to measure"
BuildDir = Annotated[Path, typer.Option(help="Build tree with liblltm_ops.so and benchmark/.")]
Output = Annotated[Path | None, typer.Option(help="Folder for the results; BUILD_DIR/bench by default.")]
Sweep = Annotated[
    int | None,
    typer.Option(
        "--sweep",
        metavar="[N]",
        min=1,
        rich_help_panel=RANDOM,
        help=f"N random shapes of each seed, {DEFAULT_COUNT} by default; with --sequence, of sequences.",
    ),
]
Candidates = Annotated[
    int | None,
    typer.Option(
        "--candidates", metavar="N", min=1, rich_help_panel=RANDOM, help="N random shapes with every CUDA candidate."
    ),
]
EveryRank = Annotated[
    bool, typer.Option("--ranks", rich_help_panel=RANDOM, help="Candidates with every number of ranks, to fit.")
]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", rich_help_panel=RANDOM, help="Repeat for more; by default 1, of sequences 1, 2 and 3."),
]
Largest = Annotated[
    str | None, typer.Option(rich_help_panel=RANDOM, help="Largest sizes: [STEPS,]BATCH,INPUT_FEATURES,STATE_SIZE.")
]
NoCandidates = Annotated[
    bool, typer.Option("--no-candidates", rich_help_panel=RANDOM, help="A sweep without the planner's candidates.")
]
Named = Annotated[bool, typer.Option("--named", help="The shapes that have a target.")]
Sequence = Annotated[bool, typer.Option("--sequence", help="Sequences, compared with nn.LSTM and nn.GRU.")]
Load = Annotated[bool, typer.Option("--load", help="Single calls on the CPU, idle and under load.")]
Devices = Annotated[list[str] | None, typer.Option("--devices", rich_help_panel=WHAT, help="cpu, cuda.")]
Cases = Annotated[
    list[str] | None,
    typer.Option(
        "--cases",
        rich_help_panel=WHAT,
        help="forward, training; autocast, memory, calls, tutorial; of --candidates: forward, backward, step, ...",
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option("--variants", rich_help_panel=WHAT, help="Of sequences: padded, packed, two layers, both directions."),
]
Dtypes = Annotated[
    list[str] | None, typer.Option("--dtypes", rich_help_panel=WHAT, help="float32, tf32, bfloat16, float16.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shapes", rich_help_panel=WHAT, help="[STEPS,]BATCH,INPUT_FEATURES,STATE_SIZE; repeat for more."),
]
Peers = Annotated[list[str] | None, typer.Option("--peers", rich_help_panel=WHAT, help="Peers to compare with.")]
Quick = Annotated[bool, typer.Option("--quick", rich_help_panel=HOW, help="Few shapes, float32, all cores.")]
Threads = Annotated[
    list[int] | None,
    typer.Option("--threads", min=1, rich_help_panel=HOW, help="CPU threads; 1 and all cores by default."),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        rich_help_panel=HOW,
        help="For each case; of --sweep, --named, --candidates, --sequence: in all.",
    ),
]


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    build_dir: BuildDir = ROOT / "build",
    output: Output = None,
    sweep: Sweep = None,
    candidates: Candidates = None,
    ranks: EveryRank = False,
    named: Named = False,
    sequence: Sequence = False,
    load: Load = False,
    seed: Seeds = None,
    largest: Largest = None,
    no_candidates: NoCandidates = False,
    devices: Devices = None,
    cases: Cases = None,
    variants: Variants = None,
    dtypes: Dtypes = None,
    shapes: Shapes = None,
    peers: Peers = None,
    quick: Quick = False,
    threads: Threads = None,
    seconds: Seconds = None,
) -> None:
    """Measure, and write results, tables and plots to the output folder. Separate names by commas; repeat an option for
    several numbers or shapes."""
    if context.invoked_subcommand:
        return
    os.environ["LLTM_LIBRARY"] = str(build_dir.resolve() / "liblltm_ops.so")
    import runs

    request = runs.Request(
        console=console,
        build_dir=build_dir.resolve(),
        folder=output or build_dir / "bench",
        devices=devices,
        cases=cases,
        variants=variants,
        dtypes=dtypes,
        shapes=shapes,
        peers=peers,
        quick=quick,
        threads=threads,
        seconds=seconds,
        seeds=seed,
        largest=largest,
        with_candidates=not no_candidates,
        every_rank=ranks,
    )
    request.folder.mkdir(parents=True, exist_ok=True)
    modes = {
        runs.sequence_sweep if sequence else runs.sweep: sweep,
        runs.candidates: candidates,
        runs.named: named,
        runs.sequence: sequence and not sweep,
        runs.load: load,
    }
    chosen = [(mode, value) for mode, value in modes.items() if value]
    try:
        for mode, value in chosen:
            mode(request, value)
        if not chosen:
            runs.fixed_shapes(request)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="results.json, sweep.jsonl, named.jsonl, sequence.jsonl, ...")],
    output: Annotated[Path, typer.Option(help="Where to write the tables.")] = Path("results.md"),
    pictures: Annotated[Path | None, typer.Option(help="Folder for the pictures; none by default.")] = None,
) -> None:
    """Write the tables (and plots) of earlier runs. Several logs of the same kind are pooled."""
    from reports import write_again

    try:
        write_again(results, output, pictures)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console.print(f"Tables: {output}")


@app.command()
def fit(
    measurements: Annotated[list[Path], typer.Argument(help="candidates.csv of one or several runs.")],
    build_dir: BuildDir = ROOT / "build",
    only: Annotated[str, typer.Option(help="A regular expression: other constants stay as they are.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the constants to src/cuda/plan/costs.h.")] = False,
) -> None:
    """Fit the constants of the planner's cost model to the measurements of --candidates, and print them."""
    os.environ["LLTM_LIBRARY"] = str(build_dir.resolve() / "liblltm_ops.so")
    import fit as fitting
    from model import write_costs

    try:
        known, rows = fitting.required_model(), fitting.read(measurements)
        costs = fitting.fit(known, rows, only=only)
        console.print(fitting.markdown(known, rows, costs), markup=False, highlight=False, soft_wrap=True)
        if write:
            header = ROOT / "src" / "cuda" / "plan" / "costs.h"
            header.write_text(write_costs(header.read_text(), costs, fitting.measured_on(rows)))
            console.print(f"Constants: {header}")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def with_counts(arguments: list[str]) -> list[str]:
    """The command line with a number after every --sweep."""
    given = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        given.append(argument)
        if argument == "--sweep" and not following.isdecimal():
            given.append(str(DEFAULT_COUNT))
    return given


if __name__ == "__main__":
    app(with_counts(sys.argv[1:]))
