"""The kinds of run of the command line, from the options to tables and pictures."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import extras
import machine
import measure
import pages
import report
import results
import speed
import sweep as random_shapes
import timing
import torch
import transforms as transform_cases
from cases import (
    DTYPES,
    FEW_STEPS,
    HIDDEN_SIZES,
    MODEL_DTYPES,
    MODELS,
    QUICK_SEQUENCE,
    QUICK_SHAPES,
    SEQUENCE_VARIANTS,
    SHAPES,
    STEP_SHAPES,
    UGLY_SHAPES,
    Shape,
    Work,
    make_cases,
    make_models,
    make_sequences,
    sweep_cases,
)
from peers import (
    BASELINES,
    COUNTERPARTS,
    FIXED_SHAPE_PEERS,
    GRU_MODULE,
    LSTM_MODULE,
    MODULE,
    OPERATOR,
    OURS,
    SEQUENCE_PEERS,
    SWEEP_PEERS,
    load_libraries,
    with_ours,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

OUR_SEQUENCES = (MODULE, OPERATOR, LSTM_MODULE, GRU_MODULE)
ALL_DTYPES = tuple(dict.fromkeys(name for names in DTYPES.values() for name in names))
CELL_WORKS = (str(Work.FORWARD), str(Work.TRAINING))


def choice(given: Sequence[str] | None, known: Sequence[str], what: str, default: Sequence[str] | None = None) -> list:
    """The given names, separate or comma-separated, or by default all known ones."""
    names = [name.strip() for entry in given or () for name in entry.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return names or list(known if default is None else default)


@dataclass(frozen=True)
class Request:
    """The options of the command line; None for those that are not given."""

    console: Console
    build_dir: Path
    folder: Path
    publish_as: str | None
    """The folder of benchmark/results that also keeps the measurements."""
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

    def chosen_shapes(self) -> list[Shape]:
        return [Shape.parse(text) for text in self.shapes or ()]

    def sweep_settings(self) -> dict[str, list]:
        return {
            "devices": self.one_device(),
            "threads": self.threads or [self.cores],
            "dtypes": self.chosen_dtypes(),
            "works": self.chosen_works(),
        }

    def budget(self) -> timing.Budget:
        return timing.QUICK if self.quick else timing.FULL

    def run(self, name: str, devices: list[str], tasks: list[results.Task], seconds: float | None = None) -> None:
        """Measure, and write the rows, the tables and the pictures."""
        if not tasks:
            raise ValueError("nothing to measure: no case has the given devices, dtypes and shapes")
        path = self.folder / f"{name}.jsonl"
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        facts = machine.describe(devices)
        for fact, value in facts.items():
            self.console.print(f"{fact}: {value}", highlight=False)
        with Progress(TextColumn("{task.description}"), *columns, console=self.console) as progress:
            results.run(tasks, path, facts, progress, seconds)
        report.write([path], path.with_suffix(".md"), self.folder)
        self.console.print(path.with_suffix(".md").read_text(), markup=False, highlight=False, soft_wrap=True)
        self.console.print(f"Results: {path} and *.md, *.png beside it")
        if self.publish_as:
            pages.publish(self.publish_as, [path])


def fixed_shapes(request: Request, _: object) -> None:
    """The cell at the shapes of RESULTS.md, with errors, memory and ways to call it."""
    load_libraries(request.build_dir)
    devices = request.chosen_devices()
    sections = choice(request.cases, [*map(str, Work), *extras.SECTIONS], "case")
    shapes = request.chosen_shapes() or list(QUICK_SHAPES if request.quick else (*SHAPES, *UGLY_SHAPES))
    peers = [OURS, *choice(request.peers, FIXED_SHAPE_PEERS[1:], "peer")]
    works = [work for work in Work if str(work) in sections]
    cases = make_cases(devices, request.chosen_threads(), works, request.chosen_dtypes(), shapes)
    budget = replace(request.budget(), seconds=request.seconds) if request.seconds else request.budget()
    tasks = measure.tasks("cell", cases, peers, budget) + extras.tasks(devices, sections, peers, budget)
    request.run("cell", devices, tasks)


def sweep(request: Request, count: int) -> None:
    """Random shapes, compared with the peers."""
    load_libraries(request.build_dir)
    largest = Shape.parse(request.largest) if request.largest else random_shapes.LARGEST
    draws = [(seed, shape) for seed in request.seeds or [1] for shape in random_shapes.draw(count, seed, largest)]
    if shapes := request.chosen_shapes():
        draws = [(0, shape) for shape in shapes]
    cases = sweep_cases(draws, **request.sweep_settings())
    tasks = random_shapes.tasks(cases, choice(request.peers, SWEEP_PEERS, "peer")) if cases else []
    request.run("sweep", request.one_device(), tasks, request.seconds)


def sequence(request: Request, _: object) -> None:
    """Whole sequences, compared with nn.LSTM, nn.GRU and a loop of cells."""
    load_libraries(request.build_dir)
    devices, shapes = request.chosen_devices(), request.chosen_shapes()
    settings = {"threads": request.chosen_threads(), "works": request.chosen_works()}
    cases = make_sequences(
        devices=devices,
        dtypes=request.chosen_dtypes(),
        variants=choice(
            request.variants, names := list(SEQUENCE_VARIANTS), "variant", names[: 2 if request.quick else None]
        ),
        shapes=shapes or ([QUICK_SEQUENCE] if request.quick else None),
        **settings,
    )
    others = [name for name in SEQUENCE_PEERS if name not in OUR_SEQUENCES]
    peers = [*OUR_SEQUENCES, *choice(request.peers, others, "peer")]
    tasks = measure.tasks("sequence", cases, peers, request.budget())
    if "cuda" in devices and not (shapes or request.quick):
        dtypes = [dtype for dtype in speed.PANELS if dtype in request.chosen_dtypes()]
        settings["works"] = [Work.TRAINING]
        series = make_sequences(["cuda"], dtypes=dtypes, variants=["padded"], shapes=HIDDEN_SIZES, **settings)
        shown = [name for name in peers if name in speed.COLORS]
        tasks += measure.tasks("hidden size", series, shown, request.budget())
    request.run("sequence", devices, tasks, request.seconds)


def models(request: Request, _: object) -> None:
    """The recurrent layers of typical models, ours beside torch.nn's, called from Python without a graph."""
    load_libraries(request.build_dir)
    devices = request.chosen_devices()
    known = [name for device in devices for name in MODEL_DTYPES[device]]
    cases = make_models(
        devices=devices,
        threads=request.threads or [1],
        works=request.chosen_works(),
        dtypes=choice(request.dtypes, known, "dtype", known[:1] if request.quick else None),
        models=choice(request.variants, names := list(MODELS), "model", names[: 1 if request.quick else None]),
    )
    peers = with_ours(choice(request.peers, BASELINES, "peer"))
    request.run("models", devices, measure.tasks("models", cases, peers, request.budget()), request.seconds)


