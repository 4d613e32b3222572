"""scripts/environment.py: which environment a command runs in, what is installed there, and what the messages say."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "environment.py"
spec = importlib.util.spec_from_file_location("environment", SCRIPT)
environment = importlib.util.module_from_spec(spec)
spec.loader.exec_module(environment)


@pytest.mark.parametrize(
    ("bounds", "allowed", "refused"),
    [
        ("", ["0.1", "2.11.0+cu130"], [None]),
        (
            ">=2.11,<2.16",
            ["2.11.0+cu130", "2.11", "2.15.9", "2.15.0a0+git12"],
            ["2.10.1", "2.16.0", "2.9", "3.0", None],
        ),
        ("==2.11", ["2.11.0", "2.11.0+cu130"], ["2.11.1", "2.1"]),
        ("==2.11.0+cpu", ["2.11.0+cpu"], ["2.11.0", "2.11.0+cu130"]),
        (">=3.28", ["3.28", "4.0.1", "3.100"], ["3.3", "3.25.1"]),
    ],
)
def test_bounds(bounds, allowed, refused):
    requirement = environment.Requirement("torch", bounds)
    for version in allowed:
        assert requirement.allows(version), version
    for version in refused:
        assert not requirement.allows(version), version


def test_every_requirements_file_can_be_read():
    for file in (ROOT / "requirements").glob("*.txt"):
        for requirement in environment.read_requirements(file.stem).values():
            requirement.allows("1.0")
    assert {"torch", "cmake", "pytest", "scikit-learn"} <= environment.read_requirements("test").keys()
    assert "pytest" not in environment.read_requirements("demo")


def versions(goal, **changes):
    """A python3 that has everything for a goal, but for the changes."""
    found = dict.fromkeys(environment.read_requirements(goal), "99.0") | {"torch": "2.11.0+cu130"} | changes
    return found.get


def plan(goal, torch=None, **changes):
    folder, over_python, install = environment.make_plan(goal, torch, versions(goal, **changes))
    return folder and folder.name, over_python, [str(requirement) for requirement in install]


EVERYTHING = [str(requirement) for requirement in environment.read_requirements("build").values()]


def test_nothing_is_made_where_python3_has_everything():
    assert plan("build") == (None, True, [])
    assert plan("test") == (None, True, [])
    assert plan("build", "2.11.0") == (None, True, [])


def test_what_python3_lacks_goes_into_an_environment_over_it():
    assert plan("demo", tqdm=None) == (".venv", True, ["tqdm"])
    assert plan("build", cmake="3.25.1") == (".venv", True, ["cmake>=3.28"])
    assert plan("build", "2.11.0", ninja=None) == (".venv-torch-2.11.0", True, ["ninja"])


@pytest.mark.parametrize("torch", [None, "2.10.0", "2.16.0+cu132"])
def test_everything_is_installed_where_python3_has_no_supported_torch(torch):
    folder, over_python, install = environment.make_plan("build", None, versions("build", torch=torch))
    assert (folder.name, over_python, [str(requirement) for requirement in install]) == (".venv", False, EVERYTHING)


def test_another_torch_than_that_of_python3_has_an_environment_of_its_own():
    folder, over_python, install = plan("build", "2.15.0")
    assert (folder, over_python) == (".venv-torch-2.15.0", False)
    assert install == ["torch==2.15.0", *EVERYTHING[1:]]


@pytest.mark.parametrize("torch", ["2.10.0", "2.16", "1.13.1", "newest", "2", ">=2.11"])
def test_a_torch_that_is_not_supported(torch):
    with pytest.raises(SystemExit) as error:
        plan("build", torch)
    assert str(error.value) == f"error: TORCH={torch} is not supported: lltm works with PyTorch 2.11 to 2.15."


def test_formatters_of_other_versions_are_not_used():
    exact = {"clang-format": "19.1.7", "ruff": "0.15.22"}
    assert environment.make_plan("lint", None, exact.get).folder is None
    folder, _, install = environment.make_plan("lint", None, (exact | {"ruff": "0.15.23"}).get)
    assert (folder.name, [str(requirement) for requirement in install]) == (".venv-lint", ["ruff==0.15.22"])


def test_a_missing_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        SystemExit, match=r"^error: no C\+\+ compiler was found: install GCC 11 or newer \(.*apt install"
    ):
        environment.check_compiler()
    monkeypatch.setenv("CXX", "g++-99 -O2")
    with pytest.raises(SystemExit, match=r"^error: CXX names g\+\+-99, which is not there: "):
        environment.check_compiler()
    program = tmp_path / "g++-99"
    program.touch(mode=0o755)
    environment.check_compiler()


def test_an_old_python(tmp_path):
    python3 = tmp_path / "python3"
    python3.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.6.15 || echo False\n')
    python3.chmod(0o755)
    variables = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["make", "-C", ROOT, "build"], env=variables, capture_output=True, text=True)
    assert done.returncode == 2
    assert "lltm needs a python3 on PATH that is Python 3.10 or newer, and it is: Python 3.6.15." in done.stderr


def test_a_python_without_venv(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else find_spec(name))
    with pytest.raises(
        SystemExit, match=r"^error: python3 \(.*\) cannot make environments: .* apt install python3-venv"
    ):
        environment.check_venv()


# From here on a whole checkout with packages that hold nothing: real environments and a real pip, without a network.


def make_wheel(folder: Path, name: str, version: str) -> None:
    information = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{name}/version.py": f"__version__ = '{version}'\n",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{information}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)


class Checkout:
    """A checkout of nothing but the script, and a python3 that is an environment itself."""

    def __init__(self, folder: Path) -> None:
        self.root, self.python3, self.wheels = folder / "checkout", folder / "python3", folder / "wheels"
        self.wheels.mkdir()
        (self.root / "requirements").mkdir(parents=True)
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPT, self.root / "scripts")
        self.require("torch>=2.11,<2.16", "present", "absent")
        for name, version in [("torch", "2.15.0"), ("present", "1.0"), ("absent", "1.0"), ("absent", "2.0")]:
            make_wheel(self.wheels, name, version)
        venv.create(self.python3, symlinks=True)

    def require(self, *lines: str) -> None:
        (self.root / "requirements" / "build.txt").write_text("\n".join(lines))

    def give_python3(self, name: str, version: str) -> None:
        make_wheel(self.wheels, name, version)
        (packages,) = self.python3.glob("lib/python3*/site-packages")
        with zipfile.ZipFile(self.wheels / f"{name}-{version}-py3-none-any.whl") as wheel:
            wheel.extractall(packages)

    def run(self, *, torch: str | None = None, network: bool = True) -> subprocess.CompletedProcess:
        """Tells where the packages were found."""
        program = "import torch, present, absent; print(torch.__file__, present.__file__, absent.__file__)"
        option = ["--torch", torch] if torch else []
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        variables |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "CXX": sys.executable}
        variables["PATH"] = f"{self.python3 / 'bin'}{os.pathsep}{os.environ['PATH']}"
        if network:
            variables["PIP_FIND_LINKS"] = str(self.wheels)
        return subprocess.run(
            ["python3", self.root / "scripts" / "environment.py", *option, "build"] + ["python3", "-c", program],
            env=variables,
            capture_output=True,
            text=True,
        )

    def origins(self, done: subprocess.CompletedProcess) -> list[str]:
        """The environment that each package came from."""
        assert done.returncode == 0, done.stdout + done.stderr
        return [Path(file).parents[4].name for file in done.stdout.splitlines()[-1].split()]


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


def files_of(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if "__pycache__" not in file.parts}


def test_an_environment_over_one_sees_its_packages_and_leaves_it_alone(checkout):
    checkout.give_python3("torch", "2.11.0")
    checkout.give_python3("present", "1.0")
    before = files_of(checkout.python3)
    failed = checkout.run(network=False)
    assert failed.returncode == 1
    assert "error: pip could not install absent into .venv: its own message is above." in failed.stderr

    first = checkout.run()
    assert checkout.origins(first) == ["python3", "python3", ".venv"]
    assert "-- Installing absent into .venv" in first.stdout
    assert files_of(checkout.python3) == before

    second = checkout.run(network=False)
    assert checkout.origins(second) == ["python3", "python3", ".venv"]
    assert len(second.stdout.splitlines()) == 1, second.stdout

    checkout.require("torch>=2.11,<2.16", "present", "absent<2")
    third = checkout.run()
    assert "-- Installing absent<2 into .venv" in third.stdout
    assert "-- Making" not in third.stdout
    assert checkout.origins(third) == ["python3", "python3", ".venv"]


def test_python3_alone_where_it_has_everything(checkout):
    for name, version in [("torch", "2.15.0"), ("present", "1.0"), ("absent", "1.0")]:
        checkout.give_python3(name, version)
    assert checkout.origins(checkout.run(network=False)) == ["python3"] * 3
    assert {entry.name for entry in checkout.root.iterdir()} == {"scripts", "requirements"}


def test_an_environment_of_ours_alone_then_active_then_made_again(checkout):
    python3 = checkout.python3
    checkout.give_python3("torch", "2.10.0")
    checkout.give_python3("present", "1.0")
    assert checkout.origins(checkout.run()) == [".venv"] * 3

    # Who has activated it runs the script with its python3.
    checkout.python3 = checkout.root / ".venv"
    marker = checkout.python3 / environment.MARKER
    made_for = json.loads(marker.read_text())["made_for"]
    make_wheel(checkout.wheels, "later", "1.0")
    checkout.require("torch>=2.11,<2.16", "present", "absent", "later")
    active = checkout.run()
    assert checkout.origins(active) == [".venv"] * 3
    assert "-- Installing later into .venv" in active.stdout
    assert json.loads(marker.read_text())["made_for"] == made_for

    checkout.python3 = python3
    checkout.give_python3("torch", "2.11.0")
    again = checkout.run()
    assert "-- .venv was made for another python3, making it again" in again.stdout
    assert checkout.origins(again) == ["python3", "python3", ".venv"]


def test_an_environment_that_is_not_ours_is_left_alone(checkout):
    checkout.give_python3("torch", "2.11.0")
    (checkout.root / ".venv").mkdir()
    done = checkout.run()
    assert done.returncode == 1
    assert (
        "error: .venv in the checkout was not made by make, which installs nothing there. Missing: present, absent."
        in done.stderr
    )
    assert not any((checkout.root / ".venv").iterdir())
