"""The operators as typed functions; each is one call of ``torch.ops.lltm``.

Sizes below: T = steps, N = batch, I = input_features, H = state_size. All tensors are dense, on one device, and of one
dtype: float64, float32, float16 or bfloat16. Any strides will do. Whatever does not fit raises RuntimeError before any
work.
"""

import torch
from torch import Tensor


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
        new_h and new_cell, (N, H), and gates, (N, 3H): the workspace of :func:`backward`, not differentiable.
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
    """The gradients of :func:`forward`, as autograd computes them; differentiable once more itself.

    Args:
        grad_h, grad_cell: (N, H), the gradients of new_h and new_cell; None for zero.
        new_cell, gates: (N, H) and (N, 3H), as forward returned them.
        input, weights, bias, old_h: as forward was given them.
        output_mask: five flags, whether to compute d_input, d_weights, d_bias, d_old_h, d_old_cell; None for all.

    Returns:
        The five gradients in that order, each of the shape of what it is the gradient of, None where the mask says so.
        d_bias can be wanted for a cell without bias too: it is (3H) all the same.
    """
    if output_mask is None:
        output_mask = [True, True, True, True, True]
    return torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, output_mask)


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

    What a loop of :func:`forward` over the steps of ``input`` computes. The cell state is carried from step to step in
    float32 where the dtype is one of 16 bits.

    Args:
        input: (T, N, I). What lies beyond a row's length is not read.
        weights: (3H, H+I), as those of forward.
        bias: (3H), or None for zero.
        h0, c0: (N, H), the state before the first step that is run; None for zeros. c0 may be float32 beside a 16-bit
            input.
        lengths: (N), int64, on input's device: how many steps of each row are run, clamped to 0..T; None for all.
        reset: (T, N), bool, on input's device: where true, the row's state is replaced by zeros before the step is run;
            None for never.
        reverse: run each row from its last step, which h0 and c0 enter, to its first.
        keep: return cells and gates.

    Returns:
        output: (T, N, H), new_h of every step; zero beyond a row's length.
        h_n, c_n: (N, H), the state after the last step that is run; c_n has the dtype of c0 where that is given.
        cells: (T, N, H), new_cell of every step, zero beyond a row's length, differentiable; (0, N, H) without keep.
        gates: (T, N, 3H), the workspace of ``torch.ops.lltm.sequence_backward``, not differentiable; (0, N, 3H) without
            keep.

    Example::

        >>> input, weights = torch.randn(8, 4, 16), torch.randn(3 * 32, 32 + 16) / 7
        >>> output, h_n, c_n, cells, _ = lltm.sequence(input, weights, lengths=torch.tensor([8, 5, 8, 0]), keep=True)
        >>> torch.equal(output[4, 1], h_n[1]), torch.equal(cells[7, 2], c_n[2])
        (True, True)
    """
    return torch.ops.lltm.sequence(input, weights, bias, h0, c0, lengths, reset, reverse, keep)
