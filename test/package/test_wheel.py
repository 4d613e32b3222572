"""A wheel for several versions of PyTorch: which library `import lltm` takes, and what `python -m lltm.build` says.

The wheel is a copy of the package with the library under test in the folders of a wheel. Each test uses a separate
process, because registered operators stay registered.
"""

import fcntl
import importlib
import json
import os
import platform
import shutil
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch
from lltm_testing import isolated
from lltm_testing.building import ROOT, make_libtorch, run

import lltm

PACKAGE = Path(lltm.__file__).parent
MINOR = ".".join(torch.__version__.split(".")[:2])
SHOW = "import lltm; print(lltm.library_path)"
PRETEND = "import torch; torch.__version__ = {version!r}; torch.version.cuda = {cuda!r}\n"
RELEASE = f"{MINOR}.0"


class Wheel:
    """An installed wheel, and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.site, self.cache = folder / "site", folder / "cache"
        self.package = self.site / "lltm"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("lib", "include", "__*__", "source"))
        (self.package / "source").mkdir()
        settings = {"version": "1.2.3", "supported_torch": "torch>=2.11.0a0,<2.16", "cuda": "13.0"}
        (self.package / "source" / "glue.json").write_text(json.dumps(settings))
        (self.package / "lib").mkdir()

    def add(self, library: Path, *, works: bool = True) -> Path:
        library.parent.mkdir(parents=True)
        if works:
            shutil.copy(lltm.library_path, library)
        else:
            library.touch()
        return library

    def add_glue(self, kind: str = "cpu", **options) -> Path:
        return self.add(self.package / "lib" / f"torch-{MINOR}" / kind / "liblltm_ops.so", **options)

    def add_kernels(self) -> None:
        (self.package / "lib" / "liblltm_cuda13.so").touch()

    def entry(self, version: str = RELEASE, device: str = "cpu") -> Path:
        return self.cache / f"1.2.3-torch{version}-{device}-{platform.machine()}"

    def run(self, program: str = SHOW, *, version: str = RELEASE, cuda: str | None = None, library=None, **variables):
        variables = {"LLTM_CACHE": str(self.cache)} | variables
        before = f"import os; os.environ.update({variables!r})\n" + PRETEND.format(version=version, cuda=cuda)
        return isolated.run(before + program, package=self.site, library=library)

    def error(self, **options) -> str:
        with pytest.raises(RuntimeError) as caught:
            self.run(**options)
        return str(caught.value).removeprefix("ImportError: ")

    def build(self, before: str = "", *, command: tuple[str, ...] = ("-m", "lltm.build"), **options) -> str:
        """The output of ``python -m lltm.build``, or its message."""
        program = f"""
import contextlib, os, runpy, sys
{before}
sys.orig_argv[:] = ["python", *{command!r}]
sys.argv[:] = ["build"]
try:
    runpy.run_module("lltm.build", run_name="__main__")
except SystemExit as error:
    print(error.code)
"""
        return self.run(program, **options)

    def add_sources(self) -> None:
        """What the glue is compiled from: an empty file."""
        settings = json.loads((self.package / "source" / "glue.json").read_text())
        settings |= {"architectures": [], "flags": [], "glue": ["empty.cpp"], "cuda_glue": [], "cpu_only_glue": []}
        (self.package / "source" / "glue.json").write_text(json.dumps(settings))
        (self.package / "source" / "src").mkdir()
        for name in ("empty.cpp", "src/version.h.in"):
            (self.package / "source" / name).touch()


@pytest.fixture
def compiler(tmp_path) -> Path:
    """A compiler that says that it is GCC 12, and makes empty files."""
    path = tmp_path / "g++"
    path.write_text("""#!/bin/sh
echo '#define __GNUC__ 12'
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then : >"$2"; fi
  shift
