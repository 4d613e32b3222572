"""Build the operator library for the PyTorch that is installed: ``python -m lltm.build``.

The wheel of lltm has a library for each PyTorch that it supports. For any other, such as a newer one or that of a
vendor, this compiles what depends on PyTorch, and links it with the wheel's kernels, into a cache where ``import lltm``
finds it. It needs g++ 11 or newer, for CUDA also the toolkit's headers, but no nvcc. An import never starts it.

The cache is the folder ``LLTM_CACHE``, else ``lltm`` in ``XDG_CACHE_HOME`` or ``~/.cache``. Set ``LLTM_CPU_ONLY=1`` to
leave out CUDA.
"""

import argparse
import fcntl
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TextIO

_OLDEST_GCC = 11
_CUDA_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h", "cublas_v2.h", "cusparse.h", "nv/target")


class BuildError(Exception):
    """Why a library cannot be built, and what to do."""


class Torch(NamedTuple):
    """A PyTorch to build for. It need not be the one that is running, nor be complete."""

    version: str
    """The full version, such as ``2.11.0+cu130``."""
    include: Path
    lib: Path

    @classmethod
    def in_folder(cls, version: str, *folders: Path) -> "Torch":
        """The one in the first of these folders that has its headers: a package, or conda-forge's prefix."""
        for folder in folders:
            if (folder / "include" / "torch" / "csrc" / "api" / "include" / "torch" / "torch.h").is_file():
                return cls(version, folder / "include", folder / "lib")
        places = " or ".join(str(folder / "include") for folder in folders)
        raise BuildError(f"PyTorch {version} has no C++ headers in {places}: install a PyTorch that brings them")


class Parts(NamedTuple):
    """What a wheel has to build from."""

    source: Path
    """The sources, and glue.json, which lists them."""
    lib: Path
    """The folder of the libraries of kernels."""

    @property
    def settings(self) -> dict[str, Any]:
        """What glue.json says: sources, flags, versions, and the architectures of the kernels."""
        return json.loads((self.source / "glue.json").read_text())

    def kernels(self, cuda: bool) -> list[Path]:
        """The libraries of kernels, those for CUDA only if asked for."""
        return [self.lib / "liblltm_cpu.so", *(sorted(self.lib.glob("liblltm_cuda*.so")) if cuda else [])]


def find_compiler() -> list[str]:
    """The command of a usable compiler: that of CXX, else g++."""
    command = os.environ.get("CXX", "").split() or ["g++"]
    install = f"install g++ {_OLDEST_GCC} or newer (apt-get install g++, conda install gxx), or let CXX name one"
    if shutil.which(command[0]) is None:
        raise BuildError(f"found no C++ compiler, looked for {command[0]}: {install}")
    macros = subprocess.run([*command, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True).stdout
    version = re.search(r"#define __GNUC__ (\d+)", macros)
    if version is None or "__clang__" in macros or int(version[1]) < _OLDEST_GCC:
        found = f"GCC {version[1]}" if version and "__clang__" not in macros else "another compiler"
        raise BuildError(f"{command[0]} is {found}, which does not compile lltm: {install}")
    return command


def find_cuda_headers(torch: Torch, major: str) -> list[Path]:
    """The folders of CUDA's headers, of the toolkit's or of its parts from PyPI."""
    nvcc = shutil.which("nvcc")
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), nvcc and Path(nvcc).resolve().parents[1]]
    packages = torch.lib.parents[1] / "nvidia"
    site = Path(sysconfig.get_path("platlib")) / "nvidia"
    folders = [Path(toolkit, "include") for toolkit in toolkits if toolkit]
    folders += [Path("/usr/local/cuda/include"), packages / f"cu{major}" / "include", site / f"cu{major}" / "include"]
    folders += [torch.include, torch.include / "targets" / "x86_64-linux" / "include"]  # conda-forge's
    folders = list(dict.fromkeys(folders))
    for folder in folders:
        with_cccl = [folder, folder / "cccl"]  # where CUDA 13 has nv/target
        if all(any((place / name).is_file() for place in with_cccl) for name in _CUDA_HEADERS):
            version = (folder / _CUDA_HEADERS[0]).read_text(errors="replace")
            if re.search(rf"CUDART_VERSION\s+{major}\d{{3}}\b", version):
                return [place for place in with_cccl if place.is_dir()]
    searched = ", ".join(str(folder) for folder in folders)
    raise BuildError(
        f"found no headers of CUDA {major} ({', '.join(_CUDA_HEADERS)}) in {searched}: install the CUDA toolkit and "
        "let CUDA_HOME name it, or add what PyTorch's packages lack "
        f"(pip install nvidia-cuda-crt=={major}.* nvidia-cuda-cccl=={major}.*), or set LLTM_CPU_ONLY=1 to build for "
        "the CPU only"
    )


