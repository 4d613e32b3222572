"""The wheel's metadata: a metadata provider for scikit-build-core.

The library must be built with the PyTorch it will run with. Therefore torch is not among the build requirements: an
isolated build would use the newest one. Without a PyTorch, or with one that is not supported, a build is refused before
anything is downloaded or compiled: pip asks for the metadata first.

Run as a program, this checks as for a wheel.
"""

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BUILD_REQUIREMENTS = Path(__file__).parents[1] / "requirements" / "build.txt"


def supported_minors() -> range:
    """The minor versions of PyTorch 2 that requirements/build.txt allows."""
    return range(*(int(minor) for minor in re.findall(r"2\.(\d+)", requirement())))


def requirement() -> str:
    return re.search("^torch.*", BUILD_REQUIREMENTS.read_text(), re.MULTILINE).group()  # type: ignore[union-attr]


def check_version(torch: str) -> None:
    """Refuse a version of PyTorch that requirements/build.txt excludes."""
    major, minor = (int(number) for number in re.findall(r"\d+", torch)[:2])
    supported = supported_minors()
    if (major, minor) < (2, supported.start):
        raise SystemExit(
            f"lltm: PyTorch {torch} is too old: lltm needs 2.{supported.start} or newer. Upgrade it, pip install "
            f"'{requirement()}', then pip install --no-build-isolation . again"
        )
    if (major, minor) >= (2, supported.stop):
        raise SystemExit(
            f"lltm: PyTorch {torch} is newer than this version of lltm, which was tested up to 2.{supported.stop - 1}: "
            f"take a newer lltm, or pip install '{requirement()}', then pip install --no-build-isolation ."
        )


def check() -> None:
    """Refuse what cannot be built."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise SystemExit(f"lltm supports Linux on x86-64 and aarch64, not {system} on {machine}.")
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(
            "lltm: found no PyTorch to build with. lltm runs with the PyTorch that it was built with, so that pip must "
            "not isolate the build: pip install torch scikit-build-core cmake ninja, "
            "then pip install --no-build-isolation ."
        )
    check_version(importlib.metadata.version("torch"))


class Provider:
    """The hooks that scikit-build-core calls."""

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        if self.state != "sdist":  # an sdist is not built with any PyTorch
            check()
        return {}


if __name__ == "__main__":
    check()
