"""The trained model in the forms that C++ programs serve."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

WAYS = {"script": "TorchScript", "package": "AOTInductor package", "typed": "C++ API"}
"""How classify.cpp serves a model, and what a reader calls it."""

FILES = {"script": "model.pt", "package": "model.pt2", "typed": "weights.pt"}


class PackageUnavailable(RuntimeError):
    """This environment cannot compile an AOTInductor package."""


def export(model: nn.Module, images: Tensor, way: str, path: Path) -> None:
    """Saves the model for one of the ways. The number of images stays dynamic; images (N, 8, 8) is an example of N > 1.

    Raises:
        PackageUnavailable: the environment lacks what AOTInductor needs. The message says what.
    """
    if way == "script":
        torch.jit.script(model).save(path)
    elif way == "package":
        _compile(model, images, path)
    else:
        # C++ reads a dictionary, but not an OrderedDict.
        torch.save({name: weight.cpu() for name, weight in model.state_dict().items()}, path)


def _compile(model: nn.Module, images: Tensor, path: Path) -> None:
    from torch._inductor import exc  # takes seconds to import

    obstacles = (exc.InvalidCxxCompiler, exc.CppCompileError, exc.TritonMissing, exc.GPUTooOldForTriton)
    with torch.no_grad():
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        try:
            # How many threads run the loops around the operators is compiled in: these are too short for two.
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs={"cpp.threads": 1}
            )
        except Exception as error:
            cause = getattr(error, "inner_exception", error)
            if isinstance(cause, obstacles):
                raise PackageUnavailable(str(cause).strip()) from error
            raise
    # Some compilers link a static libstdc++ if there is one.
    with zipfile.ZipFile(path) as package:
        for name in package.namelist():
            if name.endswith(".so") and b"libstdc++.so" not in package.read(name):
                path.unlink()
                raise PackageUnavailable(
                    "the C++ compiler links a static libstdc++, and with a second copy of it, the package would crash"
                )
