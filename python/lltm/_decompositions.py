"""The operators for inference, expressed in core ATen and PyTorch's ``scan``, for programs that run without lltm."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

__all__ = ["decompositions"]


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """A decomposition table for :meth:`torch.export.ExportedProgram.run_decompositions`.

    It replaces ``lltm::sequence`` and ``lltm::lstm`` by one ``scan`` over their steps, and ``lltm::forward`` by matrix
    products and elementwise operators. The exported program then runs in a process that does not load this library, and
    ``torch.onnx.export(dynamo=True)`` translates it. The numbers of steps and of rows stay dynamic.

    The results have the shapes and dtypes of the operators' results, and differ from them by rounding errors. 16-bit
    arguments are multiplied in float32, and the cell state is carried in float32.

    The table is for inference: the backward operators raise RuntimeError when they are decomposed.

    Example::

        >>> rnn, input = lltm.LLTM(10, 20).eval(), torch.randn(5, 3, 10)
        >>> shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
        >>> with torch.no_grad():
        ...     program = torch.export.export(rnn, (input,), dynamic_shapes=shapes)
        >>> program = program.run_decompositions(torch.export.default_decompositions() | lltm.decompositions())
        >>> _ = torch.onnx.export(program, (), "rnn.onnx", dynamo=True, verbose=False)
    """
    return {
        torch.ops.lltm.forward.default: _forward,
        torch.ops.lltm.sequence.default: _sequence,
        torch.ops.lltm.lstm.default: _lstm,
        torch.ops.lltm.gru.default: _gru,
        torch.ops.lltm.backward.default: _refuse("backward"),
        torch.ops.lltm.sequence_backward.default: _refuse("sequence_backward"),
        torch.ops.lltm.lstm_backward.default: _refuse("lstm_backward"),
        torch.ops.lltm.gru_backward.default: _refuse("gru_backward"),
    }


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _without_autocast(device: torch.device) -> torch.autocast:
    """The operators cast their own arguments under autocast, before they are decomposed."""
    return torch.autocast(device.type, enabled=False)


def _lltm_step(z: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """new_h and new_cell from the pre-activations z, all in the accumulation dtype."""
    state_size = old_cell.size(-1)
    input_gate, output_gate, candidate = z.split([state_size] * 3, dim=-1)
    new_cell = old_cell + _elu(candidate) * torch.sigmoid(input_gate)
    return torch.tanh(new_cell) * torch.sigmoid(output_gate), new_cell


def _lstm_step(z: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the cell of nn.LSTM."""
    input_gate, forget_gate, candidate, output_gate = z.split([old_cell.size(-1)] * 4, dim=-1)
    new_cell = torch.sigmoid(forget_gate) * old_cell + torch.sigmoid(input_gate) * torch.tanh(candidate)
    return torch.tanh(new_cell) * torch.sigmoid(output_gate), new_cell


