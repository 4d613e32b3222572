"""The scripts that use the operators, run as a user would run them."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]


def run(script: str) -> str:
    process = subprocess.run([sys.executable, FOLDER / script], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_straight_through_trains_and_the_true_gradient_does_not(library):
    output = run("train.py")
    accuracy = {name: float(value) for name, value in re.findall(r"digits, (.+) gradient: ([\d.]+)%", output)}
    assert accuracy["straight-through"] > 95
    assert accuracy["true"] < 50
    kept = re.search(r"(\d+) KiB with FusedConvBatchNorm2D, (\d+) KiB with conv2d and batch_norm2d", output)
    fused, plain = map(int, kept.groups())
    assert 0 < fused < 0.75 * plain


def test_peak_memory(library):
    peak = re.search(r"(\d+) MiB with conv2d_batch_norm, (\d+) MiB with conv2d", run("measure_memory.py"))
    fused, plain = map(int, peak.groups())
    assert 0 < fused < 0.95 * plain
