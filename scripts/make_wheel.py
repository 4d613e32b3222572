"""Make one wheel of lltm for several versions of PyTorch: make wheel.

CMake compiles the kernels once. What depends on PyTorch is compiled for each minor version by lltm.build, as
``python -m lltm.build`` does for those that the wheel leaves out. Wheels of torch are downloaded without their
dependencies, unless --torch names a folder that has the version.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "cmake"))
from wheel_metadata import supported_minors  # noqa: E402

# glibc 2.28, the oldest that PyTorch supports, comes with a libstdc++ up to GLIBCXX_3.4.24 and CXXABI_1.3.11. As in the
# policies of auditwheel.
LIBSTDCXX_BESIDE_GLIBC = {28: (24, 11), 31: (28, 12), 34: (29, 13), 35: (30, 13), 39: (33, 15)}

# Optimizing at the link makes the glue, of which there are two libraries a version, a tenth smaller.
SMALLER = ["-flto=auto", "-fno-fat-lto-objects"]


def run(*command: object, **variables: str) -> str:
    print("--", *command, flush=True)
    done = subprocess.run(
        [str(part) for part in command], env=os.environ | variables, stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        sys.exit(f"make_wheel.py: {command[0]} failed:\n{done.stdout}")
    return done.stdout


def load_builder() -> ModuleType:
    """lltm.build, without lltm, which has no library yet."""
    spec = importlib.util.spec_from_file_location("lltm_build", ROOT / "python" / "lltm" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def minor_versions() -> list[str]:
    return [f"2.{minor}" for minor in supported_minors()]


def version_of(torch: Path) -> str:
    return re.search("^__version__ = '(.*)'", (torch / "version.py").read_text(), re.M)[1]  # type: ignore[index]


def provide_torch(minor: str, given: list[Path], folder: Path) -> Path:
    """A folder with headers and libraries of this minor version of PyTorch."""
    for torch in given:
        if version_of(torch).startswith(f"{minor}."):
            return torch
    unpacked = folder / minor
    if not (unpacked / "torch").is_dir():
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder / "wheels", f"torch=={minor}.*")
        (wheel,) = (folder / "wheels").glob(f"torch-{minor}.*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                # Not Python's parts: only what is compiled against.
                if re.match(r"torch/(include/|version\.py|lib/lib(torch_cpu|torch_cuda|c10|c10_cuda)\.so)", name):
                    archive.extract(name, unpacked)
        wheel.unlink()
    return unpacked / "torch"


def stage_package(package: Path, parts: Path) -> None:
    """Everything but the libraries that depend on PyTorch."""
    lib, source = package / "lib", package / "source"
    lib.mkdir(parents=True)
    for library in parts.glob("liblltm_*.so"):
        shutil.copy(library, lib)
        run("strip", "--strip-unneeded", lib / library.name)
    cmake = lib / "cmake" / "lltm"
    cmake.mkdir(parents=True)
    shutil.copy(ROOT / "cmake" / "lltm-wheel-config.cmake", cmake / "lltm-config.cmake")
    shutil.copy(parts.parent / "generated" / "lltm-config-version.cmake", cmake)
    for name in ("Libtorch", "CudaChoice", "OperatorLibrary"):
        shutil.copy(ROOT / "cmake" / f"{name}.cmake", cmake)
    shutil.copytree(ROOT / "include", package / "include")
    shutil.copytree(ROOT / "include", source / "include")
    shutil.copy(parts / "glue.json", source)
    settings = json.loads((parts / "glue.json").read_text())
    listed = {file for name in ("glue", "cuda_glue", "cpu_only_glue") for file in settings[name]}
    for path in (ROOT / "src").rglob("*"):
        file = path.relative_to(ROOT)
        if path.suffix == ".h" or path.name == "version.h.in" or str(file) in listed:
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, source / file)


def platform_tag(libraries: list[Path]) -> str:
    """The oldest manylinux platform with everything that the libraries need of glibc and libstdc++. None older than
    PyTorch's own."""
    needs = run("readelf", "--version-info", "--wide", *libraries)

    def newest(symbols: str) -> int:
        return max((int(minor) for minor in re.findall(rf"Name: {re.escape(symbols)}\.(\d+)", needs)), default=0)

    for glibc, (glibcxx, cxxabi) in LIBSTDCXX_BESIDE_GLIBC.items():
        if glibcxx >= newest("GLIBCXX_3.4") and cxxabi >= newest("CXXABI_1.3"):
            return f"manylinux_2_{max(glibc, newest('GLIBC_2'))}_{os.uname().machine}"
    sys.exit("make_wheel.py: the libraries need a newer libstdc++ than LIBSTDCXX_BESIDE_GLIBC lists")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build-wheel", help="configured by CMake")
    parser.add_argument("--wheel-dir", type=Path, default=ROOT / "dist")
    parser.add_argument("--versions", nargs="*", default=minor_versions(), help="minor versions of PyTorch")
    parser.add_argument("--torch", nargs="*", type=Path, default=[], help="folders of torch packages to use")
    options = parser.parse_args()
    builder = load_builder()
    given = [*options.torch]
    if installed := importlib.util.find_spec("torch"):
        given += [Path(folder) for folder in installed.submodule_search_locations or []]

    stage = options.build_dir / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    package = stage / "package"
    stage_package(package, options.build_dir / "wheel-parts")
    parts = builder.Parts(package / "source", package / "lib")
    cuda = parts.settings["cuda"]
    kinds = ["cpu", *([f"cuda{cuda.partition('.')[0]}"] if cuda else [])]
    for minor in options.versions:
        folder = provide_torch(minor, given, options.build_dir / "torch")
        torch = builder.Torch.in_folder(version_of(folder), folder)
        for kind in kinds:
            library = package / "lib" / f"torch-{minor}" / kind / "liblltm_ops.so"
            library.parent.mkdir(parents=True)
            print(f"-- Compiling for PyTorch {torch.version}, {kind}", flush=True)
            builder.build_glue(
                parts, torch, library, cuda=kind != "cpu", rpath=["$ORIGIN/../..", "$ORIGIN/../../../../torch/lib"],
                jobs=builder.jobs(), flags=SMALLER,
            )  # fmt: skip

    run(
        sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", stage,
        f"--config-settings=build-dir={stage / 'build'}",
        f"--config-settings=cmake.define.LLTM_STAGED_WHEEL={package}", ROOT,
    )  # fmt: skip
    (wheel,) = stage.glob("*.whl")
    tag = platform_tag(list(package.rglob("*.so")))
    options.wheel_dir.mkdir(exist_ok=True)
    name = run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel).split()[-1]
    made = shutil.move(stage / name, options.wheel_dir / name)
    print(f"{made}: {Path(made).stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
