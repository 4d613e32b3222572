"""lltm::lstm as ONNX's own LSTM, in both of PyTorch's exporters."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["onnx_translation_table"]


def onnx_translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """A table for ``custom_translation_table`` of ``torch.onnx.export(dynamo=True)``: each layer and direction of an
    :class:`LSTM` becomes ONNX's operator LSTM. For float32 and float16.

    ONNX's LSTM has no resets, and does not return the cell state of every step, and ONNX Runtime does not compute it in
    float64: models with those take :func:`decompositions` instead. Rows of length 0 keep their initial state, which
    ONNX Runtime's LSTM alone would not do.

    Needs the package onnxscript. While exporting, the table raises NotImplementedError for what it cannot translate.

    Example::

        >>> rnn, input = lltm.LSTM(10, 20).eval(), torch.randn(5, 3, 10)
        >>> options = {"dynamo": True, "verbose": False, "custom_translation_table": lltm.onnx_translation_table()}
        >>> program = torch.onnx.export(rnn, (input,), **options)
        >>> any(node.op_type == "LSTM" for node in program.model.graph)
        True
    """
    import onnxscript

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
        _check_translatable(input.dtype, reset is not None, keep, None if c0 is None else c0.dtype)
        return _lstm(onnxscript.opset18, input, weight_ih, weight_hh, bias, h0, c0, lengths, reverse)

    return {torch.ops.lltm.lstm.default: lstm}


def _lstm(  # type: ignore[no-untyped-def]
    op: Any, input, weight_ih, weight_hh, bias, h0, c0, lengths, reverse: bool
) -> tuple[Any, Any, Any, Any, Any]:
    """The results of ``lltm::lstm``, the last two without steps, by the operators of ``op``."""
    state_size = weight_hh.shape[1]
    zero = op.CastLike(0.0, input)
    batch = op.Shape(input, start=1, end=2)

    def ints(*values: int) -> Any:
        return op.Constant(value_ints=values)

    rows = ints(*_rows_in_onnx_order(state_size))

    def one_direction(matrix: Any) -> Any:
        return op.Unsqueeze(op.Gather(matrix, rows, axis=0), ints(0))

    def initial(state: Any) -> Any:
        if state is None:
            return op.Expand(zero, op.Concat(ints(1), batch, ints(state_size), axis=0))
        return op.Unsqueeze(state, ints(0))

    def no_steps(columns: int) -> Any:
        return op.Expand(zero, op.Concat(ints(0), batch, ints(columns), axis=0))

    # The second half is ONNX's bias of h.
    biases = None if bias is None else op.Pad(one_direction(bias), ints(0, 0, 0, 4 * state_size), zero)
    steps_of_rows = None if lengths is None else _clamped(op, lengths, op.Shape(input, start=0, end=1), ints(0))
    first_h, first_c = initial(h0), initial(c0)
    output, h_n, c_n = op.LSTM(
        input,
        one_direction(weight_ih),
        one_direction(weight_hh),
        biases,
        steps_of_rows,
        first_h,
        first_c,
        hidden_size=state_size,
        direction="reverse" if reverse else "forward",
    )
    if steps_of_rows is not None:
        empty = op.Unsqueeze(op.Equal(steps_of_rows, op.CastLike(0, steps_of_rows)), ints(0, 2))
        h_n, c_n = op.Where(empty, first_h, h_n), op.Where(empty, first_c, c_n)
    return (
        op.Squeeze(output, ints(1)),
        op.Squeeze(h_n, ints(0)),
        op.Squeeze(c_n, ints(0)),
        no_steps(state_size),
        no_steps(4 * state_size),
    )


def _clamped(op: Any, lengths: Any, steps: Any, zero: Any) -> Any:
    """The lengths from zero to ``steps``, as ONNX's LSTM takes them."""
    from onnxscript import INT32, INT64

    return op.Cast(op.Max(op.Min(op.Cast(lengths, to=INT64.dtype), steps), zero), to=INT32.dtype)


def _rows_in_onnx_order(state_size: int) -> list[int]:
    """ONNX has the gates in the order input, output, forget, candidate."""
    return [gate * state_size + row for gate in (0, 3, 1, 2) for row in range(state_size)]


