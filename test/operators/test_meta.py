"""Meta tensors: shapes without values, in every mode that other devices support."""

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.named_arguments import WEIGHTS, call, each_forward
from torch.func import grad, jvp, vmap

import lltm

pytestmark = pytest.mark.pytorch


def on_meta(arguments: dict) -> dict:
    return {name: t.to("meta") for name, t in arguments.items()}


def shapes(tensors) -> list[tuple[int, ...]]:
    assert all(tensor.is_meta for tensor in tensors)
    return [tuple(tensor.shape) for tensor in tensors]


def test_results_have_the_shapes_and_dtypes_of_others(dtype, operator):
    arguments = named_arguments.make(operator, dtype=dtype, cell_dtype=torch.float32 if dtype.itemsize == 2 else dtype)
    found, expected = call(operator, on_meta(arguments)), call(operator, arguments)
    assert shapes(found) == [tuple(result.shape) for result in expected]
    assert [result.dtype for result in found] == [result.dtype for result in expected]


@each_forward
def test_autograd_and_double_backward(operator):
    arguments = named_arguments.leaves_of(on_meta(named_arguments.make(operator)))
    leaves = [t for t in arguments.values() if t.requires_grad]
    results = call(operator, arguments)[:-1]
    first = torch.autograd.grad(sum(result.sum() for result in results), leaves, create_graph=True)
    second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)
    assert shapes(first) == shapes(second) == shapes(leaves)


@each_forward
def test_transforms(operator):
    arguments = on_meta(named_arguments.make(operator))
    weights = arguments[WEIGHTS[operator]]

    def results(weights):
        return call(operator, arguments | {WEIGHTS[operator]: weights})

    of_one = shapes(results(weights))
    assert shapes(vmap(results)(weights.expand(4, *weights.shape))) == [(4, *shape) for shape in of_one]
    assert shapes([grad(lambda w: results(w)[0].sum())(weights)]) == shapes([weights])
    assert shapes(jvp(lambda w: results(w)[0], (weights,), (weights,))) == of_one[:1] * 2


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("cls", "cls_of_cell", "name"),
    [(lltm.LLTM, lltm.LLTMCell, "weights_l0"), (lltm.LSTM, lltm.LSTMCell, "weight_hh_l0")],
)
def test_modules(cls, cls_of_cell, name, dtype):
    rnn = cls(5, 7, device="meta")
    lengths = torch.empty(3, dtype=dtype, device="meta")
    output, state = rnn(torch.empty(4, 3, 5, device="meta"), lengths=lengths)
    assert shapes([output, *state]) == [(4, 3, 7), (1, 3, 7), (1, 3, 7)]
    output.sum().backward()
    assert shapes([getattr(rnn, name).grad]) == shapes([getattr(rnn, name)])
    cell = torch.jit.script(cls_of_cell(5, 7, device="meta"))
    assert shapes(cell(torch.empty(3, 5, device="meta"))) == [(3, 7), (3, 7)]
