"""Each operator with arguments for it, and its formula in plain PyTorch."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Case(NamedTuple):
    name: str
    shapes: tuple  # one per tensor argument
    formula: Callable[..., Tensor]
    constants: tuple = ()  # arguments after the tensors
    twice: bool = True  # whether it is differentiable twice
    derived: bool = True  # whether the gradient is the derivative

    def operator(self):
        return getattr(torch.ops.example_ops, self.name)

    def call(self, *tensors: Tensor) -> Tensor:
        return self.operator()(*tensors, *self.constants)

    def arguments(self, device="cpu", dtype=torch.float64, requires_grad=False, shapes=None) -> tuple[Tensor, ...]:
        return tuple(
            torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_(requires_grad)
            for shape in (shapes or self.shapes)
        )


def straight_through_round(x: Tensor) -> Tensor:
    rounded = torch.floor(x.detach())
    rounded = rounded + (x.detach() - rounded >= 0.5)
    return rounded + (x - x.detach())


def batch_norm(y: Tensor, eps: float = 1e-3) -> Tensor:
    mean = y.mean((0, 2, 3), keepdim=True)
    deviation = y.var((0, 2, 3), keepdim=True, correction=1).sqrt()
    return (y - mean) / (deviation + eps)


IMAGES = (3, 2, 7, 6)
KERNEL = (4, 2, 3, 2)

CASES = [
    Case("round_ste", ((5, 7),), straight_through_round, derived=False),
    Case("elementwise_mult", ((5, 7), (5, 7)), lambda a, b: a * b),
    Case("mul_constant", ((5, 7),), lambda x, c: x * c, constants=(-2.5,)),
    Case("cube", ((5, 7),), lambda x: x**3),
    Case("linear", ((5, 7), (3, 7), (3,)), torch.nn.functional.linear),
    Case("linear", ((5, 7), (3, 7)), lambda x, w, b: torch.nn.functional.linear(x, w, b), constants=(None,)),
    Case("conv2d", (IMAGES, KERNEL), torch.nn.functional.conv2d, twice=False),
    Case("batch_norm2d", (IMAGES,), batch_norm, constants=(0.1,), twice=False),
    Case(
        "conv2d_batch_norm",
        (IMAGES, KERNEL),
        lambda x, w, eps: batch_norm(torch.nn.functional.conv2d(x, w), eps),
        constants=(0.1,),
        twice=False,
    ),
]
ELEMENTWISE = CASES[:4]


def name_of(case: Case) -> str:
    return case.name + ("_without_bias" if case.constants == (None,) else "")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference divided by the largest element of the whole tensor, in float64."""
    if expected.numel() == 0:
        return 0.0
    difference = (actual.double() - expected.double()).abs().max()
    return (difference / expected.abs().max().clamp_min(1e-300)).item()


def tolerance(dtype: torch.dtype) -> float:
    return 16 * torch.finfo(dtype).eps
