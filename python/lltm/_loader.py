"""Find, check and load the operator library, and explain failures.

Both checks happen before anything is loaded: loading an operator library twice, from two paths, aborts the process, and
loading one built for another PyTorch fails with the mangled name of some symbol.
"""

import json
import os
import platform
import re
import stat
import sys
from itertools import pairwise
from pathlib import Path, PosixPath
from typing import NamedTuple

import torch

from ._version import VERSION

LIBRARY_NAME = "liblltm_ops.so"
OLDEST_TORCH = (2, 11)  # as in requirements/build.txt


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


class LibraryPath(PosixPath):
    """The path of the library. Calling it gives the same path: ``lltm.library_path`` and ``lltm.library_path()``."""

    def __call__(self) -> Path:
        return Path(self)


def registered() -> bool:
    """Whether the operators are registered in this process already."""
    return hasattr(torch.ops.lltm, "forward")


def minor_version(version: str) -> tuple[int, int]:
    """The first two numbers of a version of PyTorch."""
    match = re.match(r"(\d+)\.(\d+)", version)
    assert match is not None, version
    return int(match[1]), int(match[2])


def check_age(version: str) -> None:
    """Raise ImportError if this PyTorch is older than any that lltm supports: rebuilding lltm would not help."""
    if minor_version(version) < OLDEST_TORCH:
        oldest = "{}.{}".format(*OLDEST_TORCH)
        raise ImportError(
            f"lltm: PyTorch {version} is too old: lltm needs {oldest} or newer: pip install --upgrade 'torch>={oldest}'"
        )


def is_release(version: str) -> bool:
    """Whether this is a PyTorch of pytorch.org or PyPI. The ABI of others may differ: those of vendors, such as
    2.11.0a0+nv, nightly ones, and conda-forge's (2.11.0.post300)."""
    return re.fullmatch(r"\d+\.\d+\.\d+(\+(cpu|cu\d+))?", version) is not None


def kind_of_library(lib: Path) -> str:
    """Which of a wheel's libraries suits the running PyTorch: "cpu", or "cuda13" for CUDA 13. Raises ImportError if the
    wheel has kernels for another CUDA only: they are never left out silently."""
    setting = os.environ.get("LLTM_CPU_ONLY", "")
    if setting not in ("", "0", "1"):
        raise ImportError(f"lltm: expected LLTM_CPU_ONLY to be 0 or 1, got {setting}")
    built_for = [path.stem.removeprefix("liblltm_cuda") for path in sorted(lib.glob("liblltm_cuda*.so"))]
    if setting == "1" or not built_for or torch.version.cuda is None:
        return "cpu"
    major = torch.version.cuda.partition(".")[0]
    if major not in built_for:
        raise ImportError(
            f"lltm has CUDA {' and '.join(built_for)} kernels, this PyTorch has CUDA {torch.version.cuda}: set "
            f"LLTM_CPU_ONLY=1, or build from source with nvcc {torch.version.cuda}"
        )
    return f"cuda{major}"


def cache_entry(kind: str, version: str) -> Path:
    """The folder of the cache for the library of this kind, version of lltm and running PyTorch."""
    cuda = f"-cuda{torch.version.cuda}" if kind != "cpu" else "-cpu"
    return cache_folder() / f"{version}-torch{torch.__version__}{cuda}-{platform.machine()}"


def cache_folder() -> Path:
    """Where ``python -m lltm.build`` puts libraries."""
    if named := os.environ.get("LLTM_CACHE"):
        return Path(named).absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "lltm").absolute()
    try:
        return Path.home() / ".cache" / "lltm"
    except RuntimeError as error:  # in a container, the user may be unknown
        raise ImportError("lltm: this user has no home folder for a cache: let LLTM_CACHE name a folder") from error


