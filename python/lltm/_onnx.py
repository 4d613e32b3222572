"""lltm::lstm and lltm::gru as ONNX's own LSTM and GRU, in both of PyTorch's exporters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["onnx_translation_table"]


class _Cell(NamedTuple):
    """What ONNX's operator of a cell has."""

    name: str
    order: tuple[int, ...]
    """Of the gates, as numbers of PyTorch's."""
    kept: tuple[int, ...]
    """The sizes, in states, of what lltm's operator keeps of every step, and ONNX's does not return."""
    lacks: str
    attributes: dict[str, int]


_LSTM = _Cell("LSTM", (0, 3, 1, 2), (1, 4), "cell state", {})
_GRU = _Cell("GRU", (1, 0, 2), (4,), "gates", {"linear_before_reset": 1})


def onnx_translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """A table for ``custom_translation_table`` of ``torch.onnx.export(dynamo=True)``: each layer and direction of an
    :class:`LSTM` or :class:`GRU` becomes ONNX's operator LSTM or GRU. For float32 and float16.

    They have no resets, ONNX's LSTM does not return the cell state of every step, and ONNX Runtime does not compute
    them in float64: models with those take :func:`decompositions` instead. Rows of length 0 keep their initial state,
    which ONNX Runtime's operators alone would not do.

    Needs the package onnxscript. While exporting, the table raises NotImplementedError for what it cannot translate.

    Example::

        >>> rnn, input = lltm.LSTM(10, 20).eval(), torch.randn(5, 3, 10)
        >>> options = {"dynamo": True, "verbose": False, "custom_translation_table": lltm.onnx_translation_table()}
        >>> program = torch.onnx.export(rnn, (input,), **options)
        >>> any(node.op_type == "LSTM" for node in program.model.graph)
        True
    """
    from onnxscript import opset18

    def lstm(  # type: ignore[no-untyped-def]
        input,
        weight_ih,
        weight_hh,
        bias=None,
        h0=None,
        c0=None,
        lengths=None,
        reset=None,
        reverse: bool = False,
        keep: bool = False,
    ):
        _check_translatable(_LSTM, input.dtype, reset is not None, keep, None if c0 is None else c0.dtype)
        return _translate(opset18, _LSTM, input, weight_ih, weight_hh, [bias, None], [h0, c0], lengths, reverse)

    def gru(  # type: ignore[no-untyped-def]
        input,
        weight_ih,
        weight_hh,
        bias_ih=None,
        bias_hh=None,
        h0=None,
        lengths=None,
        reset=None,
        reverse: bool = False,
        keep: bool = False,
    ):
        _check_translatable(_GRU, input.dtype, reset is not None, keep, None if h0 is None else h0.dtype)
        return _translate(opset18, _GRU, input, weight_ih, weight_hh, [bias_ih, bias_hh], [h0], lengths, reverse)

    return {torch.ops.lltm.lstm.default: lstm, torch.ops.lltm.gru.default: gru}


def _translate(  # type: ignore[no-untyped-def]
    op: Any, cell: _Cell, input, weight_ih, weight_hh, biases: list[Any], states: list[Any], lengths, reverse: bool
) -> tuple[Any, ...]:
    """The results of lltm's operator by the operators of ``op``, what it keeps without steps."""
    state_size = weight_hh.shape[1]
    zero = op.CastLike(0.0, input)
    batch = op.Shape(input, start=1, end=2)

    def ints(*values: int) -> Any:
        return op.Constant(value_ints=values)

    rows = ints(*_rows_in_onnx_order(cell, state_size))

    def one_direction(matrix: Any) -> Any:
        return op.Unsqueeze(op.Gather(matrix, rows, axis=0), ints(0))

    def bias_of(bias: Any) -> Any:
        if bias is None:
            return op.Expand(zero, ints(1, len(cell.order) * state_size))
        return one_direction(bias)

    def initial(state: Any) -> Any:
        if state is None:
            return op.Expand(zero, op.Concat(ints(1), batch, ints(state_size), axis=0))
        return op.Unsqueeze(state, ints(0))

    def no_steps(columns: int) -> Any:
        return op.Expand(zero, op.Concat(ints(0), batch, ints(columns), axis=0))

    steps_of_rows = None if lengths is None else _clamped(op, lengths, op.Shape(input, start=0, end=1), ints(0))
    first = [initial(state) for state in states]
    output, *last = getattr(op, cell.name)(
        input,
        one_direction(weight_ih),
        one_direction(weight_hh),
        None if all(bias is None for bias in biases) else op.Concat(*map(bias_of, biases), axis=1),
        steps_of_rows,
        *first,
        hidden_size=state_size,
        direction="reverse" if reverse else "forward",
        **cell.attributes,
    )
    if steps_of_rows is not None:
        empty = op.Unsqueeze(op.Equal(steps_of_rows, op.CastLike(0, steps_of_rows)), ints(0, 2))
        last = [op.Where(empty, before, after) for before, after in zip(first, last, strict=True)]
    return (
        op.Squeeze(output, ints(1)),
        *(op.Squeeze(state, ints(0)) for state in last),
        *(no_steps(size * state_size) for size in cell.kept),
    )


