"""Shared by the calls of all operators: process and thread state, tensors, gradients."""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lltm_testing import layouts
from lltm_testing.bounds import Bounded
from lltm_testing.random_calls.cases import Case
from lltm_testing.reference import library_product_spreads_nan
from lltm_testing.settings import allow_tf32

Results = Sequence[Tensor | None]


@dataclass(frozen=True)
class Call:
    names: Sequence[str]
    """The names of the results."""
    dtypes: Sequence[torch.dtype]
    """The dtypes of the results."""
    arguments: Sequence[Tensor | None]
    run: Callable[[], Results]
    """Makes the call. Can be repeated, in any thread."""
    expected: Callable[[], Sequence[Bounded | None]]
    """The expected results, None where a result must be None."""
    may_share_storage: bool = False
    has_same_bits: bool = True
    """Whether repeated calls, in any thread, give the same bits."""


@contextlib.contextmanager
def modes(case: Case, grad_mode: str | None = None):
    """The thread-local state that a call runs in."""
    grad_modes = {"enabled": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
    with contextlib.ExitStack() as stack:
        stack.enter_context(grad_modes[grad_mode or case.grad_mode]())
        if case.autocast:
            stack.enter_context(torch.autocast(case.device, case.autocast))
        yield


def set_process_state(case: Case) -> None:
    """Sets what a call depends on besides thread-local state and its arguments."""
    if torch.get_num_threads() != case.threads:
        torch.set_num_threads(case.threads)
    if case.path:
        os.environ["LLTM_CUDA_PATH"] = case.path
        allow_tf32(case.tf32)


def poisoned(case: Case, name: str, tensor: Tensor) -> Tensor:
    """The tensor with one non-finite element, chosen by the seed."""
    value = dict(case.poison).get(name)
    if value is None or tensor.numel() == 0:
        return tensor
    tensor = tensor.clone()
    tensor.view(-1)[case.seed % tensor.numel()] = value
    return tensor


def product_may_spread_nan(case: Case) -> bool:
    is_own = os.environ.get("LLTM_CPU_GEMM") == "own"
    return case.device == "cpu" and not is_own and library_product_spreads_nan(case.arithmetic)


def lay_out(case: Case, name: str, tensor: Tensor | None) -> Tensor | None:
    """The tensor with the case's layout and non-finite values."""
    if tensor is not None and case.poison and not product_may_spread_nan(case):
        tensor = poisoned(case, name, tensor)
    layout = dict(case.layouts).get(name)
    return tensor if layout is None or tensor is None else getattr(layouts, layout)(tensor)


def seed_generator(case: Case) -> None:
    """Avoids torch.manual_seed, which without a GPU keeps a traceback of every call for a later initialization."""
    if case.device == "cuda":
        torch.cuda.manual_seed(case.seed)
    else:
        torch.default_generator.manual_seed(case.seed)


def differentiate(outputs, grads, leaves, **options) -> list[Tensor | None]:
    """Gradients by autograd; None for a leaf that is None or requires no gradient, or if no gradient comes in."""
    pairs = [
        (output, grad)
        for output, grad in zip(outputs, grads, strict=True)
        if grad is not None and output is not None and output.requires_grad
    ]
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    outputs, grads = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True, **options))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]
