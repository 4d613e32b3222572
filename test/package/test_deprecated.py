"""Names of the Python package that are deprecated, and pickles that name modules of before."""

import importlib
import io
import sys

import pytest
import torch
from lltm_testing.reference import assert_identical

import lltm


@pytest.mark.parametrize("name", ["backward", "sequence_backward"])
def test_deprecated_functions_are_found_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match=rf"^lltm.{name} is deprecated: call torch.ops.lltm.{name}$") as warned:
        function = getattr(lltm, name)
    assert warned[0].filename == __file__
    assert function is getattr(lltm._operators, name)
    assert name not in lltm.__all__


def test_deprecated_functions_compute_the_same():
    input, weights, state = torch.randn(2, 3), torch.randn(12, 7), torch.randn(2, 4)
    new_h, new_cell, gates = lltm.forward(input, weights, None, state, state)
    arguments = (new_h, None, new_cell, gates, input, weights, None, state)
    with pytest.warns(DeprecationWarning):
        gradients = lltm.backward(*arguments)
    assert_identical(gradients, torch.ops.lltm.backward(*arguments, [True] * 5))


@pytest.mark.parametrize("name", ["cell", "flops", "module", "operators", "sharding"])
def test_deprecated_modules_are_those_of_new_names(name):
    private = sys.modules[f"lltm._{name}"]
    assert importlib.import_module(f"lltm.{name}") is private
    with pytest.warns(DeprecationWarning, match=f"^lltm.{name} is deprecated: it is private$"):
        assert getattr(lltm, name) is private


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'lltm' has no attribute 'lstn'$"):
        lltm.lstn  # noqa: B018


@pytest.mark.filterwarnings("error::DeprecationWarning")
@pytest.mark.parametrize(("make", "module"), [(lltm.LLTM, "lltm.module"), (lltm.LLTMCell, "lltm.cell")])
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
