"""A reference for the modules: a loop of cells over each episode of each row. Also makes pairs with torch.nn's.

The state of a module is what it takes and returns, a pair or the tensor h. Its parts are a tuple."""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_leaves

import lltm

Module = lltm.LLTM | lltm.LSTM | lltm.GRU
State = Tensor | tuple[Tensor, Tensor]
OF_TORCH = {lltm.LLTM: nn.LSTM, lltm.LSTM: nn.LSTM, lltm.GRU: nn.GRU}
"""The classes with the same interface."""
CELLS = {lltm.LLTM: lltm.LLTMCell, lltm.LSTM: lltm.LSTMCell, lltm.GRU: lltm.GRUCell}


def twins(*arguments, cls=lltm.LLTM, **options) -> tuple[nn.LSTM | nn.GRU, Module]:
    """torch.nn's module and this one, constructed with the same arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OF_TORCH[cls](*arguments, **options), cls(*arguments, **options)


def replica_of(module: nn.Module) -> nn.Module:
    """What nn.DataParallel makes for each GPU: its parameters are plain tensors."""
    replica = module._replicate_for_data_parallel()
    replica._former_parameters = {}
    for name, parameter in module.named_parameters():
        setattr(replica, name, 1 * parameter)
        replica._former_parameters[name] = getattr(replica, name)
    return replica


def layer_cells(module: Module) -> list[nn.Module]:
    """A cell for each layer and direction that shares its parameters, so that gradients reach them."""
    cells = []
    for weights, *others in module.all_weights:
        features = weights.size(1) - (module.hidden_size if isinstance(module, lltm.LLTM) else 0)
        # On Meta, it draws no random numbers.
        cell = CELLS[type(module)](features, module.hidden_size, module.bias, device="meta")
        for (name, _), parameter in zip(list(cell.named_parameters()), (weights, *others), strict=True):
            setattr(cell, name, parameter)
        cells.append(cell)
    return cells


def episodes(length: int, reset: list[bool]) -> list[range]:
    """The steps of a row, split where a new episode begins."""
    begins = [0, *(step for step in range(1, length) if reset[step]), length]
    return [range(*pair) for pair in zip(begins, begins[1:], strict=False) if pair[0] < pair[1]]


def state_of(parts) -> State:
    parts = tuple(parts)
    return parts if len(parts) > 1 else parts[0]


def run_row(cell, row: Tensor, parts: tuple[Tensor, ...], length: int, reset: list[bool], reverse: bool):
    """Runs one direction over one row (T, I). Returns the parts after every step, (T, H) each, and the last parts."""
    zeros = tuple(map(torch.zeros_like, parts))
    of_steps = [tuple(row.new_zeros(cell.hidden_size) for _ in parts)] * row.size(0)
    if length and reset[0] and not reverse:
        parts = zeros
    ranges = episodes(length, reset)
    for position, steps in enumerate(reversed(ranges) if reverse else ranges):
        if position:
            parts = zeros
        for step in reversed(steps) if reverse else steps:
            parts = of_steps[step] = tuple(tree_leaves(cell(row[step], state_of(parts))))
    return tuple(map(torch.stack, zip(*of_steps, strict=True))), parts


def run(*arguments, **options) -> tuple[Tensor, State]:
    """The results of a call of the module."""
    return run_states(*arguments, **options)[:2]


def run_states(
    module: Module, input: Tensor, hx=None, lengths=None, reset=None, dropout=None
) -> tuple[Tensor, State, State]:
    """Runs all layers over a time-first batch (T, N, I), and also returns the state after every step. `dropout` is
    applied to the outputs between two layers."""
    steps, batch, _ = input.shape
    cells = layer_cells(module)
    directions = 2 if module.bidirectional else 1
    if hx is None:
        hx = (input.new_zeros(len(cells), batch, module.hidden_size),) * count_of_parts(module)
    lengths = [steps] * batch if lengths is None else lengths.clamp(0, steps).tolist()
    resets = [[False] * steps] * batch if reset is None else reset.t().tolist()
    last, of_steps = [], []
    for layer in range(module.num_layers):
        for direction in range(directions):
            index = layer * directions + direction
            rows = [
                run_row(
                    cells[index],
                    input[:, n],
                    tuple(part[index, n] for part in tree_leaves(hx)),
                    lengths[n],
                    resets[n],
                    direction == 1,
                )
                for n in range(batch)
            ]
            of_rows, last_of_rows = zip(*rows, strict=True)
            of_steps.append([torch.stack(part, dim=1) for part in zip(*of_rows, strict=True)])
            last.append([torch.stack(part) for part in zip(*last_of_rows, strict=True)])
        input = torch.cat([h for h, *_ in of_steps[-directions:]], dim=2)
        if dropout is not None and layer + 1 < module.num_layers:
            input = dropout(input)
    last, of_steps = (state_of(map(torch.stack, zip(*layers, strict=True))) for layers in (last, of_steps))
    return input, last, of_steps


def count_of_parts(module: nn.Module) -> int:
    return 1 if isinstance(module, lltm.GRU | nn.GRU) else 2


def random_state(module: nn.Module, batch: int, **options) -> State:
    shape = (module.num_layers * (2 if module.bidirectional else 1), batch, module.hidden_size)
    return state_of(torch.randn(shape, **options) for _ in range(count_of_parts(module)))


def packed(input: Tensor, lengths: list[int], **options) -> PackedSequence:
    return pack_padded_sequence(input, torch.tensor(lengths), **options)


class Model(nn.Module):
    """A model that has a layer."""

    def __init__(self, rnn: nn.Module):
        super().__init__()
        self.rnn = rnn


class States(Model):
    """Calls states()."""

    def forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ):
        return self.rnn.states(input, hx, lengths, reset)


class StatesOfH(Model):
    def forward(
        self, input: Tensor, hx: Tensor | None = None, lengths: Tensor | None = None, reset: Tensor | None = None
    ):
        return self.rnn.states(input, hx, lengths, reset)


def maker(of_pair: type[Model], of_h: type[Model]):
    """Makes a model of the class whose annotations, which TorchScript compiles, are those of the layer's state."""
    return lambda cls, **options: (of_h if cls is lltm.GRU else of_pair)(cls(3, 4, **options))


states_model = maker(States, StatesOfH)


def assert_same(actual, expected, **tolerances) -> None:
    """Compares the results of two calls, packed or padded, up to rounding."""
    torch.testing.assert_close(tree_leaves(actual), tree_leaves(expected), **tolerances)
