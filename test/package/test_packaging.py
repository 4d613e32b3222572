"""The wheel: what it contains, and that it works for Python and C++ when it is installed.

It is built once, without CUDA and as optimized as for users, in a folder next to the library under test, so that a
second run compiles nothing.
"""

import email
import json
import re
import runpy
import shutil
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from lltm_testing.building import ROOT, build_wheel, run

import lltm

pytestmark = pytest.mark.release

TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def unpacked(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="session")
def environment(wheel, tmp_path_factory) -> Path:
    """A virtual environment that has access to the packages of this one, with the wheel installed in it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text(f"{TORCH.parent}\n")
    python = folder / "bin" / "python"
    # --no-index: the wheel's requirements must be installed already.
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index")
    run(*install, "--ignore-installed", "--no-deps", wheel)
    run(*install, "lltm")
    return folder


def build_consumer(folder: Path, *options) -> str:
    source = ROOT / "test" / "package" / "consumer"
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *options)
    run("cmake", "--build", folder)
    return run(folder / "names_no_symbol").strip()


def test_serves_every_python_on_this_platform(wheel):
    _, _, python_tag, abi_tag, platform_tag = wheel.stem.split("-")
    assert (python_tag, abi_tag) == ("py3", "none")
    assert platform_tag.startswith("linux_")


def test_has_the_library_the_headers_and_the_cmake_package_once(unpacked):
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert {name for name in files if name.endswith((".so", ".h"))} == {
        "lltm/lib/liblltm_ops.so",
        "lltm/include/lltm/lltm.h",
        "lltm/include/lltm/nn.h",
        "lltm/include/lltm/recurrent.h",
        "lltm/include/lltm/recurrent_checks.h",
        "lltm/include/lltm/registered.h",
    }
    assert {"lltm/__init__.py", "lltm/py.typed", "lltm/lib/cmake/lltm/lltm-config.cmake"} <= files
    top = {name.split("/")[0] for name in files}
    assert top == {"lltm", f"lltm-{lltm.__version__}.dist-info"}


def test_requires_any_supported_torch_so_that_none_is_replaced(unpacked):
    metadata = email.message_from_string(next(unpacked.glob("*.dist-info/METADATA")).read_text())
    assert metadata["Version"] == lltm.__version__
    assert metadata.get_all("Requires-Dist") == ["torch>=2.11.0a0"]
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Author"] == "The LLTM operator library's authors"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Requires-Python"] == ">=3.10"


def test_an_isolated_build_is_refused():
    """An isolated environment has what [build-system] requires. If that included torch, it would be the newest one, and
    the wheel would replace the user's PyTorch."""
    (requirements,) = re.findall(r"^requires = (.*)$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert "torch" not in requirements
    refusal = run(sys.executable, "-I", "-S", ROOT / "cmake" / "wheel_metadata.py", fails=True)
    assert refusal.startswith("lltm: found no PyTorch to build with.")
    assert refusal.endswith("then pip install --no-build-isolation .\n")


@pytest.mark.parametrize(
    ("version", "refusal"),
    [
        ("1.13.1", "lltm: PyTorch 1.13.1 is too old: lltm needs 2.11 or newer."),
        ("2.6.0+cu124", "lltm: PyTorch 2.6.0+cu124 is too old: lltm needs 2.11 or newer."),
        ("2.16.0a0+git", "lltm: PyTorch 2.16.0a0+git is newer than this version of lltm, which was tested up to 2.15:"),
        ("2.11.0a0+nv", None),
        ("2.15.9", None),
    ],
)
@pytest.mark.parametrize("state", ["sdist", "metadata_wheel", "wheel"])
def test_unsupported_pytorch_is_refused_before_anything_is_downloaded(monkeypatch, version, refusal, state):
    provider = runpy.run_path(str(ROOT / "cmake" / "wheel_metadata.py"))["Provider"]()
    provider.build_state(state)
    monkeypatch.setattr("importlib.metadata.version", {"torch": version}.__getitem__)
    if refusal is None or state == "sdist":  # an sdist is not built with any PyTorch
        assert provider.dynamic_metadata({}, {"version": "1.2"}) == {}
    else:
        with pytest.raises(SystemExit, match=re.escape(refusal)) as error:
            provider.dynamic_metadata({}, {"version": "1.2"})
        assert "pip install 'torch>=2.11.0a0,<2.16'" in str(error.value)


def test_other_systems_are_refused(monkeypatch):
    provider = runpy.run_path(str(ROOT / "cmake" / "wheel_metadata.py"))["Provider"]()
    provider.build_state("metadata_wheel")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    with pytest.raises(SystemExit, match="lltm supports Linux on x86-64 and aarch64, not Darwin on arm64."):
        provider.dynamic_metadata({}, {"version": "1.2"})


def test_says_what_it_was_built_with_without_being_loaded(unpacked):
    info = json.loads((unpacked / "lltm" / "lib" / "liblltm_ops.json").read_text())
    assert info == {"version": lltm.__version__, "torch": torch.__version__, "cuda": None, "architectures": []}


def test_looks_for_torch_beside_itself_alone(unpacked):
    dynamic = run("readelf", "--dynamic", unpacked / "lltm" / "lib" / "liblltm_ops.so")
    (path,) = [line for line in dynamic.splitlines() if "(RUNPATH)" in line or "(RPATH)" in line]
    assert path.split("[")[1] == "$ORIGIN:$ORIGIN/../../torch/lib]"


def test_installed_it_is_imported_and_trains(environment):
    program = """
import lltm, torch
cell = lltm.LLTMCell(3, 4)
new_h, _ = cell(torch.ones(2, 3))
new_h.sum().backward()
assert cell.weights.grad.abs().sum() > 0
assert not lltm.has_cuda and lltm.build_info.cuda is None
print(lltm.__version__, lltm.library_path)
"""
    version, library = run(environment / "bin" / "python", "-c", program).split()
    assert version == lltm.__version__
    assert Path(library).is_relative_to(environment)


def test_installed_it_is_found_by_a_cmake_project(environment, tmp_path):
    program = "import lltm; print(lltm.cmake_prefix_path)"
    prefix = run(environment / "bin" / "python", "-c", program).strip()
    assert Path(prefix).is_relative_to(environment)
    assert build_consumer(tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}") == "the operators are registered"


def test_finds_the_torch_beside_it(unpacked, tmp_path):
    """The torch it was built with is gone, and no Python has one; only the one in the same site-packages is left."""
    site = tmp_path / "site-packages"
    shutil.copytree(unpacked, site)
    (site / "torch").symlink_to(TORCH)
    config = site / "lltm" / "lib" / "cmake" / "lltm" / "lltm-config.cmake"
    text = config.read_text()
    assert str(TORCH.resolve()) in text
    config.write_text(text.replace(str(TORCH.resolve()), "/gone"))
    options = [f"-DCMAKE_PREFIX_PATH={site / 'lltm'}", "-DPython_EXECUTABLE=/bin/false"]
    assert build_consumer(tmp_path / "build", *options) == "the operators are registered"
