"""A program that computes both operators where an invalid operation or a division by zero kills the process.

Of every lane of a vector, also of those beyond the last column: at every size modulo the vector width. The environment
chooses the path, as for cpu_path.py. Prints the sizes as it goes, so that the last line says where it died.
"""

import ctypes
from contextlib import contextmanager

import conftest  # noqa: F401  finds lltm
import torch
from reference import call, call_backward, make_arguments, make_gradients

FE_INVALID, FE_DIVBYZERO = 1, 4  # on x86-64
libm = ctypes.CDLL("libm.so.6")


@contextmanager
def trapping():
    """For our operators alone: PyTorch's own may well divide by zero on their way."""
    assert libm.feenableexcept(FE_INVALID | FE_DIVBYZERO) != -1
    try:
        yield
    finally:
        libm.fedisableexcept(FE_INVALID | FE_DIVBYZERO)


def dirty_the_stack() -> None:
    """Whatever is computed from uninitialised memory should meet what traps: infinities, of either sign."""
    arguments = make_arguments((64, 64, 64), torch.float32)
    infinite = torch.full_like(arguments.weights, torch.inf)
    infinite[::2] *= -1
    call(arguments._replace(weights=infinite))
    call_backward(*make_gradients(arguments), arguments._replace(weights=infinite))


def main() -> None:
    torch.set_num_threads(1)  # what traps is a thread's own
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for batch in (1, 3, 13, 18):
            for state_size in range(1, 34):
                sizes = (batch, 1 + state_size % 5, state_size)
                print(dtype, sizes, flush=True)
                arguments = make_arguments(sizes, dtype)
                gradients = make_gradients(arguments)
                dirty_the_stack()
                with trapping():
                    new_h, new_cell, gates = torch.ops.lltm.forward(*arguments)
                dirty_the_stack()
                with trapping():
                    results = torch.ops.lltm.backward(
                        *gradients, new_cell, gates, *arguments[:4], [True, True, True, True, True]
                    )
                assert all(result.isfinite().all() for result in (new_h, *results))


if __name__ == "__main__":
    main()