done
""")
    path.chmod(0o755)
    return path


@pytest.fixture
def wheel(tmp_path) -> Wheel:
    return Wheel(tmp_path)


@pytest.mark.parametrize("version", [RELEASE, f"{MINOR}.7+cpu", f"{MINOR}.0+cu130"])
def test_takes_the_library_for_the_running_pytorch(wheel, version):
    library = wheel.add_glue()
    assert wheel.run(version=version) == str(library)


def test_the_cmake_package_serves_what_was_chosen(wheel):
    wheel.add_glue()
    (wheel.package / "lib" / "cmake" / "lltm").mkdir(parents=True)
    (wheel.package / "lib" / "cmake" / "lltm" / "lltm-config.cmake").touch()
    assert wheel.run("import lltm; print(lltm.cmake_prefix_path)") == str(wheel.package)


@pytest.mark.parametrize(
    "version",
    ["2.99.0", f"{MINOR}.0a0+nv25.11", f"{MINOR}.0.dev20260101+cpu", f"{MINOR}.0.post300", f"{MINOR}.0+git1234"],
)
def test_there_is_no_library_for_another_pytorch(wheel, version):
    """A vendor's PyTorch of a supported minor version may have another ABI."""
    wheel.add_glue()
    assert wheel.error(version=version) == f"lltm has no library for PyTorch {version}: run python -m lltm.build"


def test_takes_the_library_with_cuda(wheel):
    wheel.add_kernels()
    library, cpu = wheel.add_glue("cuda13", works=False), wheel.add_glue()
    assert wheel.error(cuda="13.2").startswith(f"lltm: cannot load {library}: ")
    assert wheel.run(cuda=None) == str(cpu)
    assert wheel.run(cuda="13.2", LLTM_CPU_ONLY="1") == str(cpu)


def test_kernels_for_another_cuda_are_not_left_out_silently(wheel):
    wheel.add_kernels()
    cpu = wheel.add_glue()
    assert wheel.error(cuda="12.8") == (
        "lltm has CUDA 13 kernels, this PyTorch has CUDA 12.8: set LLTM_CPU_ONLY=1, or build from source with nvcc 12.8"
    )
    assert wheel.build(cuda="12.8").startswith("lltm has CUDA 13 kernels, this PyTorch has CUDA 12.8: ")
    assert wheel.run(cuda="12.8", LLTM_CPU_ONLY="1") == str(cpu)


def test_a_wheel_without_cuda_kernels_is_for_the_cpu(wheel):
    library = wheel.add_glue()
    assert wheel.run(cuda="12.8") == str(library)


def test_cpu_only_is_0_or_1(wheel):
    wheel.add_glue()
    assert wheel.error(LLTM_CPU_ONLY="yes") == "lltm: expected LLTM_CPU_ONLY to be 0 or 1, got yes"


def test_then_the_cache_is_searched(wheel):
    library = wheel.add(wheel.entry("2.99.0") / "lib" / "liblltm_ops.so")
    assert wheel.run(version="2.99.0") == str(library)
    assert wheel.error(version="2.99.1").startswith("lltm has no library for PyTorch 2.99.1")
    home = {"LLTM_CACHE": "", "XDG_CACHE_HOME": str(wheel.cache.parent / "xdg")}
    wheel.cache.parent.joinpath("xdg").mkdir()
    shutil.copytree(wheel.cache, wheel.cache.parent / "xdg" / "lltm")
    assert wheel.run(version="2.99.0", **home).startswith(f"{home['XDG_CACHE_HOME']}/lltm/")


def test_the_wheels_library_comes_before_that_in_the_cache(wheel):
    wheel.add(wheel.entry() / "lib" / "liblltm_ops.so", works=False)
    library = wheel.add_glue()
    assert wheel.run() == str(library)


def test_the_named_library_comes_before_both(wheel):
    wheel.add(wheel.entry() / "lib" / "liblltm_ops.so", works=False)
    wheel.add_glue(works=False)
    cuda = lltm.build_info and lltm.build_info.cuda
    assert wheel.run(library=lltm.library_path, cuda=cuda or None) == str(lltm.library_path)


@pytest.mark.parametrize("place", ["cache", "entry", "library"])
def test_nothing_is_loaded_that_others_can_write(wheel, place):
    library = wheel.add(wheel.entry("2.99.0") / "lib" / "liblltm_ops.so")
    path = {"cache": wheel.cache, "entry": wheel.entry("2.99.0"), "library": library}[place]
    path.chmod(0o777)
    message = wheel.error(version="2.99.0")
    assert message.startswith(f"lltm: every user can write to {path}: nothing is loaded from it. Let LLTM_CACHE")


