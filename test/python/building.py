"""What the tests of building share: commands that build something, in an environment that tells them of no lltm."""

import os
import re
import subprocess
import sys
from pathlib import Path

import lltm


def run(*command, cwd: Path | None = None, **variables) -> str:
    """The output of a command that must succeed. ``variables`` are added to those of the environment."""
    hidden = ("EXAMPLE_OPS_LIBRARY", "LLTM_LIBRARY", "PYTHONPATH")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # cmake, ninja, python3
    environment.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))  # of torch.utils.cpp_extension
    environment |= {key: str(value) for key, value in variables.items()}
    process = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
        env=environment,
    )  # fmt: skip
    assert process.returncode == 0, f"{command}:\n{process.stdout}"
    return process.stdout


def run_python(program: str, **options) -> str:
    return run(sys.executable, "-c", program, **options)


def kept_folder(name: str, otherwise: Path) -> Path:
    """A folder in lltm's build tree, where the next run finds what this one has compiled; else another one."""
    folder = lltm.library_path.parent
    return folder / name if (folder / "CMakeCache.txt").exists() else otherwise / name


def torch_cuda_arch_list() -> str:
    """The architectures that lltm was built for, as TORCH_CUDA_ARCH_LIST wants them: "8.0 9.0a"."""
    return " ".join(re.sub(r"(\d[af]?)(-real)?$", r".\1", name) for name in lltm.build_info.architectures)
