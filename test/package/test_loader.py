"""Importing lltm: what it loads, what it does not load twice, and its errors.

Each test uses a separate process, because registered operators stay registered.
"""

import json
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from lltm_testing import isolated
from lltm_testing.building import ROOT

import lltm

PACKAGE = Path(lltm.__file__).parent
RUNNING = f"PyTorch {torch.__version__} {f'with CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'}"


def python(program: str, *arguments, package=PACKAGE.parent, library=None) -> str:
    return isolated.run(program, *arguments, package=package, library=library)


def import_error(before="", **options) -> str:
    with pytest.raises(RuntimeError) as caught:
        python(f"{before}\nimport lltm", **options)
    message = str(caught.value)
    assert message.startswith("ImportError: lltm: ")
    return message


def write_build_info(folder: Path, *, torch_version, cuda=None, version=lltm.__version__) -> None:
    values = {"version": version, "torch": torch_version, "cuda": cuda, "architectures": ["80", "90a"]}
    (folder / "liblltm_ops.json").write_text(json.dumps(values))


@pytest.fixture(scope="session")
def library() -> Path:
    return lltm.library_path


@pytest.fixture
def bare_package(tmp_path) -> Path:
    """A copy of the package without a library. Returns the folder to put on PYTHONPATH."""
    shutil.copytree(PACKAGE, tmp_path / "site" / "lltm", ignore=shutil.ignore_patterns("lib", "include", "__*__"))
    return tmp_path / "site"


def test_attributes():
    assert lltm.build_info is not None, "the library has no liblltm_ops.json beside it"
    assert lltm.__version__ == lltm.build_info.version and lltm.__version__[0].isdigit()
    assert lltm.build_info.torch.split(".")[:2] == torch.__version__.split(".")[:2]
    assert lltm.has_cuda == (lltm.build_info.cuda is not None)
    assert bool(lltm.build_info.architectures) == lltm.has_cuda
    assert lltm.library_path.is_file()
    assert (PACKAGE / "py.typed").is_file()
    if lltm.cmake_prefix_path is not None:
        assert Path(lltm.cmake_prefix_path, "lib", "cmake", "lltm", "lltm-config.cmake").is_file()


def test_the_path_of_the_library_can_be_called(library):
    """For those who take it for a function: it gives the same path."""
    assert isinstance(library, Path) and library() == library
    assert type(library()) is type(Path()) and str(library()) == str(library)
    assert pickle.loads(pickle.dumps(library)) == library and {library: 1}[library()] == 1


def test_build_info_is_data_next_to_the_library(library):
    values = json.loads((library.parent / "liblltm_ops.json").read_text())
    assert lltm.BuildInfo(**values | {"architectures": tuple(values["architectures"])}) == lltm.build_info


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os", "JSONDecodeError"),
        ('{"version": "1.2.3"}', "KeyError('torch')"),
        ("[1, 2]", "TypeError"),
        ('{"version": 1, "torch": "2.11.0", "cuda": null, "architectures": []}', "expected strings in"),
    ],
)
def test_a_broken_build_info_is_named(tmp_path, text, problem):
    (tmp_path / "liblltm_ops.so").touch()
    (tmp_path / "liblltm_ops.json").write_text(text)
    message = import_error(library=tmp_path / "liblltm_ops.so")
    assert problem in message and f"{tmp_path}/liblltm_ops.json" in message


def test_library_inside_the_package(library, bare_package):
    (bare_package / "lltm" / "lib" / "cmake" / "lltm").mkdir(parents=True)
    (bare_package / "lltm" / "lib" / "cmake" / "lltm" / "lltm-config.cmake").touch()
    shutil.copy(library, bare_package / "lltm" / "lib")
    write_build_info(bare_package / "lltm" / "lib", torch_version=torch.__version__)
    program = "import lltm; print(lltm.library_path, lltm.__version__, lltm.cmake_prefix_path)"
    place = bare_package / "lltm"
    assert python(program, package=bare_package) == f"{place}/lib/liblltm_ops.so {lltm.__version__} {place}"


def test_override_wins(library, bare_package, tmp_path):
    (bare_package / "lltm" / "lib").mkdir()
    (bare_package / "lltm" / "lib" / "liblltm_ops.so").write_text("not this one")
    shutil.copy(library, tmp_path / "renamed.so")
    program = "import lltm, torch; print(lltm.library_path); torch.ops.lltm.forward"
    assert python(program, package=bare_package, library=tmp_path / "renamed.so") == str(tmp_path / "renamed.so")


def test_override_may_be_relative(library):
    """To the current directory, which is / here."""
    assert python("import lltm; print(lltm.library_path)", library=str(library).lstrip("/")) == str(library)


def test_library_of_an_installed_prefix(library, tmp_path):
    (tmp_path / "lib").mkdir()
    shutil.copy(library, tmp_path / "lib")
    write_build_info(tmp_path / "lib", torch_version=torch.__version__)
    program = "import lltm; print(lltm.__version__, lltm.build_info.wgmma)"
    assert python(program, library=tmp_path / "lib" / "liblltm_ops.so") == f"{lltm.__version__} True"