def build_glue(
    parts: Parts, torch: Torch, output: Path, *, cuda: bool, rpath: Iterable[str], jobs: int, flags: Iterable[str] = ()
) -> None:
    """Compile what depends on PyTorch, and link it into ``output`` with a .json file next to it. ``flags`` are more
    options of the compiler, also for the link."""
    settings = parts.settings
    compiler = find_compiler()
    folders = [torch.include, torch.include / "torch" / "csrc" / "api" / "include"]
    if cuda:
        folders += find_cuda_headers(torch, settings["cuda"].partition(".")[0])
    # Beside the output, which the next build removes if this one is killed.
    with tempfile.TemporaryDirectory(prefix=".lltm-build-", dir=output.parent) as scratch_name:
        scratch = Path(scratch_name)
        version = (parts.source / "src" / "version.h.in").read_text()
        version = version.replace("@PROJECT_VERSION@", settings["version"])
        version = version.replace("@LLTM_BUILT_ARCHITECTURES@", ";".join(settings["architectures"]) if cuda else "")
        (scratch / "version.h").write_text(version)
        # PyTorch's headers take most of the time, so sources are joined, as with CMAKE_UNITY_BUILD.
        joined = settings["glue"] + ([] if cuda else settings["cpu_only_glue"])
        units = [joined[start :: min(jobs, 4)] for start in range(min(jobs, 4))]
        units += [[file] for file in settings["cuda_glue"]] if cuda else []
        ours = [f"-I{scratch}", f"-I{parts.source / 'include'}", f"-I{parts.source / 'src'}"]
        command = [*compiler, *settings["flags"], *flags, *ours, *(f"-isystem{folder}" for folder in folders)]

        def compile_unit(number: int) -> Path:
            source, target = scratch / f"unit_{number}.cpp", scratch / f"unit_{number}.o"
            source.write_text("".join(f'#include "{parts.source / file}"\n' for file in units[number]))
            _run([*command, "-c", str(source), "-o", str(target)])
            return target

        with ThreadPoolExecutor(jobs) as pool:
            objects = list(pool.map(compile_unit, range(len(units))))
        torch_names = ["torch_cpu", "c10", *(["torch_cuda", "c10_cuda"] if cuda else [])]
        # PyTorch's OpenMP and CUDA runtimes have other names in other packages. They are not named, because
        # libtorch_cpu.so and libc10_cuda.so need, and so bring, the ones that they use themselves.
        _run([
            *compiler, *flags, "-shared", "-s", "-o", str(output), *map(str, objects),
            "-Wl,--as-needed", *map(str, parts.kernels(cuda)), *(str(torch.lib / f"lib{n}.so") for n in torch_names),
            "-Wl,--enable-new-dtags", *(f"-Wl,-rpath,{folder}" for folder in rpath),
        ])  # fmt: skip
    info = {
        "version": settings["version"],
        "torch": torch.version,
        "cuda": settings["cuda"] if cuda else None,
        "architectures": settings["architectures"] if cuda else [],
    }
    output.with_suffix(".json").write_text(json.dumps(info, indent=2) + "\n")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BuildError(f"the compiler failed:\n{' '.join(command)}\n{done.stdout}")


