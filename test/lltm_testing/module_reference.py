"""A reference for the modules: a loop of cells over each episode of each row. Also makes pairs with nn.LSTM."""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import lltm

Module = lltm.LLTM | lltm.LSTM


def twins(*arguments, cls=lltm.LLTM, **options) -> tuple[nn.LSTM, Module]:
    """The two modules, constructed with the same arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.LSTM(*arguments, **options), cls(*arguments, **options)


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
        if isinstance(module, lltm.LSTM):
            cls, features = lltm.LSTMCell, weights.size(1)
        else:
            cls, features = lltm.LLTMCell, weights.size(1) - module.hidden_size
        cell = cls(features, module.hidden_size, module.bias, device="meta")  # draws no random numbers
        for (name, _), parameter in zip(list(cell.named_parameters()), (weights, *others), strict=True):
            setattr(cell, name, parameter)
        cells.append(cell)
    return cells


def episodes(length: int, reset: list[bool]) -> list[range]:
    """The steps of a row, split where a new episode begins."""
    begins = [0, *(step for step in range(1, length) if reset[step]), length]
    return [range(*pair) for pair in zip(begins, begins[1:], strict=False) if pair[0] < pair[1]]


def run_row(cell, row: Tensor, state, length: int, reset: list[bool], reverse: bool):
    """Runs one direction over one row (T, I). Returns h and c of every step, (T, H) each, and the last state."""
    of_steps = [(row.new_zeros(cell.hidden_size),) * 2] * row.size(0)
    zeros = torch.zeros_like(state[0]), torch.zeros_like(state[1])
    if length and reset[0] and not reverse:
        state = zeros
    parts = episodes(length, reset)
    for position, steps in enumerate(reversed(parts) if reverse else parts):
        if position:
            state = zeros
        for step in reversed(steps) if reverse else steps:
            state = of_steps[step] = cell(row[step], state)
    if not of_steps:
        return *row.new_zeros(2, 0, cell.hidden_size), state
    return *map(torch.stack, zip(*of_steps, strict=True)), state


def run(*arguments, **options):
    """The results of a call of the module."""
    return run_states(*arguments, **options)[:2]


def run_states(module: Module, input: Tensor, hx=None, lengths=None, reset=None, dropout=None):
    """Runs all layers over a time-first batch (T, N, I), and also returns h and c of every step. `dropout` is applied
    to the outputs between two layers."""
    steps, batch, _ = input.shape
    cells = layer_cells(module)
    directions = 2 if module.bidirectional else 1
    if hx is None:
        hx = [input.new_zeros(len(cells), batch, module.hidden_size)] * 2
    lengths = [steps] * batch if lengths is None else lengths.clamp(0, steps).tolist()
    resets = [[False] * steps] * batch if reset is None else reset.t().tolist()
    states, h_of_steps, c_of_steps = [], [], []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            rows = [
                run_row(
                    cells[index], input[:, n], (hx[0][index, n], hx[1][index, n]), lengths[n], resets[n], direction == 1
                )
                for n in range(batch)
            ]
            outputs.append(torch.stack([h for h, _, _ in rows], dim=1))
            states.append([torch.stack([state[part] for *_, state in rows]) for part in (0, 1)])
            c_of_steps.append(torch.stack([c for _, c, _ in rows], dim=1))
        h_of_steps += outputs
        input = torch.cat(outputs, dim=2)
        if dropout is not None and layer + 1 < module.num_layers:
            input = dropout(input)
    last = torch.stack([h for h, _ in states]), torch.stack([c for _, c in states])
    return input, last, (torch.stack(h_of_steps), torch.stack(c_of_steps))


def random_state(module, batch: int, **options) -> tuple[Tensor, Tensor]:
    shape = (module.num_layers * (2 if module.bidirectional else 1), batch, module.hidden_size)
    return torch.randn(shape, **options), torch.randn(shape, **options)


def packed(input: Tensor, lengths: list[int], **options) -> PackedSequence:
    return pack_padded_sequence(input, torch.tensor(lengths), **options)


class States(nn.Module):
    """A model that calls states()."""

    def __init__(self, cls=lltm.LLTM, **options):
        super().__init__()
        self.rnn = cls(3, 4, **options)

    def forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return self.rnn.states(input, hx, lengths, reset)


def tensors_of(results) -> list[Tensor | None]:
    """Of nested tuples, such as a PackedSequence."""
    return [t for part in results for t in tensors_of(part)] if isinstance(results, tuple) else [results]


def assert_same(actual, expected, **tolerances) -> None:
    """Compares the results of two calls, packed or padded, up to rounding."""
    torch.testing.assert_close(tensors_of(actual), tensors_of(expected), **tolerances)
