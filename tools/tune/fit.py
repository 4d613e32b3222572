"""The constants of the planner's cost model, from measurements on the current GPU.

`measure` writes the times of every forced candidate at many shapes to a CSV. `fit` finds the constants with which the
library's model comes closest to these times, and `judge` evaluates the choices that the model makes with them.
"""

from __future__ import annotations

import csv
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import candidates
import numpy
import torch
from cases import Case, Shape, Work
from model import ARITHMETICS, PROBLEM, Facts, Kind, Model, load
from pandas import DataFrame
from report import ratio, table
from sweep import calls_per_graph
from workload import environment

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class Row:
    """Device microseconds of one candidate for one problem."""

    dtype: str
    batch: int
    input_features: int
    state_size: int
    direction: str
    candidate: str
    us: float
    gpu: str
    """The GPU's name, the date, and what the model knows about the GPU, as in `NVIDIA H200, 2026-11-22: 132 232448`."""

    @property
    def problem(self) -> tuple:
        return (self.gpu, self.dtype, self.batch, self.input_features, self.state_size, self.direction)

    @property
    def name(self) -> str:
        return self.candidate.partition(":")[0]

    @property
    def ranks(self) -> int:
        """The ranks that were forced, or 0."""
        return int(self.candidate.partition(":")[2] or 0)


def current_gpu(known: Model) -> str:
    numbers = " ".join(map(str, known.current_facts().numbers()))
    return f"{torch.cuda.get_device_name()}, {date.today()}: {numbers}"


class Csv:
    """A CSV of rows, which are kept if the run is interrupted."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", newline="")
        self.writer = csv.DictWriter(self.file, [field.name for field in fields(Row)])
        self.writer.writeheader()

    def write(self, rows: Iterable[Row]) -> None:
        self.writer.writerows(map(asdict, rows))
        self.file.flush()

    def __enter__(self) -> Csv:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read(paths: Iterable[Path]) -> list[Row]:
    numbers = {"batch": int, "input_features": int, "state_size": int, "us": float}
    rows = []
    for path in paths:
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                rows.append(Row(**{**line, **{name: of(line[name]) for name, of in numbers.items()}}))
    return rows


def measure(
    shapes: Sequence[Shape],
    dtypes: Sequence[str],
    directions: Sequence[str],
    path: Path,
    progress: Progress,
    seconds: float | None = None,
    every_rank: bool = False,
) -> list[Row]:
    """Write a line of CSV for every candidate that supports the problem, and for `auto`, as it is measured."""
    start = time.perf_counter()
    rows: list[Row] = []
    gpu = current_gpu(required_model())
    task = progress.add_task("candidates", total=len(shapes) * len(dtypes) * len(directions))
    with Csv(path) as file:
        for shape in shapes:
            for dtype in dtypes:
                for direction in directions:
                    if seconds and time.perf_counter() - start > seconds:
                        return rows
                    case = Case("cuda", 1, Work.FORWARD, dtype, shape)
                    progress.update(task, description=f"{case.dtype} {shape} {direction}")
                    with environment(case):
                        times = candidates.measure(case, direction, calls_per_graph(case), every_rank).times
                    sizes = (shape.batch, shape.input_features, shape.state_size)
                    found = [Row(dtype, *sizes, direction, name, us, gpu) for name, us in times.items()]
                    file.write(found)
                    rows += found
                    progress.advance(task)
    return rows


def required_model() -> Model:
    known = load()
    if known is None:
        raise ValueError("the model of the CUDA kernels is only in a library that was built with CUDA")
    return known


@dataclass(frozen=True)
class Group:
    """The rows of a candidate in one direction on one GPU."""

    name: str
    kind: Kind
    facts: Facts
    problems: numpy.ndarray
    rows: slice


class Estimates:
    """The model's estimates of measured rows, for any constants."""

    def __init__(self, known: Model, rows: Iterable[Row]) -> None:
        """Only takes the rows that the model supports."""
        self.known = known
        self.rows: list[Row] = []
        self.groups: list[Group] = []
        by_default: list[int] = []
        grouped: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in rows:
            if row.candidate != candidates.AUTO:
                grouped[row.gpu, row.direction, row.name].append(row)
        for (gpu, direction, name), of in grouped.items():
            facts = Facts.of([int(number) for number in gpu.rpartition(":")[2].split()])
            kind = candidates.kind_of(direction)
            problems = numpy.array(
                [(ARITHMETICS.index(r.dtype), r.batch, r.input_features, r.state_size, r.ranks) for r in of], PROBLEM
            )
            found = known.estimates(name, kind, facts, problems)
            supported = ~numpy.isnan(found["us"])
            # What was measured has the ranks that the library's own constants choose.
            problems["ranks"] = found["ranks"]
            first = len(self.rows)
            self.rows += [row for row, taken in zip(of, supported, strict=True) if taken]
            by_default += list(found["by_default"][supported])
            self.groups.append(Group(name, kind, facts, problems[supported], slice(first, len(self.rows))))
        self.measured = numpy.array([row.us for row in self.rows])
        self.by_default = numpy.array(by_default, bool)

    def group_us(self, group: Group, costs: numpy.ndarray) -> numpy.ndarray:
        return self.known.estimates(group.name, group.kind, group.facts, group.problems, costs)["us"]

    def __call__(self, costs: numpy.ndarray) -> numpy.ndarray:
        return numpy.concatenate([self.group_us(group, costs) for group in self.groups])