def jobs() -> int:
    """One compiler per core, but no more than fit in memory: PyTorch's headers can take 2 GB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory >> 31))


def build_into_cache() -> Path:
    """Build the library for the running PyTorch, unless the wheel or the cache has it. Returns its path."""
    import torch as running

    from . import _loader

    package = Path(__file__).parent
    parts = Parts(package / "source", package / "lib")
    if not (parts.source / "glue.json").is_file():
        raise BuildError(
            f"{package} has no sources to build from, because it was not installed from a wheel for several versions "
            "of PyTorch: pip install --no-build-isolation . in a checkout of lltm builds for the PyTorch that is "
            "installed"
        )
    oldest = re.search(r">=(\d+)\.(\d+)", parts.settings["supported_torch"])
    assert oldest is not None
    if _loader.minor_version(running.__version__) < (int(oldest[1]), int(oldest[2])):
        raise BuildError(f"PyTorch {running.__version__} is too old: lltm needs {oldest[1]}.{oldest[2]} or newer")
    kind = _loader.kind_of_library(parts.lib)
    if packaged := _loader.find_in_wheel(kind, parts.lib):
        print(f"The wheel has the library for PyTorch {running.__version__}: there is nothing to build")
        return packaged
    entry = _loader.cache_entry(kind, parts.settings["version"])
    library = entry / "lib" / _loader.LIBRARY_NAME
    with _open_lock(entry) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another process is building {library}: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if all(
            path.is_file() for path in (library, *(library.with_name(k.name) for k in parts.kernels(kind != "cpu")))
        ):
            try:
                _loader.check_entry(entry)
            except ImportError:
                print(f"Others could have written to {entry}, so it is not loaded: building it again", flush=True)
            else:
                print(f"{library} is there already. To build it again, remove {entry}")
                return library
        for killed in entry.parent.glob(f".{glob.escape(entry.name)}.*"):  # what builds have left that were killed
            shutil.rmtree(killed, ignore_errors=True)
        what = f"PyTorch {running.__version__} {f'with {kind}' if kind != 'cpu' else 'on the CPU'}"
        print(f"Building lltm for {what} (a minute or two on two cores)", flush=True)
        begin = time.monotonic()
        torch = Torch.in_folder(running.__version__, Path(running.__file__).parent, Path(sys.prefix))
        made = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
        try:
            _fill(made, package, parts, torch, cuda=kind != "cpu")
            made.chmod(0o755)
            shutil.rmtree(entry, ignore_errors=True)  # what is left of one that lost a library
            made.rename(entry)  # readers see all of it or nothing
        finally:
            shutil.rmtree(made, ignore_errors=True)
    print(f"Built {library} in {time.monotonic() - begin:.0f} s")
    return library


def _open_lock(entry: Path) -> TextIO:
    """The file that a build of this entry of the cache locks. Makes the cache's folder."""
    from . import _loader

    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _loader.check_owner(entry.parent)
        return open(f"{entry}.lock", "w")
    except OSError as error:
        raise BuildError(
            f"cannot write to the cache {entry.parent}: {error.strerror}: let LLTM_CACHE name a folder of yours"
        ) from error


def _fill(prefix: Path, package: Path, parts: Parts, torch: Torch, *, cuda: bool) -> None:
    """A prefix with the library, the kernels, the headers and the CMake package: it outlives the wheel."""
    lib = prefix / "lib"
    lib.mkdir()
    build_glue(parts, torch, lib / "liblltm_ops.so", cuda=cuda, rpath=["$ORIGIN", str(torch.lib)], jobs=jobs())
    for kernels in parts.kernels(cuda):
        shutil.copyfile(kernels, lib / kernels.name)  # not its mode: no group may write to it
    if (parts.lib / "cmake").is_dir():
        shutil.copytree(parts.lib / "cmake", lib / "cmake")
        shutil.copytree(package / "include", prefix / "include")


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m lltm.build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    os.umask(0o022)  # what others can write is not loaded
    try:
        build_into_cache()
    except (BuildError, ImportError, OSError) as error:  # OSError: for example a full disk
        message = str(error)
        sys.exit(message if message.startswith("lltm") else f"lltm.build: {message}")


if __name__ == "__main__":
    main()
