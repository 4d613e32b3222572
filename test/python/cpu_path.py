"""A program that checks the CPU path selected by the environment (ATEN_CPU_CAPABILITY, LLTM_CPU_GEMM).

The former is read once per process, so test_cpu_paths.py runs this program for every path. Prints only failures.
"""

import os
import sys
from itertools import product

import conftest  # noqa: F401  finds lltm
import torch
from reference import Arguments, backward, call, call_backward, forward, make_arguments, make_gradients

# Around the edges of every tile: 4, 8 and 16 lanes; multiples of 4 rows up to 12; panels of 1 to 4 vectors, groups of 8
# panels; blocks of 128, 256, 512; one row; odd sizes.
EDGES = [
    (1, 1, 1), (1, 260, 259), (2, 3, 5), (3, 0, 7), (4, 17, 16), (5, 100, 33), (8, 16, 16), (9, 17, 15), (16, 32, 128),
    (17, 5, 31), (33, 65, 129), (37, 77, 200), (48, 7, 48), (64, 250, 10), (65, 30, 48), (130, 64, 64), (257, 5, 9),
    (600, 3, 3), (6, 600, 33), (7, 40, 19), (11, 31, 35), (12, 64, 40), (13, 33, 18),
    (20, 900, 40),
]  # fmt: skip
OWN = os.environ.get("LLTM_CPU_GEMM") == "own"
TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def all_results(arguments: Arguments, gradients) -> list[torch.Tensor]:
    return [*call(arguments), *call_backward(*gradients, arguments)]


def expected_results(arguments: Arguments, gradients) -> list[torch.Tensor]:
    return [*forward(*arguments.map(torch.Tensor.double)), *backward(*gradients, arguments)]


def eager_results(arguments: Arguments, gradients) -> list[torch.Tensor]:
    leaves = arguments.require_grad()
    results = forward(*leaves)
    return [*results, *torch.autograd.grad(results[:2], leaves, gradients)]


def check_edges() -> None:
    for dtype, tolerance in TOLERANCES.items():
        for sizes in EDGES:
            for bias in (True, False):
                arguments = make_arguments(sizes, dtype, bias=bias)
                gradients = make_gradients(arguments)
                expected = expected_results(arguments, gradients)
                for index, (got, want) in enumerate(zip(all_results(arguments, gradients), expected, strict=True)):
                    if want is None or want.numel() == 0:
                        continue
                    error = (got.double() - want).abs().max() / max(1.0, want.abs().max())
                    if not error <= tolerance:
                        print(f"{dtype} {sizes} bias={bias}: result {index} is off by {error}")


def check_bits() -> None:
    for dtype in TOLERANCES:
        for sizes in [(1, 260, 259), (33, 65, 129), (70, 300, 130), (300, 40, 24)]:
            arguments = make_arguments(sizes, dtype)
            gradients = make_gradients(arguments)
            torch.set_num_threads(1)
            first = all_results(arguments, gradients)
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                if not OWN:  # ATen's results are reproducible only for the same number of threads
                    first = all_results(arguments, gradients)
                again = all_results(arguments, gradients)
                if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
                    print(f"{dtype} {sizes}: other bits with {threads} threads")


