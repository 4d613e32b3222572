"""The operator and its peers, each a module with the parameters of the same LLTM cell.

`cell(input, old_h, old_cell)` returns (new_h, new_cell). nn.LSTMCell is a different cell, with four gates instead of
three; it is included because it is the alternative for users. `addmm` and `empty` are not cells: a bare product of the
same size, and an operator that only allocates the results, are lower bounds for the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from cases import Case, Shape, Work
from torch import Tensor, nn

OURS = "lltm"


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


class Empty(Cell):
    """An operator with the same signature that only allocates its results: see empty.cpp."""

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
        new_h, new_cell, _ = torch.ops.lltm_peers.empty_forward(input, self.weights, self.bias, old_h, old_cell)
        return new_h, new_cell


class Addmm(Cell):
    """Only the product, with an existing concatenation; not a cell."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype) -> None:
        super().__init__(shape, device, dtype)
        self.register_buffer("x", torch.randn(shape.batch, self.weights.size(1), device=device, dtype=dtype))

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor]:
        return (torch.addmm(self.bias, self.x, self.weights.t()),)


class LSTM(nn.LSTMCell):
    def __init__(self, shape: Shape, device: str, dtype: torch.dtype) -> None:
        super().__init__(shape.input_features, shape.state_size, device=device, dtype=dtype)

    def forward(self, input: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(input, (old_h, old_cell))


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


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    make: Callable[[Shape, str, torch.dtype], Callable]
    reference: type[nn.Module] | None
    """The module that it must agree with in float64; None if it does not compute a cell."""
    runs_backward: bool = True
    runs_under_autocast: bool = True

    @property
    def is_cell(self) -> bool:
        return self.reference is not None


PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "this library", Operator, Plain),
        Peer("eager", "plain PyTorch module", Plain, Plain),
        # Its kernel does not support mixed dtypes.
        Peer("tutorial", "the tutorial's design", Tutorial, Plain, runs_under_autocast=False),
        Peer("compile", "torch.compile of the plain module", compiled, Plain),
        Peer("dynamic", "torch.compile with dynamic shapes", DynamicallyCompiled, Plain),
        Peer("LSTMCell", "nn.LSTMCell (four gates)", LSTM, LSTM),
        Peer("addmm", "the bare product", Addmm, None, runs_backward=False),
        Peer("empty", "an operator that only allocates", Empty, None, runs_under_autocast=False),
    )
}


# The peers at fixed shapes, and those at random shapes.
FIXED_SHAPE_PEERS = tuple(name for name in PEERS if name != "dynamic")
SWEEP_PEERS = ("eager", "tutorial", "dynamic", "LSTMCell")


def load_libraries(build_dir: Path) -> None:
    """Load the operators of the peers. Importing lltm loads this library's."""
    library = build_dir / "liblltm_peers.so"
    if not library.is_file():
        raise FileNotFoundError(
            f"{library} is missing: configure with -DLLTM_BENCHMARK=ON and build, or use make bench"
        )
    torch.ops.load_library(library)


def applicable(case: Case, names: list[str]) -> list[Peer]:
    """The peers with these names that support the case's work."""
    return [
        peer
        for peer in (PEERS[name] for name in names)
        if (case.work is not Work.TRAINING or peer.runs_backward)
        and (case.work is not Work.AUTOCAST or peer.runs_under_autocast)
    ]
