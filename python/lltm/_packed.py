"""The rows of a PackedSequence, padded.

All sequences are padded to the steps of the longest one. If few of many sequences are long, almost all of that is
padding. Then the steps are divided into segments, at most half of which is padding, and the state is carried from
segment to segment.
"""

from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from . import _checks

# Segments take more calls, and a gather in and out for every layer. They are used from this many padded rows per packed
# one, and this much padding of the input.
_PADDED_ROWS = 4
_PADDING_BYTES = 1 << 20


def number_of_sequences(batch_sizes: Tensor) -> int:
    """A tensor while tracing: an int would be a constant of the traced graph."""
    if not torch.jit.is_scripting() and torch.jit.is_tracing():
        return batch_sizes[0]  # type: ignore[return-value]
    return int(batch_sizes[0])


def lengths_of(batch_sizes: Tensor, batch: int, device: torch.device) -> Tensor:
    """The length (N) of each sequence, on this device."""
    steps = batch_sizes.to(device).flip(0)  # batch_sizes never increase
    shorter = torch.searchsorted(steps, torch.arange(batch, device=device), right=True)
    return batch_sizes.size(0) - shorter


def padded_rows(batch_sizes: Tensor, batch: int, data: Tensor) -> Tensor:
    """The index of each packed row among the rows of the padded tensor.

    Runs on data's device without synchronizing with it.
    """
    sizes = batch_sizes.to(data.device)
    steps = torch.arange(sizes.size(0), device=data.device)
    # A step takes `batch` rows in the padded tensor, and `sizes` rows in the packed data.
    shift_of_step = steps * batch - (torch.cumsum(sizes, 0) - sizes)
    shifts = torch.repeat_interleave(shift_of_step, sizes, output_size=data.size(0))
    return torch.arange(data.size(0), device=data.device) + shifts


def pad(packed: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
    return (
        packed.new_zeros(steps * batch, packed.size(1)).index_copy(0, rows, packed).view(steps, batch, packed.size(1))
    )


def pack(padded: Tensor, rows: Tensor) -> Tensor:
    return padded.flatten(0, 1).index_select(0, rows)


def like(packed: PackedSequence, data: Tensor) -> PackedSequence:
    """Other data of the same sequences."""
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


class Segment(NamedTuple):
    """Some steps of the sequences that run in the first of these."""

    steps: int
    sequences: int
    first_step: int
    first_row: int  # of the packed data
    rows: Tensor  # the index of each packed row in the padded segment
    lengths: Tensor  # of the sequences within the segment


def make_segments(batch_sizes: Tensor, batch: int, data: Tensor) -> list[Segment] | None:
    """The segments; None if all rows are padded at once, because there is little padding, or because a graph is being
    captured, which cannot depend on the sizes."""
    if _checks.captures_graph() or data.size(0) == 0:
        return None
    padded, packed = batch_sizes.size(0) * batch, data.size(0)
    padding = (padded - packed) * data.size(1) * data.element_size()
    if padded < _PADDED_ROWS * packed or padding < _PADDING_BYTES:
        return None
    sizes = batch_sizes.tolist()
    starts = [0]
    for step, size in enumerate(sizes):
        if 2 * size < sizes[starts[-1]]:
            starts.append(step)
    first_rows = [0, *accumulate(sizes)]
    segments = []
    for begin, end in pairwise([*starts, len(sizes)]):
        rows = padded_rows(batch_sizes[begin:end], sizes[begin], data[first_rows[begin] : first_rows[end]])
        lengths = lengths_of(batch_sizes[begin:end], sizes[begin], data.device)
        segments.append(Segment(end - begin, sizes[begin], begin, first_rows[begin], rows, lengths))
    return segments
