"""Arguments that no caller should pass, and the expected outcome of each.

A hostile argument is made from a valid one. It is either rejected with a message, or handled like any other; the
results are then those of a plain tensor with the same values. test_hostile_calls.py makes the calls in another process.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from lltm_testing.named_arguments import NAMES, optional

# The plain Tensor arguments, for which None is an error.
REQUIRED = {name for operator in NAMES for name in set(NAMES[operator]).difference(optional(operator))}
VECTORS = ("bias", "bias_ih", "bias_hh", "lengths")
NO_FLOATS = ("lengths", "reset")
# The arguments that the formula of the double backward does not read, because it recomputes the pre-activations.
NOT_READ_WITH_GRADIENTS = {"backward": ("gates",), "sequence_backward": ("gates", "c0")}


class Kind(NamedTuple):
    make: Callable[[Tensor], Any]
    refusal: str | None = None
    """A regular expression for the beginning of the message, or None if the argument is valid. {operator}, {name},
    {device} and {shape} are replaced by those of the call."""
    refusal_with_gradients: str | None = None
    """The message if arguments require gradients and it differs."""
    error: type = RuntimeError
    arguments: Callable[[str], bool] = lambda name: name not in NO_FLOATS
    """The names of the arguments that it is tried on."""
    device: str | None = None
    """The only device that has this kind."""


def checked(message: str) -> str:
    """The exact message of one of our checks, except for the placeholders in {}."""
    return re.escape("lltm::{operator}: " + message).replace(r"\{", "{").replace(r"\}", "}")


SHAPE = r"lltm::{operator}: expected \w+ of shape .*got \["
NO_BACKEND = "Could not run 'lltm::{operator}' with arguments from the '{backend}' backend"
NOT_A_TENSOR = (
    r"lltm::{operator}\(\) Expected a value of type '(Optional\[)?Tensor\]?' for argument '{name}'"
    " but instead found type '{type}'"
)


def backend(name: str) -> str:
    return NO_BACKEND.replace("{backend}", name + "{device}")


def any_argument(name: str) -> bool:
    return True


def is_matrix(name: str) -> bool:
    return name not in VECTORS


def no_tensor(value: Any) -> Kind:
    return Kind(lambda t: value, NOT_A_TENSOR.replace("{type}", type(value).__name__), arguments=any_argument)


def dtype(dtype: torch.dtype) -> Kind:
    name = str(dtype).removeprefix("torch.")
    return Kind(
        lambda t: t.new_empty(t.shape, dtype=dtype),
        r"lltm::{operator}: expected (input of dtype float64, float32, float16 or bfloat16|{name} of (input's|[ch]_n's)"
        rf" dtype float32), got {name}$|lltm::{{operator}}: expected \w+ of input's dtype {name}, got float32$",
    )


def shape(change: Callable[[Tensor], Tensor]) -> Kind:
    return Kind(change, SHAPE, arguments=any_argument)


def with_storage_of(size: int):
    def make(t: Tensor) -> Tensor:
        t = t.clone()
        t.untyped_storage().resize_(size)
        return t

    return make


class Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise ValueError("a subclass refuses")


class Declines(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Wrapper(torch.Tensor):
    """A wrapper below autograd that claims to have this `shape`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, shape=None):
        return torch.Tensor._make_wrapper_subclass(
            cls, shape or inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=False
        )

    def __init__(self, inner: Tensor, shape=None):
        self.wrapped = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        unwrapped = tree_map(lambda t: t.wrapped if isinstance(t, Wrapper) else t, (args, kwargs or {}))
        return func(*unwrapped[0], **unwrapped[1])


class RefusingWrapper(Wrapper):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise ValueError("a wrapper refuses")


class DecliningWrapper(Wrapper):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class NumberWrapper(Wrapper):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return 3


def fake(t: Tensor) -> Tensor:
    with torch._subclasses.FakeTensorMode() as mode:
        return mode.from_tensor(t)


def per_channel(t: Tensor) -> Tensor:
    rows = t.size(0)
    return torch.quantize_per_channel(t, torch.full((rows,), 0.1), torch.zeros(rows), 0, torch.qint8)