@pytest.mark.parametrize("place", ["cache", "library"])
def test_nothing_is_loaded_that_a_group_can_write(wheel, place):
    library = wheel.add(wheel.entry("2.99.0") / "lib" / "liblltm_ops.so")
    path = {"cache": wheel.cache, "library": library}[place]
    path.chmod(0o775)
    message = wheel.error(version="2.99.0")
    assert message.startswith(f"lltm: every user of its group can write to {path}: nothing is loaded from it.")
    if place == "cache":
        assert "every user of its group can write to" in wheel.build(version="2.99.1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("place", ["cache", "library"])
def test_nothing_of_another_user_is_loaded(wheel, place):
    library = wheel.add(wheel.entry("2.99.0") / "lib" / "liblltm_ops.so")
    path = {"cache": wheel.cache, "library": library}[place]
    os.chown(path, 12345, -1)
    message = wheel.error(version="2.99.0")
    assert message.startswith(f"lltm: {path} belongs to another user (uid 12345): nothing is loaded from it.")
    if place == "cache":
        assert "belongs to another user" in wheel.build(version="2.99.1")


def test_a_cache_that_cannot_be_read(wheel):
    wheel.cache.symlink_to(wheel.cache)
    library = wheel.entry("2.99.0") / "lib" / "liblltm_ops.so"
    assert wheel.error(version="2.99.0") == (
        f"lltm: cannot read {library}: Too many levels of symbolic links. Let LLTM_CACHE name a folder of yours"
    )


def test_a_user_without_a_home_needs_a_cache(wheel):
    """As in a container that runs as any user."""
    no_home = """
import os, pwd
del os.environ["HOME"]
def getpwuid(uid): raise KeyError(uid)
pwd.getpwuid = getpwuid
"""
    options = {"version": "2.99.0", "LLTM_CACHE": "", "XDG_CACHE_HOME": ""}
    message = "lltm: this user has no home folder for a cache: let LLTM_CACHE name a folder"
    assert wheel.error(program=f"{no_home}import lltm", **options) == message
    assert wheel.build(no_home, **options) == message


def test_build_needs_the_sources_of_a_wheel(wheel):
    shutil.rmtree(wheel.package / "source")
    assert "has no sources to build from" in wheel.build()


def test_build_leaves_alone_what_the_wheel_has(wheel):
    """It would not be loaded, because the wheel's library comes before that in the cache."""
    wheel.add_glue()
    assert wheel.build() == f"The wheel has the library for PyTorch {RELEASE}: there is nothing to build"
    assert not wheel.cache.exists()


def test_build_refuses_an_older_pytorch(wheel):
    assert wheel.build(version="2.10.0") == "lltm.build: PyTorch 2.10.0 is too old: lltm needs 2.11 or newer"


def test_build_needs_a_compiler(wheel, tmp_path):
    message = wheel.build(CXX="/nowhere/g++ -m64")
    assert message.splitlines()[-1] == (
        "lltm.build: found no C++ compiler, looked for /nowhere/g++: install g++ 11 or newer (apt-get install g++, "
        "conda install gxx), or let CXX name one"
    )
    (tmp_path / "g++").write_text("#!/bin/sh\necho '#define __GNUC__ 9'\n")
    (tmp_path / "g++").chmod(0o755)
    assert f"{tmp_path}/g++ is GCC 9, which does not compile lltm: install" in wheel.build(CXX=f"{tmp_path}/g++")
    assert {path.suffix for path in wheel.cache.iterdir()} == {".lock"}  # nothing half built is left
    for unset in ("", " "):
        assert "found no C++ compiler, looked for g++: install" in wheel.build(CXX=unset, PATH="/nowhere")


def test_build_shows_what_the_compiler_says(wheel, tmp_path):
    wheel.add_sources()
    (tmp_path / "g++").write_text(
        "#!/bin/sh\necho '#define __GNUC__ 12'\n[ $1 = -dM ] || { echo no space >&2; exit 1; }\n"
    )
    (tmp_path / "g++").chmod(0o755)
    message = wheel.build(CXX=f"{tmp_path}/g++")
    assert f"lltm.build: the compiler failed:\n{tmp_path}/g++ " in message and message.endswith("no space")
    assert {path.suffix for path in wheel.cache.iterdir()} == {".lock"}


def test_build_needs_the_headers_of_pytorch(wheel):
    before = "import pathlib; pathlib.Path.is_file = lambda path, of=pathlib.Path.is_file: "
    before += "path.name != 'torch.h' and of(path)"
    places = f"{Path(torch.__file__).parent / 'include'} or {Path(sys.prefix) / 'include'}"
    assert wheel.build(before).splitlines()[-1] == (
        f"lltm.build: PyTorch {RELEASE} has no C++ headers in {places}: install a PyTorch that brings them"
    )


@pytest.mark.parametrize("missing", ["cuda_runtime_api.h", "host_defines.h", "target"])
def test_build_needs_the_headers_of_cuda(wheel, missing):
    """PyTorch's packages lack crt/host_defines.h and nv/target."""
    wheel.add_kernels()
    before = "import pathlib; pathlib.Path.is_file = lambda path, of=pathlib.Path.is_file: "
    before += f"path.name != {missing!r} and of(path)"
    message = wheel.build(before, cuda="13.2")
    assert "lltm.build: found no headers of CUDA 13 (cuda_runtime_api.h, " in message
    assert "let CUDA_HOME name it, or add what PyTorch's packages lack (pip install nvidia-cuda-crt==13.*" in message
    assert "LLTM_CPU_ONLY=1" in message
    searched = message.partition(" in ")[2].partition(": ")[0].split(", ")
    assert len(set(searched)) == len(searched)


def test_build_needs_a_cache_that_can_be_written(wheel):
    wheel.cache.touch()
    message = wheel.build()
    assert (
        message
        == f"lltm.build: cannot write to the cache {wheel.cache}: File exists: let LLTM_CACHE name a folder of yours"
    )


@pytest.mark.parametrize("command", [("-m", "lltm.build"), ("-mlltm.build",), ("-Im", "lltm.build", "--help")])
def test_build_is_recognized_however_it_is_started(wheel, command):
    """It imports the package, which has no library then. Without its sources, it says so."""
    shutil.rmtree(wheel.package / "source")
    assert "has no sources to build from" in wheel.build(command=command)


def test_a_program_that_speaks_of_the_build_is_not_the_build(wheel):
    program = "import sys; sys.orig_argv[:] = ['python', '-c', 'run -m lltm.build', 'lltm.build']; import lltm"
    assert wheel.error(program=program, version="2.99.0").startswith("lltm has no library for PyTorch 2.99.0")


def test_build_replaces_what_is_left_of_an_entry(wheel, compiler):
    wheel.add_sources()
    (wheel.package / "lib" / "liblltm_cpu.so").touch()
    (wheel.entry() / "lib").mkdir(parents=True)
    (wheel.entry() / "lib" / "liblltm_ops.json").touch()
    library = wheel.entry() / "lib" / "liblltm_ops.so"
    assert wheel.build(CXX=str(compiler)).splitlines()[-1].startswith(f"Built {library} in ")
    assert {path.name for path in library.parent.iterdir()} == {"liblltm_ops.so", "liblltm_ops.json", "liblltm_cpu.so"}
    assert json.loads(library.with_suffix(".json").read_text())["torch"] == RELEASE


def test_build_makes_again_what_lost_its_kernels(wheel, compiler):
    wheel.add_sources()
    (wheel.package / "lib" / "liblltm_cpu.so").touch()
    assert wheel.build(CXX=str(compiler)).splitlines()[-1].startswith("Built ")
    assert "is there already" in wheel.build(CXX=str(compiler))
    (wheel.entry() / "lib" / "liblltm_cpu.so").unlink()
    assert wheel.build(CXX=str(compiler)).splitlines()[-1].startswith("Built ")


@pytest.mark.parametrize("place", ["", "lib", "lib/liblltm_ops.so", "lib/liblltm_cpu.so"])
def test_build_makes_again_what_a_group_can_write(wheel, compiler, place):
    """An import refuses it, so it must not be called there already."""
    wheel.add_sources()
    (wheel.package / "lib" / "liblltm_cpu.so").touch()
    assert wheel.build(CXX=str(compiler)).splitlines()[-1].startswith("Built ")
    (wheel.entry() / place).chmod(0o775)
    lines = wheel.build(CXX=str(compiler)).splitlines()
    assert lines[0] == f"Others could have written to {wheel.entry()}, so it is not loaded: building it again"
    assert lines[-1].startswith("Built ")
    assert "is there already" in wheel.build(CXX=str(compiler))


def test_build_removes_what_killed_builds_have_left(wheel, compiler):
    wheel.add_sources()
    (wheel.package / "lib" / "liblltm_cpu.so").touch()
    left, of_another = wheel.cache / f".{wheel.entry().name}.abc", wheel.cache / f".{wheel.entry('2.99.0').name}.abc"
    for folder in (left, of_another):
        (folder / "lib" / ".lltm-build-x").mkdir(parents=True)
    assert wheel.build(CXX=str(compiler)).splitlines()[-1].startswith("Built ")
    assert not left.exists() and of_another.exists()


def test_no_group_can_write_to_what_is_built(wheel, compiler):
    """As with the umask of many systems, and in a wheel that was installed with it."""
    wheel.add_sources()
    kernels = wheel.package / "lib" / "liblltm_cpu.so"
    kernels.touch()
    kernels.chmod(0o664)
    wheel.build("import os; os.umask(0o002)", CXX=str(compiler))
    library = wheel.entry() / "lib" / "liblltm_ops.so"
    for path in (wheel.cache, wheel.entry(), library.parent, *library.parent.glob("*.so")):
        assert not path.stat().st_mode & 0o022, path


def test_an_error_of_the_system_is_a_message(wheel, compiler):
    """For example a full disk; here, a file that is missing from the wheel."""
    wheel.add_sources()
    missing = wheel.package / "lib" / "liblltm_cpu.so"
    message = wheel.build(CXX=str(compiler)).splitlines()[-1]
    assert message == f"lltm.build: [Errno 2] No such file or directory: '{missing}'"
    assert [path.suffix for path in wheel.cache.iterdir()] == [".lock"]


def test_of_two_builds_one_waits(wheel):
    """The other process is this one, which pretends to build."""
    wheel.cache.mkdir()
    library = wheel.entry() / "lib" / "liblltm_ops.so"
    with open(f"{wheel.entry()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def finish() -> None:
            while not said.exists():
                time.sleep(0.01)
            wheel.add(library)
            library.with_name("liblltm_cpu.so").touch()
            fcntl.flock(lock, fcntl.LOCK_UN)

        thread = threading.Thread(target=finish, daemon=True)  # if the build fails, it waits forever
        said = wheel.cache / "said"
        thread.start()
        before = "import builtins, pathlib; builtins.print = lambda *words, print=print, **options: "
        output = wheel.build(before + f"(print(*words, **options), pathlib.Path({str(said)!r}).touch())")
        thread.join()
    waiting, found = output.splitlines()
    assert waiting == f"Another process is building {library}: waiting for it"
    assert found.startswith(f"{library} is there already.")


@pytest.fixture
def make_wheel(monkeypatch):
    """The program scripts/make_wheel.py."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("make_wheel")


@pytest.fixture
def check_contents(monkeypatch, tmp_path):
    """What scripts/release_check.py says about a wheel with one library, which is compiled with these options."""
    monkeypatch.syspath_prepend(ROOT / "scripts")

    def check(name: str, *options: str) -> None:
        (tmp_path / "empty.cpp").touch()
        for needed in ("c10", "torch_cuda"):
            run("g++", "-shared", "-o", tmp_path / f"lib{needed}.so", tmp_path / "empty.cpp")
        link = ["-Wl,--no-as-needed", f"-L{tmp_path}", *options]
        run("g++", "-shared", "-o", tmp_path / "library.so", tmp_path / "empty.cpp", *link)
        with zipfile.ZipFile(tmp_path / "made.whl", "w") as wheel:
            wheel.write(tmp_path / "library.so", f"lltm/lib/{name}")
        importlib.import_module("release_check").check_contents(tmp_path / "made.whl", tmp_path / "unpacked")

    return check


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("liblltm_cpu.so", ["-lc10"], "liblltm_cpu.so must not need libc10"),
        ("liblltm_cuda13.so", ["-ltorch_cuda"], "liblltm_cuda13.so must not need libtorch_cuda"),
        ("torch-2.11/cpu/liblltm_ops.so", ["-lc10", "-ltorch_cuda"], "liblltm_ops.so must not need libtorch_cuda"),
        ("torch-2.11/cuda13/liblltm_ops.so", ["-ltorch_cuda", "-lgomp"], "liblltm_ops.so must not need libgomp"),
        ("liblltm_cpu.so", ["-Wl,-rpath,$ORIGIN/..:/opt/torch/lib"], "liblltm_cpu.so looks for libraries in"),
    ],
)
def test_a_release_is_checked_for_what_it_must_not_need(check_contents, name, options, problem):
    with pytest.raises(SystemExit, match=problem):
        check_contents(name, *options)


def test_a_release_may_need_what_a_wheel_brings_or_stands_beside(check_contents, capsys):
    check_contents("torch-2.11/cuda13/liblltm_ops.so", "-lc10", "-ltorch_cuda", "-Wl,-rpath,$ORIGIN/../..")
    assert "torch-2.11/cuda13/liblltm_ops.so: 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("symbols", "glibc"),
    [
        ("GLIBC_2.2.5 GLIBC_2.14 GLIBCXX_3.4.21 CXXABI_1.3.9", 28),  # PyTorch itself needs 2.28
        ("GLIBC_2.28 GLIBCXX_3.4.24 CXXABI_1.3.11 GCC_3.0", 28),
        ("GLIBC_2.34 GLIBC_2.3 GLIBCXX_3.4", 34),
        ("GLIBC_2.14 GLIBCXX_3.4.29 CXXABI_1.3", 34),
        ("GLIBC_2.14 GLIBCXX_3.4.9 CXXABI_1.3.12", 31),
        ("GLIBC_2.36 GLIBCXX_3.4.30 CXXABI_1.3.13", 36),
        ("GLIBC_2.38 GLIBCXX_3.4.32 CXXABI_1.3.14", 39),
        ("GLIBC_2.2.5", 28),
    ],
)
def test_the_tag_is_what_the_symbols_need(make_wheel, monkeypatch, symbols, glibc):
    output = "\n".join(f"  0x0010:   Name: {symbol}  Flags: none  Version: 5" for symbol in symbols.split())
    monkeypatch.setattr(make_wheel, "run", lambda *command: output)
    assert make_wheel.platform_tag([]) == f"manylinux_2_{glibc}_{platform.machine()}"


def test_there_is_no_tag_for_a_newer_libstdcxx(make_wheel, monkeypatch):
    monkeypatch.setattr(make_wheel, "run", lambda *command: "Name: GLIBCXX_3.4.99")
    with pytest.raises(SystemExit, match="newer libstdc"):
        make_wheel.platform_tag([])


CONSUMER = """
cmake_minimum_required(VERSION 3.22)
project(consumer LANGUAGES CXX)
find_package(lltm CONFIG REQUIRED)
get_target_property(library lltm::lltm_ops IMPORTED_LOCATION)
message(STATUS "takes ${library}")
"""


@pytest.fixture
def find_package(tmp_path):
    """What find_package(lltm) says in a prefix, for a PyTorch of empty files."""

    def configure(prefix: Path, version: str, cuda: str | None = None, *, fails: bool = False) -> str:
        package = prefix / "lib" / "cmake" / "lltm"
        package.mkdir(parents=True)
        shutil.copy(ROOT / "cmake" / "lltm-wheel-config.cmake", package / "lltm-config.cmake")
        for name in ("Libtorch", "CudaChoice", "OperatorLibrary"):
            shutil.copy(ROOT / "cmake" / f"{name}.cmake", package)
        torch_folder, consumer = make_libtorch(tmp_path / "libtorch", version, cuda), tmp_path / "consumer"
        consumer.mkdir()
        (consumer / "CMakeLists.txt").write_text(CONSUMER)
        paths = f"-DCMAKE_PREFIX_PATH={prefix};{torch_folder}"
        output = run("cmake", "-S", consumer, "-B", consumer / "build", "-G", "Ninja", paths, fails=fails)
        return " ".join(output.split())

    return configure


def test_cmake_takes_the_library_for_its_pytorch(wheel, find_package):
    library = wheel.add_glue(works=False)
    assert f"takes {library} " in find_package(wheel.package, f"{MINOR}.0+cpu")


def test_cmake_takes_the_library_with_cuda(wheel, find_package):
    wheel.add_kernels()
    wheel.add_glue(works=False)
    library = wheel.add_glue("cuda13", works=False)
    assert f"takes {library} " in find_package(wheel.package, f"{MINOR}.0+cu130", "13")


def test_cmake_does_not_leave_out_cuda_silently(wheel, find_package):
    wheel.add_kernels()
    wheel.add_glue(works=False)
    message = find_package(wheel.package, f"{MINOR}.0+cu128", "12", fails=True)
    assert "has CUDA 12: set LLTM_CPU_ONLY=1, or build from source" in message


@pytest.mark.parametrize("version", ["2.99.0", f"{MINOR}.0a0+nv25.11", f"{MINOR}.0.post300"])
def test_cmake_has_no_library_for_another_pytorch(wheel, find_package, version):
    wheel.add_glue(works=False)
    message = find_package(wheel.package, version, fails=True)
    assert f"lltm: there is no library for PyTorch {version}, which is in" in message
    assert "run python -m lltm.build, and add its lltm.cmake_prefix_path" in message


@pytest.mark.parametrize(("built_for", "suits"), [(f"{MINOR}.1a0+nv25.11", True), ("2.99.0", False)])
def test_cmake_takes_the_library_in_the_cache_for_the_pytorch_it_was_built_for(wheel, find_package, built_for, suits):
    library = wheel.add(wheel.entry() / "lib" / "liblltm_ops.so", works=False)
    library.with_suffix(".json").write_text(json.dumps({"torch": built_for}))
    said = f"takes {library} " if suits else f"there is no library for PyTorch {MINOR}.0a0+nv25.11, which is in"
    assert said in find_package(wheel.entry(), f"{MINOR}.0a0+nv25.11", fails=not suits)


@pytest.mark.release
def test_a_wheel_builds_the_library_for_its_pytorch(tmp_path):
    """make wheel and python -m lltm.build, for one version, without CUDA and optimization."""
    pytest.importorskip("wheel")  # requirements/test.txt has it
    build, site = tmp_path / "build", tmp_path / "site"
    options = ["-DLLTM_CUDA=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O0"]
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options)
    run("cmake", "--build", build, "--target", "lltm_wheel_parts")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import make_wheel
sys.argv = ["make_wheel.py", "--build-dir", sys.argv[2], "--wheel-dir", sys.argv[3], "--versions"]
make_wheel.main()
"""
    run(sys.executable, "-c", program, ROOT / "scripts", build, tmp_path)
    (wheel,) = tmp_path.glob("lltm-*.whl")
    # GCC 13 uses more of libstdc++.
    libc, version = platform.libc_ver()
    oldest = "28" if libc == "glibc" and int(version.split(".")[1]) <= 36 else ""
    assert f"-py3-none-manylinux_2_{oldest}" in wheel.name
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel)
    environment = {"PYTHONPATH": site, "LLTM_CACHE": tmp_path / "cache", "CXX": "g++ -O0"}
    missing = run(sys.executable, "-c", "import lltm", fails=True, **environment)
    assert f"lltm has no library for PyTorch {torch.__version__}: run python -m lltm.build" in missing
    run(sys.executable, "-m", "lltm.build", **environment)
    program = "import lltm, torch; lltm.LLTM(3, 4)(torch.ones(5, 3)); print(lltm.library_path, lltm.build_info.torch)"
    library, version = run(sys.executable, "-c", program, **environment).split()[-2:]
    assert Path(library).is_relative_to(tmp_path / "cache") and version == torch.__version__
    prefix = run(sys.executable, "-c", "import lltm; print(lltm.cmake_prefix_path)", **environment).split()[-1]
    source, consumer = ROOT / "test" / "package" / "consumer", tmp_path / "consumer"
    run("cmake", "-S", source, "-B", consumer, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", consumer, "--target", "names_no_symbol")
    assert run(consumer / "names_no_symbol").strip() == "the operators are registered"
