"""What the wheel requires: PyTorch of the minor version that it is built with.

PyTorch's C++ interface changes from one minor version to the next, so a library built with one does not load with
another. This is a metadata provider of scikit-build-core. Run as a program, it prints PyTorch's version, which CMake
compares with that of the libtorch it has found.
"""

import importlib.metadata
from collections.abc import Mapping
from typing import Any


def torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            "lltm: building needs PyTorch in this environment: pip install torch, "
            "then pip install --no-build-isolation ."
        ) from None


class Provider:
    """The two hooks that scikit-build-core calls, and what it is building."""

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        if self.state == "sdist":  # nothing is built, nothing is known
            return {}
        major, minor = torch_version().split(".")[:2]
        return {"dependencies": [f"torch=={major}.{minor}.*"]}

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        return {"dependencies": True}


if __name__ == "__main__":
    print(torch_version())
