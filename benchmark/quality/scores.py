"""The tables of docs/the-cell.md, from the results of a run."""

from __future__ import annotations

from itertools import permutations
from statistics import mean
from typing import NamedTuple

BASELINES = ("lltm.LSTM", "lltm.GRU", "lltm.LLTM")
OF_TORCH = ("nn.LSTM", "nn.GRU")
"""They have the results of ours up to rounding, and are measured where --variants asks for them."""


class Row(NamedTuple):
    """One trained model."""

    task: str
    variant: str
    seed: int
    score: float
    cell_mean: float | None
    """The mean of |c| after the last step of the evaluation; None for a layer without c."""
    cell_max: float | None
    seconds: float
    """The processor time of training and evaluation."""


def number(value: float) -> str:
    """Two or three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def spread(values: list[float]) -> str:
    """The mean and, in parentheses, the range."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(mean(values))} ({number(min(values))} to {number(max(values))})"


def table(columns: list[str], lines: list[list[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def tables(results: dict) -> str:
    """Three tables: the scores of the layers, what helps the LLTM, and the sizes of the cells' states."""
    rows = [Row(**row) for row in results["rows"]]
    tasks = list(dict.fromkeys(row.task for row in rows))
    variants = list(dict.fromkeys(row.variant for row in rows))
    baselines = [name for name in BASELINES + OF_TORCH if name in variants]
    ours = [name for name in variants if name not in BASELINES[:2] + OF_TORCH]

    def values(task: str, variant: str, field: str) -> list[float]:
        return [getattr(row, field) for row in rows if (row.task, row.variant) == (task, variant)]

    def is_better(task: str, a: str, b: str) -> bool:
        """As shown, every score of a is better than every one of b: ranges that overlap are a tie."""
        ours, theirs = ([float(number(value)) for value in values(task, name, "score")] for name in (a, b))
        lower = results["metrics"][task]["lower_is_better"]
        return bool(ours) and (max(ours) < min(theirs) if lower else min(ours) > max(theirs))

    def better(a: str, b: str) -> str:
        found = [task for task in tasks if is_better(task, a, b)]
        return f"- {a} is better than {b} in {len(found)} of {len(tasks)} tasks" + ": " * bool(found) + "; ".join(found)

    def scores(task: str) -> list[str]:
        """Those of the layers; bold are those than which no other is better."""
        best = [name for name in baselines if not any(is_better(task, other, name) for other in baselines)]
        shown = {name: spread(values(task, name, "score")) for name in baselines}
        return [f"**{text}**" if name in best else text for name, text in shown.items()]

    def changed(task: str) -> list[str]:
        """The means of the LLTM's variants; the best is bold."""
        means = {name: mean(of) for name in ours if (of := values(task, name, "score"))}
        best = (min if results["metrics"][task]["lower_is_better"] else max)(means.values())
        cells = {name: f"**{number(of)}**" if of == best else number(of) for name, of in means.items()}
        return [cells.get(name, "") for name in ours]

    def titled(task: str) -> str:
        metric = results["metrics"][task]
        return f"{task}: {metric['name']}" + ("" if metric["lower_is_better"] else " (more is better)")

    def cells(task: str, variant: str) -> str:
        means, largest = values(task, variant, "cell_mean"), values(task, variant, "cell_max")
        return f"{number(mean(means))}, {number(max(largest))}" if means else ""

    seeds = len({row.seed for row in rows})
    shortened = "" if results["part"] == 1 else f" after {results['part']:.0%} of the updates"
    with_cells = [name for name in variants if values(tasks[0], name, "cell_mean")[0] is not None]
    changes = [table(["task", *ours], [[task, *changed(task)] for task in tasks])] if ours else []
    return "\n".join(
        [
            f"Scores{shortened}: the mean of {seeds} seeds and their range. Less is better, except where noted."
            " Bold: no other is better, where ranges that overlap are ties.\n",
            table(["task", *baselines], [[titled(task), *scores(task)] for task in tasks]),
            "".join(f"{better(*pair)}\n" for pair in permutations(baselines, 2)),
            *(["Scores of the LLTM with one thing changed, means:\n", *changes] if changes else []),
            "|c| after the last step of the evaluation, mean and largest:\n",
            table(["task", *with_cells], [[task, *(cells(task, name) for name in with_cells)] for task in tasks]),
        ]
    )
