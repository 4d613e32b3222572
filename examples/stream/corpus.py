"""The text: the source of Python's standard library, which every machine has, as streams of bytes."""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

BEGIN = 0
"""Precedes the first byte of each file; no source file contains it."""

HELD_OUT_PART = 24
"""One file in this many is held out."""

FOREIGN = {
    "__pycache__",
    "encodings",
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
    """Concatenated files: their bytes (S), uint8, with BEGIN before each file."""

    bytes: Tensor
    files: int


class Chunk(NamedTuple):
    """Some steps of all rows, time first: (T, N)."""

    bytes: Tensor
    """int64: the input."""
    next_bytes: Tensor
    """int64: the target."""


def source_files() -> tuple[list[Path], list[Path]]:
    """The training and held-out files, selected by name, so the split is always the same."""
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
    """The text of the files, in the given order or, with a seed, in random order."""
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        files = [files[index] for index in torch.randperm(len(files), generator=generator).tolist()]
    contents = [content for path in files if (content := path.read_bytes()) and BEGIN not in content]
    text = bytearray().join(bytes([BEGIN]) + content for content in contents)
    return Text(torch.frombuffer(text, dtype=torch.uint8), len(contents))


def chunks(text: Text, rows: int, steps: int, rank: int = 0, ranks: int = 1) -> Iterator[Chunk]:
    """Splits the text into rows that are read side by side, and the rows into chunks, endlessly.

    Each row continues in the next chunk, so the state can be carried over. Each of several processes gets its own part
    of the rows.
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
