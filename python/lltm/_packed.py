"""The rows of a PackedSequence, padded.

All sequences are padded to the steps of the longest one. If few of many sequences are long, almost all of that is
padding. Then the steps are divided into segments, at most half of which is padding, and the state is carried from
segment to segment.
"""

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ._resets import shift_to_reverse

if TYPE_CHECKING:
    from .module import LLTM

# Segments take more calls, and a gather in and out for every layer. They are used from this many padded rows per packed
# one.
_PADDED_ROWS = 4


def number_of_sequences(batch_sizes: Tensor) -> int:
    """A tensor while tracing: an int would be a constant of the traced graph."""
    if not torch.jit.is_scripting() and torch.jit.is_tracing():
        return batch_sizes[0]  # type: ignore[return-value]
    return int(batch_sizes[0])


def padded_rows(batch_sizes: Tensor, batch: int, data: Tensor) -> tuple[Tensor, Tensor]:
    """The index of each packed row among the rows of the padded tensor, and the length (N) of each sequence.

    Runs on data's device without synchronizing with it.
    """
    sizes = batch_sizes.to(data.device)
    steps = torch.arange(sizes.size(0), device=data.device)
    sequences = torch.arange(batch, device=data.device)
    # A step takes `batch` rows in the padded tensor, and `sizes` rows in the packed data.
    shift_of_step = steps * batch - (torch.cumsum(sizes, 0) - sizes)
    shifts = torch.repeat_interleave(shift_of_step, sizes, output_size=data.size(0))
    rows = torch.arange(data.size(0), device=data.device) + shifts
    lengths = (sizes.unsqueeze(1) > sequences).sum(0)
    return rows, lengths


def pack_like(
    input: PackedSequence, output: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[PackedSequence, tuple[Tensor, Tensor]]:
    """The packed output, and the states of the sequences in the order before packing."""
    _, batch_sizes, sorted_indices, unsorted_indices = input
    if unsorted_indices is not None:
        state = (state[0].index_select(1, unsorted_indices), state[1].index_select(1, unsorted_indices))
    return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), state


def is_mostly_padding(batch_sizes: Tensor, batch: int, data: Tensor) -> bool:
    """Whether to run segments. A graph that is being captured cannot depend on the sizes."""
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        return False
    return batch_sizes.size(0) * batch >= _PADDED_ROWS * data.size(0) > 0


class Segment(NamedTuple):
    """Some steps of the sequences that run in the first of these."""

    begin: int  # the first step
    end: int  # the last step, excluded
    sequences: int
    first_row: int  # of the packed data
    last_row: int  # excluded
    rows: Tensor  # the index of each packed row in the padded segment
    lengths: Tensor  # of the sequences within the segment

    def pad(self, packed: Tensor) -> Tensor:
        steps, features = self.end - self.begin, packed.size(1)
        rows = packed[self.first_row : self.last_row]
        padded = rows.new_zeros(steps * self.sequences, features).index_copy(0, self.rows, rows)
        return padded.view(steps, self.sequences, features)

    def pack(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1).index_select(0, self.rows)


def _segments(batch_sizes: Tensor, data: Tensor) -> list[Segment]:
    sizes = batch_sizes.tolist()
    starts = [0]
    for step, size in enumerate(sizes):
        if 2 * size < sizes[starts[-1]]:
            starts.append(step)
    first_rows = [0, *accumulate(sizes)]
    segments = []
    for begin, end in pairwise([*starts, len(sizes)]):
        first_row, last_row = first_rows[begin], first_rows[end]
        rows, lengths = padded_rows(batch_sizes[begin:end], sizes[begin], data[first_row:last_row])
        segments.append(Segment(begin, end, sizes[begin], first_row, last_row, rows, lengths))
    return segments


def run_in_segments(
    module: "LLTM",
    data: Tensor,
    batch_sizes: Tensor,
    parameters: list[Tensor],
    hx: tuple[Tensor, Tensor] | None,
    lengths: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run all layers over packed data, with states (D * L, N, H), lengths (N) and reset (T, N)."""
    directions = 2 if module.bidirectional else 1
    segments = _segments(batch_sizes, data)
    # 16-bit cell states are carried in float32, as within a call.
    carried = torch.float64 if data.dtype == torch.float64 else torch.float32
    state_size = (module.num_layers * directions, segments[0].sequences, module.hidden_size)
    if hx is None:
        h_0, c_0 = data.new_zeros(state_size), data.new_zeros(state_size, dtype=carried)
    else:
        h_0, c_0 = hx[0], hx[1].to(carried)
    resets = [reset]
    h_n, c_n = [], []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            if layer == 0 and direction == 1:  # here, because the first call has checked reset
                resets.append(shift_to_reverse(reset, lengths))
            index = layer * directions + direction
            weights, bias = (
                (parameters[2 * index], parameters[2 * index + 1]) if module.bias else (parameters[index], None)
            )
            run = _run_backward if direction == 1 else _run_forward
            output, h, c = run(segments, data, weights, bias, h_0[index], c_0[index], resets[direction])
            outputs.append(output)
            h_n.append(h)
            c_n.append(c)
        data = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
        if module._drops and module.training and layer + 1 < module.num_layers:
            data = torch.nn.functional.dropout(data, module.dropout)
    final_h, final_c = torch.stack(h_n), torch.stack(c_n)
    return data, (final_h, final_c.to(final_h.dtype if hx is None else hx[1].dtype))


def _run(
    segment: Segment,
    data: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    h: Tensor,
    c: Tensor,
    reset: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if reset is not None:
        reset = reset[segment.begin : segment.end, : segment.sequences]
    output, h, c, _, _ = torch.ops.lltm.sequence(
        segment.pad(data), weights, bias, h, c, segment.lengths, reset, reverse, False
    )
    return segment.pack(output), h, c


def _run_forward(
    segments: list[Segment],
    data: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    h: Tensor,
    c: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    outputs, ended_h, ended_c = [], [], []
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        output, h, c = _run(segment, data, weights, bias, h, c, reset, reverse=False)
        outputs.append(output)
        go_on = following.sequences if following else 0
        ended_h.append(h[go_on:])
        ended_c.append(c[go_on:])
        h, c = h[:go_on], c[:go_on]
    return torch.cat(outputs), torch.cat(ended_h[::-1]), torch.cat(ended_c[::-1])


def _run_backward(
    segments: list[Segment],
    data: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    h_0: Tensor,
    c_0: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = []
    h, c = h_0[:0], c_0[:0]
    for segment in segments[::-1]:
        # Sequences that end in this segment begin here.
        begin = slice(h.size(0), segment.sequences)
        h, c = torch.cat([h, h_0[begin].to(h.dtype)]), torch.cat([c, c_0[begin]])
        output, h, c = _run(segment, data, weights, bias, h, c, reset, reverse=True)
        outputs.append(output)
    return torch.cat(outputs[::-1]), h, c
