"""Models converted from torch.nn's layers to this package's, and back, in place."""

import warnings
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules import rnn as torch_rnn  # whose classes stay while a program patches torch.nn.LSTM
from torch.nn.utils import parametrize

from ._lstm import LSTM, LSTMCell

__all__ = ["convert", "convert_lstm", "revert"]

Module = TypeVar("Module", bound=nn.Module)


def convert(
    model: Module, filter_fn: Callable[[nn.Module, str], bool] | None = None, *, verbose: bool = False
) -> Module:
    """Convert the nn.LSTM and nn.LSTMCell of a model to :class:`LSTM` and :class:`LSTMCell`, in place.

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
        (<class 'lltm._lstm.LSTM'>, <class 'torch.nn.modules.rnn.LSTM'>)
    """
    return _convert("convert", model, filter_fn, verbose)


def convert_lstm(model: Module, *, verbose: bool = False) -> Module:
    """:func:`convert` without a filter."""
    return _convert("convert_lstm", model, None, verbose)


def revert(model: Module) -> Module:
    """Convert every :class:`LSTM` and :class:`LSTMCell` of a model to nn.LSTM and nn.LSTMCell, in place.

    The inverse of :func:`convert`, also for modules that were not converted before. Parameters, buffers, hooks,
    attributes and references stay, and so does the random state. Modules of a subclass, parametrized, sharded,
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
        if not _is_lstm(module, LSTM, LSTMCell):
            continue
        if reason := _reason_to_leave(module, LSTM, LSTMCell):
            left.append(f"{path or 'the model itself'} ({reason})")
        elif type(module) is LSTM:
            _to_layer_of_torch(module)
        else:
            module.__dict__.pop("__module__", None)
            module.__class__ = torch_rnn.LSTMCell
    if left:
        warnings.warn(f"revert: left as they are: {', '.join(left)}", stacklevel=2)
    return model


def _convert(name: str, model: Module, filter_fn: Callable[[nn.Module, str], bool] | None, verbose: bool) -> Module:
    left, found = [], False
    for path, module in model.named_modules():
        if _is_lstm(module, LSTM, LSTMCell):  # an LSTMCell is an nn.LSTMCell, too
            found = found or filter_fn is None
            continue
        if not _is_lstm(module, torch_rnn.LSTM, torch_rnn.LSTMCell):
            continue
        if filter_fn is not None and not filter_fn(module, path):
            continue
        found = True
        shown = path or "the model itself"
        if reason := _reason_to_leave(module, torch_rnn.LSTM, torch_rnn.LSTMCell):
            left.append(f"{shown} ({reason})")
            continue
        if type(module) is torch_rnn.LSTM:
            for attribute in ("_flat_weights", "_flat_weights_names", "_flat_weight_refs", "_all_weights", "mode"):
                module.__dict__.pop(attribute, None)
            module.__class__ = LSTM  # type: ignore[assignment]
        else:
            module.__class__ = LSTMCell
        module._prepare()  # type: ignore[operator]
        if verbose:
            print(f"{name}: {shown} is an lltm.{module}")
    if left:
        warnings.warn(f"{name}: left as they are: {', '.join(left)}", stacklevel=3)
    if not found:
        which = "" if filter_fn is None else " for which filter_fn is true"
        warnings.warn(f"{name}: {type(model).__name__} has no nn.LSTM or nn.LSTMCell{which}", stacklevel=3)
    return model


def _to_layer_of_torch(module: nn.Module) -> None:
    """Let an LSTM be an nn.LSTM, which keeps the names and references of its weights."""
    names: list[list[str]] = module._parameter_names()  # type: ignore[operator]
    for attribute in ("_layer_parameters", "_drops", "__module__"):
        module.__dict__.pop(attribute, None)
    module.__class__ = torch_rnn.LSTM
    module.mode = "LSTM"  # type: ignore[assignment]
    module._flat_weights_names = list(chain.from_iterable(names))  # type: ignore[assignment]
    module._all_weights = names  # type: ignore[assignment]
    module._init_flat_weights()  # type: ignore[operator]


def _is_lstm(module: nn.Module, layer: type, cell: type) -> bool:
    """Whether it is one of these classes, of a subclass, or a scripted one."""
    if isinstance(module, torch.jit.ScriptModule):
        ours = module._c._type().qualified_name().startswith("__torch__.lltm.")
        return module.original_name in ("LSTM", "LSTMCell") and ours == (layer is LSTM)
    return isinstance(module, layer | cell)


def _reason_to_leave(module: nn.Module, layer: type, cell: type) -> str | None:
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
    if kind not in (layer, cell):
        return f"of a subclass, {kind.__name__}"
    if getattr(module, "proj_size", 0):
        return f"it has projections, proj_size={module.proj_size}"
    return None
