"""This library and its peers: cells, and modules that run sequences.

A cell is called as `cell(input, old_h, old_cell)` and returns (new_h, new_cell). Each has the parameters of the same
LLTM cell; nn.LSTMCell is a different cell, with four gates instead of three, and included because it is the alternative
for users. Single steps compare lltm.LSTMCell and lltm.GRUCell with those of torch.nn. What runs sequences is called
with workload.SequenceInputs and returns the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from cases import VARIANTS, Case, Shape, Work
from torch import Tensor, nn

if TYPE_CHECKING:
    from workload import SequenceInputs


class Cell(nn.Module):
    """The parameters of an LLTM cell, initialized like those of lltm.LLTMCell."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        gates, columns = 3 * shape.state_size, shape.state_size + shape.input_features
        bound = shape.state_size**-0.5
        self.weights = nn.Parameter(torch.empty(gates, columns, device=device, dtype=dtype).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(gates, device=device, dtype=dtype).uniform_(-bound, bound))


class Operator(Cell):
    """torch.ops.lltm.forward, this library."""

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
        new_h, new_cell, _ = torch.ops.lltm.forward(input, self.weights, self.bias, old_h, old_cell)
        return new_h, new_cell


def plain_cell(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """A straightforward implementation of the cell in Python."""
    z = F.linear(torch.cat([old_h, input], dim=1), weights, bias)
    z_i, z_o, z_g = z.chunk(3, dim=1)
    new_cell = old_cell + F.elu(z_g) * torch.sigmoid(z_i)
    return torch.tanh(new_cell) * torch.sigmoid(z_o), new_cell


class Plain(Cell):
    """A plain PyTorch module."""

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
        return plain_cell(input, self.weights, self.bias, old_h, old_cell)


class TutorialFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor):
        new_h, new_cell, *saved = torch.ops.lltm_peers.tutorial_forward(input, weights, bias, old_h, old_cell)
        ctx.save_for_backward(new_cell, *saved, weights)
        return new_h, new_cell

    @staticmethod
    def backward(ctx, grad_h: Tensor, grad_cell: Tensor):
        d_old_h, d_input, d_weights, d_bias, d_old_cell = torch.ops.lltm_peers.tutorial_backward(
            grad_h.contiguous(), grad_cell.contiguous(), *ctx.saved_tensors
        )
        return d_input, d_weights, d_bias, d_old_h, d_old_cell


class Tutorial(Cell):
    """The design of PyTorch's C++ extension tutorial, reimplemented in peers/: see tutorial.cpp."""

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
        return TutorialFunction.apply(input, self.weights, self.bias, old_h, old_cell)


class CellOfTorch(nn.Module):
    """A cell that is called like nn.LSTMCell, or like nn.GRUCell, which leaves the cell state as it is."""

    def __init__(self, kind: Callable[[], type[nn.Module]], shape: Shape, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.cell = kind()(shape.input_features, shape.state_size, device=device, dtype=dtype)

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.cell, nn.GRUCell):
            return self.cell(input, old_h), old_cell
        return self.cell(input, (old_h, old_cell))


def compiled(shape: Shape, device: str, dtype: torch.dtype) -> Callable:
    return torch.compile(Plain(shape, device, dtype), fullgraph=True, dynamic=False)


@cache
def dynamically_compiled_cell() -> Callable:
    return torch.compile(plain_cell, fullgraph=True, dynamic=True)


class DynamicallyCompiled(Cell):
    """torch.compile with dynamic shapes: one compilation per dtype for all shapes."""

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
        return dynamically_compiled_cell()(input, self.weights, self.bias, old_h, old_cell)


def prepare_dynamic_compilation() -> None:
    """Make the parameters' sizes dynamic, too. Fail instead of falling back to eager if shapes do not share code."""
    torch._dynamo.config.force_parameter_static_shapes = False
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True


class Recurrent(nn.Module):
    """A module that is called like nn.LSTM, with a padded tensor or a PackedSequence. Returns the output."""

    def __init__(self, kind: type[nn.Module], case: Case) -> None:
        super().__init__()
        self.module = kind(
            case.shape.input_features,
            case.shape.state_size,
            num_layers=case.layers.layers,
            bidirectional=case.layers.bidirectional,
            device=case.device,
            dtype=case.torch_dtype,
        )

    def forward(self, inputs: SequenceInputs) -> Tensor:
        if inputs.packed is None:
            return self.module(inputs.padded)[0]
        return self.module(inputs.packed)[0].data


class SequenceOperator(Cell):
    """lltm::sequence, padded; if rows have lengths, with the lengths on the device."""

    def forward(self, inputs: SequenceInputs) -> Tensor:
        return torch.ops.lltm.sequence(inputs.padded, self.weights, self.bias, lengths=inputs.lengths)[0]


