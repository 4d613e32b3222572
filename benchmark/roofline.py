"""The least time of a call: of a cell on a GPU for its multiplications or its bytes, of a sequence for the former.

The rates are measured in the same run with PyTorch: a large product of each dtype, and a copy that does not fit any
cache. Float32 without TF32 has the rate of the CUDA cores; three TF32 products on the tensor cores can exceed it.
"""

from __future__ import annotations

import torch
from cases import Case, Shape, Work
from timing import Budget, cuda_graph
from workload import environment

PRODUCT_SIZE = 4096
COPY_BYTES = 1 << 28
_BUDGET = Budget(seconds=0.5, min_rounds=3, max_rounds=7, sample_seconds=1e-3)


Rates = dict[tuple[str, str], float]
"""Multiply-adds per microsecond, and on a CPU per thread, by device and dtype; bytes per microsecond of a GPU."""


def measure_rates(cases: list[Case]) -> Rates:
    """Those that the limits of these cases need."""
    rates: Rates = {}
    if any(case.device == "cpu" and case.dtype == "float32" and case.variant for case in cases):
        rates["cpu", "float32"] = torch.ops.lltm_peers.multiply_add_rate()
    dtypes = dict.fromkeys(case.dtype for case in cases if case.device == "cuda")
    for dtype in dtypes:
        case = Case("cuda", torch.get_num_threads(), Work.FORWARD, dtype, Shape(1, 1, 1))
        with environment(case):
            a, b, out = torch.randn(3, PRODUCT_SIZE, PRODUCT_SIZE, device="cuda").to(case.torch_dtype)
            timing = cuda_graph({"product": lambda a=a, b=b, out=out: torch.mm(a, b, out=out)}, _BUDGET)["product"]
            rates["cuda", dtype] = PRODUCT_SIZE**3 / timing.median
    if dtypes:
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        timing = cuda_graph({"copy": lambda: target.copy_(source)}, _BUDGET)["copy"]
        rates["cuda", "bytes"] = 2 * COPY_BYTES / timing.median
    return rates


def limit(case: Case, rates: Rates, clock: str) -> float | None:
    """The least microseconds of a call, of a sequence of a step; None where the rate is not known."""
    if case.variant:
        return _limit_of_a_step(case, rates)
    return roofline(case.work, case.shape, case.dtype, rates) if clock == "device" else None


def _limit_of_a_step(case: Case, rates: Rates) -> float | None:
    """For the multiply-adds alone."""
    rate = rates.get((case.device, case.dtype))
    if rate is None:
        return None
    products = 3 if case.work is Work.TRAINING else 1
    return products * case.multiply_adds / (rate * (case.threads if case.device == "cpu" else 1))


def roofline(work: Work, shape: Shape, dtype: str, rates: Rates) -> float | None:
    """Microseconds of a cell on a GPU, or None for work or dtypes without a rate."""
    if work is Work.AUTOCAST or ("cuda", dtype) not in rates:
        return None
    batch, features, state = shape.batch, shape.input_features, shape.state_size
    products = batch * 3 * state * (state + features)
    # Each number once: parameters, input and both states, new_h, new_cell and gates.
    numbers = 3 * state * (state + features + 1) + batch * (features + 2 * state)
    if work is Work.TRAINING:
        # The gradients of all of these, and the two incoming ones.
        products, numbers = 3 * products, 2 * numbers + batch * 2 * state
    numbers += batch * 5 * state
    size = 2 if dtype in ("bfloat16", "float16") else 4
    return max(products / rates["cuda", dtype], numbers * size / rates["cuda", "bytes"])