def _check_translatable(dtype: Any, has_reset: bool, keep: bool, cell_dtype: Any) -> None:
    reason, other = None, ""
    if has_reset:
        reason = "has no resets"
    elif keep:
        reason = "does not return the cell state of every step"
    elif str(dtype).rpartition(".")[2].upper() not in ("FLOAT", "FLOAT32", "FLOAT16"):
        reason, other = f"runs in float32 and float16, not in {dtype}", ", or export lltm.revert(model)"
    elif cell_dtype is not None and cell_dtype != dtype:
        reason = f"needs c_0 of input's dtype {dtype}, got {cell_dtype}"
    if reason:
        raise NotImplementedError(f"lltm::lstm: ONNX's LSTM {reason}; export with lltm.decompositions(){other}")


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
    for operator in ("sequence", "forward"):
        torch.onnx.register_custom_op_symbolic(f"lltm::{operator}", _refuse_symbolic(operator), 9)


def _refuse_symbolic(operator: str) -> Callable[..., None]:
    def refuse(*arguments: Any) -> None:
        raise NotImplementedError(
            f"lltm::{operator} has no translation in torch.onnx.export(dynamo=False): export with dynamo=True and "
            "lltm.decompositions()"
        )

    return refuse


def _symbolic_lstm(  # type: ignore[no-untyped-def]
    g: Any, input, weight_ih, weight_hh, bias, h0, c0, lengths, reset, reverse, keep
) -> tuple[Any, Any, Any, Any, Any]:
    """The results of ``_lstm`` as nodes of a TorchScript graph, from opset 9 on."""
    from torch.onnx import JitScalarType, TensorProtoDataType
    from torch.onnx import symbolic_helper as helper
    from torch.onnx.symbolic_opset9 import unused

    def is_given(value: Any) -> bool:
        return not helper._is_none(value)

    kind = JitScalarType.from_value(input)
    cell_dtype = JitScalarType.from_value(c0).dtype() if is_given(c0) else None
    _check_translatable(kind.dtype(), is_given(reset), helper._get_const(keep, "b", "keep"), cell_dtype)
    state_size: int = helper._get_tensor_dim_size(weight_hh, 1)  # type: ignore[assignment]

    def ints(*values: int) -> Any:
        return g.op("Constant", value_t=torch.tensor(values))

    def zeros(*sizes: int) -> Any:
        return g.op("Constant", value_t=torch.zeros(sizes, dtype=kind.dtype()))

    def size_of_input(dim: int) -> Any:
        return g.op("Gather", g.op("Shape", input), ints(dim), axis_i=0)

    def one_direction(matrix: Any) -> Any:
        rows = g.op("Gather", matrix, ints(*_rows_in_onnx_order(state_size)), axis_i=0)
        return helper._unsqueeze_helper(g, rows, [0])

    def initial(state: Any) -> Any:
        if not is_given(state):
            return g.op("Expand", zeros(1), g.op("Concat", ints(1), size_of_input(1), ints(state_size), axis_i=0))
        return helper._unsqueeze_helper(g, state, [0])

    def no_steps(columns: int) -> Any:
        return g.op("Expand", zeros(1), g.op("Concat", ints(0), size_of_input(1), ints(columns), axis_i=0))

    # The second half is ONNX's bias of h.
    biases = g.op("Concat", one_direction(bias), zeros(1, 4 * state_size), axis_i=1) if is_given(bias) else unused(g)
    steps_of_rows = unused(g)
    if is_given(lengths):  # clamped in float32, because opset 9 has no Min and Max of integers
        steps, rows = (g.op("Cast", n, to_i=TensorProtoDataType.FLOAT) for n in (size_of_input(0), lengths))
        clamped = g.op("Max", g.op("Min", rows, steps), g.op("Constant", value_t=torch.zeros(1)))
        steps_of_rows = g.op("Cast", clamped, to_i=TensorProtoDataType.INT32)
    first_h, first_c = initial(h0), initial(c0)
    output, h_n, c_n = g.op(
        "LSTM",
        input,
        one_direction(weight_ih),
        one_direction(weight_hh),
        biases,
        steps_of_rows,
        first_h,
        first_c,
        hidden_size_i=state_size,
        direction_s="reverse" if helper._get_const(reverse, "b", "reverse") else "forward",
        outputs=3,
    )
    if is_given(lengths):
        empty = g.op("Equal", steps_of_rows, g.op("Constant", value_t=torch.zeros(1, dtype=torch.int32)))
        empty = helper._unsqueeze_helper(g, empty, [0, 2])
        h_n, c_n = g.op("Where", empty, first_h, h_n), g.op("Where", empty, first_c, c_n)
    return (
        helper._squeeze_helper(g, output, [1]),
        helper._squeeze_helper(g, h_n, [0]),
        helper._squeeze_helper(g, c_n, [0]),
        no_steps(state_size),
        no_steps(4 * state_size),
    )