def after_vmap(t: Tensor) -> Tensor:
    """A tensor that escaped from the transform that it belongs to."""
    escaped = []
    torch.func.vmap(lambda x: (escaped.append(x), x)[1])(t.expand(3, *t.shape))
    return escaped[0]


def after_grad(t: Tensor) -> Tensor:
    escaped = []
    torch.func.grad(lambda x: (escaped.append(x), x.sum())[1])(t)
    return escaped[0]


def after_dual_level(t: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.make_dual(t, t)


def misaligned(t: Tensor) -> Tensor:
    """A tensor that starts at an odd address."""
    memory = bytearray(1 + t.numel() * t.element_size())
    memory[1:] = t.numpy().tobytes()
    return torch.frombuffer(memory, dtype=t.dtype, offset=1).view(t.shape)


def overlapping(t: Tensor) -> Tensor:
    """Each row is the previous one, shifted by one element."""
    strides = (1,) * t.dim()
    return t.new_tensor(range(sum(t.shape))).mul_(0.1).as_strided(t.shape, strides)


OUTSIDE = checked("expected {name} to lie within its storage, which takes ") + r"\d+ bytes, got {bytes}$"
NESTED = checked("expected {name} to be a dense tensor, got a nested one") + "$"


def outside(size: int) -> Kind:
    return Kind(with_storage_of(size), OUTSIDE.replace("{bytes}", str(size)), arguments=any_argument)


def sparse(make: Callable[[Tensor], Tensor], key: str, layout: str) -> Kind:
    """The dispatcher's message, or ours where the formula of the double backward would run."""
    return Kind(
        make,
        backend(key),
        checked(f"expected {{name}} to be dense, got the layout {layout}") + "$",
        arguments=lambda name: is_matrix(name) and name not in NO_FLOATS,
    )


KINDS = {
    # Layouts and backends.
    "sparse_coo": sparse(lambda t: torch.ones_like(t).to_sparse(), "Sparse", "Sparse"),
    "sparse_csr": sparse(lambda t: torch.ones_like(t).to_sparse_csr(), "SparseCsr", "SparseCsr"),
    "sparse_csc": sparse(lambda t: torch.ones_like(t).to_sparse_csc(), "SparseCsr", "SparseCsc"),
    "sparse_bsr": sparse(lambda t: torch.ones_like(t).to_sparse_bsr((1, 1)), "SparseCsr", "SparseBsr"),
    "sparse_bsc": sparse(lambda t: torch.ones_like(t).to_sparse_bsc((1, 1)), "SparseCsr", "SparseBsc"),
    "mkldnn": sparse(lambda t: t.to_mkldnn(), "Mkldnn", "Mkldnn")._replace(device="cpu"),
    "quantized": Kind(
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
        backend("Quantized"),
        r"lltm::{operator}: expected .*got (qint8|float32)$",
    ),
    "quantized_per_channel": Kind(
        per_channel, backend("Quantized"), r"lltm::{operator}: expected .*got (qint8|float32)$", device="cpu"
    ),
    "nested": Kind(lambda t: torch.nested.nested_tensor([t]), NESTED),
    "nested_rows": Kind(lambda t: torch.nested.as_nested_tensor(list(t)), NESTED),
    "nested_jagged": Kind(lambda t: torch.nested.nested_tensor([t], layout=torch.jagged), NESTED),
    "meta": Kind(lambda t: t.to("meta"), r"lltm::{operator}: expected \w+ on input's device \w+(:\d)?, got \w+"),
    "fake": Kind(fake, "Please convert all Tensors to FakeTensors first", error=AssertionError),
    # Memory.
    "no_storage": outside(0),
    "half_a_storage": outside(16),
    "misaligned": Kind(misaligned, device="cpu"),
    "overlapping": Kind(overlapping),
    "expanded": Kind(lambda t: t.flatten()[0].expand(t.shape)),
    "numpys": Kind(lambda t: torch.from_numpy(t.numpy()), device="cpu"),
    "shared": Kind(lambda t: t.share_memory_(), device="cpu"),
    "real_part": Kind(lambda t: torch.complex(t, t).real),
    "negative_view": Kind(lambda t: torch._neg_view(t)),
    "imaginary_part_of_a_conjugate": Kind(lambda t: torch.complex(t, t).conj().imag),
    "zero_tensor": Kind(lambda t: torch._efficientzerotensor(t.shape, device=t.device)),
    "a_row_of_a_batch_of_one": Kind(lambda t: t[None][0]),
    # Sizes.
    "a_number": shape(lambda t: t.flatten()[0]),
    "one_element": shape(lambda t: t.flatten()[:1]),
    "flat": Kind(torch.flatten, SHAPE, arguments=is_matrix),
    "three_dimensions": shape(lambda t: t[None]),
    "five_dimensions": shape(lambda t: t[None, None, None]),
    "no_element": shape(lambda t: t.new_empty(0)),
    "no_row": shape(lambda t: t[:0]),
    "no_column": shape(lambda t: t[..., :0]),
    "a_row_less": shape(lambda t: t[1:]),
    "a_column_more": shape(lambda t: torch.cat([t, t[..., :1]], dim=-1)),
    "transposed": Kind(lambda t: t.mT, SHAPE, arguments=is_matrix),
    "2_to_the_40_rows": shape(lambda t: t.new_zeros(()).expand(2**40, *t.shape[1:])),
    "2_to_the_62_elements": shape(lambda t: t.new_zeros(()).expand((2 ** (62 // t.dim()),) * t.dim())),
    # Types of elements.
    **{
        str(other).removeprefix("torch."): dtype(other)
        for other in (
            torch.float64, torch.float16, torch.bfloat16, torch.complex32, torch.complex64, torch.complex128,
            torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
            torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu,
            torch.bits8,
        )
    },
    # Subclasses.
    "subclass": Kind(lambda t: t.as_subclass(Plain)),
    "parameter": Kind(lambda t: torch.nn.Parameter(t, requires_grad=False)),
    "subclass_that_refuses": Kind(lambda t: t.as_subclass(Refuses), "a subclass refuses$", error=ValueError),
    "subclass_that_declines": Kind(lambda t: t.as_subclass(Declines), "Multiple dispatch failed", error=TypeError),
    "wrapper": Kind(Wrapper),
    "wrapper_that_refuses": Kind(RefusingWrapper, "a wrapper refuses$", error=ValueError),
    "wrapper_that_declines": Kind(DecliningWrapper, "Multiple dispatch failed", error=TypeError),
    "wrapper_that_gives_numbers": Kind(
        NumberWrapper, "Object of type 'int' is not an instance of 'sequence'|Unable to cast 3", error=Exception
    ),
    "wrapper_of_another_shape": Kind(
        lambda t: Wrapper(t.new_zeros((2,) * t.dim()), t.shape), ".*(shape|size)", error=Exception
    ),
    # Tensors outside of the context in which they are valid.
    "after_vmap": Kind(
        after_vmap,
        ".*(maybe_level.has_value|escaped from inside a function being vmapped)",
        arguments=lambda name: name not in ("gates", "c0", *NO_FLOATS),  # vmap's formula does not read them all
    ),
    "after_grad": Kind(after_grad),
    "after_a_dual_level": Kind(after_dual_level),
    # Values that are not tensors.
    "none": Kind(
        lambda t: None,
        checked("expected {name} to be a tensor, got None or an undefined tensor") + "$",
        arguments=lambda name: name in REQUIRED,
    ),
    "string": no_tensor("x"),
    "int": no_tensor(1),
    "float": no_tensor(3.0),
    "bool": no_tensor(True),
    "complex": no_tensor(1j),
    "list": no_tensor([]),
    "tuple": no_tensor(()),
    "dict": no_tensor({}),
    "object": no_tensor(object()),
    "dtype": no_tensor(torch.float32),
    "ndarray": no_tensor(numpy.zeros((6, 5), numpy.float32)),
    "device": no_tensor(torch.device("cpu")),
}  # fmt: skip