def steps(request: Request, _: object) -> None:
    """Single steps of cells, and layers that run a few steps, ours beside torch.nn's."""
    load_libraries(request.build_dir)
    devices = request.chosen_devices()
    shapes = request.chosen_shapes() or STEP_SHAPES[: 1 if request.quick else None]
    settings = {
        "devices": devices,
        "threads": request.threads or [1],
        "works": request.chosen_works(),
        "dtypes": request.chosen_dtypes(),
    }
    few = [replace(shape, steps=count) for shape in shapes for count in FEW_STEPS]
    peers = with_ours(choice(request.peers, list(COUNTERPARTS.values()), "peer"))
    tasks = [
        *measure.tasks("step", make_cases(**settings, shapes=shapes), peers, timing.SEVEN_ROUNDS),
        *measure.tasks(
            "few steps", make_sequences(**settings, variants=["padded"], shapes=few), peers, timing.SEVEN_ROUNDS
        ),
    ]
    request.run("steps", devices, tasks, request.seconds)


def step_sweep(request: Request, count: int) -> None:
    """The same of random shapes: device time alone, on a CPU wall time."""
    load_libraries(request.build_dir)
    largest = Shape.parse(request.largest) if request.largest else random_shapes.LARGEST_STEP
    chosen = choice(request.peers, list(COUNTERPARTS.values()), "peer")
    pairs = {ours: theirs for ours, theirs in COUNTERPARTS.items() if theirs in chosen}
    settings = {**request.sweep_settings(), "threads": request.threads or [1]}
    drawn = random_shapes.draw_steps(count, request.seeds or [1], largest)
    tasks = []
    for seed, shape in [(0, shape) for shape in request.chosen_shapes()] or drawn:
        few = [(seed, replace(shape, steps=steps)) for steps in FEW_STEPS]
        for section, draws, variant in (("step sweep", [(seed, shape)], ""), ("few steps sweep", few, "padded")):
            for case in sweep_cases(draws, **settings, variant=variant):
                tasks += random_shapes.tasks_of_pairs(section, case, pairs)
    request.run("step-sweep", request.one_device(), tasks, request.seconds)


def sequence_sweep(request: Request, count: int) -> None:
    """Random sequences, compared with nn.LSTM and nn.GRU."""
    load_libraries(request.build_dir)
    largest = Shape.parse(request.largest) if request.largest else random_shapes.LARGEST_SEQUENCE
    draws = random_shapes.draw_sequences(count, request.seeds or [1, 2, 3], largest)
    if shapes := request.chosen_shapes():
        draws = [(0, shape) for shape in shapes]
    cases = sweep_cases(draws, **request.sweep_settings(), variant="padded")
    peers = [*OUR_SEQUENCES, *choice(request.peers, BASELINES, "peer")]
    tasks = measure.tasks("sequence sweep", cases, [name for name in peers if name != OPERATOR], timing.BRIEF)
    request.run("sequence-sweep", request.one_device(), tasks, request.seconds)


def transforms(request: Request, _: object) -> None:
    """torch.func's transforms of lltm.LLTM, with a loop and a plain call beside them."""
    shapes = request.chosen_shapes() or transform_cases.SHAPES[: 1 if request.quick else None]
    threads = {"cpu": request.chosen_threads(), "cuda": [request.cores]}
    tasks = [
        task
        for device in request.chosen_devices()
        for count in threads[device]
        for task in transform_cases.tasks(device, count, shapes, request.budget())
    ]
    request.run("transforms", request.chosen_devices(), tasks, request.seconds)
