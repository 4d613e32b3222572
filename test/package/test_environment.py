"""scripts/in-environment: which Python a command runs in, and what is installed there.

Uses a checkout that contains only the script, empty packages, real environments and the real pip, without a network.
"""

import os
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pip
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "in-environment"


def write_wheel(folder: Path, name: str, version: str) -> Path:
    information = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{information}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
    return path


class Checkout:
    """A checkout whose goals need torch and another package, and a python3 that is an active virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.root, self.python3, self.wheels = folder / "checkout", folder / "active", folder / "wheels"
        for made in (self.root / "requirements", self.root / "scripts", self.wheels):
            made.mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "scripts")
        (self.root / "requirements" / "build.txt").write_text("torch>=2.11.0a0,<2.16\n")
        (self.root / "requirements" / "test.txt").write_text("-r build.txt\nother\n")
        for name, version in [("torch", "2.11.0"), ("torch", "2.15.0"), ("other", "1.0")]:
            write_wheel(self.wheels, name, version)
        venv.create(self.python3, symlinks=True)
        (self.site,) = self.python3.glob("lib/python3*/site-packages")
        (self.site / "pip").symlink_to(Path(pip.__file__).parent)

    def give_python3(self, name: str, version: str) -> None:
        with zipfile.ZipFile(write_wheel(self.wheels, name, version)) as wheel:
            wheel.extractall(self.site)

    def start(self, *, network: bool, **variables: str) -> subprocess.CompletedProcess:
        """Let the script run a command that prints its environment, and the version of PyTorch there."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "TORCH"))}
        clean |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull} | variables
        clean["PATH"] = f"{self.python3 / 'bin'}{os.pathsep}{os.environ['PATH']}"
        if network:
            clean["PIP_FIND_LINKS"] = str(self.wheels)
        program = (
            "import importlib.metadata, pathlib, other, torch;"
            "print(pathlib.Path(torch.__file__).parents[4].name, importlib.metadata.version('torch'))"
        )
        command = [self.root / "scripts" / "in-environment", "test", "python3", "-c", program]
        return subprocess.run(command, env=clean, capture_output=True, text=True)

    def run(self, **options) -> str:
        done = self.start(**options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.release
def test_a_python3_with_a_supported_torch_gets_what_it_lacks_and_then_needs_no_network(checkout):
    checkout.give_python3("torch", "2.12.1+cu130")
    assert checkout.run(network=True) == "active 2.12.1+cu130"
    assert checkout.run(network=False) == "active 2.12.1+cu130"
    assert {entry.name for entry in checkout.root.iterdir()} == {"requirements", "scripts"}


@pytest.mark.release
@pytest.mark.parametrize("version", ["2.11.0a0+nv25.11", "2.13.0a0", "2.15.0rc1"])
def test_a_pre_release_is_used_and_not_replaced(checkout, version):
    checkout.give_python3("torch", version)
    assert checkout.run(network=True) == f"active {version}"
    assert {entry.name for entry in checkout.root.iterdir()} == {"requirements", "scripts"}


@pytest.mark.release
def test_another_torch_goes_into_the_checkout_and_that_of_python3_stays(checkout):
    checkout.give_python3("torch", "2.15.0")
    output = checkout.start(network=True, TORCH="2.11.0").stdout
    assert output.splitlines()[-1] == ".venv-torch-2.11.0 2.11.0"
    assert (
        "-- python3 has PyTorch 2.15.0, and not torch>=2.11.0a0,<2.16,==2.11.0: installing another into .venv-"
        in output
    )
    assert checkout.run(network=False, TORCH="2.11.0") == ".venv-torch-2.11.0 2.11.0"
    assert [entry.name for entry in checkout.site.glob("torch-*")] == ["torch-2.15.0.dist-info"]
    assert not (checkout.site / "other").exists()


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("MINGW64_NT-10.0", "x86_64"), ("Linux", "riscv64")]
)
def test_other_systems_are_refused_before_anything_is_made(checkout, system, machine):
    uname = checkout.python3 / "bin" / "uname"
    uname.write_text(f'#!/bin/sh\n[ "$1" = -s ] && echo {system} || echo {machine}\n')
    uname.chmod(0o755)
    done = checkout.start(network=True)
    assert done.returncode == 1
    assert done.stderr == f"error: lltm supports Linux on x86-64 and aarch64, not {system} on {machine}\n"
    assert {entry.name for entry in checkout.root.iterdir()} == {"requirements", "scripts"}
