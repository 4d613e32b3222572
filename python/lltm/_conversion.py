"""Models converted from torch.nn's layers to this package's, and back, in place."""

import warnings
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules import rnn as torch_rnn  # whose classes stay while a program patches torch.nn.LSTM
from torch.nn.utils import parametrize

from .modules import GRU, LSTM, GRUCell, LSTMCell

__all__ = ["convert", "convert_lstm", "revert"]

Module = TypeVar("Module", bound=nn.Module)

_LSTM_CLASSES: dict[type[nn.Module], type[nn.Module]] = {torch_rnn.LSTM: LSTM, torch_rnn.LSTMCell: LSTMCell}
_CLASSES = {torch_rnn.LSTM: LSTM, torch_rnn.GRU: GRU, torch_rnn.LSTMCell: LSTMCell, torch_rnn.GRUCell: GRUCell}
"""torch.nn's classes and this package's."""


def convert(
    model: Module, filter_fn: Callable[[nn.Module, str], bool] | None = None, *, verbose: bool = False
) -> Module:
    """Convert the nn.LSTM, nn.GRU, nn.LSTMCell and nn.GRUCell of a model to this package's, in place.

    The modules themselves change their class: parameters, buffers, hooks, attributes and references stay, so an
    optimizer that was made before goes on. Modules of a subclass, with projections, parametrized, sharded by
    ``fully_shard``, scripted, or with a replaced ``forward`` are left alone, and named in one warning, each with the
    reason. There is a warning, too, if the model has nothing to convert. Convert before DistributedDataParallel,
    ``fully_shard``, ``torch.compile`` and ``torch.jit.script``. :func:`revert` is the inverse.

    Args:
        model: a model, or a layer itself.
        filter_fn: if given, only modules for which ``filter_fn(module, name)`` is true are converted. The name is that
            of ``model.named_modules()``.
        verbose: whether to print the name of each module that is converted.

    Returns:
        ``model`` itself.

    Example::

        >>> model = torch.nn.ModuleDict({"encoder": torch.nn.LSTM(10, 20), "decoder": torch.nn.LSTM(20, 10)})
        >>> lltm.convert(model, lambda module, name: name == "encoder", verbose=True)
        convert: encoder is an lltm.LSTM(10, 20)
        ModuleDict(
          (encoder): LSTM(10, 20)
          (decoder): LSTM(20, 10)
        )
        >>> type(model["encoder"]), type(model["decoder"])
        (<class 'lltm.modules.lstm.LSTM'>, <class 'torch.nn.modules.rnn.LSTM'>)
    """
    return _convert("convert", model, filter_fn, verbose, _CLASSES)


def convert_lstm(model: Module, *, verbose: bool = False) -> Module:
    """:func:`convert` without a filter, for the nn.LSTM and nn.LSTMCell of a model."""
    return _convert("convert_lstm", model, None, verbose, _LSTM_CLASSES)


def revert(model: Module) -> Module:
    """Convert every :class:`LSTM`, :class:`GRU`, :class:`LSTMCell` and :class:`GRUCell` of a model to torch.nn's.

    In place. The inverse of :func:`convert`, also for modules that were not converted before. Parameters, buffers,
    hooks, attributes and references stay, and so does the random state. Modules of a subclass, parametrized, sharded,
    scripted, or with a replaced ``forward`` are left alone, and named in one warning.

    Returns:
        ``model`` itself.

    Example::

        >>> model = lltm.convert(torch.nn.Sequential(torch.nn.LSTM(10, 20)))
        >>> type(lltm.revert(model)[0])
        <class 'torch.nn.modules.rnn.LSTM'>
    """
    left = []
    for path, module in model.named_modules():
        if not (pair := _pair_of(module, _CLASSES)) or not _is_of(module, pair[1], ours=True):
            continue
        if reason := _reason_to_leave(module, pair[1]):
            left.append(f"{path or 'the model itself'} ({reason})")
        elif isinstance(module, nn.RNNBase):
            _to_layer_of_torch(module, pair[0])
        else:
            module.__dict__.pop("__module__", None)
            module.__class__ = pair[0]
    if left:
        warnings.warn(f"revert: left as they are: {', '.join(left)}", stacklevel=2)
    return model


def _convert(
    name: str,
    model: Module,
    filter_fn: Callable[[nn.Module, str], bool] | None,
    verbose: bool,
    classes: dict[type[nn.Module], type[nn.Module]],
) -> Module:
    left, found = [], False
    for path, module in model.named_modules():
        if not (pair := _pair_of(module, classes)):
            continue
        theirs, ours = pair
        if _is_of(module, ours, ours=True):  # an LSTMCell is an nn.LSTMCell, too
            found = found or filter_fn is None
            continue
        if filter_fn is not None and not filter_fn(module, path):
            continue
        found = True
        shown = path or "the model itself"
        if reason := _reason_to_leave(module, theirs):
            left.append(f"{shown} ({reason})")
            continue
        for attribute in ("_flat_weights", "_flat_weights_names", "_flat_weight_refs", "_all_weights", "mode"):
            module.__dict__.pop(attribute, None)  # of a layer
        module.__class__ = ours
        module._prepare()  # type: ignore[operator]
        if verbose:
            print(f"{name}: {shown} is an lltm.{module}")
    if left:
        warnings.warn(f"{name}: left as they are: {', '.join(left)}", stacklevel=3)
    if not found:
        which = "" if filter_fn is None else " for which filter_fn is true"
        *others, last = (f"nn.{theirs.__name__}" for theirs in classes)
        warnings.warn(f"{name}: {type(model).__name__} has no {', '.join(others)} or {last}{which}", stacklevel=3)
    return model


def _to_layer_of_torch(module: nn.Module, layer: type[nn.Module]) -> None:
    """Let an LSTM be an nn.LSTM, or a GRU an nn.GRU, which keeps the names and references of its weights."""
    names: list[list[str]] = module._parameter_names()  # type: ignore[operator]
    for attribute in ("_layer_parameters", "_names", "_drops", "__module__"):
        module.__dict__.pop(attribute, None)
    module.__class__ = layer
    module.mode = layer.__name__  # type: ignore[assignment]
    module._flat_weights_names = list(chain.from_iterable(names))  # type: ignore[assignment]
    module._all_weights = names  # type: ignore[assignment]
    module._init_flat_weights()  # type: ignore[operator]


def _pair_of(
    module: nn.Module, classes: dict[type[nn.Module], type[nn.Module]]
) -> tuple[type[nn.Module], type[nn.Module]] | None:
    """torch.nn's class and ours of which it is an instance, maybe of a subclass, or scripted; None if of no such."""
    for theirs, ours in classes.items():
        if _is_of(module, theirs, ours=False) or _is_of(module, ours, ours=True):
            return theirs, ours
    return None


def _is_of(module: nn.Module, kind: type[nn.Module], *, ours: bool) -> bool:
    if isinstance(module, torch.jit.ScriptModule):
        is_ours = module._c._type().qualified_name().startswith("__torch__.lltm.")
        return module.original_name == kind.__name__ and is_ours == ours
    return isinstance(module, kind)


def _reason_to_leave(module: nn.Module, convertible: type[nn.Module]) -> str | None:
    """Why this module cannot change its class; None if it can."""
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    if parametrize.is_parametrized(module):
        return "parametrized"
    if hasattr(kind, "set_requires_gradient_sync"):  # fully_shard() makes it a subclass
        return "sharded by fully_shard"
    if kind is not convertible:
        return f"of a subclass, {kind.__name__}"
    if getattr(module, "proj_size", 0):
        return f"it has projections, proj_size={module.proj_size}"
    return None