def _clamped(op: Any, lengths: Any, steps: Any, zero: Any) -> Any:
    """The lengths from zero to ``steps``, as ONNX's operators take them."""
    from onnxscript import INT32, INT64

    return op.Cast(op.Max(op.Min(op.Cast(lengths, to=INT64.dtype), steps), zero), to=INT32.dtype)


def _rows_in_onnx_order(cell: _Cell, state_size: int) -> list[int]:
    return [gate * state_size + row for gate in cell.order for row in range(state_size)]


def _check_translatable(cell: _Cell, dtype: Any, has_reset: bool, keep: bool, carried_dtype: Any) -> None:
    """``carried_dtype`` is that of the state that may be float32 beside 16 bits."""
    reason, other = None, ""
    if has_reset:
        reason = "has no resets"
    elif keep:
        reason = f"does not return the {cell.lacks} of every step"
    elif str(dtype).rpartition(".")[2].upper() not in ("FLOAT", "FLOAT32", "FLOAT16"):
        reason, other = f"runs in float32 and float16, not in {dtype}", ", or export lltm.revert(model)"
    elif carried_dtype is not None and carried_dtype != dtype:
        reason = f"needs {'c_0' if cell is _LSTM else 'h_0'} of input's dtype {dtype}, got {carried_dtype}"
    if reason:
        raise NotImplementedError(
            f"lltm::{cell.name.lower()}: ONNX's {cell.name} {reason}; export with lltm.decompositions(){other}"
        )


def register_translations() -> None:
    """Give ``torch.onnx.export(dynamo=True)`` the table, so that a program's own export of a converted model works.

    Its registry is private. Where it has changed, exporting raises as without this, and needs the table.
    """
    try:
        from torch.onnx._internal.exporter._registration import OnnxDecompMeta
        from torch.onnx._internal.exporter._torchlib._torchlib_registry import _registry

        known = {entry.fx_target for entry in _registry}
        for target, function in onnx_translation_table().items():
            if target not in known:
                _registry.append(
                    OnnxDecompMeta(onnx_function=function, fx_target=target, signature=None, is_custom=True)
                )
    except (ImportError, AttributeError, TypeError):
        pass


def register_symbolics() -> None:
    """The same for ``torch.onnx.export(dynamo=False)``, by PyTorch's public way. Imports ``torch.onnx``."""
    import torch.onnx

    torch.onnx.register_custom_op_symbolic("lltm::lstm", _symbolic_lstm, 9)
    torch.onnx.register_custom_op_symbolic("lltm::gru", _symbolic_gru, 9)
    torch.onnx.register_custom_op_symbolic("lltm::lstm_layers", _symbolic_lstm_layers, 9)
    torch.onnx.register_custom_op_symbolic("lltm::gru_layers", _symbolic_gru_layers, 9)
    for operator, named in (("sequence", "sequence"), ("lltm_layers", "sequence"), ("forward", "forward")):
        torch.onnx.register_custom_op_symbolic(f"lltm::{operator}", _refuse_symbolic(named), 9)


def _refuse_symbolic(operator: str) -> Callable[..., None]:
    def refuse(*arguments: Any) -> None:
        raise NotImplementedError(
            f"lltm::{operator} has no translation in torch.onnx.export(dynamo=False): export with dynamo=True and "
            "lltm.decompositions()"
        )

    return refuse


