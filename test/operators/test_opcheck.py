"""PyTorch's own checks of a custom operator: schema, fake tensors, autograd registration, AOT dispatch."""

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.named_arguments import NAMES, after_tensors, leaves_of, mask_of, optional
from torch.library import opcheck

SIZES = (4, 3, 2, 3)
pytestmark = [pytest.mark.pytorch, pytest.mark.usefixtures("fresh_compiler")]
each_operator = pytest.mark.parametrize("operator", NAMES)


def check(operator, arguments, mask=(True,) * 5) -> None:
    opcheck(
        getattr(torch.ops.lltm, operator).default,
        (*arguments.values(), *after_tensors(operator, mask_of(operator, mask))),
    )


def make(operator, device, sizes=SIZES, **options) -> dict:
    return named_arguments.make(operator, device, sizes=sizes, **options)


@each_operator
@pytest.mark.parametrize("sizes", [SIZES, (0, 3, 2, 3), (4, 0, 2, 3), (3, 2, 0, 1)], ids=str)
def test_sizes(device, operator, sizes):
    check(operator, make(operator, device, sizes))
    if not operator.endswith("backward"):
        check(operator, leaves_of(make(operator, device, sizes)))


@each_operator
def test_dtypes(device, dtype, operator):
    check(operator, make(operator, device, dtype=dtype))
    if operator.startswith(("sequence", "lstm")) and dtype.itemsize == 2:
        check(operator, make(operator, device, dtype=dtype, cell_dtype=torch.float32))


@pytest.mark.parametrize("operator", ["forward", "sequence", "lstm"])
@pytest.mark.parametrize("names", [("weights", "weight_ih", "old_h", "h0"), ("bias",)], ids=str)
def test_some_gradients(device, operator, names):
    """Without what may be absent, and does not require one."""
    leaves = {name: t for name, t in leaves_of(make(operator, device)).items() if name in names}
    absent = dict.fromkeys(name for name in optional(operator) if name not in leaves)
    check(operator, make(operator, device) | absent | leaves)


def test_a_sequence_without_options(device):
    arguments = list(make("sequence", device).values())[:2]
    opcheck(torch.ops.lltm.sequence.default, tuple(arguments))
    opcheck(torch.ops.lltm.sequence.default, tuple(tensor.requires_grad_() for tensor in arguments))


@pytest.mark.parametrize("operator", ["backward", "sequence_backward", "lstm_backward"])
@pytest.mark.parametrize("mask", [(True,) * 5, (False, True, False, True, False), (False,) * 5], ids=str)
@pytest.mark.parametrize("given", [(True, False), (False, True), (False, False)], ids=str)
def test_backward_of_what_is_wanted(device, operator, mask, given):
    """From some of the incoming gradients, without what else may be absent."""
    kept = [name for name, flag in zip(NAMES[operator], given, strict=False) if flag]
    absent = dict.fromkeys(name for name in optional(operator) if name not in kept)
    check(operator, make(operator, device) | absent, mask)


@pytest.mark.parametrize("operator", ["backward", "sequence_backward", "lstm_backward"])
def test_backward_with_gradients(device, operator):
    check(operator, leaves_of(make(operator, device, (3, 2, 2, 3), dtype=torch.float64)))
