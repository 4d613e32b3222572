"""The peers for sequences: lltm.LLTM, lltm::sequence, nn.LSTM, nn.GRU and a loop of our cell."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from cases import Shape
from peers import Operator
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from .cases import SequenceCase


class SequenceInputs:
    """The inputs of a call. Gradients are computed with respect to `input`: padded (steps, batch, input features), or
    the data of `packed`, which has the same rows in another order, without those beyond the lengths."""

    def __init__(self, case: SequenceCase, seed: int, wants_gradient: bool) -> None:
        shape = case.shape
        generator = torch.Generator(case.device).manual_seed(seed)
        padded = torch.randn(
            shape.steps, shape.batch, shape.input_features, generator=generator, device=case.device
        ).to(case.torch_dtype)
        self.padded = padded.requires_grad_(wants_gradient)
        self.lengths: Tensor | None = None
        self.packed: PackedSequence | None = None
        if case.variant == "packed":
            lengths = case.lengths
            packed = pack_padded_sequence(padded.detach(), lengths)
            data = packed.data.detach().requires_grad_(wants_gradient)
            self.packed = PackedSequence(data, packed.batch_sizes)
            self.lengths = lengths.to(case.device)


class Recurrent(nn.Module):
    """A module that is called like nn.LSTM, with a padded tensor or a PackedSequence."""

    def __init__(self, of: type[nn.Module], case: SequenceCase) -> None:
        super().__init__()
        self.module = of(
            case.shape.input_features,
            case.shape.state_size,
            num_layers=2 if case.variant == "two layers" else 1,
            bidirectional=case.variant == "both directions",
            device=case.device,
            dtype=case.torch_dtype,
        )

    def forward(self, inputs: SequenceInputs) -> tuple[Tensor, Tensor]:
        """The tensor whose gradient is the input's, and the output."""
        if inputs.packed is None:
            return inputs.padded, self.module(inputs.padded)[0]
        return inputs.packed.data, self.module(inputs.packed)[0].data


def _module(case: SequenceCase) -> nn.Module:
    import lltm  # only here: reports are also written on machines without the library

    return Recurrent(lltm.LLTM, case)


class OneLayer(Operator):
    """The parameters of a layer in one direction."""

    def __init__(self, case: SequenceCase) -> None:
        shape = Shape(case.shape.batch, case.shape.input_features, case.shape.state_size)
        super().__init__(shape, case.device, case.torch_dtype)


class SequenceOperator(OneLayer):
    """lltm::sequence, padded; if rows have lengths, with the lengths on the device."""

    def forward(self, inputs: SequenceInputs) -> tuple[Tensor, Tensor]:
        outputs = torch.ops.lltm.sequence(inputs.padded, self.weights, self.bias, lengths=inputs.lengths)
        return inputs.padded, outputs[0]


class LoopOfCells(OneLayer):
    """lltm::forward, once per step."""

    def forward(self, inputs: SequenceInputs) -> tuple[Tensor, Tensor]:
        h = cell = inputs.padded.new_zeros(inputs.padded.size(1), self.weights.size(0) // 3)
        outputs = []
        for step in inputs.padded.unbind():
            h, cell = super().forward(step, h, cell)
            outputs.append(h)
        return inputs.padded, torch.stack(outputs)


@dataclass(frozen=True)
class SequencePeer:
    name: str
    title: str
    make: Callable[[SequenceCase], nn.Module]
    variants: tuple[str, ...] = ("padded", "packed", "two layers", "both directions")


MODULE, OPERATOR = "LLTM", "sequence"
BASELINES = ("LSTM", "GRU")

PEERS = {
    peer.name: peer
    for peer in (
        SequencePeer(MODULE, "lltm.LLTM", _module),
        SequencePeer(OPERATOR, "lltm::sequence, with lengths", SequenceOperator, ("padded", "packed")),
        SequencePeer("loop", "a loop of lltm::forward", LoopOfCells, ("padded",)),
        SequencePeer("LSTM", "nn.LSTM (four gates)", lambda case: Recurrent(nn.LSTM, case)),
        SequencePeer("GRU", "nn.GRU (three gates)", lambda case: Recurrent(nn.GRU, case)),
    )
}


def applicable(case: SequenceCase, names: list[str]) -> list[SequencePeer]:
    return [PEERS[name] for name in names if case.variant in PEERS[name].variants]
