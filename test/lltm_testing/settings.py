"""The settings of a process that tests lltm: finds and imports lltm. Import it before torch.

LLTM_LIBRARY and PYTHONPATH select what is tested. The defaults are this checkout's package and the library in build/.
"""

import importlib.util
import os
import sys
from pathlib import Path

# Threads wait without spinning. On a busy machine, many small calls then take a tenth of the time. Set before torch
# loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# The processes of pytest-xdist (-n) share the cores. If each of them used all cores, they would mostly wait for each
# other.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // int(workers))))

import torch

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("lltm") is None:
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("LLTM_LIBRARY", str(ROOT / "build" / "liblltm_ops.so"))

import lltm  # noqa: E402

WITH_CUDA = torch.cuda.is_available() and lltm.has_cuda


def allow_tf32(allowed: bool) -> None:
    """Lets float32 products on GPUs use TF32 or not: those of the LSTM, and all others."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


allow_tf32(False)  # the LSTM's default is True
# Otherwise, if cuBLAS splits K, it may round the partial sums of a 16-bit product to 16 bits, which exceeds the bounds
# of bounds.py for sums in float32.
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
