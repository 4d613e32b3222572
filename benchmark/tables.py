"""Markdown tables, and the numbers in them."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float | None) -> str:
    """Three significant digits; empty for values that were not measured."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def pair(first: float | None, second: float | None) -> str:
    """`forward / forward and backward`."""
    if second is None:
        return number(first)
    return f"{number(first) or '-'} / {number(second)}"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def verdict(value: float, limit: float, at_least: bool = True) -> str:
    """The limit, and whether it is met."""
    return f"{limit:.3g} ({'met' if (value >= limit if at_least else value <= limit) else '**missed**'})"
