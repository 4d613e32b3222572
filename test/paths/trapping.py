"""A program that runs every operator such that an invalid operation or a division by zero kills the process.

This covers every lane of a vector, including those beyond the last column, at every size modulo the vector width. The
environment selects the path, as for cpu_path.py; with SIZES="1:3", every size of the state has a third of the batches.
Prints the sizes as it goes, so the last line says where it died.
"""

import ctypes
import os
from contextlib import contextmanager
from functools import partial

import lltm_testing.settings  # noqa: F401  finds lltm
import torch
from lltm_testing import sequence_reference as sequence
from lltm_testing.reference import call, call_backward, make_arguments, make_gradients

# A part of the sizes: the first, and the distance to the next.
FIRST, STEP = map(int, os.environ.get("SIZES", "0:1").split(":"))
FE_INVALID, FE_DIVBYZERO = 1, 4  # on x86-64
libm = ctypes.CDLL("libm.so.6")


@contextmanager
def trapping():
    """Traps in this library's operators only: PyTorch's operators may divide by zero internally."""
    assert libm.feenableexcept(FE_INVALID | FE_DIVBYZERO) != -1
    try:
        yield
    finally:
        libm.fedisableexcept(FE_INVALID | FE_DIVBYZERO)


def infinite(weights: torch.Tensor) -> torch.Tensor:
    """Infinite weights with alternating signs, row by row."""
    signs = torch.ones_like(weights)
    signs[::2] = -1
    return torch.inf * signs


def dirty_the_memory() -> None:
    """Fills freed memory with infinities, so that computing with uninitialized memory traps."""
    arguments = make_arguments((64, 64, 64), torch.float32)
    arguments = arguments._replace(weights=infinite(arguments.weights))
    call(arguments)
    call_backward(*make_gradients(arguments), arguments)


def dirty_the_memory_of_sequences(cell) -> None:
    arguments = sequence.make((3, 18, 6, 64), torch.float32, cell=cell)
    weights = {name: infinite(getattr(arguments, name)) for name in cell.names if name.startswith("weight")}
    arguments = arguments._replace(**weights)
    sequence.call_backward(sequence.make_gradients(arguments), arguments)


def run_cell(sizes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    arguments = make_arguments(sizes, dtype)
    gradients = make_gradients(arguments)
    dirty_the_memory()
    with trapping():
        new_h, new_cell, gates = torch.ops.lltm.forward(*arguments)
    dirty_the_memory()
    with trapping():
        results = torch.ops.lltm.backward(*gradients, new_cell, gates, *arguments[:4], [True] * 5)
    return [new_h, *results]


def run_sequence(cell, sizes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    arguments = sequence.make((3, *sizes), dtype, lengths=True, reset=True, cell=cell)
    gradients = sequence.make_gradients(arguments)
    dirty_the_memory_of_sequences(cell)
    with trapping():
        output, *others = sequence.call(arguments, keep=True)
    states, kept = others[: len(cell.states)], others[len(cell.states) :]
    backward = getattr(torch.ops.lltm, f"{cell.operator}_backward")
    dirty_the_memory_of_sequences(cell)
    with trapping():
        results = backward(*gradients, output, *kept, *arguments, [True] * len(cell.names))
    return [output, *states, *results]


RUNS = {"forward": run_cell} | {cell.operator: partial(run_sequence, cell) for cell in sequence.CELLS.values()}


def main() -> None:
    torch.set_num_threads(1)  # trapping is enabled per thread
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for number, batch in enumerate((1, 3, 13, 18)):
            for state_size in range(1, 34):
                if (number + state_size) % STEP != FIRST:
                    continue
                sizes = (batch, 1 + state_size % 5, state_size)
                for operator, run in RUNS.items():
                    print(operator, dtype, sizes, flush=True)
                    assert all(result.isfinite().all() for result in run(sizes, dtype))


if __name__ == "__main__":
    main()
