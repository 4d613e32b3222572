"""Calls every operator at random, for as long as wanted, and compares each call with the formula in float64.

    python3 test/python/fuzz.py --seconds 600
    python3 test/python/fuzz.py --device cuda --calls 50000 --jobs 8

Prints how many calls there were, and the worst error by operator, dtype and path as a fraction of what rounding
explains (bounds.py). Ends with 1 at the first wrong result, with the call, and the line that makes it again. On the
CPU the paths are chosen by the environment, once a process: there is a process for each.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import conftest  # noqa: F401  finds lltm
import torch
from random_calls.checking import Checker, Wrong
from random_calls.operators import OPERATORS, draw_case

PATH_VARIABLES = ("LLTM_CPU_GEMM", "ATEN_CPU_CAPABILITY", "LLTM_CUDA_PATH")
CAPABILITIES = {"AVX512": ("avx512", "avx2", "default"), "AVX2": ("avx2", "default")}
KEY_BYTES = 64


def paths_of(device: str) -> list[dict[str, str]]:
    """The environments that choose paths; on CUDA each call chooses its own."""
    if device != "cpu":
        return [{}]
    named = [{"ATEN_CPU_CAPABILITY": c} for c in CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), ())]
    return [{}, *({"LLTM_CPU_GEMM": "own"} | capability for capability in named), {"LLTM_CPU_GEMM": "aten"}]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time (60 without --calls)")
    parser.add_argument("--calls", type=int, default=None, help="stop after this many calls")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operators", nargs="+", choices=tuple(OPERATORS), default=list(OPERATORS))
    parser.add_argument("--only", metavar="KEY", help="make one call, the one that a failure named")
    parser.add_argument("--worker", metavar="INDEX", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seconds is None and arguments.calls is None:
        arguments.seconds = 60.0
    return arguments


def draw(key: str, device: str, operators: list[str]):
    return dataclasses.replace(draw_case(random.Random(key), device, operators), origin=key)


def work(arguments: argparse.Namespace) -> int:
    """One process's share. Leaves the key of the current call in its standard input, a file, in case it dies."""
    checker = Checker()
    end = time.monotonic() + arguments.seconds if arguments.seconds else None
    try:
        for k in itertools.count():
            if k == arguments.calls or (end and time.monotonic() > end):
                break
            key = f"{arguments.seed}:{arguments.worker}:{k}"
            os.pwrite(sys.stdin.fileno(), key.ljust(KEY_BYTES).encode(), 0)
            checker.check(draw(key, arguments.device, arguments.operators))
        checker.finish()
    except Wrong as wrong:
        print(json.dumps({"wrong": str(wrong), "key": wrong.case.origin}))
        return 1
    worst = [
        [group.operator, str(group.dtype).removeprefix("torch."), group.path, excess, name]
        for group, (excess, name) in checker.worst.items()
    ]
    print(json.dumps({"calls": checker.calls, "repeated": checker.repeated, "worst": worst}))
    return 0


def reproduction(arguments: argparse.Namespace, path: dict[str, str], key: str) -> str:
    words = [f"{name}={value}" for name, value in path.items()]
    words += ["python3", os.path.relpath(__file__), "--device", arguments.device, "--only", key]
    if arguments.operators != list(OPERATORS):
        words += ["--operators", *arguments.operators]
    return shlex.join(words)


def run_worker(arguments: argparse.Namespace, index: int, path: dict[str, str], seconds, calls) -> dict:
    environment = {name: value for name, value in os.environ.items() if name not in PATH_VARIABLES} | path
    command = [sys.executable, __file__, "--device", arguments.device, "--seed", str(arguments.seed)]
    command += ["--worker", str(index), "--operators", *arguments.operators]
    command += ["--seconds", str(seconds)] if seconds else []
    command += ["--calls", str(calls)] if calls else []
    with tempfile.TemporaryFile() as current:
        process = subprocess.run(command, env=environment, stdin=current, capture_output=True, text=True)
        current.seek(0)
        last_key = current.read(KEY_BYTES).decode().strip()
    lines = process.stdout.splitlines()
    report = json.loads(lines[-1]) if lines else {}
    if process.returncode and "wrong" not in report:
        report = {
            "wrong": f"the process ended with {process.returncode}: {process.stderr[-4000:]}",
            "key": last_key,
        }
    return report | {"path": path}


def print_report(reports: list[dict], seconds: float) -> None:
    calls, repeated, worst = collections.Counter(), collections.Counter(), {}
    for report in reports:
        calls.update(report["calls"])
        repeated.update(report["repeated"])
        environment = " ".join(report["path"].values())
        for operator, dtype, path, excess, name in report["worst"]:
            group = (operator, dtype, path or environment or "unset")
            worst[group] = max(worst.get(group, (0.0, "")), (excess, name))
    total = sum(calls.values())
    print(f"{total:,} calls in {seconds:.0f} s, none wrong; {sum(repeated.values()):,} repeated, the same bits")
    for operator, count in calls.items():
        print(f"  {operator:16} {count:9,} calls {repeated[operator]:8,} repeated")
    print("worst error, as a fraction of what is allowed")
    for (operator, dtype, path), (excess, name) in sorted(worst.items()):
        print(f"  {operator:16} {dtype:9} {path:16} {excess:6.3f}  {name}")


def main() -> int:
    arguments = parse_arguments()
    if arguments.worker is not None:
        return work(arguments)
    if arguments.only:
        case = draw(arguments.only, arguments.device, arguments.operators)
        print(case, flush=True)
        checker = Checker()
        checker.check(case)
        checker.finish()
        print("right:", ", ".join(f"{name} {excess:.3f}" for excess, name in checker.worst.values()))
        return 0
    paths = paths_of(arguments.device)
    count = -(-max(arguments.jobs, len(paths)) // len(paths)) * len(paths)
    seconds = arguments.seconds and arguments.seconds * min(arguments.jobs, count) / count
    calls = arguments.calls and -(-arguments.calls // count)
    start = time.monotonic()
    reports = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [
            pool.submit(run_worker, arguments, index, paths[index % len(paths)], seconds, calls)
            for index in range(count)
        ]
        for future in futures:
            report = future.result()
            if "wrong" in report:
                pool.shutdown(cancel_futures=True)
                print(report["wrong"])
                print(f"Again: {reproduction(arguments, report['path'], report['key'])}")
                return 1
            reports.append(report)
    print_report(reports, time.monotonic() - start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