def test_a_library_with_its_version_in_its_name(library, tmp_path):
    """As CMake builds and installs it. It is known by its plain name, also if the program itself has loaded it."""
    shutil.copy(library, tmp_path / "liblltm_ops.so.1.2.3")
    (tmp_path / "liblltm_ops.so").symlink_to("liblltm_ops.so.1.2.3")
    for before in ("", "import sys, torch; torch.ops.load_library(sys.argv[1]); "):
        program = f"{before}import lltm; print(lltm.library_path)"
        found = python(program, tmp_path / "liblltm_ops.so.1.2.3", library=tmp_path / "liblltm_ops.so")
        assert found == str(tmp_path / "liblltm_ops.so")
    (tmp_path / "liblltm_ops.so").unlink()
    assert python(program, tmp_path / "liblltm_ops.so.1.2.3") == str(tmp_path / "liblltm_ops.so.1.2.3")


@pytest.mark.parametrize(
    ("architectures", "wgmma"), [((), False), (("80", "90"), False), (("80", "90a"), True), (("90a-real",), True)]
)
def test_only_90a_has_wgmma(architectures, wgmma):
    assert lltm.BuildInfo("1.2.3", "2.15.0", "13.0", architectures).wgmma == wgmma


def test_a_second_import_and_a_reload_do_nothing(library):
    program = (
        "import importlib, sys, lltm\n"
        "before = lltm.library_path, lltm.build_info, lltm.__version__\n"
        "importlib.reload(lltm)\n"
        "assert before == (lltm.library_path, lltm.build_info, lltm.__version__), lltm.library_path\n"
        "for name in [name for name in sys.modules if name.startswith('lltm')]: del sys.modules[name]\n"
        "import lltm\n"
        "assert before == (lltm.library_path, lltm.build_info, lltm.__version__), lltm.library_path\n"
        "print('alive')"
    )
    assert python(program, library=library) == "alive"


def test_loaded_before_from_another_path(library, tmp_path):
    """Loading a copy would register everything again and abort the process."""
    other = tmp_path / "other place"
    other.mkdir()
    shutil.copy(library, other)
    program = (
        "import sys, torch; torch.ops.load_library(sys.argv[1]); import lltm\n"
        "print(lltm.library_path, lltm.has_cuda, lltm.LLTMCell(2, 3)(torch.zeros(2))[0].shape[0])"
    )
    expected = f"{other}/liblltm_ops.so {lltm.has_cuda} 3"
    assert python(program, other / "liblltm_ops.so", library=library) == expected


def test_linked_or_renamed_library_is_left_alone(library, bare_package, tmp_path):
    """The operators are registered by an unknown file: no library is searched for, and nothing fails. The version is
    that of the package."""
    shutil.copy(library, tmp_path / "renamed.so")
    (bare_package / "lltm" / "_version.py").write_text('VERSION = "4.5.6"\n')
    program = (
        "import ctypes, sys, torch; ctypes.CDLL(sys.argv[1]); import lltm\n"
        "print(lltm.library_path, lltm.build_info, lltm.cmake_prefix_path, lltm.has_cuda, lltm.__version__)"
    )
    expected = f"None None None {lltm.has_cuda} 4.5.6"
    assert python(program, tmp_path / "renamed.so", package=bare_package) == expected


@pytest.mark.parametrize("loads_itself", [False, True], ids=["lltm loads it", "the program loads it"])
def test_a_library_of_another_version(library, tmp_path, loads_itself):
    """Its operators may be others, or have other arguments."""
    other = tmp_path / "liblltm_ops.so"
    shutil.copy(library, other)
    write_build_info(tmp_path, torch_version=torch.__version__, version="0.1.0")
    before = f"import torch; torch.ops.load_library({str(other)!r})" if loads_itself else ""
    message = import_error(before, library=None if loads_itself else other)
    assert f"{other} is of version 0.1.0, but the package {PACKAGE} is of version {lltm.__version__}. " in message


@pytest.mark.parametrize("override", [None, ""], ids=["unset", "empty"])
def test_missing_library_says_where_it_looked(bare_package, override):
    message = import_error(package=bare_package, library=override)
    assert f"{bare_package}/lltm/lib/liblltm_ops.so" in message
    assert "LLTM_LIBRARY" in message and "pip install" in message


def test_override_that_is_no_file(tmp_path):
    for path in ("/nowhere/liblltm_ops.so", tmp_path):
        message = import_error(library=path)
        assert f"LLTM_LIBRARY names {path}, which is not a file" in message


def test_another_torch_is_found_before_loading(tmp_path):
    """The file is not a library: if it were loaded, the message would be different."""
    (tmp_path / "liblltm_ops.so").write_text("")
    write_build_info(tmp_path, torch_version="2.3.1+cu121", cuda="12.1")
    message = import_error(library=tmp_path / "liblltm_ops.so")
    assert f"built with PyTorch 2.3.1+cu121 and CUDA 12.1, but {RUNNING} is running" in message
    assert "Install PyTorch 2.3 with CUDA 12, or build lltm again" in message
    write_build_info(tmp_path, torch_version="2.3.1+cpu")
    message = import_error(library=tmp_path / "liblltm_ops.so")
    assert f"built with PyTorch 2.3.1+cpu, but {RUNNING} is running" in message
    assert "Install PyTorch 2.3, or build lltm again" in message


