"""PyTorch's own checks of a custom operator: schema, fake tensors, autograd registration, AOT dispatch."""

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.named_arguments import (
    CELLS,
    FORWARDS,
    NAMES,
    after_tensors,
    each_backward,
    each_forward,
    leaves_of,
    mask_of,
    optional,
)
from torch.library import opcheck

SIZES = (4, 3, 2, 3)
pytestmark = [pytest.mark.pytorch, pytest.mark.usefixtures("fresh_compiler")]


def check(operator, arguments, mask=(True,) * 5) -> None:
    opcheck(
        getattr(torch.ops.lltm, operator).default,
        (*arguments.values(), *after_tensors(operator, mask_of(operator, mask))),
    )


def make(operator, device, sizes=SIZES, **options) -> dict:
    return named_arguments.make(operator, device, sizes=sizes, **options)


@pytest.mark.parametrize(
    "sizes",
    [SIZES, (0, 3, 2, 3), *(pytest.param(sizes, marks=pytest.mark.release) for sizes in ((4, 0, 2, 3), (3, 2, 0, 1)))],
    ids=str,
)
def test_sizes(device, operator, sizes):
    check(operator, make(operator, device, sizes))
    if not operator.endswith("backward"):
        check(operator, leaves_of(make(operator, device, sizes)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtypes_beside_float32(device, dtype, operator):
    check(operator, make(operator, device, dtype=dtype))
    if "c0" in NAMES[operator] and dtype.itemsize == 2:
        check(operator, make(operator, device, dtype=dtype, cell_dtype=torch.float32))


@each_forward
@pytest.mark.parametrize("names", [("weights", "weight_ih", "old_h", "h0"), ("bias",)], ids=str)
def test_some_gradients(device, operator, names):
    """Without what may be absent, and does not require one."""
    leaves = {name: t for name, t in leaves_of(make(operator, device)).items() if name in names}
    absent = dict.fromkeys(name for name in optional(operator) if name not in leaves)
    check(operator, make(operator, device) | absent | leaves)


@pytest.mark.parametrize("operator", FORWARDS[1:])
def test_without_options(device, operator):
    arguments = list(make(operator, device).values())[: 1 + CELLS[operator].bounds.matrices]
    opcheck(getattr(torch.ops.lltm, operator).default, tuple(arguments))
    opcheck(getattr(torch.ops.lltm, operator).default, tuple(tensor.requires_grad_() for tensor in arguments))


@each_backward
@pytest.mark.parametrize("mask", [(True,) * 5, (False, True, False, True, False), (False,) * 5], ids=str)
@pytest.mark.parametrize("given", [(True, False), (False, True), (False, False)], ids=str)
def test_backward_of_what_is_wanted(device, operator, mask, given):
    """From some of the incoming gradients, without what else may be absent."""
    kept = [name for name, flag in zip(NAMES[operator], given, strict=False) if flag]
    absent = dict.fromkeys(name for name in optional(operator) if name not in kept)
    check(operator, make(operator, device) | absent, mask)


@each_backward
def test_backward_with_gradients(device, operator):
    check(operator, leaves_of(make(operator, device, (2, 2, 2, 3), dtype=torch.float64)))
