"""The kinds of run of the command line, from the options to tables and plots."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import candidates as planner
import fit
import load as under_load
import machine
import session
import timing
import torch
from cases import DTYPES, QUICK_SHAPES, SHAPES, UGLY_SHAPES, Case, Shape, Work
from peers import FIXED_SHAPE_PEERS, OURS, SWEEP_PEERS, load_libraries
from reports import write_again
from results import Results
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from sequence import cases as sequence_cases
from sequence import measure as sequence_measure
from sequence import peers as sequence_peers
from sequence import report as sequence_report
from sweep import measure as sweep_measure
from sweep import report as sweep_report
from sweep.shapes import LARGEST, Draw, draw
from targets import NAMED

ALL_DTYPES = tuple(dict.fromkeys(name for names in DTYPES.values() for name in names))
CELL_WORKS = (str(Work.FORWARD), str(Work.TRAINING))


def choice(given: Sequence[str] | None, known: Sequence[str], what: str, default: Sequence[str] | None = None) -> list:
    """The given names, separate or comma-separated, or by default all known ones."""
    names = [name.strip() for entry in given or () for name in entry.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return names or list(known if default is None else default)


def require_some(cases: Sequence) -> None:
    if not cases:
        raise ValueError("nothing to measure: no case has the given devices, dtypes and shapes")


@dataclass(frozen=True)
class Request:
    """The options of the command line; None for those that are not given."""

    console: Console
    build_dir: Path
    folder: Path
    devices: list[str] | None
    cases: list[str] | None
    variants: list[str] | None
    dtypes: list[str] | None
    shapes: list[str] | None
    peers: list[str] | None
    quick: bool
    threads: list[int] | None
    seconds: float | None
    seeds: list[int] | None
    largest: str | None
    with_candidates: bool
    every_rank: bool

    @property
    def cores(self) -> int:
        return len(os.sched_getaffinity(0))

    def chosen_devices(self, default: Sequence[str] | None = None) -> list[str]:
        return choice(self.devices, ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"], "device", default)

    def one_device(self) -> list[str]:
        """A single device: by default the GPU if there is one."""
        return self.chosen_devices(["cuda" if torch.cuda.is_available() else "cpu"])

    def chosen_threads(self) -> list[int]:
        return self.threads or sorted({self.cores} if self.quick else {1, self.cores})

    def chosen_dtypes(self) -> list[str]:
        return choice(self.dtypes, ALL_DTYPES, "dtype", ["float32"] if self.quick else None)

    def chosen_works(self) -> list[Work]:
        return [Work(name) for name in choice(self.cases, CELL_WORKS, "case")]

    def cell_seeds(self) -> list[int]:
        return self.seeds or [1]

    def budget(self) -> timing.Budget:
        return timing.QUICK if self.quick else timing.FULL

    def progress(self) -> Progress:
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        return Progress(TextColumn("{task.description}"), *columns, console=self.console)

    def machine(self, devices: list[str]) -> str:
        """The machine, as named in the titles of the tables."""
        facts = machine.describe(devices)
        return f"{facts.get('GPU', facts['CPU'])}, PyTorch {facts['PyTorch']}, {facts['date']}"

    def finish(self, name: str, text: str) -> None:
        path = self.folder / f"{name}.md"
        path.write_text(text)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.console.print(f"Results: {path} and {name}.* beside it")


def fixed_shapes(request: Request) -> None:
    """The cell at the shapes of RESULTS.md, with errors, memory and ways to call it."""
    shapes = QUICK_SHAPES if request.quick else (*SHAPES, *UGLY_SHAPES)
    settings = session.Settings(
        build_dir=request.build_dir,
        devices=request.chosen_devices(),
        threads=request.chosen_threads(),
        sections=choice(request.cases, session.SECTIONS, "case"),
        dtypes=request.chosen_dtypes(),
        shapes=[Shape.parse(text) for text in request.shapes] if request.shapes else list(shapes),
        peers=[OURS, *choice(request.peers, FIXED_SHAPE_PEERS[1:], "peer")],
        quick=request.quick,
        seconds=request.seconds,
    )

    def save(results: Results) -> None:
        (request.folder / "results.json").write_text(json.dumps(asdict(results), indent=1))

    with request.progress() as progress:
        session.measure(settings, progress, save)
    write_again([request.folder / "results.json"], request.folder / "results.md", request.folder)
    request.console.print(f"Results: {request.folder}/results.json, results.md and pictures (*.png)")


def sweep(request: Request, count: int) -> None:
    """Random shapes, compared with the peers and the planner's other candidates."""
    draws = [entry for seed in request.cell_seeds() for entry in draw(count, seed, _largest(request))]
    entries, on = _sweep(request, _cases(request, draws), "sweep")
    sweep_report.draw(entries, request.folder / "sweep.png")
    request.finish("sweep", sweep_report.markdown(entries, on))


def named(request: Request, _: bool) -> None:
    """The shapes that have a target."""
    wanted = [Shape.parse(text) for text in request.shapes or ()]
    shapes = dict.fromkeys(shape for _, shape in NAMED if not wanted or shape in wanted)
    cases = [
        (draw, case)
        for draw, case in _cases(request, [Draw(None, shape) for shape in shapes])
        if (case.dtype, case.shape) in NAMED
    ]
    entries, on = _sweep(request, cases, "named")
    request.finish("named", sweep_report.named_markdown(entries, on))