def _affected(estimates: Estimates, costs: numpy.ndarray) -> dict[int, list[Group]]:
    """The groups whose estimates depend on each constant, for those on which any depend."""
    us = [estimates.group_us(group, costs) for group in estimates.groups]
    affected: dict[int, list[Group]] = {}
    for index in numpy.flatnonzero(costs):
        for factor in (0.7, 1.4):
            others = costs.copy()
            others[index] *= factor
            for group, before in zip(estimates.groups, us, strict=True):
                of = affected.setdefault(int(index), [])
                if group not in of and (estimates.group_us(group, others) != before).any():
                    of.append(group)
    return {index: of for index, of in affected.items() if of}


PRIOR = 1.0
"""The weight of what a constant is now, relative to a measured time. It keeps the constants from following the shapes
that were measured too closely, and decides about those that the measurements do not."""
LARGEST_FACTOR = 10.0
"""No constant changes by more."""


def _weights(estimates: Estimates) -> numpy.ndarray:
    """How much the error of each row counts. A choice is among the fastest, so errors of slow ones matter little."""
    weights = numpy.empty(len(estimates.rows))
    for of in _problems(estimates.rows):
        us = estimates.measured[of]
        weights[of] = (us.min() / us) ** 3
    return weights


def fit(known: Model, rows: Iterable[Row], prior: float = PRIOR, only: str = "") -> dict[str, float]:
    """The constants that minimize the weighted squares of log(model / measured), with a robust loss, from the library's
    own. Those that are zero stay so, as do those in whose names the regular expression `only` finds nothing, and all
    keep their signs."""
    from scipy.optimize import least_squares  # only here: machines that only measure do not need it

    estimates = Estimates(known, rows)
    start = numpy.array(list(known.costs.values()))
    affected = _affected(estimates, start)
    names = list(known.costs)
    free = [index for index in affected if re.search(only, names[index])]

    def costs_at(logarithms: numpy.ndarray) -> numpy.ndarray:
        costs = start.copy()
        costs[free] *= numpy.exp(logarithms)
        return costs

    weights = _weights(estimates)

    def residuals(logarithms: numpy.ndarray) -> numpy.ndarray:
        errors = weights * numpy.log(estimates(costs_at(logarithms)) / estimates.measured)
        return numpy.concatenate([errors, prior * logarithms])

    def jacobian(logarithms: numpy.ndarray) -> numpy.ndarray:
        step = 1e-4
        costs, slopes = costs_at(logarithms), numpy.zeros((len(estimates.rows) + len(free), len(free)))
        before = numpy.log(estimates(costs))
        for column, index in enumerate(free):
            others = costs.copy()
            others[index] *= numpy.exp(step)
            for group in affected[index]:
                after = numpy.log(estimates.group_us(group, others))
                slopes[group.rows, column] = weights[group.rows] * (after - before[group.rows]) / step
            slopes[len(estimates.rows) + column, column] = prior
        return slopes

    limit = numpy.log(LARGEST_FACTOR)
    found = least_squares(
        residuals,
        numpy.zeros(len(free)),
        jacobian,
        bounds=(-limit, limit),
        loss="soft_l1",
        f_scale=0.1,
        ftol=1e-6,
        tr_solver="lsmr",  # several times as fast as a singular value decomposition of all rows
    )
    return dict(zip(known.costs, map(float, costs_at(found.x)), strict=True))


