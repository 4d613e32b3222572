"""Errors: where nn.LSTM or nn.GRU raises, the layers raise the same type, and say what was expected and received."""

import inspect
import re
import warnings

import pytest
import torch
from lltm_testing.module_reference import OF_TORCH, twins
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils._pytree import tree_leaves

import lltm

pytestmark = pytest.mark.pytorch

WRONG_OPTIONS = {
    "dropout above 1": ({"dropout": 1.5, "num_layers": 2}, r"range \[0, 1\], got 1.5"),
    "dropout below 0": ({"dropout": -0.1, "num_layers": 2}, r"range \[0, 1\], got -0.1"),
    "dropout that is a bool": ({"dropout": True, "num_layers": 2}, r"a number in range \[0, 1\], got True"),
    "dropout that is text": ({"dropout": "a lot"}, "a lot"),
    "dropout that is text of a number": ({"dropout": "0.5"}, "number in range .*'0.5'"),
    "dropout that is None": ({"dropout": None}, "NoneType"),
    "dropout that is not a number": ({"dropout": float("nan")}, "got nan"),
    "bias that is no bool": ({"bias": 1}, "bias should be of type bool, got: int"),
    "batch_first that is no bool": ({"batch_first": None}, "batch_first should be of type bool, got: NoneType"),
    "input_size that is no int": ({"input_size": 3.0}, "input_size should be of type int, got: float"),
    "hidden_size that is no int": ({"hidden_size": "4"}, "hidden_size should be of type int, got: str"),
    "input_size of 0": ({"input_size": 0}, "input_size must be greater than zero, got 0"),
    "hidden_size of 0": ({"hidden_size": 0}, "hidden_size must be greater than zero, got 0"),
    "hidden_size below 0": ({"hidden_size": -4}, "hidden_size must be greater than zero, got -4"),
    "num_layers that is no int": ({"num_layers": 2.0}, "num_layers should be of type int, got: float"),
    "num_layers of 0": ({"num_layers": 0}, "num_layers must be greater than zero, got 0"),
}


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_constructor(cls, options, message):
    options = {"input_size": 3, "hidden_size": 4} | options
    with pytest.raises((ValueError, TypeError)) as expected:
        OF_TORCH[cls](**options)
    with pytest.raises(expected.type, match=message) as raised:
        cls(**options)
    assert raised.type is expected.type


@pytest.mark.parametrize("size", [-1, 2, 4])
def test_projections(size):
    with pytest.raises(ValueError, match=f"^LLTM: there are no projections, proj_size must be 0, got {size}$"):
        lltm.LLTM(3, 4, proj_size=size)
    with pytest.raises(NotImplementedError, match=f"^LSTM: there are .* so for proj_size={size} keep nn.LSTM$"):
        lltm.LSTM(3, 4, proj_size=size)


def test_dropout_of_one_layer_warns():
    with pytest.warns(UserWarning, match="num_layers greater than 1, but got dropout=0.5 and num_layers=1") as raised:
        lltm.LLTM(3, 4, dropout=0.5)
    assert raised[0].filename == __file__  # the line that made the module
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lltm.LLTM(3, 4, 2, dropout=0.5)


def state(*sizes):
    return torch.zeros(sizes), torch.zeros(sizes)


WRONG_INPUTS = {
    "input of 1 dimension": (torch.zeros(3), None, "Expected input to be 2D or 3D, got 1D"),
    "input of 4 dimensions": (torch.zeros(5, 2, 1, 3), None, "Expected input to be 2D or 3D, got 4D"),
    "features": (torch.zeros(5, 2, 4), None, "equal to input_size. Expected 3, got 4"),
    "features of a single sequence": (torch.zeros(5, 4), None, "equal to input_size. Expected 3, got 4"),
    "dtype": (torch.zeros(5, 2, 3).double(), None, r"dtype \(torch.float64\) does not match .* \(torch.float32\)"),
    "batch of hx": (torch.zeros(5, 2, 3), state(2, 3, 4), r"hidden(\[0\])? size \[2, 2, 4\], got \[2, 3, 4\]"),
    "layers of hx": (torch.zeros(5, 2, 3), state(1, 2, 4), r"hidden(\[0\])? size \[2, 2, 4\], got \[1, 2, 4\]"),
    "width of hx": (torch.zeros(5, 2, 3), state(2, 2, 5), r"hidden(\[0\])? size \[2, 2, 4\], got \[2, 2, 5\]"),
    "hx of 2 dimensions": (torch.zeros(5, 2, 3), state(2, 4), r"For batched 3-D input, .* 3-D but got \(?2-D"),
    "hx of 3 dimensions": (torch.zeros(5, 3), state(2, 1, 4), r"For unbatched 2-D input, .* 2-D but got \(?3-D"),
    "width of hx of a single sequence": (
        torch.zeros(5, 3),
        state(2, 5),
        r"hidden(\[0\])? size \[2, 1, 4\], got \[2, 1, 5\]",
    ),
    "dtype of hx": (
        torch.zeros(5, 2, 3),
        tuple(part.double() for part in state(2, 2, 4)),
        "input's dtype float32, got float64",
    ),
    "device of hx": (
        torch.zeros(5, 2, 3),
        tuple(part.to("meta") for part in state(2, 2, 4)),
        "device cpu.*meta|meta.*cpu",
    ),
    "packed data of 3 dimensions": (pack_sequence([torch.zeros(5, 3, 1)]), None, "input must have 2 dimensions, got 3"),
}


