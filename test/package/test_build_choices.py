"""CMake's choices and errors when the library is configured: CUDA or not, architectures, which PyTorch.

Nothing is compiled except by CMake's own checks of nvcc. A libtorch of empty files stands for the PyTorch of a test
case.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from lltm_testing import building
from lltm_testing.building import ROOT, run

CPU_ONLY = "lltm: building for the CPU only: "


class Build:
    """A build folder, and the result of configuring it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def configure(self, *options, fails=False, **environment) -> str:
        unset = dict.fromkeys(("CUDACXX", "CUDAARCHS", "TORCH_CUDA_ARCH_LIST"))
        command = ["cmake", "-S", ROOT, "-B", self.folder, "-G", "Ninja", "-DBUILD_TESTING=OFF", *options]
        return " ".join(run(*command, fails=fails, **(unset | environment)).split())  # CMake wraps its messages

    @property
    def info(self) -> dict:
        return json.loads((self.folder / "liblltm_ops.json").read_text())


@pytest.fixture
def build(tmp_path) -> Build:
    return Build(tmp_path / "build")


@pytest.fixture
def make_libtorch(tmp_path):
    def make(version: str, *, cuda: str | None) -> str:
        libtorch = building.make_libtorch(tmp_path / "libtorch", f"{version}+{f'cu{cuda}0' if cuda else 'cpu'}", cuda)
        return f"-DTorch_DIR={libtorch / 'share/cmake/Torch'}"

    return make


@pytest.fixture
def make_nvcc(tmp_path):
    def make(release: str) -> str:
        """A program that answers --version like nvcc, but compiles nothing."""
        path = tmp_path / "nvcc"
        path.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.0"\nexit 1\n')
        path.chmod(0o755)
        return str(path)

    return make


def check_auto_and_on(build: Build, reason: str, *options, **environment) -> None:
    """With AUTO, one line gives the reason and configuring goes on; ON makes it an error; OFF ignores CUDA."""
    assert CPU_ONLY + reason in build.configure(*options, **environment)
    assert build.info["cuda"] is None
    assert f"LLTM_CUDA is ON, but {reason}" in build.configure(*options, "-DLLTM_CUDA=ON", fails=True, **environment)
    assert "CPU only" not in build.configure(*options, "-DLLTM_CUDA=OFF", **environment)


def test_pytorch_without_cuda_gives_a_build_without_cuda(build, make_libtorch):
    check_auto_and_on(build, "PyTorch 2.12.0+cpu in ", make_libtorch("2.12.0", cuda=None))


def test_nvcc_of_another_major_version_than_pytorch(build, make_libtorch, make_nvcc):
    nvcc = make_nvcc("13.1")
    reason = f"{nvcc} is from CUDA 13.1, but PyTorch 2.12.0+cu120 was built with CUDA 12"
    check_auto_and_on(build, reason, make_libtorch("2.12.0", cuda="12"), CUDACXX=nvcc)


def test_nvcc_that_is_too_old(build, make_libtorch, make_nvcc):
    nvcc = make_nvcc("12.6")
    reason = f"{nvcc} is from CUDA 12.6, but 12.8 or newer is needed"
    check_auto_and_on(build, reason, make_libtorch("2.12.0", cuda="12"), CUDACXX=nvcc)


def test_nvcc_that_does_not_compile(build, make_libtorch, make_nvcc):
    nvcc = make_nvcc("13.0")
    reason = f"{nvcc} does not compile with CMake "
    check_auto_and_on(build, reason, make_libtorch("2.12.0", cuda="13"), CUDACXX=nvcc, TORCH_CUDA_ARCH_LIST="8.0")


@pytest.mark.parametrize("named_by", ["CUDACXX", "CMAKE_CUDA_COMPILER"])
def test_nvcc_that_cannot_be_run(build, make_libtorch, tmp_path, named_by):
    nvcc = str(tmp_path / "nowhere" / "nvcc")
    options, environment = ([], {"CUDACXX": nvcc}) if named_by == "CUDACXX" else ([f"-D{named_by}={nvcc}"], {})
    reason = f"{nvcc} cannot be run ({named_by} names it)."
    check_auto_and_on(build, reason, make_libtorch("2.12.0", cuda="13"), *options, **environment)


def test_nvcc_that_is_another_program(build, make_libtorch):
    reason = "the output of true --version contains no release (CUDACXX names it)."
    check_auto_and_on(build, reason, make_libtorch("2.12.0", cuda="13"), CUDACXX="true")