def _symbolic_lstm(  # type: ignore[no-untyped-def]
    g: Any, input, weight_ih, weight_hh, bias, h0, c0, lengths, reset, reverse, keep
) -> tuple[Any, ...]:
    reverse, keep, dtype = _constant(reverse, "b"), _constant(keep, "b"), _dtype_of(input)
    return _symbolic(
        g, _LSTM, dtype, input, weight_ih, weight_hh, [bias, None], [h0, c0], lengths, reset, reverse, keep
    )


def _symbolic_gru(  # type: ignore[no-untyped-def]
    g: Any, input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset, reverse, keep
) -> tuple[Any, ...]:
    reverse, keep, dtype = _constant(reverse, "b"), _constant(keep, "b"), _dtype_of(input)
    return _symbolic(
        g, _GRU, dtype, input, weight_ih, weight_hh, [bias_ih, bias_hh], [h0], lengths, reset, reverse, keep
    )


def _symbolic_lstm_layers(  # type: ignore[no-untyped-def]
    g: Any, input, parameters, h0, c0, lengths, reset, *rest
) -> tuple[Any, ...]:
    return _symbolic_layers(g, _LSTM, input, parameters, [h0, c0], lengths, reset, *rest)


def _symbolic_gru_layers(  # type: ignore[no-untyped-def]
    g: Any, input, parameters, h0, lengths, reset, *rest
) -> tuple[Any, ...]:
    return _symbolic_layers(g, _GRU, input, parameters, [h0], lengths, reset, *rest)


def _constant(value: Any, kind: str) -> Any:
    from torch.onnx import symbolic_helper

    return symbolic_helper._get_const(value, kind, "argument")


def _dtype_of(value: Any) -> torch.dtype:
    from torch.onnx import JitScalarType

    return JitScalarType.from_value(value).dtype()


def _symbolic_layers(  # type: ignore[no-untyped-def]
    g: Any,
    cell: _Cell,
    input,
    parameters,
    states: list[Any],
    lengths,
    reset,
    batch_sizes,
    sorted_indices,
    unsorted_indices,
    has_biases,
    batch_first,
    dropout,
    bidirectional,
    keep,
) -> tuple[Any, ...]:
    """The results of all layers, whose input is padded: a PackedSequence is refused before."""
    from torch.onnx import symbolic_helper as helper

    if _constant(dropout, "f"):
        raise NotImplementedError(f"lltm::{cell.name.lower()}_layers: there is dropout between layers: export in eval")
    dtype, keep, keeps_h = _dtype_of(input), _constant(keep, "b"), _constant(keep, "b") and len(states) == 1
    is_batch = helper._get_tensor_rank(input) == 3
    transposes = is_batch and _constant(batch_first, "b")

    def initial(state: Any, index: int) -> Any:
        if helper._is_none(state):
            return state
        of_one = g.op("Gather", state, g.op("Constant", value_t=torch.tensor(index)), axis_i=0)
        return of_one if is_batch else helper._unsqueeze_helper(g, of_one, [0])

    def stack(values: list[Any]) -> Any:
        return g.op("Concat", *(helper._unsqueeze_helper(g, value, [0]) for value in values), axis_i=0)

    if transposes:
        input = g.op("Transpose", input, perm_i=[1, 0, 2])
    elif not is_batch:
        input = helper._unsqueeze_helper(g, input, [1])
        if not helper._is_none(lengths):
            lengths = g.op("Reshape", lengths, g.op("Constant", value_t=torch.tensor([-1])))
    weights: list[Any] = helper._unpack_list(parameters)
    directions = 2 if _constant(bidirectional, "b") else 1
    size = 4 if _constant(has_biases, "b") else 2
    of_direction = [weights[first : first + size] for first in range(0, len(weights), size)]
    last: list[list[Any]] = [[] for _ in states]
    steps: list[Any] = []
    for layer in range(0, len(of_direction), directions):
        outputs = []
        for index in range(layer, layer + directions):
            weight_ih, weight_hh, *biases = of_direction[index]
            if cell is _LSTM and biases:
                biases = [g.op("Add", *biases), None]
            first = [initial(state, index) for state in states]
            output, *results = _symbolic(
                g, cell, dtype, input, weight_ih, weight_hh, biases, first, lengths, reset, index > layer,
                keep and not keeps_h,
            )  # fmt: skip
            outputs.append(output)
            for of_all, state in zip(last, results, strict=False):
                of_all.append(state)
        steps += outputs
        input = g.op("Concat", *outputs, axis_i=2) if directions == 2 else outputs[0]
    output, *finals = input, *map(stack, last)
    kept = [stack(steps)] if keeps_h else []
    if transposes:
        output = g.op("Transpose", output, perm_i=[1, 0, 2])
        kept = [g.op("Transpose", each, perm_i=[0, 2, 1, 3]) for each in kept]
    elif not is_batch:
        output, *finals = (helper._squeeze_helper(g, each, [1]) for each in (output, *finals))
        kept = [helper._squeeze_helper(g, each, [2]) for each in kept]
    return output, *finals, g.op("prim::ListConstruct", *kept)