def _cases(request: Request, draws: list[Draw]) -> list[tuple[Draw, Case]]:
    return sweep_measure.cases_of(
        draws=draws,
        devices=request.one_device(),
        threads=request.threads or [request.cores],
        dtypes=request.chosen_dtypes(),
        works=request.chosen_works(),
    )


def _sweep(request: Request, cases: list[tuple[Draw, Case]], name: str) -> tuple[list[sweep_measure.Entry], str]:
    require_some(cases)
    load_libraries(request.build_dir)
    what = sweep_measure.Sweep(
        cases=cases,
        peers=choice(request.peers, SWEEP_PEERS, "peer"),
        with_candidates=request.with_candidates,
        seconds=request.seconds,
    )
    with request.progress() as progress:
        entries = sweep_measure.run(what, request.folder / f"{name}.jsonl", progress)
    return entries, request.machine(request.one_device())


def _largest(request: Request) -> Shape:
    return Shape.parse(request.largest) if request.largest else LARGEST


def candidates(request: Request, count: int) -> None:
    """Every candidate of the CUDA planner, forced, at random shapes: writes a CSV for `bench.py fit`."""
    if not torch.cuda.is_available():
        raise ValueError("--candidates measures on a GPU, and there is none")
    shapes = [entry.shape for seed in request.cell_seeds() for entry in draw(count, seed, _largest(request))]
    if request.shapes:
        shapes = [Shape.parse(text) for text in request.shapes]
    path = request.folder / "candidates.csv"
    directions = choice(request.cases, planner.DIRECTIONS, "case")
    with request.progress() as progress:
        rows = fit.measure(
            shapes, request.chosen_dtypes(), directions, path, progress, request.seconds, request.every_rank
        )
    request.finish("candidates", fit.markdown(fit.required_model(), rows))


def sequence(request: Request, _: bool) -> None:
    """Whole sequences, compared with nn.LSTM, nn.GRU and a loop of cells."""
    load_libraries(request.build_dir)
    devices = request.chosen_devices()
    shapes = _sequence_shapes(request)
    variants = list(sequence_cases.VARIANTS)
    if request.quick and not shapes:
        shapes = [sequence_cases.QUICK_SHAPE]
    cases = sequence_cases.make_cases(
        devices=devices,
        threads=request.chosen_threads(),
        dtypes=request.chosen_dtypes(),
        works=request.chosen_works(),
        variants=choice(request.variants, variants, "variant", variants[:2] if request.quick else variants),
        shapes=shapes,
    )
    require_some(cases)
    ours = [sequence_peers.MODULE, sequence_peers.OPERATOR]
    others = [name for name in sequence_peers.PEERS if name not in ours]
    peers = ours + choice(request.peers, others, "peer")
    path = request.folder / "sequence.jsonl"
    with request.progress() as progress:
        entries = sequence_measure.run(cases, peers, request.budget(), path, progress, request.seconds)
    sequence_report.draw(entries, request.folder / "sequence.png")
    request.finish("sequence", sequence_report.markdown(entries, request.machine(devices)))


def _sequence_shapes(request: Request) -> list[sequence_cases.SequenceShape] | None:
    return [sequence_cases.SequenceShape.parse(text) for text in request.shapes] if request.shapes else None


def sequence_sweep(request: Request, count: int) -> None:
    """Random sequences, compared with nn.LSTM and nn.GRU."""
    load_libraries(request.build_dir)
    devices = request.one_device()
    largest = sequence_cases.LARGEST
    if request.largest:
        largest = sequence_cases.SequenceShape.parse(request.largest)
    draws = sequence_cases.draw(count, request.seeds or [1, 2, 3], largest)
    if shapes := _sequence_shapes(request):
        draws = [(None, shape) for shape in shapes]
    cases = sequence_cases.make_sweep(
        devices, request.threads or [request.cores], request.chosen_dtypes(), request.chosen_works(), draws
    )
    require_some(cases)
    peers = [sequence_peers.MODULE, *choice(request.peers, sequence_peers.BASELINES, "peer")]
    path = request.folder / "sequence-sweep.jsonl"
    with request.progress() as progress:
        entries = sequence_measure.run(cases, peers, timing.BRIEF, path, progress, request.seconds)
    sequence_report.draw_sweep(entries, request.folder / "sequence-sweep.png")
    request.finish("sequence-sweep", sequence_report.sweep_markdown(entries, request.machine(devices)))


def load(request: Request, _: bool) -> None:
    """Single calls on the CPU while other processes keep every core busy."""
    shapes = [Shape.parse(text) for text in request.shapes] if request.shapes else list(under_load.SHAPES)
    if request.quick:
        shapes = shapes[:1]
    seconds = request.seconds or (0.3 if request.quick else 1.5)
    with request.progress() as progress:
        entries = under_load.run(
            request.threads or [1, 2], request.chosen_works(), shapes, seconds, request.folder / "load.jsonl", progress
        )
    request.finish("load", under_load.markdown(entries, request.machine(["cpu"])))