def _gru_step(saved: Tensor, old_h: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the cell of nn.GRU, whose state is h."""
    s_r, s_z, x_n, s_n = saved.split([old_h.size(-1)] * 4, dim=-1)
    candidate = torch.tanh(x_n + torch.sigmoid(s_r) * s_n)
    new_h = old_h + torch.sigmoid(-s_z) * (candidate - old_h)
    return new_h, new_h.clone()  # scan refuses to share storage


def _elu(z: Tensor) -> Tensor:
    if z.dtype == torch.float64:  # which ONNX Runtime's Elu does not support
        return torch.where(z > 0, z, torch.expm1(z.clamp(max=0.0)))
    return torch.nn.functional.elu(z)


def _forward(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dtype, wide = input.dtype, _accumulation_dtype(input.dtype)
    with _without_autocast(input.device):
        h_and_input = torch.cat([old_h, input], dim=1).to(wide)
        z = torch.nn.functional.linear(h_and_input, weights.to(wide), None if bias is None else bias.to(wide))
        new_h, new_cell = _lltm_step(z, old_cell.to(wide))
        return new_h.to(dtype), new_cell.to(dtype), z.to(dtype)


def _sequence(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    # Slices, because ONNX's optimizer folds those of a constant, but not a split.
    state_size = weights.size(0) // 3
    h_weights, input_weights = weights[:, :state_size], weights[:, state_size:]
    return _scan(_lltm_step, input, input_weights, h_weights, bias, h0, c0, lengths, reset, reverse, keep)


def _lstm(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _scan(_lstm_step, input, weight_ih, weight_hh, bias, h0, c0, lengths, reset, reverse, keep)


def _gru(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """With rows of zeros where what is saved takes nothing from the input or from h."""
    state_size = weight_hh.size(1)
    gates = 2 * state_size

    def of_input(side: Tensor) -> Tensor:
        return torch.cat([side, torch.zeros_like(side[:state_size])])

    def of_h(side: Tensor) -> Tensor:
        return torch.cat([side[:gates], torch.zeros_like(side[:state_size]), side[gates:]])

    wide = _accumulation_dtype(input.dtype)
    biases = [] if bias_ih is None else [of_input(bias_ih.to(wide))]
    biases += [] if bias_hh is None else [of_h(bias_hh.to(wide))]
    bias = sum(biases[1:], biases[0]) if biases else None
    multiplied = None if h0 is None else h0.to(input.dtype)
    output, _, h_n, _, saved = _scan(
        _gru_step, input, of_input(weight_ih), of_h(weight_hh), bias, multiplied, h0, lengths, reset, reverse, keep
    )
    return output, h_n, saved


def _scan(
    cell_step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A sequence of the cell whose step takes z and the old cell state."""
    from torch._higher_order_ops.scan import scan_op  # here, because it is private, and may move

    dtype, wide = input.dtype, _accumulation_dtype(input.dtype)
    steps, batch, _ = input.shape
    gates, state_size = weight_hh.shape
    with _without_autocast(input.device):
        h_weights = weight_hh.to(wide)
        # The products with the input, for all steps at once.
        z = torch.nn.functional.linear(input.to(wide), weight_ih.to(wide), None if bias is None else bias.to(wide))
        inputs = [z]
        if lengths is not None:
            inputs.append(lengths > torch.arange(steps, device=lengths.device).unsqueeze(1))
        if reset is not None:
            inputs.append(reset)

        def step(h: Tensor, cell: Tensor, z: Tensor, *masks_and_weights: Tensor) -> list[Tensor]:
            """The next h and cell, the output and, with keep, the cell of this step."""
            *masks, h_weights = masks_and_weights
            old_h, old_cell = h, cell
            if reset is not None:
                begins = masks[-1].unsqueeze(1)
                old_h, old_cell = torch.where(begins, 0.0, h), torch.where(begins, 0.0, cell)
            new_h, new_cell = cell_step(torch.addmm(z, old_h, h_weights), old_cell)
            new_h = new_h.to(dtype).to(wide)
            kept = [new_h, new_cell] if keep else [new_h]
            if lengths is None:
                return [new_h, new_cell, *(values.clone() for values in kept)]  # scan refuses to share storage
            runs = masks[0].unsqueeze(1)
            state = [torch.where(runs, new_h, h), torch.where(runs, new_cell, cell)]
            return state + [torch.where(runs, values, 0.0) for values in kept]

        # Copies, because scan refuses states that share storage: h0 and c0 may be views of one tensor.
        state = [
            input.new_zeros(batch, state_size, dtype=wide) if given is None else given.to(wide).clone()
            for given in (h0, c0)
        ]
        if reverse:
            inputs = [values.flip(0) for values in inputs]
        h_n, c_n, *of_steps = scan_op(step, state, inputs, (h_weights.t(),))
        if keep:
            # Not results of the scan, which would compute them also where nothing takes them, as in states().
            of_steps.append(_gates(of_steps[0], state[0], h_weights, inputs, lengths is not None, reset is not None))
        else:
            of_steps += [input.new_zeros(0, batch, state_size), input.new_zeros(0, batch, gates)]
        output, cells, kept_gates = (values.flip(0) if reverse else values for values in of_steps)
        return (
            output.to(dtype),
            h_n.to(dtype),
            c_n.to(dtype if c0 is None else c0.dtype),
            cells.to(dtype),
            kept_gates.to(dtype),
        )


def _gates(
    output: Tensor, h0: Tensor, h_weights: Tensor, inputs: list[Tensor], has_lengths: bool, has_reset: bool
) -> Tensor:
    """The pre-activations of every step, from the outputs of the steps before and what the scan runs over."""
    z = inputs[0]

    def of_the_step_before(first: Tensor, values: Tensor) -> Tensor:
        return torch.cat([first.unsqueeze(0), values])[: z.size(0)]

    old_h = of_the_step_before(h0, output)
    if has_lengths:  # a row of a reverse direction begins where it ends
        runs = inputs[1]
        old_h = torch.where(of_the_step_before(torch.zeros_like(runs[0]), runs).unsqueeze(2), old_h, h0)
    if has_reset:
        old_h = torch.where(inputs[-1].unsqueeze(2), 0.0, old_h)
    z = z + torch.nn.functional.linear(old_h, h_weights)
    return torch.where(runs.unsqueeze(2), z, 0.0) if has_lengths else z


def _refuse(operator: str) -> Callable[..., None]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            f"lltm::{operator}: lltm.decompositions() is for inference and has no gradients. Export the model without "
            "its backward"
        )

    return refuse
