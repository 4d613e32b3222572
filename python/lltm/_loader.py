"""Find, check and load the operator library, and explain failures.

Both checks happen before anything is loaded: loading an operator library twice, from two paths, aborts the process, and
loading one built for another PyTorch fails with the mangled name of some symbol.
"""

import importlib.metadata
import json
import os
from pathlib import Path
from typing import NamedTuple

import torch

LIBRARY_NAME = "liblltm_ops.so"


class BuildInfo(NamedTuple):
    """What a library was built with. CMake writes these four values into ``liblltm_ops.json``."""

    version: str
    """Version of lltm."""
    torch: str
    """Version of PyTorch, such as ``2.11.0+cu130``."""
    cuda: str | None
    """Version of the CUDA toolkit, None for a build without CUDA kernels."""
    architectures: tuple[str, ...]
    """CUDA architectures that the library has kernels for, such as ``("80", "90a")``."""

    @property
    def wgmma(self) -> bool:
        """Whether there are kernels that use Hopper's wgmma instructions, which ``90a`` has and ``90`` lacks."""
        return any(architecture.startswith("90a") for architecture in self.architectures)


def registered() -> bool:
    """Whether the operators are registered in this process already."""
    return hasattr(torch.ops.lltm, "forward")


def find_library(package_folders: list[str]) -> Path:
    """The library to load: the one that LLTM_LIBRARY names, else the package's own."""
    override = os.environ.get("LLTM_LIBRARY")
    candidates = [Path(override)] if override else [Path(folder, "lib", LIBRARY_NAME) for folder in package_folders]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    searched = ", ".join(str(candidate.absolute()) for candidate in candidates)
    if override:
        raise ImportError(f"lltm: LLTM_LIBRARY names {searched}, which is not a file")
    raise ImportError(
        f"lltm: the operator library is missing, looked for {searched}. Install the package (in a checkout of lltm: "
        f"pip install --no-build-isolation .), or let LLTM_LIBRARY name that of a build tree (build/{LIBRARY_NAME})."
    )


def find_loaded_library() -> Path | None:
    """The library that this process has loaded; None if the operators come from a file with another name."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            *_, path = line.rstrip("\n").split(maxsplit=5)
            if path.endswith(f"/{LIBRARY_NAME}"):
                return Path(path)
    return None


def read_build_info(library: Path) -> BuildInfo | None:
    """What the JSON file next to the library says; None if there is no such file."""
    path = library.with_suffix(".json")
    try:
        values = json.loads(path.read_text())
        info = BuildInfo(values["version"], values["torch"], values["cuda"], tuple(values["architectures"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(f"lltm: cannot read {path}, which says what the library was built with: {error!r}") from error
    if not all(isinstance(text, str) for text in (info.version, info.torch, info.cuda or "", *info.architectures)):
        raise ImportError(f"lltm: expected strings in {path}, got {values}")
    return info


def check_torch(library: Path, info: BuildInfo) -> None:
    """Raise ImportError if the running PyTorch cannot load a library built as ``info`` says."""
    minor = info.torch.split("+")[0].split(".")[:2]
    running_minor = torch.__version__.split("+")[0].split(".")[:2]
    cuda_major = info.cuda and info.cuda.split(".")[0]
    running_cuda_major = torch.version.cuda and torch.version.cuda.split(".")[0]
    if minor != running_minor or (cuda_major and cuda_major != running_cuda_major):
        built_with = f"PyTorch {info.torch}" + (f" and CUDA {info.cuda}" if info.cuda else "")
        wanted = ".".join(minor) + (f" with CUDA {cuda_major}" if cuda_major else "")
        raise ImportError(_mismatch(library, built_with, wanted))


def _mismatch(library: Path, built_with: str, wanted: str) -> str:
    # Not every version names its CUDA, as 2.11.0+cu130 does.
    running_cuda = f"with CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return (
        f"lltm: {library} was built with {built_with}, but PyTorch {torch.__version__} {running_cuda} is running. "
        f"Install PyTorch {wanted}, or build lltm again with the PyTorch that is running: "
        "pip install --no-build-isolation . in a checkout of lltm."
    )


def _explain(library: Path, info: BuildInfo | None, error: OSError) -> str:
    reason = str(error.__cause__ or error)  # torch.ops.load_library wraps the system's error
    file, _, problem = reason.partition(": ")  # the path of a library, and what is wrong with it
    if problem.startswith("undefined symbol") or Path(file).name.startswith(("libtorch", "libc10")):
        built_with = f"PyTorch {info.torch}" if info else "another PyTorch (no liblltm_ops.json says which)"
        return f"{_mismatch(library, built_with, 'of that version')} The system says: {reason}"
    return f"lltm: cannot load {library}: {reason}"


def load(package_folders: list[str]) -> tuple[Path | None, BuildInfo | None]:
    """Load the operators unless they are registered already. Return the library's path and what it was built with."""
    if registered():
        library = find_loaded_library()
        return library, read_build_info(library) if library else None
    library = find_library(package_folders)
    info = read_build_info(library)
    if info:
        check_torch(library, info)
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(_explain(library, info, error)) from error
    if not registered():
        raise ImportError(f"lltm: {library} does not register the operators lltm::forward and lltm::backward")
    return library, info


def package_version(info: BuildInfo | None) -> str:
    """The version of the loaded library, else of the installed package."""
    if info:
        return info.version
    try:
        return importlib.metadata.version("lltm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def find_cmake_prefix(library: Path | None) -> str | None:
    """The install prefix that contains the library, if there is one."""
    if library and (library.parent / "cmake" / "lltm" / "lltm-config.cmake").is_file():
        return str(library.parent.parent)
    return None
