"""Runs every test of the CPU path that the environment selects, in one process, for test_cpu_paths.py.

LLTM_CPU_GEMM and ATEN_CPU_CAPABILITY select the path, SIZES="1:3" takes every third of
the sizes of cpu_path.py and cpu_sequence_path.py, from the second on.
"""

import os
import platform
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import trapping

FOLDER = Path(__file__).parent


def main() -> int:
    tests = (str(FOLDER / name) for name in ("cpu_path.py", "cpu_sequence_path.py"))
    failed = pytest.main(["-q", "-p", "no:cacheprovider", *tests])
    # Elsewhere, floating-point exceptions need not trap; and other libraries may raise them.
    if not failed and platform.machine() == "x86_64" and os.environ["LLTM_CPU_GEMM"] == "own":
        trapping.main()
    return failed


if __name__ == "__main__":
    sys.exit(main())
