"""Makes lltm's modules leaves of ``torch.fx``, like the modules of torch.nn.

A tracer records a call of a leaf as a single node. It runs neither the module's hooks nor its ``forward``; the traced
model does, once in each call, like the original. Tracers take a module for a leaf if its ``__module__`` begins with
"torch.nn"; they have no other way to ask.
"""

from typing import Any

import torch


class Leaf(torch.nn.Module):
    """The base of the modules that must not be traced into."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)  # of LSTM, whose other base is nn.RNNBase, too
        pose_as_torch_nn(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.nn.Module.__setstate__(self, state)
        pose_as_torch_nn(self)  # pickled by a version of lltm that did not


def pose_as_torch_nn(module: torch.nn.Module) -> None:
    # In the instance, because pickle finds the class by the __module__ of the class. Without a dot at the end, because
    # torch.compile takes "torch.nn." for a module that it knows.
    module.__dict__["__module__"] = "torch.nn"
