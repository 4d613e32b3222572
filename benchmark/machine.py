"""The header of every result: the machine and the software."""

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone

import torch

import lltm


def _cpu_field(name: str) -> str | None:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
    except OSError:
        return None


def _matrix_libraries() -> str:
    settings = torch.__config__.show()
    blas = settings.partition("BLAS_INFO=")[2].partition(",")[0] or "unknown"
    versions = [
        line.strip(" -").split(" (")[0] for line in settings.splitlines() if "Kernel Library" in line or "DNN v" in line
    ]
    return "; ".join([f"BLAS {blas}", *versions])


def _commit() -> str:
    """The commit of the checkout, with "-dirty" if it has changes; "unknown" outside of one."""
    command = ["git", "-C", os.path.dirname(__file__), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def gpu_clocks() -> dict[str, str]:
    """The driver, and the current clocks and temperature, if nvidia-smi reports them."""
    fields = ["driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu"]
    try:
        output = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"],
            capture_output=True, text=True, check=True, timeout=30,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(
        zip(
            (f"GPU {field}" for field in fields),
            (value.strip() for value in output.splitlines()[0].split(",")),
            strict=True,
        )
    )


def describe(devices: list[str]) -> dict[str, str]:
    """Names and values of everything that a reader needs to interpret the results, in order."""
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join([os.path.basename(sys.executable), *sys.argv]),
        "lltm": lltm.__version__,
        "commit": _commit(),
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
        "CPU": f"{_cpu_field('model name') or platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "CPU clock now": f"{_cpu_field('cpu MHz') or 'unknown'} MHz",
        "CPU capability of PyTorch": torch.backends.cpu.get_cpu_capability(),
        "libraries": _matrix_libraries(),
        "LLTM_CPU_GEMM": os.environ.get("LLTM_CPU_GEMM", "unset"),
    }
    if "cuda" in devices:
        facts |= {
            "GPU": torch.cuda.get_device_name(),
            "architectures": " ".join(lltm.build_info.architectures) if lltm.build_info else "unknown",
            "CUDA of PyTorch": str(torch.version.cuda),
            "cuDNN": str(torch.backends.cudnn.version()),
            "LLTM_CUDA_PATH": os.environ.get("LLTM_CUDA_PATH", "unset"),
        } | gpu_clocks()
    return facts
