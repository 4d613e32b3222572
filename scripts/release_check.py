"""Look into the wheel, install it beside each minor version of PyTorch, and use it: make release-check.

Each version in turn gets a new environment with PyTorch's wheel for the CPU, with --index-url "" that of PyPI, whose
CUDA libraries take 5 GB, or that of one of the Pythons of --python. The Python lines of the README run there without a
compiler on PATH, with the library that the wheel chooses and, if that has CUDA, also with LLTM_CPU_ONLY=1. Then
test/package/consumer finds the CMake package and links the library. For a version that the wheel leaves out (--built
2.13), the library is first built with python -m lltm.build.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

from make_wheel import ROOT, minor_versions

LARGEST_WHEEL = 25_000_000
# What a wheel's libraries may need: those of kernels nothing of PyTorch, and glue for the CPU nothing of CUDA.
SYSTEM = {"ld-linux", "libc", "libdl", "libgcc_s", "libm", "libpthread", "librt", "libstdc++"}
FOR_THE_CPU = SYSTEM | {"liblltm_cpu", "libc10", "libtorch_cpu"}
FOR_CUDA = FOR_THE_CPU | {"liblltm_cuda12", "liblltm_cuda13", "libc10_cuda", "libtorch_cuda"}

WHERE_TORCH_IS = "import pathlib, torch; print(torch.__version__, pathlib.Path(torch.__file__).parents[1])"
ONE_RUNTIME = """
import lltm, torch
lltm.LLTM(3, 4)(torch.zeros(5, 3))
with open("/proc/self/maps") as maps:
    runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line or "libiomp" in line}
assert len(runtimes) == 1, runtimes
print(lltm.build_info, lltm.library_path)
print("CUDA" if lltm.has_cuda else "CPU")
"""


def run(*command: object, cwd: Path | str = "/", **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and key[:5] != "LLTM_"}
    done = subprocess.run(
        [str(part) for part in command], env=environment | variables, cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"release_check.py: {' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def check_contents(wheel: Path, folder: Path) -> None:
    """The size of the wheel, and what its libraries need and where they look for it."""
    size = wheel.stat().st_size
    print(f"-- {wheel.name}: {size / 1e6:.1f} MB", flush=True)
    if size > LARGEST_WHEEL:
        sys.exit(f"release_check.py: the wheel is larger than {LARGEST_WHEEL / 1e6:.0f} MB")
    zipfile.ZipFile(wheel).extractall(folder)
    lib = folder / "lltm" / "lib"
    for library in sorted(lib.rglob("*.so")):
        dynamic = run("readelf", "--dynamic", "--wide", library)
        needed = set(re.findall(r"\(NEEDED\).*\[(ld-linux|[^.]*)", dynamic))
        paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
        name = library.relative_to(lib)
        others = " ".join(sorted(needed - SYSTEM)) or "only the system"
        print(f"   {name}: {library.stat().st_size / 1e6:.2f} MB, needs {others}")
        kind = "kernels" if library.parent == lib else library.parent.name
        allowed = {"kernels": SYSTEM, "cpu": FOR_THE_CPU}.get(kind, FOR_CUDA)
        if not needed <= allowed:
            sys.exit(f"release_check.py: {name} must not need {', '.join(sorted(needed - allowed))}")
        if not all(path.startswith("$ORIGIN") for path in ":".join(paths).split(":") if path):
            sys.exit(f"release_check.py: {name} looks for libraries in {paths}")


def provide_torch(python: Path, minor: str, index_url: str, others: list[Path]) -> None:
    """Install this minor version of PyTorch for ``python``, or let it use that of another Python."""
    for other in others:
        version, site = run(other, "-c", WHERE_TORCH_IS).split()[-2:]
        if version.startswith(f"{minor}."):
            (own,) = python.parents[1].glob("lib/python*/site-packages")
            (own / "other.pth").write_text(f"{site}\n")
            run(python, "-m", "pip", "uninstall", "-q", "-y", "setuptools")  # PyTorch may need a newer one
            return
    index = ["--index-url", index_url] if index_url else []
    run(python, "-m", "pip", "install", "-q", *index, f"torch=={minor}.*")


def check(wheel: Path, minor: str, index_url: str, others: list[Path], folder: Path, built: bool) -> None:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python3"
    provide_torch(python, minor, index_url, others)
    run(python, "-m", "pip", "install", "-q", "numpy")
    run(python, "-m", "pip", "install", "-q", "--no-index", wheel)  # torch is there, and must be enough
    cache = {"LLTM_CACHE": str(folder / "cache")}
    if built:
        print(run(python, "-m", "lltm.build", **cache).splitlines()[-1], flush=True)
    without_compiler = {"PATH": str(folder / "bin"), **cache}
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    for choice in ({}, {"LLTM_CPU_ONLY": "1"}):
        if choice and built:
            break  # the cache has one library
        run(python, "-c", blocks, cwd=folder, **without_compiler, **choice)
        said = run(python, "-c", ONE_RUNTIME, **without_compiler, **choice).strip().splitlines()
        print(said[-2], flush=True)
        if said[-1] == "CPU":
            break
    prefix = run(python, "-c", "import lltm; print(lltm.cmake_prefix_path)", **cache).split()[-1]
    build = folder / "consumer"
    run(
        "cmake", "-S", ROOT / "test" / "package" / "consumer", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPython_EXECUTABLE={python}",
    )  # fmt: skip
    run("cmake", "--build", build, "--target", "names_no_symbol", "calls_the_api")
    run(build / "names_no_symbol")
    run(build / "calls_the_api")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, nargs="?", help="default: the newest one in dist/")
    parser.add_argument("--versions", nargs="+", default=minor_versions(), help="minor versions of PyTorch")
    parser.add_argument("--built", nargs="*", default=[], help="of these, the ones that the wheel leaves out")
    parser.add_argument("--index-url", default="https://download.pytorch.org/whl/cpu")
    parser.add_argument("--python", type=Path, nargs="*", default=[], help="Pythons whose PyTorch is used, if it fits")
    options = parser.parse_args()
    wheel = options.wheel or max((ROOT / "dist").glob("lltm-*.whl"), key=os.path.getmtime, default=None)
    if wheel is None:
        sys.exit("release_check.py: there is no wheel in dist/: make wheel")
    with tempfile.TemporaryDirectory() as folder:
        check_contents(wheel.resolve(), Path(folder))
    for minor in options.versions:
        print(f"-- PyTorch {minor}", flush=True)
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"lltm-{minor}-") as folder:
            check(wheel.resolve(), minor, options.index_url, options.python, Path(folder), minor in options.built)
        print(f"   in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
