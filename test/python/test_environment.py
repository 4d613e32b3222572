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

pytestmark = pytest.mark.any_pytorch

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
        (self.root / "requirements" / "build.txt").write_text("torch>=2.11,<2.16\n")
        (self.root / "requirements" / "test.txt").write_text("-r build.txt\nother\n")
        for name, version in [("torch", "2.11.0"), ("torch", "2.15.0"), ("other", "1.0")]:
            write_wheel(self.wheels, name, version)
        venv.create(self.python3, symlinks=True)
        (self.site,) = self.python3.glob("lib/python3*/site-packages")
        (self.site / "pip").symlink_to(Path(pip.__file__).parent)

    def give_python3(self, name: str, version: str) -> None:
        with zipfile.ZipFile(write_wheel(self.wheels, name, version)) as wheel:
            wheel.extractall(self.site)

    def run(self, *, network: bool, **variables: str) -> str:
        """The environment in which the script runs a command, and the version of PyTorch there."""
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
        done = subprocess.run(command, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


def test_a_python3_with_a_supported_torch_gets_what_it_lacks_and_then_needs_no_network(checkout):
    checkout.give_python3("torch", "2.12.1+cu130")
    assert checkout.run(network=True) == "active 2.12.1+cu130"
    assert checkout.run(network=False) == "active 2.12.1+cu130"
    assert {entry.name for entry in checkout.root.iterdir()} == {"requirements", "scripts"}


def test_another_torch_goes_into_the_checkout_and_that_of_python3_stays(checkout):
    checkout.give_python3("torch", "2.15.0")
    assert checkout.run(network=True, TORCH="2.11.0") == ".venv-torch-2.11.0 2.11.0"
    assert checkout.run(network=False, TORCH="2.11.0") == ".venv-torch-2.11.0 2.11.0"
    assert [entry.name for entry in checkout.site.glob("torch-*")] == ["torch-2.15.0.dist-info"]
    assert not (checkout.site / "other").exists()
