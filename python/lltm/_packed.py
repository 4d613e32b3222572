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


@torch.jit.unused
def run_segments(
    segments: list[Segment],
    data: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, h_n, c_n and cells of lltm::sequence by one call per segment. Input, output and cells are packed."""
    state_size = (segments[0].sequences, weights.size(0) // 3)
    # 16-bit cell states are carried in float32, as within a call.
    carried = torch.float64 if data.dtype == torch.float64 else torch.float32
    first_h = data.new_zeros(state_size) if h0 is None else h0
    if c0 is None:
        first_c = data.new_zeros(state_size, dtype=carried)
    else:
        # The operator refuses a c0 of any other dtype.
        first_c = c0.to(carried) if c0.dtype == _checks.dtype_of_call(data) else c0
    outputs: list[Tensor] = []
    cells_of_steps: list[Tensor] = []

    def run(segment: Segment, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        steps, batch, rows = segment.steps, segment.sequences, segment.rows
        padded = pad(data[segment.first_row : segment.first_row + rows.size(0)], rows, steps, batch)
        resets = None if reset is None else reset[segment.first_step : segment.first_step + steps, :batch]
        output, h, c, cells, _ = torch.ops.lltm.sequence(
            padded, weights, bias, h, c, segment.lengths, resets, reverse, keep
        )
        outputs.append(pack(output, rows))
        if keep:
            cells_of_steps.append(pack(cells, rows))
        return h, c

    if reverse:
        h, c = first_h[:0], first_c[:0]
        for segment in segments[::-1]:
            # Sequences that end in this segment begin here.
            begin = slice(h.size(0), segment.sequences)
            h, c = run(segment, torch.cat([h, first_h[begin].to(h.dtype)]), torch.cat([c, first_c[begin]]))
        outputs.reverse()
        cells_of_steps.reverse()
    else:
        ended = []
        h, c = first_h, first_c
        for segment, going_on in zip(segments, [*(following.sequences for following in segments[1:]), 0], strict=True):
            h, c = run(segment, h, c)
            ended.append((h[going_on:], c[going_on:]))
            h, c = h[:going_on], c[:going_on]
        h, c = (torch.cat(states[::-1]) for states in zip(*ended, strict=True))
    cells = torch.cat(cells_of_steps) if keep else data.new_empty(0)
    return torch.cat(outputs), h, c.to(h.dtype if c0 is None else c0.dtype), cells