@pytest.mark.parametrize("value", ["maybe", "2", "", "ONN"])
def test_cuda_is_auto_on_or_off(build, value):
    output = build.configure(f"-DLLTM_CUDA={value}", fails=True)
    assert f"expected LLTM_CUDA to be AUTO, ON or OFF, got {value}." in output


def test_the_choice_of_cuda_may_be_any_boolean_of_cmake(build, make_libtorch):
    libtorch = make_libtorch("2.12.0", cuda=None)
    assert CPU_ONLY in build.configure(libtorch, "-DLLTM_CUDA=auto")
    for value in ("off", "No", "FALSE", "n", "0"):
        assert "CPU only" not in build.configure(libtorch, f"-DLLTM_CUDA={value}")
    for value in ("on", "Yes", "TRUE", "y", "1"):
        assert "LLTM_CUDA is ON, but PyTorch" in build.configure(libtorch, f"-DLLTM_CUDA={value}", fails=True)


def test_architectures_that_are_no_numbers(build, make_libtorch, make_nvcc):
    output = build.configure(
        make_libtorch("2.12.0", cuda="13"), fails=True, CUDACXX=make_nvcc("13.0"), TORCH_CUDA_ARCH_LIST="8.0 Hopper"
    )
    assert 'TORCH_CUDA_ARCH_LIST: expected architectures such as "8.0 9.0a+PTX", got Hopper in "8.0 Hopper".' in output


CONTAINER = "7.5 8.0 8.6 9.0 10.0 12.0+PTX"


@pytest.mark.parametrize(
    ("options", "environment", "left_out"),
    [
        ([], {"TORCH_CUDA_ARCH_LIST": CONTAINER}, "7.5"),
        ([f"-DTORCH_CUDA_ARCH_LIST={CONTAINER}"], {}, "7.5"),
        ([], {"TORCH_CUDA_ARCH_LIST": "7.0;7.5+PTX;8.0"}, "7.0, 7.5"),
        (["-DCMAKE_CUDA_ARCHITECTURES=61-real;75;100a"], {}, "6.1, 7.5"),
        ([], {"CUDAARCHS": "75;80"}, "7.5"),
    ],
)
def test_architectures_that_are_too_old_are_left_out(build, make_libtorch, make_nvcc, options, environment, left_out):
    libtorch = make_libtorch("2.12.0", cuda="13")
    output = build.configure(libtorch, *options, CUDACXX=make_nvcc("13.0"), **environment)
    assert "CMake Warning at cmake/CudaChoice.cmake" in output
    assert f"lltm: the CUDA code needs 8.0 or newer: leaving out {left_out}." in output


@pytest.mark.parametrize(
    ("options", "environment", "given_by", "got"),
    [
        ([], {"TORCH_CUDA_ARCH_LIST": "7.5"}, "TORCH_CUDA_ARCH_LIST", "7.5"),
        ([], {"TORCH_CUDA_ARCH_LIST": "6.1 7.5+PTX"}, "TORCH_CUDA_ARCH_LIST", "6.1, 7.5"),
        (["-DCMAKE_CUDA_ARCHITECTURES=75"], {}, "CMAKE_CUDA_ARCHITECTURES", "7.5"),
        ([], {"CUDAARCHS": "75"}, "CUDAARCHS", "7.5"),
    ],
)
def test_only_architectures_that_are_too_old(build, make_libtorch, make_nvcc, options, environment, given_by, got):
    libtorch = make_libtorch("2.12.0", cuda="13")
    output = build.configure(libtorch, *options, fails=True, CUDACXX=make_nvcc("13.0"), **environment)
    assert f"lltm: {given_by}: the CUDA code needs 8.0 or newer, got {got}." in output
    build.configure(libtorch, *options, "-DLLTM_CUDA=OFF", **environment)  # then they do not matter


@pytest.mark.parametrize(("given", "said"), [("8.0 9.0", True), ("9.0+PTX", True), ("9.0 9.0a", False), ("8.0", False)])
def test_hopper_gets_its_own_instructions(build, make_libtorch, make_nvcc, given, said):
    libtorch = make_libtorch("2.12.0", cuda="13")
    output = build.configure(libtorch, CUDACXX=make_nvcc("13.0"), TORCH_CUDA_ARCH_LIST=given)
    assert ("lltm: building for 9.0a as well as 9.0, because only 9.0a has Hopper's wgmma" in output) == said


@pytest.fixture
def with_gpus(tmp_path):
    def path(*capabilities: str) -> str:
        """A PATH on which nvidia-smi lists these GPUs, or fails, as where there is a driver and no GPU."""
        (tmp_path / "gpu").mkdir()
        program = tmp_path / "gpu" / "nvidia-smi"
        lines = "".join(f"echo {capability}\n" for capability in capabilities)
        program.write_text(f"#!/bin/sh\n{lines or 'echo No devices were found; exit 6'}\n")
        program.chmod(0o755)
        return f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    return path