def raises_what_torch_nn_raises(cls, input, hx, message):
    theirs, rnn = twins(3, 4, 2, cls=cls)
    with pytest.raises((ValueError, RuntimeError)) as expected:
        theirs(input, hx)
    with pytest.raises(expected.type, match=message) as raised:
        rnn(input, hx)
    assert raised.type is expected.type


@pytest.mark.parametrize(("input", "hx", "message"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_forward(cls, input, hx, message):
    raises_what_torch_nn_raises(cls, input, tree_leaves(hx)[0] if cls is lltm.GRU else hx, message)


@pytest.mark.parametrize("cls", [lltm.LLTM, lltm.LSTM])
@pytest.mark.parametrize(
    ("hx", "message"),
    [
        ((torch.zeros(2, 2, 4), torch.zeros(2, 2, 3)), r"hidden\[1\] size \[2, 2, 4\], got \[2, 2, 3\]"),
        (torch.zeros(2, 2, 4), r"the pair \(h_0, c_0\), got one tensor"),
    ],
    ids=["width of cx", "one tensor"],
)
def test_forward_with_a_pair(cls, hx, message):
    raises_what_torch_nn_raises(cls, torch.zeros(5, 2, 3), hx, message)


@pytest.mark.parametrize("packed", [False, True])
def test_the_message_about_dtypes_says_what_to_convert(packed):
    rnn = lltm.LLTM(3, 4)
    message = r"^LLTM: input dtype \({}\) does not match weight dtype \(torch.float32\). Convert the input: {}$"
    of_float = message.format("torch.float64", r"input.to\(torch.float32\), or the module: module.to\(torch.float64\)")
    of_integer = message.format("torch.int64", r"input.to\(torch.float32\)")  # a module cannot have this dtype
    for dtype, expected in (torch.float64, of_float), (torch.int64, of_integer):
        input = torch.zeros(5, 3, dtype=dtype)
        with pytest.raises(ValueError, match=expected):
            rnn(pack_sequence([input]) if packed else input)
    with pytest.raises(ValueError, match=of_float):  # a device without autocast
        lltm.LLTM(3, 4, device="meta")(torch.zeros(5, 3, dtype=torch.float64, device="meta"))


@pytest.mark.parametrize(
    ("cell", "error", "message"),
    [
        (nn.LSTMCell(3, 4), TypeError, "expected an LLTMCell, got LSTMCell"),
        (None, TypeError, "expected an LLTMCell, got NoneType"),
        (lltm.LLTMCell(0, 4), ValueError, "the cell has no input features"),
    ],
    ids=["another cell", "None", "no input features"],
)
def test_from_cell(cell, error, message):
    with pytest.raises(error, match=f"^LLTM.from_cell: {message}$"):
        lltm.LLTM.from_cell(cell)


def test_packed():
    """nn.LSTM does not detect either of these."""
    rnn = lltm.LLTM(3, 4, 2)
    with pytest.raises(RuntimeError, match="equal to input_size. Expected 3, got 4"):
        rnn(pack_sequence([torch.zeros(5, 4)]))
    with pytest.raises(RuntimeError, match=r"hidden\[0\] size \[2, 2, 4\], got \[2, 3, 4\]"):
        rnn(pack_sequence([torch.zeros(5, 3)] * 2), state(2, 3, 4))


@pytest.mark.parametrize("batch", [1, 3])
def test_another_batch_of_hx_beside_an_unsorted_pack(batch):
    """Before the states are sorted, which would drop the rows that are too many. nn.LSTM accepts those."""
    packed = pack_sequence([torch.zeros(2, 3), torch.zeros(5, 3)], enforce_sorted=False)
    with pytest.raises(RuntimeError, match=rf"hidden\[0\] size \[2, 2, 4\], got \[2, {batch}, 4\]"):
        lltm.LLTM(3, 4, 2)(packed, state(2, batch, 4))


@pytest.mark.parametrize(
    ("hx", "message"),
    [
        (torch.zeros(2, 2, 4), r"expected hx to be the pair \(h_0, c_0\), got one tensor"),
        (state(2, 4), r"For batched 3-D input, hx and cx should also be 3-D but got \(2-D, 2-D\) tensors"),
    ],
    ids=["one tensor", "2 dimensions"],
)
def test_hx_beside_a_pack(hx, message):
    with pytest.raises(RuntimeError, match=f"^LLTM: {message}$"):
        lltm.LLTM(3, 4, 2)(pack_sequence([torch.zeros(5, 3)] * 2), hx)


def test_batch_sizes_that_increase():
    lstm, rnn = twins(3, 4)
    packed = PackedSequence(torch.zeros(4, 3), torch.tensor([1, 2, 1]))
    with pytest.raises(RuntimeError):
        lstm(packed)
    with pytest.raises(RuntimeError, match=r"batch_sizes of a PackedSequence never to increase, got \[1, 2, 1\]"):
        rnn(packed)


@pytest.mark.parametrize(
    ("batch_sizes", "got"),
    [
        (torch.ones(5, dtype=torch.int32), "int32 on cpu of sizes [5]"),
        (torch.tensor([], dtype=torch.int64), "int64 on cpu of sizes [0]"),
        (torch.tensor(5), "int64 on cpu of sizes []"),
    ],
    ids=["dtype", "empty", "rank"],
)
def test_what_cannot_be_batch_sizes(cls, batch_sizes, got):
    expected = "expected batch_sizes of a PackedSequence to be int64, on the CPU, and not empty"
    with pytest.raises(RuntimeError, match="^" + re.escape(f"{cls.__name__}: {expected}, got {got}") + "$"):
        cls(3, 4)(PackedSequence(torch.zeros(5, 3), batch_sizes))


@pytest.mark.parametrize("rows", [0, 4, 6])
def test_packs_of_another_number_of_rows(rows):
    packed = PackedSequence(torch.zeros(rows, 3), torch.tensor([2, 2, 1]))
    with pytest.raises(RuntimeError, match=f"have 5 rows, the sum of batch_sizes, got {rows}"):
        lltm.LLTM(3, 4)(packed)


@pytest.mark.parametrize("input", [torch.zeros(5, 2, 3), torch.zeros(5, 3)], ids=["batched", "unbatched"])
@pytest.mark.parametrize(("name", "value"), [("lengths", [5, 2]), ("lengths", 3), ("reset", True)])
def test_what_is_no_tensor(input, name, value):
    message = f"LLTM: {name} should be a tensor, got an object of type {type(value).__name__}"
    with pytest.raises(TypeError, match=message):
        lltm.LLTM(3, 4)(input, **{name: value})


@pytest.mark.parametrize("hx", [state(2, 2, 4)[:1], (torch.zeros(2, 2, 4), None), 3], ids=["single", "None", "int"])
def test_hx_that_is_no_pair(hx):
    given = (
        {1: r"\(Tensor\)", 2: r"\(Tensor, NoneType\)"}[len(hx)] if isinstance(hx, tuple) else "an object of type int"
    )
    with pytest.raises(RuntimeError, match=rf"LLTM: expected hx to be the pair \(h_0, c_0\), got {given}"):
        lltm.LLTM(3, 4, 2)(torch.zeros(5, 2, 3), hx)


@pytest.mark.parametrize("input", [torch.zeros(5, 2, 3), pack_sequence([torch.zeros(5, 3)])], ids=["padded", "packed"])
def test_a_pair_for_a_gru(input):
    with pytest.raises(TypeError, match="^GRU: expected hx to be the tensor h_0, got an object of type tuple$"):
        lltm.GRU(3, 4)(input, state(1, 2, 4))


def test_lengths_of_a_packed_sequence():
    with pytest.raises(ValueError, match="a PackedSequence knows its lengths"):
        lltm.LLTM(3, 4)(pack_sequence([torch.zeros(5, 3)]), None, torch.tensor([5]))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [(torch.tensor([5, 5, 5]), "lengths"), (torch.tensor([5.0, 5.0]), "lengths"), (torch.tensor(5), "lengths")],
    ids=["size", "dtype", "rank"],
)
def test_lengths(lengths, message):
    with pytest.raises(RuntimeError, match=message):
        lltm.LLTM(3, 4)(torch.zeros(5, 2, 3), None, lengths)


@pytest.mark.parametrize(
    ("input", "reset", "batch_first", "message"),
    [
        (torch.zeros(5, 2, 3), torch.zeros(2, 5, dtype=torch.bool), False, r"reset size \[5, 2\], got \[2, 5\]"),
        (torch.zeros(2, 5, 3), torch.zeros(5, 2, dtype=torch.bool), True, r"reset size \[2, 5\], got \[5, 2\]"),
        (torch.zeros(5, 3), torch.zeros(5, 1, dtype=torch.bool), False, r"reset size \[5\], got \[5, 1\]"),
        (torch.zeros(5, 2, 3), torch.zeros(5, 2), False, "reset"),
        (pack_sequence([torch.zeros(5, 3)]), torch.zeros(1, 5, dtype=torch.bool), False, r"\[5, 1\], got \[1, 5\]"),
        (pack_sequence([torch.zeros(5, 3)]), torch.zeros(5, 1, dtype=torch.bool), True, r"\[1, 5\], got \[5, 1\]"),
    ],
    ids=["transposed", "transposed batch first", "single", "dtype", "packed", "packed batch first"],
)
def test_reset(input, reset, batch_first, message):
    with pytest.raises(RuntimeError, match=message):
        lltm.LLTM(3, 4, batch_first=batch_first, bidirectional=True)(input, None, None, reset)


@pytest.mark.parametrize(
    ("lengths", "reset", "message"),
    [
        (torch.ones(5, dtype=torch.int64), torch.zeros(5, 3, dtype=torch.bool), r"shape \[batch\] = \[3\], got \[5\]"),
        (torch.ones(3, device="meta", dtype=torch.int64), torch.zeros(5, 3, dtype=torch.bool), "lengths"),
        (torch.ones(3, dtype=torch.int64), torch.zeros(5, 3), r"expected reset of dtype bool \(.*\), got float32"),
        (torch.ones(3, dtype=torch.int64), torch.zeros(5, 3, device="meta", dtype=torch.bool), "reset"),
    ],
    ids=["size of lengths", "device of lengths", "dtype of reset", "device of reset"],
)
def test_lengths_beside_a_reset_in_both_directions(lengths, reset, message):
    """The reset is shifted for the reverse direction, with the lengths, only after the operator has checked both."""
    for bidirectional in (False, True):
        with pytest.raises(RuntimeError, match=f"^lltm::sequence: .*{message}"):
            lltm.LLTM(3, 4, bidirectional=bidirectional)(torch.zeros(5, 3, 3), None, lengths, reset)


def test_a_parameter_that_is_missing():
    rnn = lltm.LLTM(3, 4, 2)
    del rnn.weights_l1
    with pytest.raises(AttributeError, match="'LLTM' object has no attribute 'weights_l1'"):
        rnn(torch.zeros(5, 2, 3))
    inspect.getmembers(rnn)  # skips what raises AttributeError
    assert not hasattr(rnn, "_layer_parameters")


def test_parameters_as_a_list_are_not_assigned():
    with pytest.raises(AttributeError, match="LLTM: assign the parameters themselves, such as weights_l0"):
        lltm.LLTM(3, 4)._layer_parameters = []


def test_a_sequence_of_wrong_rank_in_a_packed_sequence():
    data = torch.zeros(5)
    with pytest.raises(RuntimeError, match="LLTM: input must have 2 dimensions, got 1"):
        lltm.LLTM(3, 4)(PackedSequence(data, torch.ones(5, dtype=torch.int64)))


def test_the_operator_of_all_layers(cls):
    """What a module never passes."""
    layers = getattr(torch.ops.lltm, f"{cls.__name__.lower()}_layers")
    input, parameters, state = torch.zeros(5, 2, 3), list(cls(3, 4, 2).parameters()), torch.zeros(2, 2, 4)
    for count in (0, len(parameters) - 1):
        message = f"Expected the number of parameters to be a multiple of {len(parameters) // 2}, got {count}$"
        with pytest.raises(RuntimeError, match=f"^{cls.__name__}: {message}"):
            layers(input, parameters[:count])
    for got, states in () if cls is lltm.GRU else (("h0", (state, None)), ("c0", (None, state))):
        with pytest.raises(RuntimeError, match=f"^{cls.__name__}: expected h0 and c0, or neither, got {got} alone$"):
            layers(input, parameters, *states)
