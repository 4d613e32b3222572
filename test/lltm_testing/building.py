"""Shared by the build tests: commands that build something, in an environment without references to lltm."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lltm

ROOT = Path(__file__).resolve().parents[2]
# The variables that say where lltm or libtorch is.
HIDDEN = ("EXAMPLE_OPS_LIBRARY", "LLTM_LIBRARY", "PYTHONPATH", "CMAKE_PREFIX_PATH", "Torch_DIR")
# After so many seconds, a process hangs. On a busy machine, others take many minutes.
HANGS = 3600


def run(*command, cwd: Path | None = None, fails: bool = False, **variables) -> str:
    """Run a command, which must succeed, or fail with ``fails``, and return its output. ``variables`` are added to the
    environment; those that are None are removed from it."""
    environment = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # cmake, ninja, python3
    environment.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))  # of torch.utils.cpp_extension
    environment |= variables
    process = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
        timeout=HANGS, env={key: str(value) for key, value in environment.items() if value is not None},
    )  # fmt: skip
    assert (process.returncode != 0) == fails, f"{command}:\n{process.stdout}"
    return process.stdout


def run_python(program: str, **options) -> str:
    return run(sys.executable, "-c", program, **options)


def with_lltm(*folders: Path) -> dict[str, object]:
    """Variables for a program that imports the lltm under test, and the modules in these folders."""
    path = os.pathsep.join(map(str, (*folders, Path(lltm.__file__).parents[1])))
    return {"PYTHONPATH": path, "LLTM_LIBRARY": lltm.library_path}


def run_demo(folder: Path, *options, **settings) -> str:
    """Run the demo of an example with the lltm under test."""
    return run(sys.executable, folder / "demo.py", *options, **settings, **with_lltm())


def make_libtorch(folder: Path, version: str, cuda: str | None = None) -> Path:
    """A PyTorch of empty files, as find_package(Torch) finds it; ``version`` may have a label, such as 2.12.0+cpu."""
    files = {
        "share/cmake/Torch/TorchConfig.cmake": "",
        "share/cmake/Torch/TorchConfigVersion.cmake": f'set(PACKAGE_VERSION "{version.partition("+")[0]}")\n',
        "include/torch/csrc/api/include/torch/torch.h": "",
        "build-version": f"{version}\n",
        **{f"lib/lib{name}.so": "" for name in ("torch", "torch_cpu", "c10")},
        **({"lib/libtorch_cuda.so": "", "lib/libc10_cuda.so": f"\0libcudart.so.{cuda}\0"} if cuda else {}),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def build_wheel(folder: Path) -> Path:
    """The wheel for the CPU, built in a folder, or once for all processes of a run of the tests. The object files stay
    in lltm's build tree, and so does the wheel until the next run."""
    if name := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        folder = lltm.library_path.parent / f"wheel-of-run-{name}"
        folder.mkdir(exist_ok=True)
        for other in folder.parent.glob("wheel-of-run-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
    with open(lltm.library_path.parent / "wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built := list(folder.glob("*.whl")):
            return built[0]
        run(
            sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder,
            f"--config-settings=build-dir={kept_folder('wheel', folder)}",
            "--config-settings=cmake.define.LLTM_CUDA=OFF", "--config-settings=cmake.define.CMAKE_UNITY_BUILD=ON",
            "--config-settings=cmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE=0", ROOT,
        )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


def kept_folder(name: str, otherwise: Path) -> Path:
    """A folder in lltm's build tree, where the next run finds the compiled files, or another folder without one."""
    folder = lltm.library_path.parent
    return folder / name if (folder / "CMakeCache.txt").exists() else otherwise / name


def torch_cuda_arch_list() -> str:
    """The architectures that lltm was built for in the format of TORCH_CUDA_ARCH_LIST: "8.0 9.0a", and PTX of 9.0 as
    "9.0+PTX"."""
    names = (re.sub(r"(\d[af]?)(-real|-virtual)?$", r".\1\2", name) for name in lltm.build_info.architectures)
    return " ".join(name.removesuffix("-real").replace("-virtual", "+PTX") for name in names)