def _symbolic(  # type: ignore[no-untyped-def]
    g: Any,
    cell: _Cell,
    dtype: torch.dtype,
    input,
    weight_ih,
    weight_hh,
    biases: list[Any],
    states: list[Any],
    lengths,
    reset,
    reverse: bool,
    keep: bool,
) -> tuple[Any, ...]:
    """The results of ``_translate`` as nodes of a TorchScript graph, from opset 9 on."""
    from torch.onnx import TensorProtoDataType
    from torch.onnx import symbolic_helper as helper
    from torch.onnx.symbolic_opset9 import unused

    def is_given(value: Any) -> bool:
        return value is not None and not helper._is_none(value)

    carried_dtype = _dtype_of(states[-1]) if is_given(states[-1]) else None
    _check_translatable(cell, dtype, is_given(reset), keep, carried_dtype)
    state_size: int = helper._get_tensor_dim_size(weight_hh, 1)  # type: ignore[assignment]

    def ints(*values: int) -> Any:
        return g.op("Constant", value_t=torch.tensor(values))

    def zeros(*sizes: int) -> Any:
        return g.op("Constant", value_t=torch.zeros(sizes, dtype=dtype))

    def size_of_input(dim: int) -> Any:
        return g.op("Gather", g.op("Shape", input), ints(dim), axis_i=0)

    def one_direction(matrix: Any) -> Any:
        rows = g.op("Gather", matrix, ints(*_rows_in_onnx_order(cell, state_size)), axis_i=0)
        return helper._unsqueeze_helper(g, rows, [0])

    def bias_of(bias: Any) -> Any:
        return one_direction(bias) if is_given(bias) else zeros(1, len(cell.order) * state_size)

    def initial(state: Any) -> Any:
        if not is_given(state):
            return g.op("Expand", zeros(1), g.op("Concat", ints(1), size_of_input(1), ints(state_size), axis_i=0))
        return helper._unsqueeze_helper(g, state, [0])

    def no_steps(columns: int) -> Any:
        return g.op("Expand", zeros(1), g.op("Concat", ints(0), size_of_input(1), ints(columns), axis_i=0))

    steps_of_rows = unused(g)
    if is_given(lengths):  # clamped in float32, because opset 9 has no Min and Max of integers
        steps, rows = (g.op("Cast", n, to_i=TensorProtoDataType.FLOAT) for n in (size_of_input(0), lengths))
        clamped = g.op("Max", g.op("Min", rows, steps), g.op("Constant", value_t=torch.zeros(1)))
        steps_of_rows = g.op("Cast", clamped, to_i=TensorProtoDataType.INT32)
    first = [initial(state) for state in states]
    output, *last = g.op(
        cell.name,
        input,
        one_direction(weight_ih),
        one_direction(weight_hh),
        g.op("Concat", *map(bias_of, biases), axis_i=1) if any(map(is_given, biases)) else unused(g),
        steps_of_rows,
        *first,
        hidden_size_i=state_size,
        direction_s="reverse" if reverse else "forward",
        outputs=1 + len(states),
        **{f"{name}_i": value for name, value in cell.attributes.items()},
    )
    if is_given(lengths):
        empty = g.op("Equal", steps_of_rows, g.op("Constant", value_t=torch.zeros(1, dtype=torch.int32)))
        empty = helper._unsqueeze_helper(g, empty, [0, 2])
        last = [g.op("Where", empty, before, after) for before, after in zip(first, last, strict=True)]
    return (
        helper._squeeze_helper(g, output, [1]),
        *(helper._squeeze_helper(g, state, [0]) for state in last),
        *(no_steps(size * state_size) for size in cell.kept),
    )
