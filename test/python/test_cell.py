"""lltm.LLTMCell, the module."""

import copy
import io
import math
import pickle

import named_arguments
import pytest
import reference
import torch
from reference import make_arguments
from torch import nn

import lltm


class TutorialLLTM(nn.Module):
    """The parameters of the module in PyTorch's tutorial on C++ extensions, and its step by the formula."""

    def __init__(self, input_features, state_size):
        super().__init__()
        self.input_features = input_features
        self.state_size = state_size
        self.weights = nn.Parameter(torch.empty(3 * state_size, input_features + state_size))
        self.bias = nn.Parameter(torch.empty(3 * state_size))
        for parameter in self.parameters():
            parameter.data.uniform_(-1 / math.sqrt(state_size), 1 / math.sqrt(state_size))

    def forward(self, input, state):
        return reference.forward(input, self.weights, self.bias, *state)[:2]


def random_state(batch, state_size, **options):
    return torch.randn(batch, state_size, **options), torch.randn(batch, state_size, **options)


def test_parameters(device, dtype):
    cell = lltm.LLTMCell(5, 400, device=device, dtype=dtype)
    assert {name: tuple(p.shape) for name, p in cell.named_parameters()} == {"weights": (1200, 405), "bias": (1200,)}
    for parameter in cell.parameters():
        assert parameter.dtype == dtype and parameter.device.type == device.type
        assert 0.04 < parameter.abs().max() <= 0.05 and abs(parameter.double().mean()) < 0.005


def test_defaults():
    cell = lltm.LLTMCell(5, 7)
    assert (cell.input_features, cell.state_size) == (5, 7)
    assert cell.weights.dtype == torch.float32 and cell.weights.device.type == "cpu"
    assert "bias" not in dict(lltm.LLTMCell(5, 7, bias=False).named_parameters())


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_is_the_operator(device, dtype, bias):
    cell = lltm.LLTMCell(5, 7, bias, device, dtype)
    x, state = torch.randn(6, 5, device=device, dtype=dtype), random_state(6, 7, device=device, dtype=dtype)
    expected = torch.ops.lltm.forward(x, cell.weights, cell.bias, *state)
    for result, value in zip(cell(x, state), expected[:2], strict=True):
        assert torch.equal(result, value)


def test_no_state_is_zeros(device, dtype):
    cell = lltm.LLTMCell(5, 7, device=device, dtype=dtype)
    zeros = torch.zeros(6, 7, device=device, dtype=dtype)
    x = torch.randn(6, 5, device=device, dtype=dtype)
    for result, expected in zip(cell(x), cell(x, (zeros, zeros)), strict=True):
        assert torch.equal(result, expected)


def test_single_example(device):
    cell = lltm.LLTMCell(5, 7, device=device)
    x, (h, c) = torch.randn(1, 5, device=device), random_state(1, 7, device=device)
    for given, batched in [((x[0], (h[0], c[0])), (x, (h, c))), ((x[0],), (x,))]:
        for result, expected in zip(cell(*given), cell(*batched), strict=True):
            assert result.shape == (7,) and torch.equal(result, expected[0])


@pytest.mark.parametrize("sizes", [(0, 5, 7), (3, 0, 7), (3, 5, 1)], ids=str)
def test_odd_sizes(device, sizes):
    batch, input_features, state_size = sizes
    cell = lltm.LLTMCell(input_features, state_size, device=device)
    new_h, new_cell = cell(torch.randn(batch, input_features, device=device))
    assert new_h.shape == new_cell.shape == (batch, state_size)


def test_a_checkpoint_of_the_tutorial_loads(device):
    tutorial = TutorialLLTM(5, 7)
    file = io.BytesIO()
    torch.save(tutorial.state_dict(), file)
    file.seek(0)
    cell = lltm.LLTMCell(5, 7)
    cell.load_state_dict(torch.load(file))
    cell, tutorial = cell.to(device), tutorial.to(device)
    x, state = torch.randn(6, 5, device=device), random_state(6, 7, device=device)
    for result, expected in zip(cell(x, state), tutorial(x, state), strict=True):
        torch.testing.assert_close(result, expected)


def test_copies(device):
    cell = lltm.LLTMCell(5, 7, device=device)
    x = torch.randn(6, 5, device=device)
    file = io.BytesIO()
    torch.save(cell, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for twin in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), loaded):
        assert type(twin) is lltm.LLTMCell and twin.weights.data_ptr() != cell.weights.data_ptr()
        assert torch.equal(twin(x)[0], cell(x)[0])


def test_moves(device):
    cell = lltm.LLTMCell(5, 7).to(device=device, dtype=torch.float64)
    assert cell(torch.randn(6, 5, device=device, dtype=torch.float64))[0].dtype == torch.float64
    assert lltm.LLTMCell(5, 7, device="meta").to_empty(device=device).weights.device.type == device.type


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_script(device, bias):
    cell = lltm.LLTMCell(5, 7, bias, device=device)
    scripted = torch.jit.script(cell)
    x, (h, c) = torch.randn(6, 5, device=device), random_state(6, 7, device=device)
    for given in [(x, (h, c)), (x,), (x[0],), (x[0], (h[0], c[0]))]:
        for result, expected in zip(scripted(*given), cell(*given), strict=True):
            assert torch.equal(result, expected)
    assert (scripted.input_features, scripted.state_size) == (5, 7)
    with pytest.raises(torch.jit.Error, match="expected input of 5 features, got 4"):
        scripted(x[:, :4])


