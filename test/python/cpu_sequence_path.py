"""A program that checks sequences on the CPU path selected by the environment, as cpu_path.py does for the cell.

Prints only failures.
"""

import os
from itertools import product

import conftest  # noqa: F401  finds lltm
import torch
from sequence_reference import (
    Sequence,
    assert_gradients_close,
    assert_results_close,
    call,
    call_backward,
    make,
    make_gradients,
)

# Around the edges of every tile: 4, 8 and 16 lanes; tiles of 4, 6 and 8 rows; panels of 2 and 4 vectors; blocks of 128
# and 256 operands; chunks of 128 rows of input; a single row; d_weights of more rows than are summed at once; with AMX,
# tiles of 16 rows, which overlap if the batch is not a multiple, and of 32 terms, and blocks of 512.
EDGES = [
    (3, 1, 1, 1), (2, 1, 300, 33), (5, 3, 7, 19), (2, 4, 16, 16), (3, 5, 17, 15), (2, 7, 0, 47), (2, 8, 130, 48),
    (3, 9, 33, 49), (2, 12, 129, 64), (2, 13, 5, 65), (2, 16, 64, 31), (2, 17, 31, 129), (3, 33, 9, 70),
    (130, 1, 3, 5), (40, 15, 20, 24), (2, 129, 6, 8), (2, 3, 258, 260), (90, 15, 37, 50), (2, 35, 545, 173),
]  # fmt: skip
OWN = os.environ.get("LLTM_CPU_GEMM") == "own"
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check(arguments: Sequence, keep: bool, what: str) -> None:
    try:
        assert_results_close(call(arguments, keep), arguments, keep)
        gradients = make_gradients(arguments)
        assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)
    except AssertionError as error:
        print(f"{what}: {error}")


def check_edges() -> None:
    """Every size once with all options, in one of the directions, and once without."""
    for number, (sizes, dtype) in enumerate(product(EDGES, DTYPES)):
        reverse = number % 2 == 1
        check(make(sizes, dtype), True, f"{dtype} {sizes}")
        check(
            make(sizes, dtype, bias=number % 3 > 0, state=number % 5 > 0, lengths=True, reset=True, reverse=reverse),
            number % 2 == 0,
            f"{dtype} {sizes} with lengths and resets, reverse={reverse}",
        )


def check_poison() -> None:
    """Neither inputs nor gradients beyond a row's length are read."""
    for dtype in DTYPES:
        arguments = make((6, 11, 5, 21), dtype, lengths=True)
        beyond = torch.arange(6).unsqueeze(1) >= arguments.lengths.clamp(0, 6)
        gradients = make_gradients(arguments)
        for tensor in (arguments.input, gradients[0], gradients[3]):
            tensor[beyond] = torch.nan
        clean = arguments._replace(input=arguments.input.nan_to_num())
        for got, want in zip(call(arguments, True), call(clean, True), strict=True):
            if not torch.equal(got, want):
                print(f"{dtype}: a NaN beyond the length changes a result")
        zeroed = [gradient.nan_to_num() for gradient in gradients]
        results = call_backward(gradients, arguments), call_backward(zeroed, clean)
        for got, want in zip(*results, strict=True):
            if not torch.equal(got, want):
                print(f"{dtype}: a NaN beyond the length changes a gradient")


def check_bits() -> None:
    """The bits are the same for any number of threads, with rows for all of them, rows for some, and one row."""
    for dtype, sizes in product(DTYPES, [(9, 40, 70, 130), (12, 20, 130, 128), (400, 1, 130, 128), (3, 3, 700, 900)]):
        arguments = make(sizes, dtype, lengths=True, reset=True)
        gradients = make_gradients(arguments)
        first = None
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            results = [*call(arguments, True), *call_backward(gradients, arguments)]
            first = results if first is None else first
            if not all(torch.equal(a, b) for a, b in zip(first, results, strict=True)):
                print(f"{dtype} {sizes}: other bits with {threads} threads")
    torch.set_num_threads(2)


if __name__ == "__main__":
    torch.manual_seed(0)
    check_edges()
    check_poison()
    if OWN:  # ATen's results are reproducible only for the same number of threads
        check_bits()
