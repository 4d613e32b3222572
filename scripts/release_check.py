"""Install the wheel beside each minor version of PyTorch, and use it: make release-check.

Each version gets a new environment with PyTorch's wheel for the CPU, or with --index-url "" that of PyPI, whose CUDA
libraries take gigabytes. The Python lines of the README run there without a compiler on PATH, and test/consumer finds
the CMake package and links the library. For a version that the wheel leaves out (--built 2.13), the library is first
built with python -m lltm.build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from make_wheel import ROOT, minor_versions

ONE_RUNTIME = """
import lltm, torch
lltm.LLTM(3, 4)(torch.zeros(5, 3))
with open("/proc/self/maps") as maps:
    runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line or "libiomp" in line}
assert len(runtimes) == 1, runtimes
print(lltm.build_info, lltm.library_path)
"""


def run(*command: object, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LLTM_LIBRARY")}
    done = subprocess.run(
        [str(part) for part in command], env=environment | variables, cwd="/", text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"release_check.py: {' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def check(wheel: Path, minor: str, index_url: str, folder: Path, built: bool) -> None:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python3"
    index = ["--index-url", index_url] if index_url else []
    run(python, "-m", "pip", "install", "-q", *index, f"torch=={minor}.*")
    run(python, "-m", "pip", "install", "-q", "numpy")
    run(python, "-m", "pip", "install", "-q", "--no-index", wheel)  # torch is there, and must be enough
    cache = {"LLTM_CACHE": str(folder / "cache")}
    if built:
        print(run(python, "-m", "lltm.build", **cache).splitlines()[-1])
    without_compiler = {"PATH": str(folder / "bin"), **cache}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run(python, "-c", "\n".join(blocks), **without_compiler)
    print(run(python, "-c", ONE_RUNTIME, **without_compiler).strip())
    prefix = run(python, "-c", "import lltm; print(lltm.cmake_prefix_path)", **cache).split()[-1]
    build = folder / "consumer"
    run(
        "cmake", "-S", ROOT / "test" / "consumer", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
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
    options = parser.parse_args()
    wheel = options.wheel or max((ROOT / "dist").glob("lltm-*.whl"), key=os.path.getmtime, default=None)
    if wheel is None:
        sys.exit("release_check.py: there is no wheel in dist/: make wheel")
    for minor in options.versions:
        print(f"-- PyTorch {minor}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix=f"lltm-{minor}-"))
        try:
            check(wheel.resolve(), minor, options.index_url, folder, minor in options.built)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