def test_a_gpu_that_is_too_old(build, make_libtorch, make_nvcc, with_gpus):
    reason = "the CUDA code needs a GPU of compute capability 8.0 or newer, and the one that is present has 7.5"
    libtorch = make_libtorch("2.12.0", cuda="13")
    check_auto_and_on(build, reason, libtorch, CUDACXX=make_nvcc("13.0"), PATH=with_gpus("7.5"))


def test_no_cuda_without_a_gpu(build, make_libtorch, make_nvcc, with_gpus):
    """Unless the builder asks for an architecture."""
    reason = "this machine has no GPU, and no architecture was asked for (CUDA=1 for make, or LLTM_CUDA=ON,"
    libtorch, nvcc, path = make_libtorch("2.12.0", cuda="13"), make_nvcc("13.0"), with_gpus()
    options = {"CUDACXX": nvcc, "PATH": path}
    assert CPU_ONLY + reason in build.configure(libtorch, **options)
    reached_nvcc = f"{nvcc} does not compile"
    assert reached_nvcc in build.configure(libtorch, TORCH_CUDA_ARCH_LIST="8.0", **options)
    assert reached_nvcc in build.configure(libtorch, "-DLLTM_CUDA=ON", fails=True, **options)


def test_for_the_gpu_that_is_present(build, make_libtorch, make_nvcc, with_gpus):
    nvcc = make_nvcc("13.0")
    output = build.configure(make_libtorch("2.12.0", cuda="13"), CUDACXX=nvcc, PATH=with_gpus("8.6"))
    assert f"{nvcc} does not compile" in output


def test_unsupported_pytorch_is_refused(build, make_libtorch):
    (supported,) = re.findall("^torch.*", (ROOT / "requirements" / "build.txt").read_text(), re.MULTILINE)
    lower, upper = re.fullmatch(r"torch>=2\.(\d+)\.0a0,<2\.(\d+)", supported).groups()
    for version in f"2.{int(lower) - 1}.2", f"2.{upper}.0":
        output = build.configure(make_libtorch(version, cuda=None), fails=True)
        assert f"lltm: PyTorch {version} in " in output
        assert f"is not supported: lltm needs {supported}." in output
    for version in f"2.{lower}.0", f"2.{lower}.0a0", f"2.{int(upper) - 1}.9":
        build.configure(make_libtorch(version, cuda=None))


def test_incomplete_pytorch_is_refused(build, make_libtorch, tmp_path):
    option = make_libtorch("2.12.0", cuda=None)
    (tmp_path / "libtorch/lib/libc10.so").unlink()
    assert "is incomplete: lib/libc10.so is missing." in build.configure(option, fails=True)


@pytest.mark.parametrize("share", ["in both", "in the prefix"])
def test_headers_in_the_prefix_are_found(build, make_libtorch, tmp_path, share):
    """As conda-forge has them: site-packages/torch has no include/."""
    make_libtorch("2.12.0", cuda=None)
    prefix = tmp_path / "libtorch"
    folder = prefix / "lib" / "python3.12" / "site-packages" / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "lib").symlink_to(prefix / "lib")
    if share == "in both":
        (folder / "share").symlink_to(prefix / "share")
    python = tmp_path / "python3"
    # With the modules of the running Python, but a prefix of its own.
    program = f"import sys; sys.prefix = '{prefix}'; sys.path.insert(0, '{folder.parent}'); exec(sys.argv[2])"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n')
    python.chmod(0o755)
    build.configure(f"-DPython_EXECUTABLE={python}")
    cache = (build.folder / "build.ninja").read_text()
    assert f"-isystem {prefix}/include" in cache and f"{prefix}/lib/libtorch_cpu.so" in cache


def test_other_systems_are_refused(build):
    output = build.configure("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64", fails=True)
    assert "lltm supports Linux on x86-64 and aarch64, not Linux on riscv64." in output


