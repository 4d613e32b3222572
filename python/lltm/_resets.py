"""The resets of a reverse layer."""

import torch
from torch import Tensor


def shift_to_reverse(reset: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """The reset (T, N) of a reverse layer.

    The boundary between steps t-1 and t is crossed before step t in the forward direction, and before step t-1 in the
    reverse direction. A reset at index ``length`` belongs to a step that is not run: when shifted, it must not clear
    the initial state, which enters at the row's last step.
    """
    if reset is None:
        return None
    shifted = torch.nn.functional.pad(reset, (0, 0, 0, 1))[1:]
    if lengths is not None:
        next_step = torch.ones_like(reset, dtype=torch.int64).cumsum(0)
        shifted = shifted & (next_step < lengths)
    return shifted
