"""Makes random calls of every operator and compares each of them with the formula in float64.

    python3 test/property/fuzz.py --seconds 600
    python3 test/property/fuzz.py --device cuda --calls 50000 --jobs 8
    python3 test/property/fuzz.py --device cuda --path grid --operators lstm lstm_backward

Prints the number of calls, their features, and the largest error by operator, dtype and path as a fraction of the bound
for rounding errors (bounds.py). At the first wrong result, or with --go-on after all calls, it prints the call and the
command that repeats it, and exits with status 1.
On the CPU the environment selects the path, once per process, so each path has its own process.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import os
import random
import shlex
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lltm_testing.settings  # noqa: F401  finds lltm
import torch
from lltm_testing.isolated import CONTEXT
from lltm_testing.random_calls.cases import CPU_CAPABILITIES, DTYPES
from lltm_testing.random_calls.checking import Checker, Group, Wrong
from lltm_testing.random_calls.operators import OPERATORS, draw_case

PATH_VARIABLES = ("LLTM_CPU_GEMM", "ATEN_CPU_CAPABILITY", "LLTM_CUDA_PATH")
KEY_BYTES = 64


def paths_of(device: str) -> list[dict[str, str]]:
    """The environments that select paths. On CUDA each call selects its own path."""
    if device != "cpu":
        return [{}]
    named = [{"ATEN_CPU_CAPABILITY": c} for c in CPU_CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), ())]
    return [{}, *({"LLTM_CPU_GEMM": "own"} | capability for capability in named), {"LLTM_CPU_GEMM": "aten"}]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time (60 without --calls)")
    parser.add_argument("--calls", type=int, default=None, help="stop after this many calls")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operators", nargs="+", choices=tuple(OPERATORS), default=list(OPERATORS))
    parser.add_argument("--path", help="LLTM_CUDA_PATH of every call; those for which it is an error do not count")
    parser.add_argument("--go-on", action="store_true", help="after a wrong result")
    parser.add_argument("--only", metavar="KEY", help="make one call, the one that a failure named")
    arguments = parser.parse_args()
    if arguments.seconds is None and arguments.calls is None:
        arguments.seconds = 60.0
    if arguments.path and arguments.device != "cuda":
        parser.error("--path selects kernels of --device cuda")
    return arguments


def draw(key: str, device: str, operators: list[str], path: str | None):
    case = dataclasses.replace(draw_case(random.Random(key), device, operators), origin=key)
    if path is None:
        return case
    # A step across the grid that starts without a state does not multiply the weights of h (docs/features.md).
    left_out = () if path != "grid" or getattr(case, "state", True) else ("weights", "weight_hh")
    poison = tuple((name, value) for name, value in case.poison if name not in left_out)
    return dataclasses.replace(case, path=path, poison=poison)


class Failure(NamedTuple):
    what: str
    key: str
    """Identifies the call that failed."""


class Report(NamedTuple):
    """The report of one process."""

    path: dict[str, str]
    calls: collections.Counter
    refused: int
    repeated: collections.Counter
    features: collections.Counter
    worst: dict[Group, tuple[float, str]]
    failures: list[Failure]


class Share(NamedTuple):
    """The calls of one process, up to the first of the two limits."""

    seed: int
    index: int
    path: dict[str, str]
    device: str
    operators: list[str]
    selected: str | None
    """LLTM_CUDA_PATH of every call."""
    calls: int | None
    seconds: float | None
    go_on: bool


def work(share: Share, current_key, sender) -> None:
    for name in PATH_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(share.path)
    checker = Checker()
    end = time.monotonic() + (share.seconds or float("inf"))
    failures = []
    key = ""

    def attempt(step: Callable[[], None]) -> bool:
        """Whether to continue."""
        try:
            step()
        except Wrong as wrong:
            failures.append(Failure(str(wrong), wrong.case.origin))
        except Exception:
            failures.append(Failure(traceback.format_exc(), key))
        return share.go_on or not failures

    for k in itertools.count():
        if checker.calls.total() == share.calls or time.monotonic() > end:
            attempt(checker.finish)
            break
        current_key.value = (key := f"{share.seed}:{share.index}:{k}").encode()
        if not attempt(lambda: checker.check(draw(key, share.device, share.operators, share.selected))):
            break
    with contextlib.suppress(BrokenPipeError):  # another process has failed
        counts = checker.calls, checker.refused, checker.repeated, checker.features
        sender.send(Report(share.path, *counts, checker.worst, failures))


def run(share: Share) -> Report:
    """Runs a share in a separate process. If the process dies, the call that it was making has failed."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    current_key = CONTEXT.RawArray("c", KEY_BYTES)
    process = CONTEXT.Process(target=work, args=(share, current_key, sender))
    process.start()
    sender.close()
    try:
        report = receiver.recv()
    except EOFError:
        process.join()
        died = Failure(f"the process died with exit code {process.exitcode}", current_key.value.decode())
        report = Report(share.path, {}, 0, {}, {}, {}, [died])
    process.join()
    return report