def test_repr():
    assert repr(lltm.LLTMCell(32, 128)) == "LLTMCell(input_features=32, state_size=128, bias=True)"
    assert repr(lltm.LLTMCell(0, 1, bias=False)) == "LLTMCell(input_features=0, state_size=1, bias=False)"


def test_trains(device):
    """Learns to remember the first of ten inputs, which only the state can carry."""
    cell, head = lltm.LLTMCell(2, 16, device=device), nn.Linear(16, 1, device=device)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=0.02)
    for _ in range(150):
        inputs = torch.randn(10, 64, 2, device=device)
        state = None
        for x in inputs:
            state = cell(x, state)
        loss = nn.functional.mse_loss(head(state[0])[:, 0], inputs[0, :, 0].sign())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5  # 1 corresponds to no knowledge


@pytest.mark.parametrize("shape", [(), (6, 5, 1)], ids=str)
def test_input_of_a_wrong_rank(shape):
    message = f"LLTMCell: expected input of 2 dimensions .*got {len(shape)}"
    with pytest.raises(ValueError, match=message):
        lltm.LLTMCell(5, 7)(torch.zeros(shape))


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("which", [0, 1], ids=["old_h", "old_cell"])
def test_state_of_another_rank_than_input(batched, which):
    x, state = (torch.zeros(6, 5), [torch.zeros(6, 7)] * 2) if batched else (torch.zeros(5), [torch.zeros(7)] * 2)
    state[which] = torch.zeros(7) if batched else torch.zeros(6, 7)
    dims = 2 if batched else 1
    with pytest.raises(ValueError, match=rf"old_h and old_cell with as many dimensions as input \({dims}\)"):
        lltm.LLTMCell(5, 7)(x, tuple(state))


@pytest.mark.parametrize(
    ("state", "given"),
    [
        ((torch.zeros(6, 7),), r"\(Tensor\)"),
        ((torch.zeros(6, 7), None), r"\(Tensor, NoneType\)"),
        ([torch.zeros(6, 7)] * 3, r"\(Tensor, Tensor, Tensor\)"),
        (0, "an object of type int"),
    ],
    ids=["single", "None", "three", "int"],
)
def test_state_that_is_another_tuple(state, given):
    with pytest.raises(ValueError, match=rf"expected state to be the pair \(old_h, old_cell\), got {given}"):
        lltm.LLTMCell(5, 7)(torch.zeros(6, 5), state)


@pytest.mark.parametrize("rows", [6, 2])  # two rows would unpack as a pair
def test_state_that_is_no_pair(rows):
    with pytest.raises(ValueError, match=r"LLTMCell: expected state to be the pair .*, got one tensor"):
        lltm.LLTMCell(5, 7)(torch.zeros(6, 5), torch.zeros(rows, 7))


def test_input_of_wrong_features():
    with pytest.raises(ValueError, match="LLTMCell: expected input of 5 features, got 4"):
        lltm.LLTMCell(5, 7)(torch.zeros(6, 4))


def test_state_of_a_wrong_size():
    with pytest.raises(RuntimeError, match=r"expected old_h of shape \[batch, state_size\] = \[6, 7\], got \[6, 8\]"):
        lltm.LLTMCell(5, 7)(torch.zeros(6, 5), random_state(6, 8))


@pytest.mark.parametrize("sizes", [(-1, 7), (5, 0), (5, -1)], ids=str)
def test_impossible_sizes(sizes):
    with pytest.raises(ValueError, match=f"state_size of 1 or more, got {sizes[0]} and {sizes[1]}"):
        lltm.LLTMCell(*sizes)


def test_typed_functions(device):
    """lltm.forward and lltm.backward are the operators."""
    arguments = make_arguments((6, 5, 7), device=device)
    results = lltm.forward(*arguments)
    for result, expected in zip(results, torch.ops.lltm.forward(*arguments), strict=True):
        assert torch.equal(result, expected)
    grads = torch.ones_like(results[0]), None
    given = (*grads, *results[1:], *arguments[:4])
    expected = torch.ops.lltm.backward(*given, [True] * 5)
    assert all(torch.equal(a, b) for a, b in zip(lltm.backward(*given), expected, strict=True))
    only_bias = lltm.backward(*given, (False, False, True, False, False))
    assert [result is not None for result in only_bias] == [False, False, True, False, False]


def test_typed_functions_of_a_sequence(device):
    """lltm.sequence and lltm.sequence_backward are the operators, with every argument in its place."""
    arguments = named_arguments.make("sequence", device)
    results = lltm.sequence(**arguments, reverse=True, keep=True)
    for result, expected in zip(results, torch.ops.lltm.sequence(**arguments, reverse=True, keep=True), strict=True):
        assert torch.equal(result, expected)
    given = named_arguments.make("sequence_backward", device)
    expected = torch.ops.lltm.sequence_backward(*given.values(), True, [True] * 5)
    assert all(torch.equal(a, b) for a, b in zip(lltm.sequence_backward(**given, reverse=True), expected, strict=True))
    only_h0 = lltm.sequence_backward(**given, output_mask=[False, False, False, True, False])
    assert [result is not None for result in only_h0] == [False, False, False, True, False]
