"""The text: the source of Python's own standard library, which is there on every machine, as streams of bytes."""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

BEGIN = 0
"""Comes before the first byte of each file; no source file contains it."""

HELD_OUT_PART = 24
"""One file in this many is kept apart."""

FOREIGN = {
    "__pycache__",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "turtledemo",
}


class Text(NamedTuple):
    """Files one after the other: their bytes (S), uint8, each file with BEGIN before it."""

    bytes: Tensor
    files: int


class Chunk(NamedTuple):
    """Some steps of all rows, time first: (T, N)."""

    bytes: Tensor
    """int64: what is read."""
    next_bytes: Tensor
    """int64: what is to be predicted."""


def source_files() -> tuple[list[Path], list[Path]]:
    """The files to train on and those held out, chosen by their names: always the same ones."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    names = [name for name in names if not FOREIGN.intersection(name.parts)]
    if not names:
        raise FileNotFoundError(f"there is no source of Python's standard library in {root}")
    parts: tuple[list[Path], list[Path]] = ([], [])
    for name in names:
        parts[zlib.crc32(name.as_posix().encode()) % HELD_OUT_PART == 0].append(root / name)
    return parts


def read(files: list[Path], seed: int | None = None) -> Text:
    """The files' text, in their order or, with a seed, in a random one."""
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        files = [files[index] for index in torch.randperm(len(files), generator=generator).tolist()]
    contents = [content for path in files if (content := path.read_bytes()) and BEGIN not in content]
    text = bytearray().join(bytes([BEGIN]) + content for content in contents)
    return Text(torch.frombuffer(text, dtype=torch.uint8), len(contents))


def chunks(text: Text, rows: int, steps: int, rank: int = 0, ranks: int = 1) -> Iterator[Chunk]:
    """Cuts the text into that many rows that are read side by side, and those into chunks, without end.

    A row goes on in the next chunk where it stopped in this one, so the state does, too. Of several processes each has
    its own part of the rows.
    """
    length = (len(text.bytes) - 1) // rows // steps * steps
    if not length:
        raise ValueError(f"{len(text.bytes)} bytes are too few for {rows} rows of {steps} steps")
    starts = (torch.arange(rows) * length)[rank::ranks]
    positions = starts + torch.arange(steps).unsqueeze(1)
    while True:
        for offset in range(0, length, steps):
            bytes = text.bytes[positions + offset].long()
            yield Chunk(bytes, text.bytes[positions + offset + 1].long())
