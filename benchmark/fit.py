"""The constants of the planner's cost model, from measurements on the current GPU.

`measure` writes the times of every forced candidate at many shapes to a CSV. `fit` finds the constants with which a
model comes closest to these times, and evaluates the choices that the model would make.
"""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import candidates
import numpy
from cases import Case, Shape, Work
from sweep.measure import calls_per_graph
from tables import ratio, table
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
    features: dict[str, float]
    """The features that the candidate reports, if any; `NAME=VALUE NAME=VALUE` in the CSV."""

    @property
    def problem(self) -> tuple[str, int, int, int, str]:
        return (self.dtype, self.batch, self.input_features, self.state_size, self.direction)


class Csv:
    """A CSV of rows, which are kept if the run is interrupted."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", newline="")
        self.writer = csv.DictWriter(self.file, [field.name for field in fields(Row)])
        self.writer.writeheader()

    def write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            text = " ".join(f"{name}={value!r}" for name, value in row.features.items())
            self.writer.writerow(asdict(row) | {"features": text})
        self.file.flush()

    def __enter__(self) -> Csv:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def measure(
    shapes: Sequence[Shape], dtypes: Sequence[str], path: Path, progress: Progress, seconds: float | None = None
) -> list[Row]:
    """Write a line of CSV for every candidate that supports the problem, including `auto`, as it is measured."""
    start = time.perf_counter()
    rows: list[Row] = []
    task = progress.add_task("candidates", total=len(shapes) * len(dtypes) * len(candidates.DIRECTIONS))
    with Csv(path) as file:
        for shape in shapes:
            for dtype in dtypes:
                for direction in candidates.DIRECTIONS:
                    if seconds and time.perf_counter() - start > seconds:
                        return rows
                    case = Case("cuda", 1, Work.FORWARD, dtype, shape)
                    progress.update(task, description=f"{case.dtype} {shape} {direction}")
                    with environment(case):
                        times = candidates.measure(case, direction, calls_per_graph(case)).times
                    sizes = (shape.batch, shape.input_features, shape.state_size)
                    found = [
                        Row(dtype, *sizes, direction, name, us, candidates.features(direction, name, case))
                        for name, us in times.items()
                    ]
                    file.write(found)
                    rows += found
                    progress.advance(task)
    return rows


def _from_line(line: dict[str, str]) -> Row:
    sizes = {name: int(line[name]) for name in ("batch", "input_features", "state_size")}
    pairs = (entry.split("=") for entry in line["features"].split())
    numbers = {"us": float(line["us"]), "features": {name: float(value) for name, value in pairs}}
    return Row(**{**line, **sizes, **numbers})


def load(paths: Iterable[Path]) -> list[Row]:
    rows = []
    for path in paths:
        with path.open(newline="") as file:
            rows += [_from_line(line) for line in csv.DictReader(file)]
    return rows


def sizes_as_features(row: Row) -> dict[str, float]:
    """Features of a problem that all candidates share, used if a candidate reports none."""
    columns = row.input_features + row.state_size
    multiply_adds = row.batch * columns * 3 * row.state_size * (2 if row.direction == "backward" else 1)
    numbers = 3 * row.state_size * columns + row.batch * (columns + 5 * row.state_size)
    bytes_ = numbers * (2 if row.dtype in ("bfloat16", "float16") else 4) * (2 if row.direction == "backward" else 1)
    return {"launch": 1.0, "multiply_adds": float(multiply_adds), "bytes": float(bytes_)}


Features = Mapping[str, float]
"""The features of a candidate for a problem: bytes, waves, chunks, ..."""
Model = Callable[[Mapping[str, float], Features], float]
"""Microseconds from constants and features."""


def linear(constants: Mapping[str, float], features: Features) -> float:
    """A cost per unit of every feature."""
    return sum(constants[name] * amount for name, amount in features.items())


@dataclass(frozen=True)
class Fit:
    constants: dict[str, float]
    median_error: float
    """The median of |model / measured - 1|."""
    largest_error: float


def fit(
    features: Sequence[Features],
    us: Sequence[float],
    start: Mapping[str, float] | None = None,
    model: Model = linear,
) -> Fit:
    """The positive constants that minimize the squares of log(model / measured), with a robust loss. `start` is the
    initial guess of each constant; by default, every feature is assumed to take the whole time."""
    from scipy.optimize import least_squares  # only here: machines that only measure do not need it

    measured = numpy.asarray(us, dtype=float)
    if start is None:
        names = list(dict.fromkeys(name for entry in features for name in entry))
        amounts = {name: numpy.array([entry.get(name, 0.0) for entry in features]) for name in names}
        start = {
            name: float(numpy.median(measured[values > 0] / values[values > 0])) / len(names)
            for name, values in amounts.items()
            if (values > 0).any()
        }
    names = list(start)

    def predicted(logarithms: numpy.ndarray) -> numpy.ndarray:
        constants = dict(zip(names, numpy.exp(logarithms), strict=True))
        return numpy.array([model(constants, entry) for entry in features])

    def residuals(logarithms: numpy.ndarray) -> numpy.ndarray:
        return numpy.log(predicted(logarithms) / measured)

    found = least_squares(residuals, numpy.log(list(start.values())), loss="soft_l1", f_scale=0.1)
    errors = numpy.abs(predicted(found.x) / measured - 1)
    constants = dict(zip(names, (float(value) for value in numpy.exp(found.x)), strict=True))
    return Fit(constants, float(numpy.median(errors)), float(errors.max()))


def chosen_over_best(rows: Sequence[Row], estimate: Callable[[Row], float]) -> list[float]:
    """For every problem, the measured time of the candidate with the lowest estimate over the lowest measured time."""
    problems: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        if row.candidate != candidates.AUTO:
            problems[row.problem].append(row)
    return [min(of, key=estimate).us / min(row.us for row in of) for of in problems.values()]


@dataclass(frozen=True)
class Fitted:
    """The constants of each candidate, and the quality of the planner's choices with them."""

    fits: dict[tuple[str, str, str], Fit]
    """Fits by direction, candidate and dtype."""
    choices: dict[str, list[float]]
    """For each problem, the time of the choice over that of the best candidate: by direction, for the library's current
    choice and for the one with these constants."""