def test_another_cuda_is_found_before_loading(tmp_path):
    (tmp_path / "liblltm_ops.so").write_text("")
    write_build_info(tmp_path, torch_version=torch.__version__, cuda="9.2")
    message = import_error(library=tmp_path / "liblltm_ops.so")
    assert f"built with PyTorch {torch.__version__} and CUDA 9.2, but {RUNNING} is running" in message
    assert "with CUDA 9, or build lltm again" in message


@pytest.mark.parametrize(("cuda", "running"), [("13.0", "with CUDA 13.0"), (None, "without CUDA")])
def test_the_running_cuda_is_named_even_if_the_version_does_not_have_it(tmp_path, cuda, running):
    (tmp_path / "liblltm_ops.so").write_text("")
    write_build_info(tmp_path, torch_version="2.12.0", cuda="12.8")
    before = f"import torch; torch.__version__ = '2.12.0'; torch.version.cuda = {cuda!r}"
    message = import_error(before, library=tmp_path / "liblltm_ops.so")
    assert f"built with PyTorch 2.12.0 and CUDA 12.8, but PyTorch 2.12.0 {running} is running" in message


def compile_library(tmp_path: Path, source: str, *options: str) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "library.cpp").write_text(source)
    path = tmp_path / "liblltm_ops.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, tmp_path / "library.cpp", *options], check=True)
    return path


def test_an_undefined_symbol_names_both_versions(tmp_path):
    """The minor version matches, but a symbol is missing: another build of the same release, or a nightly."""
    library = compile_library(tmp_path, "void only_in_another_torch(); void call() { only_in_another_torch(); }")
    built_with = ".".join(torch.__version__.split("+")[0].split(".")[:2]) + ".99"
    write_build_info(tmp_path, torch_version=built_with)
    message = import_error(library=library)
    assert f"built with PyTorch {built_with}" in message and f"{RUNNING} is running" in message
    assert "only_in_another_torch" in message and "build lltm again" in message


def test_an_undefined_symbol_without_build_info(tmp_path):
    library = compile_library(tmp_path, "void only_in_another_torch(); void call() { only_in_another_torch(); }")
    message = import_error(library=library)
    assert "built with another PyTorch" in message and f"{RUNNING} is running" in message


def test_a_file_that_is_no_library(tmp_path):
    (tmp_path / "liblltm_ops.so").write_text("")
    message = import_error(library=tmp_path / "liblltm_ops.so")
    assert f"cannot load {tmp_path}/liblltm_ops.so" in message and "file too short" in message


def test_a_folder_named_like_pytorch_is_not_to_blame(tmp_path):
    folder = tmp_path / "libtorch"
    folder.mkdir()
    (folder / "liblltm_ops.so").write_text("")
    message = import_error(library=folder / "liblltm_ops.so")
    assert message.startswith(f"ImportError: lltm: cannot load {folder}/liblltm_ops.so: ")
    assert "built with" not in message


@pytest.mark.parametrize("version", ["1.13.1", "2.6.0+cu124", "2.10.2"])
def test_a_pytorch_that_is_too_old_is_refused_at_once(tmp_path, version):
    """Even without a library: neither another build nor lltm.build would help."""
    (oldest,) = re.findall(r"^torch>=(2\.\d+)", (ROOT / "requirements" / "build.txt").read_text(), re.MULTILINE)
    message = import_error(f"import torch; torch.__version__ = {version!r}", library=tmp_path / "missing.so")
    advice = f"lltm needs {oldest} or newer: pip install --upgrade 'torch>={oldest}'"
    assert f"lltm: PyTorch {version} is too old: {advice}" in message


def test_a_missing_library_of_pytorch_names_both_versions(tmp_path):
    """As when a build with CUDA is loaded into a PyTorch without CUDA."""
    (tmp_path / "stub.cpp").touch()
    needed = ["-Wl,--no-as-needed", f"-L{tmp_path}", "-ltorch_of_another_build"]
    subprocess.run(
        ["c++", "-shared", "-o", tmp_path / "libtorch_of_another_build.so", tmp_path / "stub.cpp"], check=True
    )
    library = compile_library(tmp_path, "int nothing;", *needed)
    (tmp_path / "libtorch_of_another_build.so").unlink()
    write_build_info(tmp_path, torch_version=torch.__version__)
    message = import_error(library=library)
    assert f"was built with PyTorch {torch.__version__}, but {RUNNING} is running" in message
    assert "The system says: libtorch_of_another_build.so: cannot open shared object file" in message


def test_a_library_without_the_operators(tmp_path):
    message = import_error(library=compile_library(tmp_path, "int nothing;"))
    assert "does not register the operators lltm::forward and lltm::backward" in message
