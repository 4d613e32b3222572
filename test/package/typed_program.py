"""A user's typed program, which test_typing.py checks with mypy and runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from typing_extensions import assert_type

import lltm


class Tagger(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.rnn = lltm.LLTM(features, 4, bidirectional=True, dtype=torch.float64)
        self.cell = lltm.LLTMCell(8, 4, device="cpu", dtype=torch.float64)

    def forward(self, input: Tensor, lengths: Tensor | None = None) -> Tensor:
        output, _ = self.rnn.forward(input, lengths=lengths)
        assert_type(output, Tensor)
        new_h, _ = self.cell.forward(output[0])
        return new_h


def call_modules() -> None:
    rnn = lltm.LLTM.from_cell(lltm.LLTMCell(3, 4), batch_first=True)
    assert_type(rnn, lltm.LLTM)
    assert_type(rnn.forward(torch.zeros(2, 5, 3)), tuple[Tensor, tuple[Tensor, Tensor]])
    packed = pack_sequence([torch.zeros(5, 3), torch.zeros(2, 3)])
    assert_type(rnn.forward(packed), tuple[PackedSequence, tuple[Tensor, Tensor]])
    assert_type(rnn.all_weights, list[list[Tensor]])
    assert_type(rnn.hidden_size, int)


def call_operators() -> None:
    input, weights = torch.zeros(5, 2, 3), torch.zeros(12, 7)
    output, h_n, c_n, cells, gates = lltm.ops.sequence(input, weights, keep=True)
    assert_type(gates, Tensor)
    new_h, new_cell, gates = lltm.ops.forward(input[0], weights, None, h_n, c_n)
    assert_type(new_cell, Tensor)


def ask_about_the_library() -> None:
    if lltm.library_path is not None:
        assert_type(lltm.library_path(), Path)
    assert_type(lltm.cmake_prefix_path, str | None)
    assert_type(lltm.has_cuda, bool)
    assert_type(lltm.__version__, str)
    if lltm.build_info is not None:
        assert_type(lltm.build_info.architectures, tuple[str, ...])
    table: dict[Any, Callable[..., Any]] = {**lltm.decompositions()}
    assert table


if __name__ == "__main__":
    Tagger(3)(torch.zeros(5, 2, 3, dtype=torch.float64), torch.tensor([5, 2]))
    call_modules()
    call_operators()
    ask_about_the_library()
