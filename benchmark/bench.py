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
Publish = Annotated[
    str | None,
    typer.Option(metavar="MACHINE", help="Keep the measurements in benchmark/results/MACHINE, and update the pages."),
]
Sweep = Annotated[
    int | None,
    typer.Option(
        "--sweep",
        metavar="[N]",
        min=1,
        rich_help_panel=RANDOM,
        help=f"N random shapes of each seed, {DEFAULT_COUNT} by default; with --sequence or --steps, of these.",
    ),
]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", rich_help_panel=RANDOM, help="Repeat for more; by default 1, of sequences 1, 2 and 3."),
]
Largest = Annotated[
    str | None, typer.Option(rich_help_panel=RANDOM, help="Largest sizes: [STEPS,]BATCH,INPUT_FEATURES,STATE_SIZE.")
]
Sequence = Annotated[bool, typer.Option("--sequence", help="Sequences, compared with nn.LSTM and nn.GRU.")]
Transforms = Annotated[bool, typer.Option("--transforms", help="vmap, gradients of each sample, jvp.")]
Models = Annotated[bool, typer.Option("--models", help="The recurrent layers of typical models, eager.")]
Steps = Annotated[bool, typer.Option("--steps", help="Single steps of LSTMCell and GRUCell, and layers over 1 to 8.")]
Devices = Annotated[list[str] | None, typer.Option("--devices", rich_help_panel=WHAT, help="cpu, cuda.")]
Cases = Annotated[
    list[str] | None,
    typer.Option(
        "--cases",
        rich_help_panel=WHAT,
        help="forward, training; of the cell at fixed shapes also autocast, memory, calls, tutorial.",
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variants",
        rich_help_panel=WHAT,
        help="Of sequences: padded, packed, two layers, both directions; or names of models.",
    ),
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
        help="For each case of the cell at fixed shapes; of --sweep and --sequence: in all.",
    ),
]


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    build_dir: BuildDir = ROOT / "build",
    output: Output = None,
    publish: Publish = None,
    sweep: Sweep = None,
    sequence: Sequence = False,
    transforms: Transforms = False,
    models: Models = False,
    steps: Steps = False,
    seed: Seeds = None,
    largest: Largest = None,
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
        publish_as=publish,
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
    )
    request.folder.mkdir(parents=True, exist_ok=True)
    mode = {
        (False, False): runs.fixed_shapes,
        (False, True): runs.sweep,
        (True, False): runs.sequence,
        (True, True): runs.sequence_sweep,
    }[sequence, sweep is not None]
    if transforms or models or steps:
        of_steps = runs.steps if sweep is None else runs.step_sweep
        mode = runs.transforms if transforms else runs.models if models else of_steps
    try:
        mode(request, sweep)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def report(
    measurements: Annotated[list[Path], typer.Argument(help="cell.jsonl, sweep.jsonl, sequence.jsonl, ...")],
    output: Annotated[Path, typer.Option(help="Where to write the tables.")] = Path("results.md"),
    pictures: Annotated[Path | None, typer.Option(help="Folder for the pictures; none by default.")] = None,
) -> None:
    """Write the tables and pictures of earlier runs, pooled. Needs no library."""
    from report import write

    write(measurements, output, pictures)
    console.print(f"Tables: {output}")


@app.command("publish")
def publish_files(
    machine: Annotated[str, typer.Argument(help="A folder of benchmark/results, such as h200.")],
    measurements: Annotated[list[Path] | None, typer.Argument(help="New files; none: only write the tables.")] = None,
) -> None:
    """Keep measurements in benchmark/results, and write the tables of the pages anew. Needs no library."""
    from pages import publish

    publish(machine, measurements or [])


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
