"""The C++ programs: how they are built against the installed library, and what they must agree on with Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).resolve().parent
TOLERANCE = 1e-4
"""Of the logits, relative and absolute. Batches of other sizes are summed in another order."""


def run(*command: object, quiet: bool = False) -> str:
    """Runs a command. With quiet, its standard output is returned, and its output is shown only if it fails."""
    line = [str(word) for word in command]
    done = subprocess.run(line, text=True, capture_output=quiet)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}{done.stderr or ''}\n{' '.join(line)}\nended with status {done.returncode}")
    return done.stdout or ""


def build(build_dir: Path, output: Path, source: Path = SOURCE) -> Path:
    """Installs the library and builds programs against it, as any other project would. Returns their folder."""
    prefix, tree = output / "prefix", output / "programs"
    run("cmake", "--install", build_dir, "--prefix", prefix, quiet=True)
    generator = ("-G", "Ninja") if shutil.which("ninja") and not (tree / "CMakeCache.txt").exists() else ()
    run("cmake", "-S", source, "-B", tree, *generator, f"-DCMAKE_PREFIX_PATH={prefix}", quiet=True)
    run("cmake", "--build", tree)
    return tree


def classify(programs: Path, way: str, model: Path, images: Path, device: torch.device) -> dict[str, Tensor]:
    """The logits (N, 10) of a C++ program for all images in one batch ("at once") and for each image alone."""
    logits = model.with_suffix(".logits.pt")
    run(programs / "classify", way, model, images, logits, device)
    return dict(zip(("at once", "one by one"), torch.load(logits), strict=True))


def compare(way: str, logits: dict[str, Tensor], expected: Tensor) -> None:
    """Exits with a message if C++ sees other digits than Python, or has other logits than expected."""
    for how, seen in logits.items():
        differ = torch.nonzero(seen.argmax(dim=1) != expected.argmax(dim=1)).flatten().tolist()
        if differ:
            sys.exit(
                f"{way}: C++, given the images {how}, sees other digits than Python in {len(differ)} images: {differ}"
            )
        if not torch.allclose(seen, expected, rtol=TOLERANCE, atol=TOLERANCE):
            error = (seen - expected).abs().max()
            sys.exit(f"{way}: C++, given the images {how}, has logits that differ from Python's by up to {error:.2g}")
