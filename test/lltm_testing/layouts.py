"""Memory layouts of tensors. Each function returns a tensor with the same values and shape, except those that repeat an
element, which only keep the shape. The memory between the elements holds PAD, so results are far off if it is read."""

import torch
from torch import Tensor

PAD = 12345.0


def contiguous(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)


def transposed(t: Tensor) -> Tensor:
    return contiguous(t.mT).mT if t.dim() > 1 else t


def column_major(t: Tensor) -> Tensor:
    return contiguous(t.transpose(0, -1)).transpose(0, -1)


def every_other_column(t: Tensor) -> Tensor:
    return torch.stack([t, torch.full_like(t, PAD)], dim=-1)[..., 0]


def every_other_row(t: Tensor) -> Tensor:
    return torch.stack([t, torch.full_like(t, PAD)], dim=1)[:, 0]


def wide_rows(t: Tensor) -> Tensor:
    """A slice of the columns of a wider matrix."""
    pad = torch.full_like(t[..., :1], PAD) if t.size(-1) else t.new_full((*t.shape[:-1], 1), PAD)
    return torch.cat([pad, t, pad, pad], dim=-1)[..., 1:-2]


def aligned_wide_rows(t: Tensor) -> Tensor:
    """The same, with rows that start at multiples of 16 elements."""
    pad = t.new_full((*t.shape[:-1], 16 + -t.size(-1) % 16), PAD)
    return torch.cat([t, pad], dim=-1)[..., : t.size(-1)]


def offset(t: Tensor) -> Tensor:
    """Dense, but starting one element into its storage, and therefore less aligned than an allocation."""
    return torch.cat([t.new_full((1,), PAD), t.flatten()])[1:].view(t.shape)


def same_row(t: Tensor) -> Tensor:
    return t[:1].expand(t.shape)


def same_column(t: Tensor) -> Tensor:
    return t[..., :1].expand(t.shape)


def one_value(t: Tensor) -> Tensor:
    return t.flatten()[:1].squeeze().expand(t.shape) if t.numel() else t


KEEPING = [transposed, every_other_column, every_other_row, wide_rows, aligned_wide_rows, offset]
REPEATING = [same_row, same_column, one_value]
LAYOUTS = KEEPING + REPEATING
