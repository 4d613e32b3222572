"""Wall time of single eager calls of lltm's LSTM, LSTMCell, GRU and GRUCell beside those of torch.nn's.

At these sizes, most of it is the host's. Prints the median of the fastest twentieth of the rounds, in microseconds, and
the ratio, first without gradients, then in a call that autograd records. Then single steps with a reset, with lengths,
or with a float32 state beside bfloat16, as agents, streams and loops under autocast run them, over the step without:

    python benchmark/host_time.py [--device cuda] [--rounds 300]
"""

import argparse
import itertools
import statistics
import time
from functools import partial

import torch
from torch.utils._pytree import tree_map

import lltm

CELLS = ["LSTM", "GRU"]
STEP_SIZES = [(1, 512, 512), (1, 64, 256), (16, 128, 128)]
SIZES = [(1, 64, 64), (16, 128, 128)]
STEPS = [1, 16]
CALLS = 10
"""In a round, after which a GPU is waited for."""


def time_of(call, device: str) -> float:
    """Of a round, in microseconds a call."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS * 1e6


def times(calls, device: str, rounds: int) -> list[float]:
    """The rounds alternate, so that all calls meet the same clocks and other load."""
    measured = [[time_of(call, device) for call in calls] for _ in range(rounds + 1)][1:]
    return [statistics.median(sorted(each)[: max(1, rounds // 20)]) for each in zip(*measured, strict=True)]


def modules(cell: str, batch: int, features: int, hidden: int, steps: int | None, device: str):
    """Both modules with the same weights, and the arguments of a call: a cell's without steps."""
    shape, state = ((batch,), (batch, hidden)) if steps is None else ((steps, batch), (1, batch, hidden))
    name = f"{cell}Cell" if steps is None else cell
    theirs, ours = (getattr(package, name)(features, hidden, device=device) for package in (torch.nn, lltm))
    ours.load_state_dict(theirs.state_dict())
    zeros = torch.zeros(state, device=device)
    return theirs, ours, (torch.randn(*shape, features, device=device), (zeros, zeros) if cell == "LSTM" else zeros)


def print_table_of_cells(device: str, rounds: int) -> None:
    print("| N,I,H | call | torch.nn, us | lltm, us | ratio | torch.nn recorded, us | lltm recorded, us | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for cell, sizes, steps in itertools.product(CELLS, SIZES, (None, *STEPS)):
        theirs, ours, arguments = modules(cell, *sizes, steps, device)
        row = []
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                measured = times([partial(module, *arguments) for module in (theirs, ours)], device, rounds)
            row += [f"{each:.1f}" for each in measured] + [f"{measured[0] / measured[1]:.2f}"]
        kind = f"{cell}Cell" if steps is None else f"{cell}, T = {steps}"
        print(f"| {','.join(map(str, sizes))} | {kind} | {' | '.join(row)} |", flush=True)


@torch.no_grad()
def print_table_of_options(device: str, rounds: int) -> None:
    print("\n| N,I,H | one step | without, us | reset | lengths | bfloat16 without, us | float32 state |")
    print("|---|---|---|---|---|---|---|")
    for cell, sizes, steps in itertools.product(CELLS, STEP_SIZES, (None, 1)):
        _, module, (input, state) = modules(cell, *sizes, steps, device)
        calls = [partial(module, input, state)]
        if steps:
            calls.append(partial(module, input, state, reset=torch.ones(1, sizes[0], dtype=torch.bool, device=device)))
            calls.append(partial(module, input, state, lengths=torch.ones(sizes[0], dtype=torch.int64, device=device)))
        row = of_the_first(times(calls, device, rounds)) + [""] * (3 - len(calls))
        low = tree_map(lambda value: value.bfloat16(), (input, state))
        carried = (low[1][0], state[1]) if cell == "LSTM" else state
        calls = [partial(module.bfloat16(), low[0], h) for h in (low[1], carried)]
        row += of_the_first(times(calls, device, rounds))
        print(f"| {','.join(map(str, sizes))} | {cell}{'' if steps else 'Cell'} | {' | '.join(row)} |", flush=True)


def of_the_first(measured: list[float]) -> list[str]:
    first, *others = measured
    return [f"{first:.1f}", *(f"{other / first:.2f}" for other in others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", default=300, type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_table_of_cells(options.device, options.rounds)
    print_table_of_options(options.device, options.rounds)


if __name__ == "__main__":
    main()
