"""lltm.LLTMCell, the module."""

import copy
import io
import math
import pickle
import re

import pytest
import torch
from lltm_testing import reference
from lltm_testing.reference import assert_identical
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


def test_in_the_place_of_LSTMCell(device):
    """The same calls, with the same names for the arguments and attributes, give results of the same shapes."""
    for options in ({}, {"bias": False}, {"dtype": torch.float64}):
        sizes = {"input_size": 5, "hidden_size": 7, "device": device}
        lstm, cell = nn.LSTMCell(**sizes, **options), lltm.LLTMCell(**sizes, **options)
        assert (cell.input_size, cell.hidden_size) == (lstm.input_size, lstm.hidden_size) == (5, 7)
        assert (cell.input_features, cell.state_size) == (5, 7)
        x = torch.randn(6, 5, device=device, dtype=options.get("dtype"))
        state = random_state(6, 7, device=device, dtype=options.get("dtype"))
        one = x[0], (state[0][0], state[1][0])
        for given, named in (((x, state), {}), ((x,), {"hx": state}), ((x,), {"hx": None}), ((x,), {}), (one, {})):
            expected = lstm(*given, **named)
            results = cell(*given, **named)
            assert [(r.shape, r.dtype) for r in results] == [(r.shape, r.dtype) for r in expected]
        assert_identical(cell(input=x, hx=state), cell(x, state=list(state)))


def test_either_name_of_a_size():
    for cell in (lltm.LLTMCell(5, hidden_size=7), lltm.LLTMCell(input_size=5, state_size=7), lltm.LLTMCell(0, 1)):
        assert cell.weights.shape == (3 * cell.hidden_size, cell.hidden_size + cell.input_size)
    for sizes, message in (
        ({"input_features": 5, "input_size": 5, "state_size": 7}, "either input_features or input_size, got both"),
        ({"state_size": 7}, "either input_features or input_size, got neither"),
        ({"input_size": 5, "state_size": 7, "hidden_size": 8}, "either state_size or hidden_size, got both"),
        ({"input_size": 5}, "either state_size or hidden_size, got neither"),
        ({"input_size": 5, "hidden_size": None}, "either state_size or hidden_size, got neither"),
        ({}, "either input_features or input_size, got neither"),
    ):
        with pytest.raises(TypeError, match=f"^LLTMCell: expected {message}$"):
            lltm.LLTMCell(**sizes)
    with pytest.raises(TypeError, match="either input_features or input_size, got both"):
        lltm.LLTMCell(5, 7, input_size=5)
    with pytest.raises(TypeError, match="LLTMCell: expected either state or hx, got both"):
        lltm.LLTMCell(5, 7)(torch.zeros(6, 5), random_state(6, 7), hx=random_state(6, 7))


def test_split_weights():
    """Views, of the weights of both modules."""
    cell = lltm.LLTMCell(5, 7)
    for weights in (cell.weights, lltm.LLTM.from_cell(cell).weights_l0):
        weight_hh, weight_ih = lltm.split_weights(weights)
        assert weight_hh.shape == (21, 7) and weight_ih.shape == (21, 5)
        assert torch.equal(torch.cat([weight_hh, weight_ih], 1), weights)
        with torch.no_grad():
            weight_hh.fill_(2)
            weight_ih.fill_(3)
        assert weights[:, :7].eq(2).all() and weights[:, 7:].eq(3).all()
    x, (h, c) = torch.randn(6, 5), random_state(6, 7)
    i, o, g = (x @ weight_ih.t() + h @ weight_hh.t() + cell.bias).chunk(3, 1)
    expected = c + nn.functional.elu(g) * i.sigmoid()
    with torch.no_grad():
        cell.weights[:, :7], cell.weights[:, 7:] = 2, 3
    torch.testing.assert_close(cell(x, (h, c)), (expected.tanh() * o.sigmoid(), expected))


@pytest.mark.parametrize("shape", [(21,), (1, 21, 12), (20, 12), (21, 6), (0, 5)], ids=str)
def test_split_weights_of_another_shape(shape):
    message = rf"^split_weights: expected weights of shape \(3H, H\+I\), got {re.escape(str(list(shape)))}$"
    with pytest.raises(ValueError, match=message):
        lltm.split_weights(torch.zeros(shape))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_is_the_operator(device, dtype, bias):
    cell = lltm.LLTMCell(5, 7, bias, device, dtype)
    x, state = torch.randn(6, 5, device=device, dtype=dtype), random_state(6, 7, device=device, dtype=dtype)
    expected = torch.ops.lltm.forward(x, cell.weights, cell.bias, *state)
    assert_identical(cell(x, state), expected[:2])


def test_no_state_is_zeros(device, dtype):
    cell = lltm.LLTMCell(5, 7, device=device, dtype=dtype)
    zeros = torch.zeros(6, 7, device=device, dtype=dtype)
    x = torch.randn(6, 5, device=device, dtype=dtype)
    assert_identical(cell(x), cell(x, (zeros, zeros)))


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
        assert_identical(scripted(*given), cell(*given))
    assert_identical(scripted(x, hx=(h, c)), cell(x, (h, c)))
    assert (scripted.input_features, scripted.state_size) == (scripted.input_size, scripted.hidden_size) == (5, 7)
    with pytest.raises(torch.jit.Error, match="expected either state or hx, got both"):
        scripted(x, (h, c), (h, c))
    for given, message in [((x, (h[0], c)), "got 1 and 2"), ((x, (h[None], c)), "got 3 and 2")]:
        with pytest.raises(torch.jit.Error, match=message):
            scripted(*given)
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


