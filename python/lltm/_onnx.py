"""lltm::lstm as ONNX's own LSTM."""

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
        >>> table = lltm.onnx_translation_table()
        >>> program = torch.onnx.export(rnn, (input,), dynamo=True, custom_translation_table=table)
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
    reason = None
    if has_reset:
        reason = "has no resets"
    elif keep:
        reason = "does not return the cell state of every step"
    elif str(dtype).rpartition(".")[2].upper() not in ("FLOAT", "FLOAT32", "FLOAT16"):
        reason = f"runs in float32 and float16, not in {dtype}"
    elif cell_dtype is not None and cell_dtype != dtype:
        reason = f"needs c_0 of input's dtype {dtype}, got {cell_dtype}"
    if reason:
        raise NotImplementedError(f"lltm::lstm: ONNX's LSTM {reason}; export with lltm.decompositions()")
