"""The two operators as typed functions; each is one call of ``torch.ops.lltm``.

Sizes below: N = batch, I = input_features, H = state_size. All tensors are dense, on one device, and of one dtype:
float64, float32, float16 or bfloat16. Any strides will do. Whatever does not fit raises RuntimeError before any work.
"""

from collections.abc import Sequence

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
    output_mask: Sequence[bool] = (True, True, True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of :func:`forward`, as autograd computes them; differentiable once more itself.

    Args:
        grad_h, grad_cell: (N, H), the gradients of new_h and new_cell; None for zero.
        new_cell, gates: (N, H) and (N, 3H), as forward returned them.
        input, weights, bias, old_h: as forward was given them.
        output_mask: five flags, whether to compute d_input, d_weights, d_bias, d_old_h, d_old_cell.

    Returns:
        The five gradients in that order, each of the shape of what it is the gradient of, None where the mask says so.
        d_bias can be wanted for a cell without bias too: it is (3H) all the same.
    """
    return torch.ops.lltm.backward(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, output_mask)
