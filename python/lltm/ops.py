"""The operators as typed functions, each a single call of ``torch.ops.lltm``.

Sizes: T = steps, N = batch, I = input_features, H = state_size. All tensors must be dense and on the same device.
Except where a function says otherwise, they have the same dtype: float64, float32, float16 or bfloat16. Arbitrary
strides are supported. Invalid arguments raise RuntimeError before anything is computed.
"""

import torch
from torch import Tensor

from ._config import missing_on

__all__ = ["forward", "gru", "gru_plan", "lstm", "lstm_plan", "sequence", "sequence_plan"]


DIFFERENTIABLE = (
    "forward",
    "backward",
    "sequence",
    "sequence_backward",
    "_sequence_gate_gradients",
    "lstm",
    "lstm_backward",
    "_lstm_gate_gradients",
    "gru",
    "gru_backward",
    "_gru_gate_gradients",
)
"""The names of all operators but those that only answer a question."""


def forward(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of the cell, differentiable any number of times.

    With ``z = [old_h, input] @ weights.T + bias``, split by columns into z_i, z_o, z_g of (N, H) each::

        new_cell = old_cell + ELU(z_g) * sigmoid(z_i)
        new_h = tanh(new_cell) * sigmoid(z_o)

    Args:
        input: (N, I).
        weights: (3H, H+I), rows in the order input gate, output gate, candidate; columns in the order old_h, input.
        bias: (3H), or None for zero.
        old_h, old_cell: (N, H).

    Returns:
        new_h and new_cell, (N, H), and gates, (N, 3H), the workspace of ``torch.ops.lltm.backward``, which is not
        differentiable.
    """
    return torch.ops.lltm.forward(input, weights, bias, old_h, old_cell)


def backward(
    grad_h: Tensor | None,
    grad_cell: Tensor | None,
    new_cell: Tensor,
    gates: Tensor,
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    old_h: Tensor,
    output_mask: list[bool] | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of :func:`forward`, as autograd computes them. Differentiable itself.

    Args:
        grad_h, grad_cell: (N, H), the gradients of new_h and new_cell; None for zero.
        new_cell, gates: (N, H) and (N, 3H), as returned by forward.
        input, weights, bias, old_h: as passed to forward.
        output_mask: five flags, whether to compute d_input, d_weights, d_bias, d_old_h, d_old_cell; None for all.

    Returns:
        The five gradients in that order, each in the shape of its argument, None where the mask is False. d_bias, (3H),
        can be requested for a cell without a bias, too.
    """
    mask = _mask_of("backward", output_mask)
    return torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, mask)