def reproduction(arguments: argparse.Namespace, path: dict[str, str], key: str) -> str:
    words = [f"{name}={value}" for name, value in path.items()]
    words += ["python3", os.path.relpath(__file__), "--device", arguments.device, "--only", key]
    if arguments.operators != list(OPERATORS):
        words += ["--operators", *arguments.operators]
    if arguments.path:
        words += ["--path", arguments.path]
    return shlex.join(words)


def print_report(reports: list[Report], seconds: float) -> None:
    calls, repeated, features = (collections.Counter() for _ in range(3))
    worst = {}
    for report in reports:
        calls.update(report.calls)
        repeated.update(report.repeated)
        features.update(report.features)
        for group, (excess, _) in report.worst.items():
            path = group.path or " ".join(report.path.values()) or "unset"
            key = (group.operator, path, group.dtype)
            worst[key] = max(worst.get(key, 0.0), excess)
    total, refused = sum(calls.values()), sum(report.refused for report in reports)
    wrong = sum(len(report.failures) for report in reports)
    verdict = f"{wrong:,} WRONG" if wrong else "none wrong"
    print(f"{total:,} calls in {seconds:.0f} s, {verdict}; {sum(repeated.values()):,} repeated, the same bits")
    if refused:
        print(f"{refused:,} others have no kernel of the path")
    for operator, count in sorted(calls.items()):
        print(f"  {operator:16} {count:9,} calls {repeated[operator]:8,} repeated")
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(features.items()))
    print(textwrap.fill(f"calls with {counts}", 120))
    print("worst error, as a fraction of what is allowed")
    print(f"  {'':16} {'':16}" + "".join(f"{str(dtype).removeprefix('torch.'):>10}" for dtype in DTYPES))
    for operator, path in sorted({(operator, path) for operator, path, _ in worst}):
        row = (worst.get((operator, path, dtype)) for dtype in DTYPES)
        print(f"  {operator:16} {path:16}" + "".join(f"{'' if e is None else format(e, '.3f'):>10}" for e in row))


def make_one_call(arguments: argparse.Namespace) -> int:
    case = draw(arguments.only, arguments.device, arguments.operators, arguments.path)
    print(case, flush=True)
    checker = Checker()
    checker.check(case)
    checker.finish()
    print("right:", ", ".join(f"{name} {excess:.3f}" for excess, name in checker.worst.values()))
    return 0


def main() -> int:
    arguments = parse_arguments()
    if arguments.only:
        return make_one_call(arguments)
    paths = paths_of(arguments.device)
    count = -(-max(arguments.jobs, len(paths)) // len(paths)) * len(paths)
    seconds = arguments.seconds and arguments.seconds * min(arguments.jobs, count) / count
    calls = arguments.calls and -(-arguments.calls // count)
    shares = [
        Share(
            arguments.seed,
            index,
            paths[index % len(paths)],
            arguments.device,
            arguments.operators,
            arguments.path,
            calls,
            seconds,
            arguments.go_on,
        )
        for index in range(count)
    ]
    start = time.monotonic()
    reports = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for report in pool.map(run, shares):
            for what, key in report.failures:
                print(what)
                print(f"Again: {reproduction(arguments, report.path, key)}", flush=True)
            if report.failures and not arguments.go_on:
                os._exit(1)  # the other processes end with this one
            reports.append(report)
    print_report(reports, time.monotonic() - start)
    return any(report.failures for report in reports)


if __name__ == "__main__":
    sys.exit(main())
