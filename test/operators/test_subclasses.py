"""Tensor subclasses, wrappers and modes: everything that can intercept a call intercepts these."""

import pytest
import torch
from lltm_testing.graphs import Operators
from lltm_testing.reference import call, make_arguments
from torch.utils._pytree import tree_map

pytestmark = pytest.mark.pytorch


class LoggingTensor(torch.Tensor):
    """A subclass that records the names of the functions that are called on it."""

    log: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.log.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class MetadataTensor:
    """A wrapper around a tensor that is not a tensor itself and carries metadata along."""

    def __init__(self, data, metadata):
        self.data, self.metadata = data, metadata

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        wrapped = [value for value in args if isinstance(value, MetadataTensor)]
        metadata = tuple(item for value in wrapped for item in value.metadata)
        plain = tree_map(lambda value: value.data if isinstance(value, MetadataTensor) else value, (args, kwargs or {}))
        results = func(*plain[0], **plain[1])
        return tree_map(lambda value: cls(value, metadata) if isinstance(value, torch.Tensor) else value, results)


class WrapperSubclass(torch.Tensor):
    """A subclass below autograd, like DTensor and quantized tensors: it holds a tensor and intercepts dispatch."""

    log: list = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner.detach()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.log.append(func)
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, WrapperSubclass) else t, (args, kwargs or {}))
        return tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))


def test_logging_subclass(device):
    arguments = make_arguments((3, 5, 4), device=device)
    LoggingTensor.log.clear()
    results = call(arguments._replace(input=arguments.input.as_subclass(LoggingTensor)))
    assert [str(func).removesuffix(".default") for func in LoggingTensor.log] == ["lltm.forward"]
    for result, expected in zip(results, call(arguments), strict=True):
        assert type(result) is LoggingTensor
        assert torch.equal(result.as_subclass(torch.Tensor), expected)


def test_metadata_wrapper(device):
    arguments = make_arguments((3, 5, 4), device=device)
    wrapped = arguments._replace(
        input=MetadataTensor(arguments.input, ("sensor 7",)), old_h=MetadataTensor(arguments.old_h, ("yesterday",))
    )
    for result, expected in zip(call(wrapped), call(arguments), strict=True):
        assert result.metadata == ("sensor 7", "yesterday")
        assert torch.equal(result.data, expected)


def test_wrapper_subclass(device):
    """Both operators are dispatched to it, backward through autograd."""
    arguments = make_arguments((3, 5, 4), device=device)
    leaves, expected = arguments.require_grad(), arguments.require_grad()
    wrapped = leaves.map(lambda t: WrapperSubclass(t.detach()).requires_grad_())
    WrapperSubclass.log.clear()
    new_h, new_cell, _ = call(wrapped)
    assert type(new_h) is WrapperSubclass
    (new_h.sum() + new_cell.sum()).backward()
    assert WrapperSubclass.log.count(torch.ops.lltm.forward.default) == 1
    assert WrapperSubclass.log.count(torch.ops.lltm.backward.default) == 1
    other_h, other_cell, _ = call(expected)
    (other_h.sum() + other_cell.sum()).backward()
    for leaf, other in zip(wrapped, expected, strict=True):
        assert torch.equal(leaf.grad.inner, other.grad)


def test_dispatch_mode(device):
    """Below autograd, there is one operator forward and one backward, and no other computation (saving a result
    detaches it)."""
    arguments = make_arguments((3, 5, 4), device=device).require_grad()
    with Operators() as operators:
        new_h, new_cell, _ = call(arguments)
        assert [name for name in operators.names() if name != "aten::detach"] == ["lltm::forward"]
        torch.autograd.backward((new_h, new_cell), (torch.ones_like(new_h), torch.ones_like(new_cell)))
    assert operators.fused() == ["forward", "backward"]
