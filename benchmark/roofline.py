"""The roofline of a call on a GPU: the minimum time for its multiplications or its bytes at the rates of this GPU.

The rates are measured in the same run with PyTorch: a large product of each dtype, and a copy that does not fit any
cache. Float32 without TF32 has the rate of the CUDA cores; three TF32 products on the tensor cores can exceed it.
"""

import torch
from cases import Case, Shape, Work
from timing import Budget, cuda_graph
from workload import environment

PRODUCT_SIZE = 4096
COPY_BYTES = 1 << 28
_BUDGET = Budget(seconds=0.5, min_rounds=3, max_rounds=7, sample_seconds=1e-3)


def measure_rates(dtypes: list[str]) -> dict[str, float]:
    """Multiply-adds per microsecond by dtype, and bytes read or written per microsecond."""
    rates = {}
    for dtype in dtypes:
        case = Case("cuda", torch.get_num_threads(), Work.FORWARD, dtype, Shape(1, 1, 1))
        with environment(case):
            a, b, out = torch.randn(3, PRODUCT_SIZE, PRODUCT_SIZE, device="cuda").to(case.torch_dtype)
            timing = cuda_graph({"product": lambda a=a, b=b, out=out: torch.mm(a, b, out=out)}, _BUDGET)["product"]
            rates[dtype] = PRODUCT_SIZE**3 / timing.median
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    rates["bytes"] = 2 * COPY_BYTES / cuda_graph({"copy": lambda: target.copy_(source)}, _BUDGET)["copy"].median
    return rates


def roofline(work: Work, shape: Shape, dtype: str, rates: dict[str, float]) -> float | None:
    """Microseconds, or None for work or dtypes without a rate."""
    if work is Work.AUTOCAST or dtype not in rates:
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
    return max(products / rates[dtype], numbers * size / rates["bytes"])
