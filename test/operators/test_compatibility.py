"""Compatibility: models that were saved with an earlier version load and give the same results."""

import json
from pathlib import Path

import pytest
import torch
from torch.export.passes import move_to_device_pass

pytestmark = pytest.mark.pytorch

DATA = Path(__file__).resolve().parents[1] / "data"

# Changing an operator's schema can break every saved model. The only compatible change is to append an argument with a
# default, keyword-only in Python. In that case, change the schema here, too, and add models that use the new argument
# to test/data. Any other change requires a new operator with a new name, and the old one stays.
SCHEMAS = {
    "forward": (
        "lltm::forward(Tensor input, Tensor weights, Tensor? bias, Tensor old_h, Tensor old_cell)"
        " -> (Tensor new_h, Tensor new_cell, Tensor gates)"
    ),
    "backward": (
        "lltm::backward(Tensor? grad_h, Tensor? grad_cell, Tensor new_cell, Tensor gates, Tensor input, Tensor weights,"
        " Tensor? bias, Tensor old_h, bool[5] output_mask)"
        " -> (Tensor? d_input, Tensor? d_weights, Tensor? d_bias, Tensor? d_old_h, Tensor? d_old_cell)"
    ),
    "sequence": (
        "lltm::sequence(Tensor input, Tensor weights, Tensor? bias=None, Tensor? h0=None, Tensor? c0=None,"
        " Tensor? lengths=None, Tensor? reset=None, bool reverse=False, bool keep=False)"
        " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor cells, Tensor gates)"
    ),
    "sequence_backward": (
        "lltm::sequence_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor? grad_cells,"
        " Tensor output, Tensor cells, Tensor gates, Tensor input, Tensor weights, Tensor? bias, Tensor? h0,"
        " Tensor? c0, Tensor? lengths, Tensor? reset, bool reverse, bool[5] output_mask)"
        " -> (Tensor? d_input, Tensor? d_weights, Tensor? d_bias, Tensor? d_h0, Tensor? d_c0)"
    ),
    "sequence_plan": (
        "lltm::sequence_plan(Tensor input, Tensor weights, Tensor? bias=None, Tensor? h0=None, Tensor? c0=None,"
        " Tensor? lengths=None, Tensor? reset=None, bool reverse=False, bool keep=False) -> str"
    ),
    "lstm": (
        "lltm::lstm(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias=None, Tensor? h0=None,"
        " Tensor? c0=None, Tensor? lengths=None, Tensor? reset=None, bool reverse=False, bool keep=False)"
        " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor cells, Tensor gates)"
    ),
    "lstm_plan": (
        "lltm::lstm_plan(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias=None, Tensor? h0=None,"
        " Tensor? c0=None, Tensor? lengths=None, Tensor? reset=None, bool reverse=False, bool keep=False) -> str"
    ),
    "lstm_backward": (
        "lltm::lstm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor? grad_cells,"
        " Tensor output, Tensor cells, Tensor gates, Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias,"
        " Tensor? h0, Tensor? c0, Tensor? lengths, Tensor? reset, bool reverse, bool[6] output_mask)"
        " -> (Tensor? d_input, Tensor? d_weight_ih, Tensor? d_weight_hh, Tensor? d_bias, Tensor? d_h0, Tensor? d_c0)"
    ),
    "gru": (
        "lltm::gru(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None, Tensor? bias_hh=None,"
        " Tensor? h0=None, Tensor? lengths=None, Tensor? reset=None, bool reverse=False, bool keep=False)"
        " -> (Tensor output, Tensor h_n, Tensor gates)"
    ),
    "gru_plan": (
        "lltm::gru_plan(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None, Tensor? bias_hh=None,"
        " Tensor? h0=None, Tensor? lengths=None, Tensor? reset=None, bool reverse=False, bool keep=False) -> str"
    ),
    "gru_backward": (
        "lltm::gru_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor output, Tensor gates, Tensor input,"
        " Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? h0, Tensor? lengths,"
        " Tensor? reset, bool reverse, bool[6] output_mask) -> (Tensor? d_input, Tensor? d_weight_ih,"
        " Tensor? d_weight_hh, Tensor? d_bias_ih, Tensor? d_bias_hh, Tensor? d_h0)"
    ),
    "lltm_layers": (
        "lltm::lltm_layers(Tensor input, Tensor[] parameters, Tensor? h0=None, Tensor? c0=None, Tensor? lengths=None,"
        " Tensor? reset=None, Tensor? batch_sizes=None, Tensor? sorted_indices=None, Tensor? unsorted_indices=None,"
        " bool has_biases=True, bool batch_first=False, float dropout=0., bool bidirectional=False, bool keep=False)"
        " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor[] states)"
    ),
    "lstm_layers": (
        "lltm::lstm_layers(Tensor input, Tensor[] parameters, Tensor? h0=None, Tensor? c0=None, Tensor? lengths=None,"
        " Tensor? reset=None, Tensor? batch_sizes=None, Tensor? sorted_indices=None, Tensor? unsorted_indices=None,"
        " bool has_biases=True, bool batch_first=False, float dropout=0., bool bidirectional=False, bool keep=False)"
        " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor[] states)"
    ),
    "gru_layers": (
        "lltm::gru_layers(Tensor input, Tensor[] parameters, Tensor? h0=None, Tensor? lengths=None,"
        " Tensor? reset=None, Tensor? batch_sizes=None, Tensor? sorted_indices=None, Tensor? unsorted_indices=None,"
        " bool has_biases=True, bool batch_first=False, float dropout=0., bool bidirectional=False, bool keep=False)"
        " -> (Tensor output, Tensor h_n, Tensor[] states)"
    ),
    "has_cuda": "lltm::has_cuda() -> bool",
}


