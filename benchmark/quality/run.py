"""Trains an LLTM, an LSTM and a GRU of as many parameters on small tasks, and the LLTM with what may help it.

    make quality                                              # all tasks, three seeds, in at most ten minutes
    python benchmark/quality/run.py --tasks sine --seeds 5    # writes build/quality/results.json
    python benchmark/quality/run.py --publish build/quality/results.json

The second form of the command measures a part of it. The last one keeps a file of results as benchmark/results/
quality.json, and writes the tables of docs/the-cell.md from it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import scores
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / name) for name in ("stream", "digits", "rl")]  # whose data and training are used
sys.path.append(str(ROOT / "benchmark"))

import pages  # noqa: E402
from models import LAYERS, VARIANTS  # noqa: E402
from tasks import TASKS  # noqa: E402

SLOW = {"masked CartPole"}
SLOW_VARIANTS = {*LAYERS, "no leak", "no leak, input-gate bias -2"}
"""What is measured of a slow task, so that the whole run takes some minutes on two cores."""

PAGE = ROOT / "docs" / "the-cell.md"
PUBLISHED = ROOT / "benchmark" / "results" / "quality.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/quality/results.json"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", type=float, default=1.0, help="the part of the updates of each task")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="WORD", help="only tasks whose names contain a word")
    parser.add_argument("--variants", nargs="+", default=[], metavar="WORD", help="only variants ... (likewise)")
    parser.add_argument("--publish", type=Path, metavar="FILE", help=f"keep it, write the tables of {PAGE.name}, stop")
    return parser.parse_args()


def selected(names, words: list[str]) -> list[str]:
    return [name for name in names if not words or any(word in name for word in words)]


def measure(task: str, variant: str, seed: int, part: float) -> scores.Row:
    torch.set_num_threads(1)  # the tensors are small
    start = time.process_time()
    outcome = TASKS[task].run(VARIANTS[variant], seed, part)
    numbers = (*outcome, time.process_time() - start)
    return scores.Row(task, variant, seed, *(value and float(f"{value:.5g}") for value in numbers))


def write(path: Path, results: dict) -> None:
    """One row a line, so that the difference between two files is that of their rows."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in results["rows"])
    rest = json.dumps(results | {"rows": []}, indent=1)
    path.write_text(rest.replace('"rows": []', f'"rows": [\n{rows}\n ]') + "\n")


def main() -> None:
    args = arguments()
    if args.publish:
        if args.publish.resolve() != PUBLISHED:
            shutil.copy(args.publish, PUBLISHED)
        PAGE.write_text(pages.written(PAGE.read_text()))
        return
    jobs = [
        (task, variant, seed)
        for task in selected(TASKS, args.tasks)
        for variant in selected(VARIANTS, args.variants)
        for seed in range(args.seeds)
        if task not in SLOW or variant in SLOW_VARIANTS
        if args.variants or variant not in scores.OF_TORCH
    ]
    start = time.monotonic()
    rows: list[scores.Row] = []
    args.output.parent.mkdir(parents=True, exist_ok=True)
    # Not forked: OpenMP's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        for done in as_completed([pool.submit(measure, *job, args.part) for job in jobs]):
            row = done.result()
            rows.append(row)
            results = {
                "torch": torch.__version__,
                "part": args.part,
                "seconds": round(time.monotonic() - start),
                "metrics": {
                    name: {"name": task.metric, "lower_is_better": task.lower_is_better} for name, task in TASKS.items()
                },
                "rows": [row._asdict() for row in sorted(rows, key=lambda row: jobs.index(row[:3]))],
            }
            # After every row, so that an interrupted run keeps what it has measured.
            write(args.output, results)
            print(f"{len(rows):4}/{len(jobs)} {row.task}, {row.variant}, seed {row.seed}: {row.score:.4g}", flush=True)
    print(scores.tables(results))
    print(f"results: {os.path.relpath(args.output)} ({results['seconds']} s in all)")


if __name__ == "__main__":
    main()