def check_not_finite() -> None:
    """NaN stays in its row of the batch, and infinite weights only meet their own factors: no padding lane leaks."""
    for dtype in TOLERANCES:
        for sizes in [(1, 35, 41), (7, 35, 41), (21, 5, 3), (37, 77, 201), (150, 31, 33)]:
            arguments = make_arguments(sizes, dtype)
            grad_h, grad_cell = make_gradients(arguments)
            batch, state_size = grad_h.shape
            for row in {0, batch // 2, batch - 1}:
                poisoned = arguments._replace(old_h=arguments.old_h.clone(), input=arguments.input.clone())
                poisoned.old_h[row, 0] = poisoned.input[row, -1] = torch.nan
                grad = grad_h.clone()
                grad[row] = torch.nan
                d_input, _, _, d_old_h, _ = call_backward(grad, grad_cell, arguments)
                for result in (*call(poisoned), d_input, d_old_h):
                    is_nan = result.isnan().all(1)
                    if not is_nan[row] or result.isnan().sum() != result.size(1):
                        print(
                            f"{dtype} {sizes}: the NaN of row {row} is in {result.isnan().any(1).nonzero().flatten()}"
                        )
            for column in (0, state_size - 1, state_size, -1):
                weights = arguments.weights.clone()
                weights[:, column] = torch.inf
                gates = call(arguments._replace(weights=weights))[2]
                if not gates.isinf().all():
                    print(f"{dtype} {sizes}: an infinite column {column} of weights gives {gates[~gates.isinf()]}")


def check_elements() -> None:
    """Dense sweeps of the pre-activations, one gate at a time, to test the vector math against float64."""
    tiny = torch.logspace(-30, 0, 20_001, dtype=torch.float64)
    wide = torch.linspace(0, 80, 40_001, dtype=torch.float64)
    sweep = torch.cat([tiny, -tiny, wide, -wide]).float()
    for moving in range(3):
        z = torch.zeros(3, sweep.numel())
        z[2] = 0.7
        z[moving] = sweep
        new_h, new_cell = pointwise(z)
        i, o, g = torch.sigmoid(z[0].double()), torch.sigmoid(z[1].double()), torch.nn.functional.elu(z[2].double())
        want_cell = (g * i)[None]
        want_h = torch.tanh(want_cell) * o
        for name, got, want in (("new_cell", new_cell, want_cell), ("new_h", new_h, want_h)):
            normal = want.abs() > 2 * torch.finfo(torch.float32).tiny
            error = ((got.double() - want).abs() / want.abs())[normal].max() / torch.finfo(torch.float32).eps
            if not error <= 4:
                print(f"{name} with gate {moving} swept: {error} units of the last place")


def pointwise(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The new state for pre-activations z (3, state_size) and a zero cell: the input is 1, and the weights are z."""
    pieces = []
    for part in z.split(1000, dim=1):
        state_size = part.size(1)
        weights = torch.cat([torch.zeros(3 * state_size, state_size), part.reshape(-1, 1)], dim=1)
        zero = torch.zeros(1, state_size)
        pieces.append(torch.ops.lltm.forward(torch.ones(1, 1), weights, None, zero, zero)[:2])
    return tuple(torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True))


def check_accuracy() -> None:
    """Over ten seeds, the mean error is no larger than eager PyTorch's, and the largest at most half as large again."""
    torch.set_num_threads(1)
    shapes = [(16, 32, 128), (64, 1024, 128), (8, 512, 512), (64, 512, 512)]
    for dtype, sizes in product((torch.float32, torch.bfloat16, torch.float16), shapes):
        errors: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for seed in range(10):
            torch.manual_seed(seed)
            arguments = make_arguments(sizes, dtype)
            gradients = make_gradients(arguments)
            expected = expected_results(arguments, gradients)
            eager = eager_results(arguments, gradients)
            names = ("new_h", "new_cell", "gates", "d_input", "d_weights", "d_bias", "d_old_h", "d_old_cell")
            for who, results in (("ours", all_results(arguments, gradients)), ("eager", eager)):
                for name, got, want in zip(names, results, expected, strict=True):
                    difference = (got.double() - want).abs()
                    errors.setdefault((who, name), []).append((difference.mean().item(), difference.max().item()))
        for name in ("new_h", "new_cell", "d_input", "d_weights", "d_bias", "d_old_h", "d_old_cell"):
            (our_mean, our_max), (mean, largest) = (
                torch.tensor(errors[who, name]).mean(dim=0).tolist() for who in ("ours", "eager")
            )
            # Allow 3 % for the order of summation, in which eager PyTorch differs from CPU to CPU.
            if our_mean > 1.03 * mean or our_max > 1.5 * largest:
                print(
                    f"{dtype} {sizes} {name}: mean error {our_mean} against {mean}, largest {our_max} against {largest}"
                )


if __name__ == "__main__":
    check_edges()
    check_bits()
    if OWN:  # libraries may handle NaN and infinity differently
        check_not_finite()
    check_elements()
    if "--accuracy" in sys.argv:
        check_accuracy()