class LoopOfCells(Operator):
    """lltm::forward, once per step."""

    def forward(self, inputs: SequenceInputs) -> Tensor:
        h = cell = inputs.padded.new_zeros(inputs.padded.size(1), self.weights.size(0) // 3)
        outputs = []
        for step in inputs.padded.unbind():
            h, cell = super().forward(step, h, cell)
            outputs.append(h)
        return torch.stack(outputs)


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    make: Callable[[Case], Callable]
    variants: tuple[str, ...] = ("",)
    """The variants of sequences that it computes; of a cell an empty one."""
    works: tuple[Work, ...] = tuple(Work)
    reference: Callable[[Shape, str, torch.dtype], nn.Module] | None = None
    """Of a cell: the module that it must agree with in float64."""

    @property
    def is_cell(self) -> bool:
        return "" in self.variants


def _cell(
    name: str,
    title: str,
    make: Callable[[Shape, str, torch.dtype], Callable],
    reference: Callable[[Shape, str, torch.dtype], nn.Module] = Plain,
    works: tuple[Work, ...] = tuple(Work),
) -> Peer:
    return Peer(
        name, title, lambda case: make(case.shape, case.device, case.torch_dtype), works=works, reference=reference
    )


def _cell_of_torch(name: str, title: str, kind: Callable[[], type[nn.Module]], reference: type[nn.Module]) -> Peer:
    return _cell(name, title, partial(CellOfTorch, kind), partial(CellOfTorch, lambda: reference))


def _module(name: str, title: str, kind: Callable[[], type[nn.Module]]) -> Peer:
    return Peer(name, title, lambda case: Recurrent(kind(), case), tuple(VARIANTS))


def _sequence(name: str, title: str, kind: type[Cell], *variants: str) -> Peer:
    return Peer(name, title, lambda case: kind(case.shape, case.device, case.torch_dtype), variants)


def _ours(name: str) -> Callable[[], type[nn.Module]]:
    def find() -> type[nn.Module]:
        import lltm  # only here: reports are also written on machines without the library

        return getattr(lltm, name)

    return find


OURS, MODULE, OPERATOR, LSTM_MODULE, GRU_MODULE = "lltm", "LLTM", "sequence", "lltm.LSTM", "lltm.GRU"
BASELINES = ("LSTM", "GRU")
COUNTERPARTS = {f"lltm.{name}": name for name in (*BASELINES, "LSTMCell", "GRUCell")}
"""The peers of the same cell, in torch.nn."""

PEERS = {
    peer.name: peer
    for peer in (
        _cell(OURS, "this library", Operator),
        _cell("eager", "plain PyTorch module", Plain),
        # Its kernel does not support mixed dtypes.
        _cell("tutorial", "the tutorial's design", Tutorial, works=(Work.FORWARD, Work.TRAINING)),
        _cell("compile", "torch.compile of the plain module", compiled),
        _cell("dynamic", "torch.compile with dynamic shapes", DynamicallyCompiled),
        _cell_of_torch("lltm.LSTMCell", "lltm.LSTMCell", _ours("LSTMCell"), nn.LSTMCell),
        _cell_of_torch("LSTMCell", "nn.LSTMCell (four gates)", lambda: nn.LSTMCell, nn.LSTMCell),
        _cell_of_torch("lltm.GRUCell", "lltm.GRUCell", _ours("GRUCell"), nn.GRUCell),
        _cell_of_torch("GRUCell", "nn.GRUCell", lambda: nn.GRUCell, nn.GRUCell),
        _module(MODULE, "lltm.LLTM", _ours("LLTM")),
        _sequence(OPERATOR, "lltm::sequence, with lengths", SequenceOperator, "padded", "packed"),
        _module(LSTM_MODULE, "lltm.LSTM (four gates)", _ours("LSTM")),
        _module(GRU_MODULE, "lltm.GRU (three gates)", _ours("GRU")),
        _sequence("loop", "a loop of lltm::forward", LoopOfCells, "padded"),
        _module("LSTM", "nn.LSTM (four gates)", lambda: nn.LSTM),
        _module("GRU", "nn.GRU (three gates)", lambda: nn.GRU),
    )
}
CELLS = tuple(name for name, peer in PEERS.items() if peer.is_cell)
# The peers at fixed shapes, at random shapes, and of sequences.
FIXED_SHAPE_PEERS = tuple(name for name in CELLS if name not in ("dynamic", "lltm.LSTMCell", "lltm.GRUCell", "GRUCell"))
SWEEP_PEERS = ("eager", "tutorial", "dynamic", "LSTMCell")
SEQUENCE_PEERS = tuple(name for name in PEERS if name not in CELLS)


def with_ours(baselines: list[str]) -> list[str]:
    """Each layer or cell of torch.nn, after that of this library."""
    return [name for pair in COUNTERPARTS.items() if pair[1] in baselines for name in pair]


def load_libraries(build_dir: Path) -> None:
    """Load the operators of the peers. Importing lltm loads this library's."""
    library = build_dir / "liblltm_peers.so"
    if not library.is_file():
        raise FileNotFoundError(
            f"{library} is missing: configure with -DLLTM_BENCHMARK=ON and build, or use make bench"
        )
    torch.ops.load_library(library)


def applicable(case: Case, names: list[str]) -> list[Peer]:
    """The peers with these names that compute the case."""
    peers = [PEERS[name] for name in names]
    return [peer for peer in peers if case.variant in peer.variants and case.work in peer.works]
