"""Times recurrent layers over a rollout in which episodes begin at one step in a hundred.

    python examples/rl/reset_speed.py --device cuda

nn.LSTM runs once without resets, which is what it can do in one call, and once in pieces. torchrl's LSTMModule is
measured, too, if it is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from ppo import run_with_resets
from torch import Tensor, nn

import lltm

BASELINE = "nn.LSTM without resets"
SHAPES = ((128, 256, 64, 128), (64, 1024, 64, 64))


class Case(NamedTuple):
    """How a layer runs the rollout."""

    name: str
    run: Callable[[], Tensor]
    """Returns the outputs, (T, N, H) or (N, T, H)."""
    layer: nn.Module


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--shape", type=int, nargs=4, action="append", metavar=("T", "N", "I", "H"), help="repeatable")
    parser.add_argument("--rounds", type=int, default=10, help="the fastest of which counts")
    parser.add_argument("--output", type=Path, help="a file of JSON, which benchmark/bench.py publishes")
    return parser.parse_args()


def torchrl_cases(lstm: nn.LSTM, input: Tensor, begins: Tensor) -> Iterator[Case]:
    """torchrl's own ways: pieces that are padded and, on a GPU, Triton kernels."""
    try:
        from tensordict import TensorDict
        from torchrl.modules import LSTMModule, set_recurrent_mode
    except ImportError:
        return
    steps, rows, _ = input.shape
    state = input.new_zeros(rows, steps, 1, lstm.hidden_size)
    contents = {
        "input": input.transpose(0, 1).contiguous(),
        "h": state,
        "c": state,
        "is_init": begins.t().unsqueeze(-1).contiguous(),
    }
    keys = {"in_keys": ["input", "h", "c"], "out_keys": ["output", ("next", "h"), ("next", "c")]}
    for backend in ("pad", "triton") if input.is_cuda else ("pad",):
        module = LSTMModule(lstm.input_size, lstm.hidden_size, recurrent_backend=backend, **keys)
        module = module.to(input.device, input.dtype)
        module.lstm.load_state_dict(lstm.state_dict())

        def run(module: nn.Module = module) -> Tensor:
            with set_recurrent_mode(True):
                return module(TensorDict(contents, [rows, steps]))["output"]

        yield Case(f"torchrl, {backend}", run, module)


def cases(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> list[Case]:
    steps, rows, features, hidden_size = shape
    input = torch.randn(steps, rows, features, device=device, dtype=dtype)
    begins = torch.rand(steps, rows, device=device) < 0.01
    options = {"device": device, "dtype": dtype}
    theirs = nn.LSTM(features, hidden_size, **options)
    state = input.new_zeros(1, rows, hidden_size), input.new_zeros(1, rows, hidden_size)
    same = lltm.LSTM(features, hidden_size, **options)
    same.load_state_dict(theirs.state_dict())
    other = lltm.LLTM(features, hidden_size, **options)
    return [
        Case(BASELINE, lambda: theirs(input)[0], theirs),
        Case("nn.LSTM in pieces", lambda: run_with_resets(theirs, input, state, begins)[0], theirs),
        Case("lltm.LSTM with reset", lambda: run_with_resets(same, input, state, begins)[0], same),
        Case("lltm.LLTM with reset", lambda: run_with_resets(other, input, state, begins)[0], other),
        *torchrl_cases(theirs, input, begins),
    ]


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Of the second of two calls, so that what ran before does not count. Wall time on a GPU, and on the CPU the
    processor time, which other work does not lengthen."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for _ in range(2):
        start = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return clock() - start


def measure(cases: Sequence[Case], device: torch.device, rounds: int) -> dict[str, tuple[float, float]]:
    """The seconds of a forward, and of a forward and backward. The layers take turns."""

    def forward(case: Case) -> Tensor:
        with torch.no_grad():
            return case.run()

    def both(case: Case) -> Sequence[Tensor]:
        return torch.autograd.grad(case.run().sum(), list(case.layer.parameters()))

    times = [
        [[seconds(partial(call, case), device) for call in (forward, both)] for case in cases] for _ in range(rounds)
    ]
    fastest = torch.tensor(times).amin(0).tolist()
    return {case.name: tuple(pair) for case, pair in zip(cases, fastest, strict=True)}


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device(args.device)
    rows = []
    print("microseconds a step, and times as fast as nn.LSTM without resets: forward / forward and backward")
    for shape in args.shape or SHAPES:
        results = measure(cases(shape, device, getattr(torch, args.dtype)), device, args.rounds)
        print(f"(T, N, I, H) = {tuple(shape)}, {args.dtype}, {device.type}, PyTorch {torch.__version__}")
        for name, times in results.items():
            us = [1e6 * time / shape[0] for time in times]
            speed = " / ".join(f"{base / time:.2f}" for base, time in zip(results[BASELINE], times, strict=True))
            print(f"  {name:24}{' / '.join(f'{step:.1f}' for step in us):>20}{speed:>16}")
            rows.append({"shape": shape, "name": name, "us": us})
    if args.output:
        sys.path.append(str(Path(__file__).parents[2] / "benchmark"))
        import machine

        facts = {"machine": machine.describe([device.type]), "dtype": args.dtype, "baseline": BASELINE}
        args.output.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
