"""Calls that wait until another module is imported.

PyTorch's FLOP counter and its DTensors take up to a second to import, and most programs use neither. What lltm
registers with them is therefore registered when the program imports them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def call_on_import(module: str, action: Callable[[], None]) -> None:
    """Call ``action`` now if ``module`` is imported already, and else whenever it has been imported or reloaded."""
    if module in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(module, action))


class _Finder(MetaPathFinder):
    """Lets the other finders find the module, and calls ``action`` at the end of its execution."""

    def __init__(self, module: str, action: Callable[[], None]) -> None:
        self._module = module
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._extend(spec.loader)
                return spec
        return None

    def _extend(self, loader: Any) -> None:
        # The loader is not replaced, because inspect and pkgutil ask it for the source.
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == self._module:  # some finders share a loader between modules
                self._action()

        loader.exec_module = execute_and_act