def test_takes_the_pytorch_of_the_python3_on_path_and_is_a_release_build(build, tmp_path):
    (tmp_path / "bin").mkdir()
    # Not a symbolic link: Python finds its virtual environment by its path.
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    output = build.configure("-DLLTM_CUDA=OFF", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert build.info["torch"] == torch.__version__
    assert build.info["architectures"] == []
    assert "CMAKE_BUILD_TYPE:STRING=Release" in (build.folder / "CMakeCache.txt").read_text()
    assert "CMAKE_BUILD_TYPE is not set" not in output


@pytest.mark.parametrize(("options", "folder"), [([], "lib"), (["-DCMAKE_INSTALL_LIBDIR=lib64"], "lib64")])
def test_the_library_is_installed_inside_the_prefix(build, make_libtorch, options, folder):
    build.configure(make_libtorch("2.12.0", cuda=None), *options)
    script = (build.folder / "cmake_install.cmake").read_text()
    for file in (f"{folder}/liblltm_ops.so", f"{folder}/cmake/lltm/lltm-targets.cmake"):
        assert f"${{CMAKE_INSTALL_PREFIX}}/{file}" in script


def test_warnings_are_errors_and_tests_are_built_only_where_asked_for(build, make_libtorch):
    """Users who install the library may have a newer compiler, and no network to fetch GoogleTest from."""
    options = [make_libtorch("2.12.0", cuda=None), "-UBUILD_TESTING"]
    build.configure(*options)
    commands = (build.folder / "build.ninja").read_text()
    assert "-Wall" in commands and "-Werror" not in commands and "lltm_ops_test" not in commands
    build.configure(*options, "-DLLTM_WERROR=ON")
    assert "-Werror" in (build.folder / "build.ninja").read_text()


def test_make_compiles_the_library_to_use_and_to_test_in_the_same_way():
    """So that neither of `make rl` and `make test` compiles it again after the other."""

    def options(goal: str) -> set[str]:
        outer = dict.fromkeys(("MAKEFLAGS", "MAKEOVERRIDES", "CMAKE_ARGS", "TORCH", "ARCH"))  # those of make test
        commands = run("make", "--dry-run", goal, "CUDA=0", "BUILD=build-of-nobody", cwd=ROOT, **outer)
        return set(re.findall(r"-D\w+=\w+", commands))

    assert options("build") - options("build-tests") == {"-DBUILD_TESTING=OFF"}
    assert options("build-tests") - options("build") == {"-DBUILD_TESTING=ON"}


def test_a_part_of_another_project_leaves_its_settings_alone(tmp_path, make_libtorch):
    """The outer project's build type, install folders, and BUILD_TESTING."""
    source = """
cmake_minimum_required(VERSION 3.22)
project(outer CXX)
if(INNER)
  add_subdirectory(${INNER} lltm)
endif()
include(GNUInstallDirs)
message(STATUS "settings: ${CMAKE_BUILD_TYPE} ${CMAKE_INSTALL_LIBDIR} ${BUILD_TESTING}")
"""
    (tmp_path / "CMakeLists.txt").write_text(source)

    def settings(*options) -> str:
        libtorch = make_libtorch("2.12.0", cuda=None)
        output = run("cmake", "-S", tmp_path, "-G", "Ninja", "-DCMAKE_INSTALL_PREFIX=/usr", libtorch, *options)
        return re.search("settings: .*", output).group()

    alone = settings("-B", tmp_path / "alone")
    assert settings("-B", tmp_path / "with", f"-DINNER={ROOT}") == alone
    build = tmp_path / "with_tests"
    assert settings("-B", build, f"-DINNER={ROOT}", "-DBUILD_TESTING=ON") == alone + "ON"
    commands = (build / "build.ninja").read_text()
    assert "liblltm_ops.so" in commands and "lltm_ops_test" not in commands


@pytest.mark.parametrize(
    ("options", "warns"),
    [([], True), (["-DCMAKE_BUILD_TYPE=Debug"], False), (["-DCMAKE_CXX_FLAGS=-g -O2"], False)],
    ids=["no build type", "a build type", "flags"],
)
def test_a_part_of_a_project_without_a_build_type_warns(tmp_path, make_libtorch, options, warns):
    source = "cmake_minimum_required(VERSION 3.22)\nproject(outer CXX)\nadd_subdirectory(${INNER} lltm)\n"
    (tmp_path / "CMakeLists.txt").write_text(source)
    libtorch = make_libtorch("2.12.0", cuda=None)
    output = run(
        "cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", libtorch, f"-DINNER={ROOT}", *options
    )
    warning = "lltm: CMAKE_BUILD_TYPE is not set, so lltm_ops is compiled without optimization"
    assert (warning in " ".join(output.split())) == warns


def configure_another_project(folder: Path, settings: str, *options, oldest_cmake="3.22", fails=False) -> str:
    """A project that adds its own operators, after these settings."""
    (folder / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION {oldest_cmake})
project(other CXX)
{settings}
include({ROOT}/cmake/OperatorLibrary.cmake)
add_operator_library(other_ops SOURCES ops.cpp CUDA_SOURCES ops.cu)
""")
    for name in ("ops.cpp", "ops.cu"):
        (folder / name).touch()
    supported = "-DLLTM_SUPPORTED_TORCH=torch>=2.11.0a0,<2.16"
    output = run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", supported, *options, fails=fails)
    return " ".join(output.split())


def test_arithmetics_that_do_not_exist_are_refused(build, make_libtorch):
    output = build.configure(
        make_libtorch("2.12.0", cuda=None), "-DLLTM_CUDA_ARITHMETICS=kFloat32;kFloat64", fails=True
    )
    assert "expected LLTM_CUDA_ARITHMETICS to be among kFloat32 kTf32 kFloat16 kBFloat16, got kFloat64." in output


@pytest.mark.parametrize("oldest_cmake", ["3.18", "3.22"])
def test_another_project_may_set_the_choice_of_cuda(tmp_path, make_libtorch, oldest_cmake):
    """Also with the old behavior of policy CMP0126, by which the cache entry would replace the variable."""
    libtorch = make_libtorch("2.12.0", cuda=None)
    output = configure_another_project(tmp_path, "set(LLTM_CUDA OFF)", libtorch, oldest_cmake=oldest_cmake)
    assert "CPU only" not in output
    assert "CPU only" in configure_another_project(tmp_path, "", libtorch, oldest_cmake=oldest_cmake)


def test_another_compiler_is_refused(tmp_path, make_libtorch):
    clang = "set(CMAKE_CXX_COMPILER_ID Clang)\nset(CMAKE_CXX_COMPILER_VERSION 18.1)"
    output = configure_another_project(tmp_path, clang, make_libtorch("2.12.0", cuda=None), fails=True)
    assert re.search(r"other needs GCC 11 or newer, but \S+ is Clang 18.1\.", output)


needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None or torch.version.cuda is None, reason="no nvcc on PATH, or a PyTorch without CUDA"
)


@needs_nvcc
@pytest.mark.release
@pytest.mark.parametrize(
    ("options", "environment", "architectures"),
    [
        (["-DCMAKE_CUDA_ARCHITECTURES=80;90a"], {}, ("80", "90a-real")),
        (["-DCMAKE_CUDA_ARCHITECTURES=80"], {"TORCH_CUDA_ARCH_LIST": "9.0"}, ("80",)),
        ([], {"TORCH_CUDA_ARCH_LIST": "8.0 9.0a+PTX"}, ("80-real", "90a-real")),
        ([], {"TORCH_CUDA_ARCH_LIST": "9.0"}, ("90-real", "90a-real")),
        ([], {"TORCH_CUDA_ARCH_LIST": CONTAINER}, ("80-real", "86-real", "90-real", "100-real", "120", "90a-real")),
        (["-DCMAKE_CUDA_ARCHITECTURES=90"], {}, ("90",)),
        (["-DCMAKE_CUDA_ARCHITECTURES=80-virtual"], {}, ("80-virtual",)),
    ],
)
def test_architectures_are_the_builders_choice(build, options, environment, architectures):
    output = build.configure(*options, **environment)
    if CPU_ONLY in output:
        pytest.skip(output[output.index(CPU_ONLY) :])
    assert tuple(build.info["architectures"]) == architectures
    without = "without the kernels of Hopper's own matrix instructions"
    assert (without in output) == ("90" in architectures)
    assert torch.version.cuda.split(".")[0] == build.info["cuda"].split(".")[0]
    commands = (build.folder / "build.ninja").read_text()
    for architecture in architectures:
        number, _, kind = architecture.partition("-")
        assert (f"compute_{number}]" if kind == "virtual" else f"sm_{number}]") in commands
    assert "compute_50" not in commands  # what PyTorch's own package would have added
    assert ("FLAGS = --compress-mode=size " in commands) == (build.info["cuda"].split(".")[0] >= "13")


@needs_nvcc
def test_without_a_gpu_cuda_is_built_for_every_gpu(build, with_gpus):
    """Machine code for 8.x and Hopper, and PTX that has clusters for newer ones, which is also what a wheel has."""
    output = build.configure("-DLLTM_CUDA=ON", PATH=with_gpus())
    assert "wgmma" not in output  # nothing is missing
    every_gpu = ["80-real", "90-virtual", "90a-real"]
    assert build.info["architectures"] == every_gpu
    commands = (build.folder / "build.ninja").read_text()
    for code in ("arch=compute_80,code=[sm_80]", "arch=compute_90,code=[compute_90]", "arch=compute_90a,code=[sm_90a]"):
        assert code in commands
    assert f'-DCMAKE_CUDA_ARCHITECTURES="{";".join(every_gpu)}"' in (ROOT / "Makefile").read_text()