def sequence(
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
    """All steps of a sequence in one call, differentiable any number of times.

    Computes the same as a loop of :func:`forward` over the steps of ``input``. For 16-bit dtypes the cell state is
    carried from step to step in float32.

    Args:
        input: (T, N, I). Values beyond a row's length are not read.
        weights: (3H, H+I), as for forward.
        bias: (3H), or None for zero.
        h0, c0: (N, H), the state before the first step that is run; None for zeros. c0 may be float32 if input is
            16-bit.
        lengths: (N), int64 or int32, on input's device: the number of steps to run in each row, clamped to 0..T; None
            for all.
        reset: (T, N), bool, on input's device: where true, the row's state is set to zero before the step; None for no
            resets.
        reverse: run each row from its last step, where h0 and c0 enter, to its first.
        keep: return cells and gates.

    Returns:
        Five tensors

        - **output**, (T, N, H), new_h of every step; zero beyond a row's length.
        - **h_n**, **c_n**, (N, H), the state after the last step that is run; c_n has c0's dtype if c0 is given.
        - **cells**, (T, N, H), new_cell of every step, zero beyond a row's length, differentiable. (0, N, H) without
          keep.
        - **gates**, (T, N, 3H), the workspace of ``torch.ops.lltm.sequence_backward``, not differentiable. (0, N, 3H)
          without keep.

    Example::

        >>> input, weights = torch.randn(8, 4, 16), torch.randn(3 * 32, 32 + 16) / 7
        >>> lengths = torch.tensor([8, 5, 8, 0])
        >>> output, h_n, c_n, cells, _ = lltm.ops.sequence(input, weights, lengths=lengths, keep=True)
        >>> torch.equal(output[4, 1], h_n[1]), torch.equal(cells[7, 2], c_n[2])
        (True, True)
    """
    return torch.ops.lltm.sequence(input, weights, bias, h0, c0, lengths, reset, reverse, keep)


def lstm(
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
    """All steps of a sequence of nn.LSTM's cell in one call, differentiable any number of times.

    With ``z = input @ weight_ih.T + h @ weight_hh.T + bias``, split by columns into z_i, z_f, z_g, z_o, each step is::

        new_c = sigmoid(z_f) * c + sigmoid(z_i) * tanh(z_g)
        new_h = sigmoid(z_o) * tanh(new_c)

    Args:
        weight_ih: (4H, I), rows in the order input gate, forget gate, candidate, output gate, as nn.LSTM's.
        weight_hh: (4H, H).
        bias: (4H), the sum of nn.LSTM's two biases, or None for zero.
        input, h0, c0, lengths, reset, reverse, keep: as for :func:`sequence`.

    Returns:
        The five tensors of :func:`sequence`; gates are (T, N, 4H), or (0, N, 4H) without keep.

    Example::

        >>> rnn = torch.nn.LSTM(16, 32)
        >>> input, bias = torch.randn(8, 4, 16), rnn.bias_ih_l0 + rnn.bias_hh_l0
        >>> output, h_n, c_n, _, _ = lltm.ops.lstm(input, rnn.weight_ih_l0, rnn.weight_hh_l0, bias)
        >>> torch.allclose(output, rnn(input)[0], atol=1e-6)
        True
    """
    return torch.ops.lltm.lstm(input, weight_ih, weight_hh, bias, h0, c0, lengths, reset, reverse, keep)


def gru(
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
    """All steps of a sequence of nn.GRU's cell in one call, differentiable any number of times.

    With ``x_r, x_z, x_n = (x @ weight_ih.T + bias_ih).chunk(3)`` and
    ``s_r, s_z, s_n = (h @ weight_hh.T + bias_hh).chunk(3)``, each step is::

        r, z = sigmoid(x_r + s_r), sigmoid(x_z + s_z)
        n = tanh(x_n + r * s_n)
        new_h = n + z * (h - n)

    With 16-bit inputs, h is carried from step to step in float32.

    Args:
        weight_ih: (3H, I), rows in the order reset gate, update gate, candidate, as nn.GRU's.
        weight_hh: (3H, H).
        bias_ih, bias_hh: (3H), or None for zero.
        h0: (N, H), the state before the first step that is run; None for zeros. May be float32 if input is 16-bit.
        input, lengths, reset, reverse, keep: as for :func:`sequence`.

    Returns:
        Three tensors

        - **output**, (T, N, H), new_h of every step; zero beyond a row's length.
        - **h_n**, (N, H), the state after the last step that is run, in h0's dtype if h0 is given.
        - **gates**, (T, N, 4H): x_r + s_r, x_z + s_z, x_n and s_n, the workspace of ``torch.ops.lltm.gru_backward``,
          not differentiable. (0, N, 4H) without keep.

    Example::

        >>> rnn, input = torch.nn.GRU(16, 32), torch.randn(8, 4, 16)
        >>> output, h_n, _ = lltm.ops.gru(input, rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0)
        >>> torch.allclose(output, rnn(input)[0], atol=1e-6)
        True
    """
    return torch.ops.lltm.gru(input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset, reverse, keep)


def sequence_backward(
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    grad_cells: Tensor | None,
    output: Tensor,
    cells: Tensor,
    gates: Tensor,
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    output_mask: list[bool] | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of :func:`sequence`, as autograd computes them. Differentiable itself.

    Args:
        grad_output, grad_cells: (T, N, H), the gradients of output and cells; None for zero.
        grad_h_n, grad_c_n: (N, H), the gradients of h_n and c_n, in their dtypes; None for zero.
        output, cells, gates: as returned by sequence with ``keep=True``.
        input, weights, bias, h0, c0, lengths, reset, reverse: as passed to sequence.
        output_mask: five flags, whether to compute d_input, d_weights, d_bias, d_h0, d_c0; None for all.

    Returns:
        The five gradients in that order, each in the shape of its argument, None where the mask is False. d_input is
        zero beyond a row's length, and d_c0 has c_n's dtype. d_bias, d_h0 and d_c0 can be requested even if the
        argument is None.
    """
    mask = _mask_of("sequence_backward", output_mask)
    return torch.ops.lltm.sequence_backward(
        grad_output, grad_h_n, grad_c_n, grad_cells, output, cells, gates, input, weights, bias, h0, c0, lengths, reset,
        reverse, mask,
    )  # fmt: skip


def _with_what_is_missing(plan: str, input: Tensor) -> str:
    missing = missing_on(torch.cuda.get_device_capability(input.device))
    return f"{plan} ({missing})" if missing else plan


def sequence_plan(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    keep: bool = False,
) -> str:
    """How :func:`sequence` would compute these arguments on a GPU. Launches nothing.

    Args:
        input, ..., keep: as for sequence, on a CUDA device. A call that autograd records keeps cells and gates.

    Returns:
        For example ``kernel=recurrence_fma_128x1 cluster=1 rows=1 x=outside tf32=off setting=cuda.matmul``: the kernel,
        which runs all steps (``recurrence_...``) or one; the blocks of a cluster; the rows of the batch that a block or
        cluster takes; whether the kernel multiplies the input itself; and in float32, whether products may use TF32,
        and which setting in ``torch.backends`` says so. Names of kernels may change with any version. If the library
        was not built for all that the GPU has, what is missing follows in parentheses, as show_config says it.

    Raises RuntimeError if an argument is invalid or not on a GPU, or if LLTM_CUDA_PATH asks for what is impossible.
    """
    _check_on_gpu("sequence_plan", input)
    plan = torch.ops.lltm.sequence_plan(input, weights, bias, h0, c0, lengths, reset, reverse, keep)
    return _with_what_is_missing(plan, input)


def lstm_plan(
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
) -> str:
    """How :func:`lstm` would compute these arguments on a GPU, as :func:`sequence_plan` says it. Launches nothing.

    Args:
        input, ..., keep: as for lstm, on a CUDA device. A call that autograd records keeps cells and gates.

    Returns:
        For example ``kernel=recurrence_lstm_fma_128x1_cluster2 cluster=2 rows=1 x=outside``.

    Raises RuntimeError if an argument is invalid or not on a GPU, or if LLTM_CUDA_PATH asks for what is impossible.
    """
    _check_on_gpu("lstm_plan", input)
    plan = torch.ops.lltm.lstm_plan(input, weight_ih, weight_hh, bias, h0, c0, lengths, reset, reverse, keep)
    return _with_what_is_missing(plan, input)


def gru_plan(
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
) -> str:
    """How :func:`gru` would compute these arguments on a GPU, as :func:`sequence_plan` says it. Launches nothing.

    Args:
        input, ..., keep: as for gru, on a CUDA device. A call that autograd records keeps gates.

    Returns:
        For example ``kernel=recurrence_gru_fma_128x1 cluster=1 rows=1 x=outside``.

    Raises RuntimeError if an argument is invalid or not on a GPU, or if LLTM_CUDA_PATH asks for what is impossible.
    """
    _check_on_gpu("gru_plan", input)
    plan = torch.ops.lltm.gru_plan(input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset, reverse, keep)
    return _with_what_is_missing(plan, input)


def _check_on_gpu(operator: str, input: Tensor) -> None:
    """Raise RuntimeError for other devices, which have no kernel of this operator."""
    if not input.is_cuda:
        raise RuntimeError(f"lltm::{operator}: expected input on a CUDA device, got {input.device}")


def _mask_of(operator: str, output_mask: list[bool] | None) -> list[bool]:
    """All flags if no mask is given. The operators' error for a mask of a wrong length does not name the argument."""
    if output_mask is None:
        return [True, True, True, True, True]
    if len(output_mask) != 5:
        raise RuntimeError(f"lltm::{operator}: expected output_mask of 5 flags, got {len(output_mask)}")
    return output_mask
