"""The ways to build an operator library: with CMake against an installed lltm, with setuptools, and just in time.

Each runs in a separate process, because registered operators stay registered. All but one build for the CPU only; the
just-in-time build has CUDA if lltm has. The CMake build of examples/operators against an install prefix is covered by
the tests in examples/operators/test, so it is not repeated here. For the other ways, one of its operators, which has a
CUDA kernel, is enough: every file takes many seconds to compile.

These tests take minutes, and are not part of make test: see the marker `release`.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from lltm_testing.building import ROOT, build_wheel, run, run_python, torch_cuda_arch_list
from torch.utils.cpp_extension import CUDA_HOME

import lltm

pytestmark = pytest.mark.release

EXAMPLE = ROOT / "examples" / "operators"

# Checks a value and a gradient.
CALL_THE_EXAMPLE = """
import torch
device = "cuda" if torch.cuda.is_available() and {cuda} else "cpu"
x = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64, device=device, requires_grad=True)
result = torch.ops.example_ops.elementwise_mult(x, x)
assert result.tolist() == [0.25, 1.5625, 4], result
assert torch.autograd.grad(result.sum(), x)[0].tolist() == [1, -2.5, 4]
print("the operator works on", device)
"""


@pytest.fixture
def example(tmp_path) -> Path:
    """A copy of examples/operators with one of its operators."""
    folder = tmp_path / "operators"  # setuptools also writes to the folder of setup.py
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("test", "__pycache__"))
    for name in ("CMakeLists.txt", "sources.py"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        kept = [line for line in lines if "src/" not in line or "src/elementwise" in line]
        assert any("src/elementwise" in line for line in kept)
        (folder / name).write_text("".join(kept))
    return folder


def pip_install(project: Path, site: Path, *options, **variables) -> None:
    """Installs into a separate folder, so the environment does not change."""
    run(
        sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--target", site,
        *options, project, **variables,
    )  # fmt: skip


def read_sources(name: str) -> list[str]:
    """One of the lists in CMakeLists.txt."""
    (sources,) = re.findall(rf"^set\({name}\b(.*?)\)$", (ROOT / "CMakeLists.txt").read_text(), re.DOTALL | re.MULTILINE)
    return sources.split()


def test_cmake_against_an_installed_wheel(example, tmp_path):
    pip_install(build_wheel(tmp_path), tmp_path / "site")
    installed = run_python("import lltm; print(lltm.cmake_prefix_path)", PYTHONPATH=tmp_path / "site", cwd=tmp_path)
    prefix = installed.splitlines()[-1]
    assert Path(prefix).is_relative_to(tmp_path / "site")

    build = tmp_path / "build"
    run(
        "cmake", "-S", example, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DLLTM_CUDA=OFF", "-DBUILD_TESTING=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
    )  # fmt: skip
    run("cmake", "--build", build)
    program = "import example_ops" + CALL_THE_EXAMPLE.format(cuda=False)
    run_python(program, EXAMPLE_OPS_LIBRARY=build / "libexample_ops.so", PYTHONPATH=example / "python", cwd=tmp_path)


def test_setuptools(example, tmp_path):
    pip_install(example, tmp_path / "site", LLTM_CUDA="OFF")
    library = tmp_path / "site" / "example_ops" / "libexample_ops.so"
    needed = run("readelf", "--dynamic", library)
    assert "libtorch_cpu" in needed
    assert "python" not in needed
    run_python("import example_ops" + CALL_THE_EXAMPLE.format(cuda=False), PYTHONPATH=tmp_path / "site", cwd=tmp_path)


def test_just_in_time(example, tmp_path):
    with_cuda = lltm.has_cuda and CUDA_HOME is not None
    program = (
        f"import load_jit; assert load_jit.WITH_CUDA == {with_cuda}; load_jit.load({str(tmp_path / 'build')!r}); "
        f"import example_ops"
    )
    output = run_python(
        program + CALL_THE_EXAMPLE.format(cuda=with_cuda),
        PYTHONPATH=f"{example}{os.pathsep}{example / 'python'}",
        LLTM_CUDA="AUTO" if with_cuda else "OFF",
        TORCH_CUDA_ARCH_LIST=torch_cuda_arch_list(),
    )
    on_gpu = torch.cuda.is_available() and with_cuda
    assert output.splitlines()[-1] == f"the operator works on {'cuda' if on_gpu else 'cpu'}"


def test_an_operator_in_a_script(tmp_path):
    output = run(sys.executable, EXAMPLE / "inline_operator.py", tmp_path)
    assert output.splitlines()[-1] == "[0.0, 4.0, 9.0] [0.0, 4.0, 6.0]"


def test_lltm_just_in_time(tmp_path):
    """The library's own sources, for users who want to change the cell from Python."""
    generated = tmp_path / "generated"
    generated.mkdir()
    version = (ROOT / "src" / "version.h.in").read_text()
    version = version.replace("@PROJECT_VERSION@", lltm.__version__).replace("@LLTM_BUILT_ARCHITECTURES@", "")
    assert "@" not in version
    (generated / "version.h").write_text(version)
    # Joined as with CMAKE_UNITY_BUILD, and not optimized: PyTorch's headers take most of the time.
    joined = read_sources("LLTM_GLUE") + read_sources("LLTM_CPU_ONLY_GLUE")
    units = [[file] for file in read_sources("LLTM_CPU_KERNELS")] + [joined[start::2] for start in range(2)]
    sources = []
    for number, unit in enumerate(units):
        source = tmp_path / f"unit_{number}.cpp"
        source.write_text("".join(f'#include "{ROOT / file}"\n' for file in unit))
        sources.append(str(source))
    program = f"""
import torch
from torch.utils import cpp_extension
cpp_extension.load(
    "liblltm_jit", {sources}, extra_cflags=["-std=c++20", "-O0", "-fvisibility=hidden"], with_cuda=False,
    extra_include_paths={[str(ROOT / "include"), str(generated)]}, build_directory={str(tmp_path)!r},
    is_python_module=False,
)
import lltm  # loads nothing: the operators are there
cell = lltm.LLTMCell(5, 7).double()
x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda x: cell(x), x)
print("version", lltm.library_path)
"""
    assert run_python(program, PYTHONPATH=ROOT / "python").splitlines()[-1] == "version None"