def zeros(*shape, **options):
    return torch.zeros(shape, **options)


# Arguments that nn.LSTMCell(5, 7) rejects, and what LLTMCell says to them.
PAIR = r"expected state to be the pair \(old_h, old_cell\), got "
DIMENSIONS = r"expected old_h and old_cell with as many dimensions as input "
INVALID = {
    "no dimension": ((zeros(),), r"expected input of 2 dimensions \[batch, input_features\], or of 1 .*, got 0"),
    "three dimensions": ((zeros(6, 5, 1),), "expected input of 2 dimensions .*, got 3"),
    "features": ((zeros(6, 4),), "expected input of 5 features, got 4"),
    "features of one": ((zeros(4),), "expected input of 5 features, got 4"),
    "single h": ((zeros(6, 5), (zeros(7), zeros(6, 7))), DIMENSIONS + r"\(2\), got 1 and 2"),
    "single cell": ((zeros(6, 5), (zeros(6, 7), zeros(7))), DIMENSIONS + r"\(2\), got 2 and 1"),
    "batch of h": ((zeros(5), (zeros(1, 7), zeros(7))), DIMENSIONS + r"\(1\), got 2 and 1"),
    "batches": ((zeros(5), (zeros(6, 7), zeros(6, 7))), DIMENSIONS + r"\(1\), got 2 and 2"),
    "h of three": ((zeros(6, 5), (zeros(1, 6, 7), zeros(6, 7))), DIMENSIONS + r"\(2\), got 3 and 2"),
    "cell of none": ((zeros(6, 5), (zeros(6, 7), zeros())), DIMENSIONS + r"\(2\), got 2 and 0"),
    "one of a pair": ((zeros(6, 5), (zeros(6, 7),)), PAIR + r"\(Tensor\)"),
    "a triple": ((zeros(6, 5), [zeros(6, 7)] * 3), PAIR + r"\(Tensor, Tensor, Tensor\)"),
    "nothing": ((zeros(6, 5), ()), PAIR + r"\(\)"),
    "a number": ((zeros(6, 5), 0), PAIR + "an object of type int"),
    "one tensor": ((zeros(6, 5), zeros(6, 7)), PAIR + "one tensor"),
    "two rows": ((zeros(6, 5), zeros(2, 7)), PAIR + "one tensor"),  # would unpack as a pair
    "stacked": ((zeros(6, 5), zeros(2, 6, 7)), PAIR + "one tensor"),
    "size of h": ((zeros(6, 5), (zeros(6, 8), zeros(6, 7))), r"old_h of shape .* = \[6, 7\], got \[6, 8\]"),
    "size of cell": ((zeros(6, 5), (zeros(6, 7), zeros(6, 8))), r"old_cell of shape .* = \[6, 7\], got \[6, 8\]"),
    "rows of h": ((zeros(6, 5), (zeros(5, 7), zeros(6, 7))), r"old_h of shape .* = \[6, 7\], got \[5, 7\]"),
    "rows": ((zeros(6, 5), (zeros(1, 7), zeros(1, 7))), r"old_h of shape .* = \[6, 7\], got \[1, 7\]"),
    "dtype": ((zeros(6, 5, dtype=torch.float64),), "expected weights of input's dtype float64, got float32"),
    "integers": ((zeros(6, 5, dtype=torch.int64),), "expected input of dtype float64, .* got int64"),
    "dtype of h": ((zeros(6, 5), (zeros(6, 7).double(), zeros(6, 7))), "old_h of input's dtype float32, got float64"),
    "device": ((zeros(6, 5, device="meta"),), "expected weights on input's device meta, got cpu"),
    "no tensor": (([1.0] * 5,), "'list' object has no attribute 'dim'"),
    "None": ((None,), "'NoneType' object has no attribute 'dim'"),
    "too many": ((zeros(6, 5), None, None, None), "takes from 2 to 4 positional arguments but 5 were given"),
}


@pytest.mark.parametrize(("arguments", "message"), INVALID.values(), ids=INVALID.keys())
def test_raises_what_LSTMCell_raises(arguments, message):
    with pytest.raises(Exception) as expected:
        nn.LSTMCell(5, 7)(*arguments)
    with pytest.raises(expected.type, match=message) as raised:
        lltm.LLTMCell(5, 7)(*arguments)
    assert raised.type is expected.type


@pytest.mark.parametrize("state", [(zeros(6, 7), None), {"h": zeros(6, 7), "c": zeros(6, 7)}, "ab"], ids=type)
def test_a_state_of_other_objects(state):
    with pytest.raises(TypeError, match="LLTMCell: " + PAIR):
        lltm.LLTMCell(5, 7)(zeros(6, 5), state)


@pytest.mark.parametrize("sizes", [(-1, 7), (5, 0), (5, -1)], ids=str)
def test_impossible_sizes(sizes):
    with pytest.raises(ValueError, match=f"state_size of 1 or more, got {sizes[0]} and {sizes[1]}"):
        lltm.LLTMCell(*sizes)
