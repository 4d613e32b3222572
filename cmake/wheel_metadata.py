"""The wheel's metadata about PyTorch: a metadata provider for scikit-build-core.

PyTorch's C++ interface changes from one minor version to the next, so the wheel requires the minor version that it is
built with. This must be the PyTorch it will run with. Therefore torch is not among the build requirements: an isolated
build would use the newest one, and the wheel would then replace the user's.

The version has no label such as +torch2.15.cu132 by default: CMake determines whether CUDA kernels are built only after
the version must be known, and a wheel whose version differs from that of its sdist cannot be installed from an index.
To distribute several wheels, set the label: LLTM_VERSION_LABEL=torch2.15.cu132. In any case, the wheel's
lltm/lib/liblltm_ops.json says what it was built with.

Run as a program, this prints PyTorch's version, which CMake compares with that of the libtorch it found.
"""

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any


def torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            "lltm: found no PyTorch to build with. lltm runs with the PyTorch that it was built with, so that pip must "
            "not isolate the build: pip install torch scikit-build-core cmake ninja, "
            "then pip install --no-build-isolation ."
        ) from None


class Provider:
    """The hooks that scikit-build-core calls."""

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        fields = {}
        if label := os.environ.get("LLTM_VERSION_LABEL"):
            fields["version"] = f"{project['version']}+{label}"
        if self.state != "sdist":  # an sdist is not built with any PyTorch
            major, minor = torch_version().split(".")[:2]
            fields["dependencies"] = [f"torch=={major}.{minor}.*"]
        return fields

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        return {"dependencies": True}


if __name__ == "__main__":
    print(torch_version())
