"""Tensor subclasses, wrappers and modes: everything that can intercept a call intercepts these."""

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.graphs import Operators
from lltm_testing.named_arguments import backward_of, call, each_forward, leaves_of
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


@each_forward
def test_logging_subclass(device, operator):
    arguments = named_arguments.make(operator, device)
    LoggingTensor.log.clear()
    results = call(operator, arguments | {"input": arguments["input"].as_subclass(LoggingTensor)})
    assert [str(func).removesuffix(".default") for func in LoggingTensor.log] == [f"lltm.{operator}"]
    for result, expected in zip(results, call(operator, arguments), strict=True):
        assert type(result) is LoggingTensor
        assert torch.equal(result.as_subclass(torch.Tensor), expected)


@each_forward
def test_metadata_wrapper(device, operator):
    arguments = named_arguments.make(operator, device)
    bias = next(name for name in arguments if name.startswith("bias"))
    wrapped = arguments | {
        "input": MetadataTensor(arguments["input"], ("sensor 7",)),
        bias: MetadataTensor(arguments[bias], ("yesterday",)),
    }
    for result, expected in zip(call(operator, wrapped), call(operator, arguments), strict=True):
        assert result.metadata == ("sensor 7", "yesterday")
        assert torch.equal(result.data, expected)


@each_forward
def test_wrapper_subclass(device, operator):
    """Both operators are dispatched to it, backward through autograd."""
    expected = leaves_of(named_arguments.make(operator, device))
    wrapped = {name: WrapperSubclass(t.detach()).requires_grad_(t.requires_grad) for name, t in expected.items()}
    WrapperSubclass.log.clear()
    for leaves in (wrapped, expected):
        results = call(operator, leaves)
        assert type(results[0]) is type(leaves["input"])
        (results[0].sum() + results[1].sum()).backward()
    for name in (operator, backward_of(operator)):
        assert WrapperSubclass.log.count(getattr(torch.ops.lltm, name).default) == 1
    for name, leaf in expected.items():
        if leaf.requires_grad:
            assert torch.equal(wrapped[name].grad.inner, leaf.grad), name


@each_forward
def test_dispatch_mode(device, operator):
    """Below autograd, there is one operator forward and one backward, and no other computation (saving a result
    detaches it)."""
    leaves = leaves_of(named_arguments.make(operator, device))
    with Operators() as operators:
        results = call(operator, leaves)[:2]
        assert [name for name in operators.names() if name != "aten::detach"] == [f"lltm::{operator}"]
        torch.autograd.backward(results, [torch.ones_like(result) for result in results])
    assert operators.fused() == [operator, backward_of(operator)]
