"""Argument checks of the layers: those of nn.LSTM, with the same exception types, and those of lengths and reset.

Messages begin with the layer's name, which is the first argument.
"""

import numbers
import re
import sys
import warnings
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor


def check_options(
    layer: str,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool,
    batch_first: bool,
    dropout: float,
    proj_size: int,
) -> None:
    """Check the constructor's arguments in nn.LSTM's order and with its exception types."""
    probability = float(dropout)
    if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= probability <= 1:
        raise ValueError(f"{layer}: dropout should be a number in range [0, 1], got {dropout!r}")
    if probability > 0 and num_layers == 1:
        warnings.warn(
            f"{layer}: dropout acts between layers, so non-zero dropout expects num_layers greater than 1, but got "
            f"dropout={dropout} and num_layers={num_layers}",
            stacklevel=4,
        )
    for name, value, kind in (
        ("bias", bias, bool),
        ("batch_first", batch_first, bool),
        ("input_size", input_size, int),
        ("hidden_size", hidden_size, int),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{layer}: {name} should be of type {kind.__name__}, got: {type(value).__name__}")
    for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        if value <= 0:
            raise ValueError(f"{layer}: {name} must be greater than zero, got {value}")
    if not isinstance(num_layers, numbers.Integral):
        raise TypeError(f"{layer}: num_layers should be of type int, got: {type(num_layers).__name__}")
    if proj_size != 0 and layer == "LLTM":
        raise ValueError(f"LLTM: there are no projections, proj_size must be 0, got {proj_size}")
    if proj_size != 0:
        raise NotImplementedError(f"{layer}: there are no projections, so for proj_size={proj_size} keep nn.LSTM")


def use_types_of_python(module: torch.nn.Module, names: Iterable[str], kind: type) -> None:
    """Let these attributes be of Python's type. torch.nn takes numbers of NumPy, too, but they neither compile nor
    script."""
    for name in names:
        setattr(module, name, kind(getattr(module, name)))


def describe_state(state: object) -> str | None:
    """Describe a state that is not a pair of tensors; None if it is one."""
    if isinstance(state, Tensor):
        return "one tensor"
    if not isinstance(state, tuple | list):
        return f"an object of type {type(state).__name__}"
    kinds = ", ".join("Tensor" if isinstance(value, Tensor) else type(value).__name__ for value in state)
    return None if kinds == "Tensor, Tensor" else f"({kinds})"


def check_cell_pair(cell: str, name: str, pair: str, state: object) -> None:
    """Check that the state of a cell is a pair of tensors, with nn.LSTMCell's exception types."""
    given = describe_state(state)
    if given is not None:
        only_tensors = isinstance(state, tuple | list) and all(isinstance(part, Tensor) for part in state)
        kind = RuntimeError if only_tensors else TypeError
        raise kind(f"{cell}: expected {name} to be the pair {pair}, got {given}")


def check_state_of_h(layer: str, hx: object) -> None:
    if not hasattr(hx, "dim"):  # as in check_input_kind()
        raise TypeError(f"{layer}: expected hx to be the tensor h_0, got an object of type {type(hx).__name__}")


def check_input_kind(layer: str, input: object) -> None:
    if not hasattr(input, "dim"):  # tensors, and what poses as one
        kind = type(input).__name__
        raise TypeError(f"{layer}: input should be a tensor or a PackedSequence, got an object of type {kind}")


def refuse_lstm(module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, errors: list[str]) -> None:
    """Report a state_dict of nn.LSTM or nn.LSTMCell, also one whose weights are computed.

    load_state_dict() then raises, also with strict=False, which would otherwise leave the module untrained silently."""
    if key := _foreign_key(module, state_dict, prefix, _KEY_OF_LSTM, _KEY_OF_LLTM):
        errors.append(
            f"{key} is a parameter of nn.LSTM or another layer of torch.nn, whose cell {_kind_of(module)} cannot "
            "compute; lltm.LSTM and lltm.GRU load those of nn.LSTM and nn.GRU, and their cells those of the cells"
        )


def refuse_lltm(module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, errors: list[str]) -> None:
    """The same for the state_dict of an LLTM or LLTMCell."""
    if key := _foreign_key(module, state_dict, prefix, _KEY_OF_LLTM, _KEY_OF_LSTM):
        errors.append(
            f"{key} is a parameter of LLTM or LLTMCell, whose cell has three gates: {_kind_of(module)} cannot "
            "compute it"
        )


def _kind_of(module: torch.nn.Module) -> str:
    return module.original_name if isinstance(module, torch.jit.ScriptModule) else type(module).__name__


def _pattern_of_keys(weights: str) -> re.Pattern[str]:
    """Matches the keys of a layer's or cell's weights: as parameters, as the parameters that weight_norm, spectral_norm
    and prune of torch.nn.utils compute them from, and those of parametrizations."""
    name = rf"({weights})(_l\d+(_reverse)?)?"
    return re.compile(rf"{name}(_g|_v|_orig)?|parametrizations\.{name}\.original\d*")


_KEY_OF_LSTM = _pattern_of_keys("weight_ih|weight_hh")
_KEY_OF_LLTM = _pattern_of_keys("weights")


def _foreign_key(
    module: torch.nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    foreign: re.Pattern[str],
    native: re.Pattern[str],
) -> str | None:
    """The first key of the other cell's weights, unless the module has a parameter or buffer of that name, or there are
    weights of its own cell, too: then it is a key of a subclass, which may be stale."""
    names = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
    found = [name for name in names if foreign.fullmatch(name)]
    if not found or any(map(native.fullmatch, names)):
        return None
    own = dict(chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)))
    return next((prefix + name for name in found if name not in own), None)


def check_kinds(layer: str, hx: object, lengths: object, reset: object) -> None:
    for name, value in (("lengths", lengths), ("reset", reset)):
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{layer}: {name} should be a tensor, got an object of type {type(value).__name__}")
    given = None if hx is None else describe_state(hx)
    if given is not None:
        raise RuntimeError(f"{layer}: expected hx to be the pair (h_0, c_0), got {given}")


def refuse_to_export(layer: str) -> None:
    """Raise an error while torch.export traces, to which the number of sequences is unknown, or torch.onnx.export does.

    Dynamo, with strict=True, refuses the functions that make a PackedSequence itself, and takes one that is an
    argument."""
    onnx = sys.modules.get("torch.onnx")
    to_onnx = torch.jit.is_tracing() and onnx is not None and onnx.is_in_onnx_export()
    if to_onnx or (torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()):
        advice = ", or export lltm.revert(model)" if to_onnx and layer != "LLTM" else ""
        raise RuntimeError(f"{layer}: a PackedSequence cannot be exported: pass a padded input and lengths{advice}")


def check_size(layer: str, name: str, tensor: Tensor, expected: list[int]) -> None:
    if not torch.jit.is_tracing() and list(tensor.shape) != expected:
        raise RuntimeError(f"{layer}: Expected {name} size {expected}, got {list(tensor.shape)}")


def autocasts(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