def test_every_schema_is_the_one_that_was_promised():
    schemas = {schema.name: schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("lltm::")}
    current = {name: schema for name, schema in schemas.items() if not name.startswith("lltm::_")}  # public
    for name, frozen in SCHEMAS.items():
        schema = current[f"lltm::{name}"]
        assert schema.is_backward_compatible_with(torch._C.parse_schema(frozen)), f"breaks saved models: {schema}"
        assert str(schema) == frozen, "compatible: say so above"
    assert current.keys() == {f"lltm::{name}" for name in SCHEMAS}, "a new operator: promise its schema above"


each_model = pytest.mark.parametrize("model", ["cell", "sequence", "lstm", "gru"])


def numbers(model: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The arguments and results of a saved model. The results are from the formula in float64."""
    stored = json.loads((DATA / f"{model}.json").read_text())

    def tensor(values: list) -> torch.Tensor:
        tensor = torch.tensor(values)  # a list of floats becomes float32
        return torch.tensor(values, dtype=torch.float64) if tensor.is_floating_point() else tensor

    return tuple([tensor(values) for values in stored[name]] for name in ("arguments", "results"))


def load_scripted(model: str, device: torch.device):
    return torch.jit.load(DATA / f"{model}-scripted.pt", map_location=device)


def load_exported(model: str, device: torch.device):
    return move_to_device_pass(torch.export.load(DATA / f"{model}-exported.pt2"), str(device)).module()


@each_model
@pytest.mark.parametrize("load", [load_scripted, load_exported])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_saved_model_gives_the_same_numbers(device, model, load, dtype):
    program = load(model, device).to(dtype)
    arguments, expected = numbers(model)
    arguments = [each.to(dtype) if each.is_floating_point() else each for each in arguments]
    results = program(*(argument.to(device) for argument in arguments))
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), value.to(dtype))


@each_model
def test_a_saved_model_trains(device, model):
    program = load_scripted(model, device)
    results = program(*(argument.to(device) for argument in numbers(model)[0]))
    sum(result.sum() for result in results).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in program.parameters())
