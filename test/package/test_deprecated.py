"""Names of the Python package that are deprecated, and pickles that name modules of before."""

import importlib
import io
import sys

import pytest
import torch
from lltm_testing.reference import assert_identical

import lltm


@pytest.mark.parametrize(
    ("name", "now"),
    [("backward", "torch.ops.lltm"), ("sequence_backward", "torch.ops.lltm")]
    + [(name, "lltm.ops") for name in ("forward", "gru", "lstm", "lstm_plan", "sequence", "sequence_plan")],
)
def test_deprecated_functions_are_found_with_a_warning(name, now):
    with pytest.warns(DeprecationWarning, match=rf"^lltm.{name} is deprecated: call {now}.{name}$") as warned:
        function = getattr(lltm, name)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert function is getattr(lltm.ops, name)
    assert name not in lltm.__all__


def test_deprecated_functions_compute_the_same():
    input, weights, state = torch.randn(2, 3), torch.randn(12, 7), torch.randn(2, 4)
    new_h, new_cell, gates = lltm.ops.forward(input, weights, None, state, state)
    arguments = (new_h, None, new_cell, gates, input, weights, None, state)
    with pytest.warns(DeprecationWarning):
        gradients = lltm.backward(*arguments)
    assert_identical(gradients, torch.ops.lltm.backward(*arguments, [True] * 5))


@pytest.mark.parametrize(
    ("name", "now", "message"),
    [
        ("cell", "modules.cell", "import lltm.modules.cell"),
        ("module", "modules.lltm", "import lltm.modules.lltm"),
        ("_lstm", "modules.lstm", "import lltm.modules.lstm"),
        ("operators", "ops", "import lltm.ops"),
        ("flops", "_flops", "it is private"),
        ("sharding", "_sharding", "it is private"),
    ],
)
def test_deprecated_modules_are_those_of_new_names(name, now, message):
    found = sys.modules[f"lltm.{now}"]
    assert importlib.import_module(f"lltm.{name}") is found
    with pytest.warns(DeprecationWarning, match=f"^lltm.{name} is deprecated: {message}$"):
        assert getattr(lltm, name) is found


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'lltm' has no attribute 'lstn'$"):
        lltm.lstn  # noqa: B018


@pytest.mark.filterwarnings("error::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "module"),
    [
        (lltm.LLTM, "lltm.module"),
        (lltm.LLTM, "lltm._module"),
        (lltm.LLTMCell, "lltm.cell"),
        (lltm.LLTMCell, "lltm._cell"),
        (lltm.LSTM, "lltm._lstm"),
        (lltm.LSTMCell, "lltm._lstm"),
        (lltm.GRU, "lltm._gru"),
        (lltm.GRUCell, "lltm._gru"),
    ],
)
def test_pickles_of_whole_modules_of_before_load(monkeypatch, make, module):
    model = make(3, 4)
    monkeypatch.setattr(make, "__module__", module)  # where the class was when the pickle was written
    file = io.BytesIO()
    torch.save(model, file)
    monkeypatch.undo()
    assert module.encode() in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is make
    assert_identical(loaded.parameters(), model.parameters())
