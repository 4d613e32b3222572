"""The wheel's metadata: a metadata provider for scikit-build-core.

The library must be built with the PyTorch it will run with. Therefore torch is not among the build requirements: an
isolated build would use the newest one. Without a PyTorch, a build is refused before anything is compiled.

The version has no label such as +torch2.15.cu132 by default: CMake determines whether CUDA kernels are built only after
the version must be known, and a wheel whose version differs from that of its sdist cannot be installed from an index.
To distribute several wheels, set the label: LLTM_VERSION_LABEL=torch2.15.cu132. In any case, the wheel's
lltm/lib/liblltm_ops.json says what it was built with.

Run as a program, this checks as for a wheel.
"""

import importlib.util
import os
import platform
from collections.abc import Mapping
from typing import Any


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


class Provider:
    """The hooks that scikit-build-core calls."""

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        if self.state != "sdist":  # an sdist is not built with any PyTorch
            check()
        label = os.environ.get("LLTM_VERSION_LABEL")
        return {"version": f"{project['version']}+{label}"} if label else {}


if __name__ == "__main__":
    check()
