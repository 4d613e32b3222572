"""Writes the saved models in this folder, which must load in all future versions: test_compatibility.py runs them.

    PYTHONPATH=python LLTM_LIBRARY=build/liblltm_ops.so python3 test/data/make.py

Run it with the oldest supported PyTorch, because an older PyTorch may be unable to load what a newer one saved.
Existing files are not overwritten: for a change of a schema, add new files.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

import lltm

FOLDER = Path(__file__).parent
BATCH, STEPS, INPUT_FEATURES, STATE_SIZE = 3, 4, 5, 7


class Cell(torch.nn.Module):
    """A loop of a cell over the steps of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = lltm.LLTMCell(INPUT_FEATURES, STATE_SIZE, dtype=torch.float64)

    def forward(self, input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for step in range(input.size(0)):
            h, c = self.cell(input[step], (h, c))
        return h, c


class Sequence(Cell):
    """The sequence operator with all arguments."""

    def forward(
        self, input: Tensor, h: Tensor, c: Tensor, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        output, h, c, _, _ = torch.ops.lltm.sequence(
            input, self.cell.weights, self.cell.bias, h, c, lengths, reset, False, True
        )
        return output, h, c


class Lstm(torch.nn.Module):
    """The operator of an LSTM with all arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = lltm.LSTMCell(INPUT_FEATURES, STATE_SIZE, dtype=torch.float64)

    def forward(
        self, input: Tensor, h: Tensor, c: Tensor, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        bias = self.cell.bias_ih + self.cell.bias_hh
        output, h, c, _, _ = torch.ops.lltm.lstm(
            input, self.cell.weight_ih, self.cell.weight_hh, bias, h, c, lengths, reset, False, True
        )
        return output, h, c


class Gru(torch.nn.Module):
    """The operator of a GRU with all arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = lltm.GRUCell(INPUT_FEATURES, STATE_SIZE, dtype=torch.float64)

    def forward(self, input: Tensor, h: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        output, h, _ = torch.ops.lltm.gru(
            input, self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh, h, lengths, reset,
            False, True,
        )  # fmt: skip
        return output, h


def lltm_step(cell, input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the same as the operators, without lltm."""
    z_i, z_o, z_g = torch.nn.functional.linear(torch.cat([h, input], 1), cell.weights, cell.bias).chunk(3, 1)
    c = c + torch.nn.functional.elu(z_g) * z_i.sigmoid()
    return c.tanh() * z_o.sigmoid(), c


def lstm_step(cell, input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    parameters = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    return torch.lstm_cell(input, (h, c), *parameters)


def gru_step(cell, input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.gru_cell(input, h, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh), c


def formula(
    step, cell, input: Tensor, h: Tensor, c: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = []
    for t in range(STEPS):
        counts = (t < lengths)[:, None]
        seen_h, seen_c = (state.masked_fill(reset[t, :, None], 0) for state in (h, c))
        new_h, new_c = step(cell, input[t], seen_h, seen_c)
        outputs.append(new_h.where(counts, 0))
        h, c = new_h.where(counts, h), new_c.where(counts, c)
    return torch.stack(outputs), h, c


def write(name: str, model: torch.nn.Module, arguments: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    numbers = {"arguments": [each.tolist() for each in arguments], "results": [each.tolist() for each in results]}
    writers = {
        f"{name}.json": lambda path: path.write_text(json.dumps(numbers) + "\n"),
        f"{name}-scripted.pt": torch.jit.script(model).save,
        f"{name}-exported.pt2": lambda path: torch.export.save(torch.export.export(model, arguments), path),
    }
    for file, write_to in writers.items():
        if not (FOLDER / file).exists():
            write_to(FOLDER / file)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    input = torch.randn(STEPS, BATCH, INPUT_FEATURES, dtype=torch.float64)
    h, c = torch.randn(2, BATCH, STATE_SIZE, dtype=torch.float64)

    model = Cell()
    all_steps, never = torch.full((BATCH,), STEPS), torch.zeros(STEPS, BATCH, dtype=torch.bool)
    write("cell", model, (input, h, c), formula(lltm_step, model.cell, input, h, c, all_steps, never)[1:])

    lengths, reset = torch.tensor([STEPS, 0, 2]), never.clone()
    reset[2, 0] = reset[1, 2] = True
    given = input, h, c, lengths, reset
    for name, model, step in (("sequence", Sequence(), lltm_step), ("lstm", Lstm(), lstm_step)):
        write(name, model, given, formula(step, model.cell, *given))
    model = Gru()
    write("gru", model, (input, h, lengths, reset), formula(gru_step, model.cell, *given)[:2])


if __name__ == "__main__":
    main()
