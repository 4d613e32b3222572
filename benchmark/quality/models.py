"""What is compared: recurrent layers of as many parameters, and what may help the LLTM."""

from __future__ import annotations

from typing import NamedTuple

import ppo
import torch
from torch import Tensor, nn

import lltm

LAYERS = {
    "lltm.LSTM": lltm.LSTM,
    "lltm.GRU": lltm.GRU,
    "lltm.LLTM": lltm.LLTM,
    "nn.LSTM": nn.LSTM,
    "nn.GRU": nn.GRU,
}


class Variant(NamedTuple):
    """A layer and how it is initialized and trained."""

    name: str
    layer: str
    leak: float | None = None
    """Of an LLTM: subtracted from the weight of each h in the candidate of its own cell, which pulls the cell back to
    zero. None: the default."""
    input_gate: float = 0.0
    """Added to the bias of the input gates."""
    normalizes: bool = False
    """Whether a LayerNorm follows the layer."""
    rate: float = 1.0
    """Multiplies the learning rate of the task."""
    clip: float | None = 1.0
    """The largest norm of the gradients."""


CHANGES = (
    Variant("no leak", "lltm.LLTM", leak=0.0),
    Variant("no leak, input-gate bias -2", "lltm.LLTM", leak=0.0, input_gate=-2.0),
    Variant("no leak, LayerNorm after it", "lltm.LLTM", leak=0.0, normalizes=True),
    Variant("no leak, no clipping", "lltm.LLTM", leak=0.0, clip=None),
)
VARIANTS = {name: Variant(name, name) for name in LAYERS} | {variant.name: variant for variant in CHANGES}


def make_layer(variant: Variant, features: int, hidden_size: int) -> nn.Module:
    """The layer of a variant, with as many parameters as an LLTM with this state size."""
    kind = LAYERS[variant.layer]
    options = {} if variant.leak is None else {"leak": variant.leak}
    layer = kind(features, ppo.twin_size(kind, features, hidden_size), **options)
    with torch.no_grad():
        if variant.input_gate:
            layer.bias_l0[:hidden_size].add_(variant.input_gate)
    return layer


def make_readout(variant: Variant, features: int, outputs: int) -> nn.Module:
    linear = nn.Linear(features, outputs)
    return nn.Sequential(nn.LayerNorm(features), linear) if variant.normalizes else linear


class Model(nn.Module):
    """A recurrent layer and a linear readout of its outputs.

    Inputs: input (T, N, I), or (T, N) in int64 with ``symbols``, which are embedded; the state; begins (T, N), or None.
    Outputs: (T, N, O) and the state.
    """

    def __init__(
        self, variant: Variant, features: int, hidden_size: int, outputs: int, symbols: int | None = None
    ) -> None:
        super().__init__()
        self.embedding = nn.Identity() if symbols is None else nn.Embedding(symbols, features)
        self.layer = make_layer(variant, features, hidden_size)
        self.readout = make_readout(variant, self.layer.hidden_size, outputs)

    def initial_state(self, rows: int) -> ppo.State:
        return torch.zeros(1, rows, self.layer.hidden_size), torch.zeros(1, rows, self.layer.hidden_size)

    def forward(
        self, input: Tensor, state: ppo.State | None = None, begins: Tensor | None = None
    ) -> tuple[Tensor, ppo.State]:
        features = self.embedding(input)
        if begins is None:
            output, state = ppo.run(self.layer, features, state)
        else:
            output, state = ppo.run_with_resets(self.layer, features, state, begins)
        return self.readout(output), state