def check_owner(path: Path) -> None:
    """Raise ImportError if others than the user and root could have written a file or folder of the cache."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise ImportError(
            f"lltm: {path} belongs to another user (uid {status.st_uid}): nothing is loaded from it. Let LLTM_CACHE "
            "name a folder of yours"
        )
    for whose, bit in (("every user", stat.S_IWOTH), ("every user of its group", stat.S_IWGRP)):
        if status.st_mode & bit:
            raise ImportError(
                f"lltm: {whose} can write to {path}: nothing is loaded from it. Let LLTM_CACHE name a folder of yours"
            )


def check_entry(entry: Path) -> None:
    """Raise ImportError if others could have written what an import loads from this entry of the cache."""
    lib = entry / "lib"
    for path in (entry.parent, entry, lib, *lib.glob("*.so")):
        check_owner(path)


def find_in_cache(kind: str, version: str) -> Path | None:
    """The library that ``python -m lltm.build`` made."""
    entry = cache_entry(kind, version)
    library = entry / "lib" / LIBRARY_NAME
    try:
        library.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ImportError(
            f"lltm: cannot read {library}: {error.strerror}. Let LLTM_CACHE name a folder of yours"
        ) from error
    check_entry(entry)
    return library


def find_in_wheel(kind: str, lib: Path) -> Path | None:
    """The library of this kind for the running PyTorch in a wheel for several versions."""
    major, minor = minor_version(torch.__version__)
    library = lib / f"torch-{major}.{minor}" / kind / LIBRARY_NAME
    return library if is_release(torch.__version__) and library.is_file() else None


def find_in_wheel_or_cache(package: Path) -> Path | None:
    """The library for the running PyTorch. None if the package is not a wheel for several versions."""
    glue = package / "source" / "glue.json"
    if not glue.is_file():
        return None
    kind = kind_of_library(package / "lib")
    library = find_in_wheel(kind, package / "lib") or find_in_cache(kind, json.loads(glue.read_text())["version"])
    if library is None:
        raise ImportError(f"lltm has no library for PyTorch {torch.__version__}: run python -m lltm.build")
    return library


def find_library(package_folders: list[str]) -> Path:
    """The library to load: the one that LLTM_LIBRARY names, else the package's own, else that in the cache."""
    override = os.environ.get("LLTM_LIBRARY")
    candidates = [Path(override)] if override else [Path(folder, "lib", LIBRARY_NAME) for folder in package_folders]
    for candidate in candidates:
        if candidate.is_file():
            # Not what liblltm_ops.so is a link to: that has the version in its name.
            return candidate.parent.resolve() / candidate.name
    searched = ", ".join(str(candidate.absolute()) for candidate in candidates)
    if override:
        raise ImportError(f"lltm: LLTM_LIBRARY names {searched}, which is not a file")
    for folder in package_folders:
        if library := find_in_wheel_or_cache(Path(folder)):
            return library.resolve()
    raise ImportError(
        f"lltm: the operator library is missing, looked for {searched}. Install the package (in a checkout of lltm: "
        f"pip install --no-build-isolation .), or let LLTM_LIBRARY name that of a build tree (build/{LIBRARY_NAME})."
    )


def find_loaded_library() -> Path | None:
    """The library that this process has loaded; None if the operators come from a file with another name."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            *_, path = line.rstrip("\n").split(maxsplit=5)
            if re.fullmatch(rf"{re.escape(LIBRARY_NAME)}(\.[0-9.]+)?", Path(path).name):
                plain = Path(path).with_name(LIBRARY_NAME)  # the name that find_library() returns
                return plain if plain.exists() and plain.samefile(path) else Path(path)
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
    minor = minor_version(info.torch)
    running_minor = minor_version(torch.__version__)
    cuda_major = info.cuda and info.cuda.split(".")[0]
    running_cuda_major = torch.version.cuda and torch.version.cuda.split(".")[0]
    if minor != running_minor or (cuda_major and cuda_major != running_cuda_major):
        built_with = f"PyTorch {info.torch}" + (f" and CUDA {info.cuda}" if info.cuda else "")
        wanted = "{}.{}".format(*minor) + (f" with CUDA {cuda_major}" if cuda_major else "")
        raise ImportError(_mismatch(library, built_with, wanted))


def check_version(library: Path, info: BuildInfo | None) -> None:
    """Raise ImportError if the library is known to be of another version of lltm than this package."""
    if info and info.version != VERSION:
        raise ImportError(
            f"lltm: {library} is of version {info.version}, but the package {Path(__file__).parent} is of version "
            f"{VERSION}. Build or install both from one version, or let LLTM_LIBRARY name one of this version."
        )


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


def load(package_folders: list[str]) -> tuple[LibraryPath | None, BuildInfo | None]:
    """Load the operators unless they are registered already. Return the library's path and what it was built with."""
    if registered():
        loaded = find_loaded_library()
        if loaded is None:
            return None, None
        info = read_build_info(loaded)
        check_version(loaded, info)
        return LibraryPath(loaded), info
    check_age(torch.__version__)
    library = find_library(package_folders)
    info = read_build_info(library)
    if info:
        check_torch(library, info)
    check_version(library, info)
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(_explain(library, info, error)) from error
    if not registered():
        raise ImportError(f"lltm: {library} does not register the operators lltm::forward and lltm::backward")
    return LibraryPath(library), info


def find_cmake_prefix(library: Path | None) -> str | None:
    """The install prefix that contains the library, if there is one. In a wheel for several versions of PyTorch, the
    library is two folders deeper."""
    for lib in library.parents[:3:2] if library else ():
        if (lib / "cmake" / "lltm" / "lltm-config.cmake").is_file():
            return str(lib.parent)
    return None


def is_build_command() -> bool:
    """Whether this is ``python -m lltm.build``, which imports the package before it makes the library."""
    arguments = pairwise([*sys.orig_argv, ""])
    return any(re.match(r"-[A-Za-z]*m ?lltm\.build( |$)", f"{option} {value}") for option, value in arguments)