def _problems(rows: Iterable[Row]) -> Iterator[list[int]]:
    """The indices of the rows of each problem."""
    problems: dict[tuple, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        problems[row.problem].append(index)
    yield from problems.values()


def chosen_over_best(rows: Sequence[Row], estimates: Sequence[float]) -> list[float]:
    """For every problem, the measured time of the row with the least estimate over the least measured time. A candidate
    has the ranks that were forced, if any were, and otherwise those that it chose itself."""
    found = []
    for of in _problems(rows):
        forced = {rows[index].name for index in of if rows[index].ranks}
        taken = [index for index in of if rows[index].ranks or rows[index].name not in forced]
        chosen = min(taken, key=estimates.__getitem__)
        found.append(rows[chosen].us / min(rows[index].us for index in of))
    return found


@dataclass(frozen=True)
class Judgement:
    """How far the model is from the measurements."""

    errors: dict[tuple[str, str], list[float]]
    """|model / measured - 1| by direction and candidate."""
    choices: dict[str, list[float]]
    """For each problem, the time of the choice over that of the best candidate that may be chosen: by direction, as the
    library chose when it was measured and by the least estimate."""


def judge(known: Model, rows: Sequence[Row], costs: Mapping[str, float] | None = None) -> Judgement:
    """With these constants, or the library's own."""
    estimates = Estimates(known, rows)
    us = estimates(numpy.array(list((costs or known.costs).values())))
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, estimate in zip(estimates.rows, us, strict=True):
        errors[row.direction, row.name].append(abs(float(estimate) / row.us - 1))
    choices: dict[str, list[float]] = {}
    for direction in dict.fromkeys(row.direction for row in estimates.rows):
        of = [i for i, row in enumerate(estimates.rows) if row.direction == direction and estimates.by_default[i]]
        taken = [estimates.rows[index] for index in of]
        best: dict[tuple, float] = {}
        for row in taken:
            best[row.problem] = min(row.us, best.get(row.problem, row.us))
        auto = [row for row in rows if row.candidate == candidates.AUTO and row.problem in best]
        choices[f"{direction}: the choice as measured"] = [row.us / best[row.problem] for row in auto]
        choices[f"{direction}: the least estimate"] = chosen_over_best(taken, us[of])
    return Judgement(dict(errors), choices)


def markdown(known: Model, rows: Sequence[Row], costs: Mapping[str, float] | None = None) -> str:
    """How far the library's model is from the measurements, and the same with other constants, if given."""
    judged = {"now": judge(known, rows)}
    if costs:
        judged["fitted"] = judge(known, rows, costs)

    def quantiles(values: Mapping[str, Sequence[float]], form: Callable[[float], str]) -> dict[str, str]:
        fractions = {"median": 0.5, "90th percentile": 0.9, "worst": 1}
        return {
            f"{what}, {when}": form(float(numpy.quantile(of, fraction)))
            for when, of in values.items()
            for what, fraction in fractions.items()
        }

    errors, choices = [], []
    for key, values in judged["now"].errors.items():
        of = {when: judgement.errors[key] for when, judgement in judged.items()}
        named = {"direction": key[0], "candidate: model / measured - 1": key[1], "rows": str(len(values))}
        errors.append(named | quantiles(of, "{:.1%}".format))
    for name, values in judged["now"].choices.items():
        if values:
            of = {when: judgement.choices[name] for when, judgement in judged.items()}
            choices.append({"chosen / best": name} | quantiles(of, ratio))
    tables = [table(DataFrame(errors)), table(DataFrame(choices))]
    if costs:
        changed = {name: before for name, before in known.costs.items() if before != costs[name]}
        tables.append(
            table(
                DataFrame(
                    {
                        "constant": list(changed),
                        "now": [f"{before:.3g}" for before in changed.values()],
                        "fitted": [f"{costs[name]:.3g}" for name in changed],
                        "fitted / now": [ratio(costs[name] / before) for name, before in changed.items()],
                    }
                )
            )
        )
    return "\n\n".join([*tables, ""])


def measured_on(rows: Iterable[Row]) -> str:
    """The comment on the constants in costs.h."""
    gpus = dict.fromkeys(row.gpu.rpartition(":")[0] for row in rows)
    return f"{'; '.join(gpus)}, replaying captured graphs"
