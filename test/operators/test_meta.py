"""Meta tensors: shapes without values, in every mode that other devices support."""

import pytest
import torch
from torch.func import grad, jvp, vmap

import lltm

pytestmark = pytest.mark.pytorch

SHAPES = [(3, 5), (21, 12), (21,), (3, 7), (3, 7)]
STATE = [(3, 7), (3, 7), (3, 21)]


@pytest.fixture
def arguments() -> list[torch.Tensor]:
    return [torch.empty(shape, device="meta", requires_grad=True) for shape in SHAPES]


def shapes(tensors) -> list[tuple[int, ...]]:
    assert all(tensor.is_meta for tensor in tensors)
    return [tuple(tensor.shape) for tensor in tensors]


def test_autograd_and_double_backward(arguments):
    new_h, new_cell, gates = lltm.forward(*arguments)
    assert shapes([new_h, new_cell, gates]) == STATE
    gradients = torch.autograd.grad(new_h.sum() + new_cell.sum(), arguments, create_graph=True)
    assert shapes(gradients) == SHAPES
    again = torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), arguments)
    assert shapes(again) == SHAPES


def test_transforms(arguments):
    input, *others = (argument.detach() for argument in arguments)
    batched = vmap(lambda input: lltm.forward(input, *others))(input.expand(4, 3, 5))
    assert shapes(batched) == [(4, *shape) for shape in STATE]
    assert shapes([grad(lambda input: lltm.forward(input, *others)[0].sum())(input)]) == [(3, 5)]
    assert shapes(jvp(lambda input: lltm.forward(input, *others)[0], (input,), (input,))) == [(3, 7), (3, 7)]


def test_scripted_module():
    cell = torch.jit.script(lltm.LLTMCell(5, 7, device="meta"))
    assert shapes(cell(torch.empty(3, 5, device="meta"))) == STATE[:2]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lengths(dtype):
    rnn = lltm.LLTM(5, 7, device="meta")
    lengths = torch.empty(3, dtype=dtype, device="meta")
    output, state = rnn(torch.empty(4, 3, 5, device="meta"), lengths=lengths)
    assert shapes([output, *state]) == [(4, 3, 7), (1, 3, 7), (1, 3, 7)]
    output.sum().backward()
    assert shapes([rnn.weights_l0.grad]) == [(21, 12)]
