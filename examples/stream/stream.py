"""The byte-level model, its training in one or several processes, and how it writes text.

It reads one byte per step and predicts the next one. Training uses truncated backpropagation through time: gradients
stop at the boundaries of a chunk of steps, and the state is carried into the next chunk.

The LLTM has no forget gate: its cell accumulates a sum over everything it has read, which grows without bound on a long
text. The model therefore resets the state at the beginning of each line, which it detects from the input. It does so in
training, in evaluation and, as part of the exported model, in C++.
"""

from __future__ import annotations

import bisect
import copy
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import corpus
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lltm

State = tuple[Tensor, Tensor]
BYTES = 256

LINE = ord("\n")
"""Ends a line. It is read as the first byte of the next line."""

BEGINNINGS = (
    "    def __init__(self, name",
    "    def get_",
    "        if not isinstance(",
    "        if self._",
    "        return self.",
)
"""Beginnings of lines, which the trained model completes."""


class Options(NamedTuple):
    """How a model is trained."""

    steps: int = 1200
    """The number of chunks, and of updates of the parameters."""
    rows: int = 32
    """The number of streams that are read side by side, over all processes."""
    chunk: int = 64
    """The number of bytes of each row in a chunk."""
    peak_rate: float = 1.2e-2
    """The better one of 6e-3 and 1.2e-2 for nn.LSTM, by the held-out loss after 600 steps; used for all models."""
    seed: int = 0


class Report(NamedTuple):
    """The metrics after some steps of training."""

    step: int
    loss: float
    """Bits per byte, on the training text since the last report."""
    held_out: float
    """Bits per byte, on the held-out files."""
    seconds: float
    """The processor time spent on training so far, without evaluation."""


class ByteModel(nn.Module):
    """Predicts the next byte of a text.

    Args:
        layer: lltm.LLTM, lltm.LSTM or nn.LSTM. Only the LLTM is reset: the forget gate of an LSTM has to learn what the
            bytes at the beginning of a file and of a line mean.
        hidden_size: the number of features of the state, H.

    Inputs: bytes (T, N) in int64; the state, a pair of (1, N, H), or None for zeros. Outputs: logits (T, N, 256) and
    the state.
    """

    def __init__(self, layer: type[nn.Module], hidden_size: int, embedding_size: int = 64) -> None:
        super().__init__()
        self.resets = layer is lltm.LLTM
        self.embedding = nn.Embedding(BYTES, embedding_size)
        self.layer = layer(embedding_size, hidden_size)
        self.readout = nn.Linear(hidden_size, BYTES)

    def forward(self, bytes: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        features = self.embedding(bytes)
        if self.resets:
            begins = (bytes == corpus.BEGIN) | (bytes == LINE)
            output, state = self.layer(features, state, reset=begins)
        else:
            output, state = self.layer(features, state)
        return self.readout(output), state


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def twin_models(hidden_size: int = 160, seed: int = 0) -> dict[str, ByteModel]:
    """A model of each kind. The LSTMs are as wide as possible without having more parameters than the LLTM, and begin
    with the same weights."""
    torch.manual_seed(seed)
    ours = ByteModel(lltm.LLTM, hidden_size)

    def count(size: int) -> int:
        with torch.device("meta"):
            return parameter_count(ByteModel(nn.LSTM, size))

    sizes = range(1, hidden_size + 1)
    wider = bisect.bisect_right(sizes, parameter_count(ours), key=count)
    theirs = ByteModel(nn.LSTM, sizes[wider - 1])
    return {"lltm.LLTM": ours, "lltm.LSTM": lltm.convert_lstm(copy.deepcopy(theirs)), "nn.LSTM": theirs}


def bits(logits: Tensor, next_bytes: Tensor) -> Tensor:
    """The mean cross entropy in bits per byte."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), next_bytes.flatten()) / math.log(2)


@torch.inference_mode()
def evaluate(model: nn.Module, text: corpus.Text, rows: int = 64, steps: int = 256, most: int = 6) -> float:
    """Bits per byte on a text that is read in chunks, carrying the state."""
    device = next(model.parameters()).device
    rows = max(1, min(rows, len(text.bytes) // (steps + 1)))
    total, count, state = 0.0, min(most, (len(text.bytes) - 1) // rows // steps), None
    for chunk, _ in zip(corpus.chunks(text, rows, steps), range(count), strict=False):
        bytes, next_bytes = (part.to(device) for part in chunk)
        logits, state = model(bytes, state)
        total += bits(logits, next_bytes).item()
    return total / count


def train(
    model: ByteModel, text: corpus.Text, held_out: corpus.Text, options: Options, report_every: int = 50
) -> Iterator[Report]:
    """Trains the model in place, and reports periodically.

    In a process group, every process trains on its part of the rows. The averaged gradients are those of a single
    process with all rows. Only the process with rank 0 evaluates the held-out text.
    """
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    if options.rows % ranks:
        raise ValueError(f"{options.rows} rows cannot be shared out evenly among {ranks} processes")
    device = next(model.parameters()).device
    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.peak_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.peak_rate, total_steps=options.steps, pct_start=0.15
    )
    stream = corpus.chunks(text, options.rows, options.chunk, rank, ranks)
    state, losses, seconds = None, [], 0.0
    for step in range(1, options.steps + 1):
        start = time.process_time()
        bytes, next_bytes = (part.to(device) for part in next(stream))
        logits, state = trained(bytes, state)
        state = state[0].detach(), state[1].detach()  # gradients stop here, the state is carried on
        loss = bits(logits, next_bytes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % report_every == 0 or step == options.steps:
            mean = torch.stack(losses).mean()
            if ranks > 1:
                dist.all_reduce(mean, dist.ReduceOp.SUM)
                mean /= ranks
            losses.clear()
            mean = mean.item()  # waits for the device, so that the time is correct
            seconds += time.process_time() - start
            if rank == 0:
                yield Report(step, mean, evaluate(model, held_out), seconds)
        else:
            seconds += time.process_time() - start


@torch.inference_mode()
def write(model: ByteModel, line: bytes, count: int) -> bytes:
    """Completes the first line of a file with the likeliest bytes: until the line ends, or by ``count`` bytes."""
    device = next(model.parameters()).device
    read = torch.tensor([corpus.BEGIN, *line], device=device).unsqueeze(1)
    written, state = bytearray(), None
    while len(written) < count:
        logits, state = model(read, state)
        read = logits[-1:].argmax(2)
        if read.item() == LINE:
            break
        written.append(read.item())
    return bytes(written)