def fit_candidates(rows: Sequence[Row]) -> Fitted:
    """Fit every candidate that was measured often enough, in each dtype."""
    grouped: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.candidate != candidates.AUTO:
            grouped[row.direction, row.candidate, row.dtype].append(row)
    fits = {key: fit([_features(row) for row in of], [row.us for row in of]) for key, of in grouped.items()}

    def estimate(row: Row) -> float:
        return linear(fits[row.direction, row.candidate, row.dtype].constants, _features(row))

    best: dict[tuple, float] = {}
    for row in rows:
        best[row.problem] = min(row.us, best.get(row.problem, row.us))
    choices = {}
    for direction in dict.fromkeys(row.direction for row in rows):
        of = [row for row in rows if row.direction == direction]
        today = [row.us / best[row.problem] for row in of if row.candidate == candidates.AUTO]
        choices[f"{direction}: the choice of today"] = today
        choices[f"{direction}: the least estimate"] = chosen_over_best(of, estimate)
    return Fitted(fits, choices)


def _features(row: Row) -> dict[str, float]:
    return row.features or sizes_as_features(row)


def markdown(fitted: Fitted) -> str:
    """The constants, and the quantiles of chosen / best with them and with the current ones."""
    rows = [
        [
            *key,
            "; ".join(f"{name} {value:.3g}" for name, value in found.constants.items()),
            f"{found.median_error:.1%}",
            f"{found.largest_error:.0%}",
        ]
        for key, found in fitted.fits.items()
    ]
    header = ["direction", "candidate", "dtype", "microseconds a unit of each feature", "median error", "largest"]
    quantiles = [
        [name, *(ratio(float(numpy.quantile(values, q))) for q in (0.5, 0.9, 1))]
        for name, values in fitted.choices.items()
        if values
    ]
    return "\n\n".join(
        [table(header, rows), table(["chosen / best", "median", "90th percentile", "worst"], quantiles), ""]
    )
