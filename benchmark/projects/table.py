"""The table of docs/lstm.md, and a sentence, from the results of a run."""

from __future__ import annotations

from statistics import median


def number(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.1f}"


def headline(results: dict) -> str:
    speedups = {work: [row[work][0] / row[work][1] for row in results["rows"]] for work in ("train", "eval")}
    train, evaluate = (f"{min(of):.1f} to {max(of):.1f} times (median {median(of):.1f})" for of in speedups.values())
    clock = "one CPU core" if results["device"] == "cpu" else f"an {results['machine']['GPU']}"
    packages = len({row["package"] for row in results["rows"]})
    return (
        f"On {clock}, {len(results['rows'])} models of {packages} open-source projects train {train} as fast once"
        f" converted,\nand evaluate {evaluate} as fast. Packed sequences gain most."
    )


def table(results: dict) -> str:
    rows = sorted(results["rows"], key=lambda row: (row["package"], row["what"], row["cell"]))
    name = results["machine"].get("GPU", results["machine"]["CPU"])
    on_cpu = results["device"] == "cpu"
    clock = "processor time, one thread" if on_cpu else "wall time"
    dtype = "float32" if on_cpu else "float32 in TF32"  # PyTorch's default
    columns = [
        "project",
        "what ran",
        "layers",
        "training step, ms",
        "times as fast",
        "evaluation, times as fast",
        "difference",
    ]
    lines = [
        [
            f"{row['package']} {row['version']}",
            f"`{row['what']}`" + (", packed" if row["packed"] else ""),
            row["cell"],
            " → ".join(map(number, row["train"])),
            *(f"{row[work][0] / row[work][1]:.1f}" for work in ("train", "eval")),
            f"{row['difference']:.0e}",
        ]
        for row in rows
    ]
    return "\n".join(
        [
            headline(results),
            "",
            f"{name}, {clock}, PyTorch {results['machine']['PyTorch']}, {dtype}:",
            "",
            *("| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *lines)),
        ]
    )
