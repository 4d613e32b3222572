"""What is measured: shapes, dtypes, devices, threads and the kind of work, as a list of cases."""

from dataclasses import dataclass
from enum import Enum

import torch


class Work(str, Enum):
    """What one call does."""

    FORWARD = "forward"
    """The forward pass without gradients."""
    TRAINING = "training"
    """Forward and backward, with the gradients of input, parameters and both states."""
    AUTOCAST = "autocast"
    """The forward pass of a float32 cell without gradients, under autocast to bfloat16."""

    def __str__(self) -> str:
        return self.value


WORK_TITLES = {
    Work.FORWARD: "forward, no gradients",
    Work.TRAINING: "forward and backward, all gradients",
    Work.AUTOCAST: "forward of a float32 cell under autocast to bfloat16",
}


@dataclass(frozen=True)
class Shape:
    batch: int
    input_features: int
    state_size: int

    def __str__(self) -> str:
        return f"{self.batch},{self.input_features},{self.state_size}"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        sizes = [int(size) for size in text.split(",")]
        if len(sizes) != 3:
            raise ValueError(f"expected a shape as BATCH,INPUT_FEATURES,STATE_SIZE, got {text!r}")
        return cls(*sizes)


TUTORIAL_SHAPES = (Shape(16, 32, 128), Shape(64, 1024, 128))
SHAPES = (
    *TUTORIAL_SHAPES,
    Shape(1, 512, 512),
    Shape(64, 512, 512),
    Shape(128, 1024, 1024),
    Shape(256, 2048, 2048),
)
# Nothing here is a multiple of a tile.
UGLY_SHAPES = (Shape(37, 77, 200), Shape(33, 65, 129), Shape(5, 1000, 1000))
QUICK_SHAPES = (Shape(16, 32, 128), Shape(64, 512, 512))

# "tf32" is float32 tensors, with PyTorch's own switch for TF32 products on.
TORCH_DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "cuda": ("float32", "tf32", "bfloat16", "float16")}


@dataclass(frozen=True)
class Case:
    device: str
    threads: int
    work: Work
    dtype: str
    shape: Shape

    @property
    def torch_dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.dtype]

    def __str__(self) -> str:
        threads = f" {self.threads} thread{'s' if self.threads > 1 else ''}" if self.device == "cpu" else ""
        return f"{self.device}{threads} {self.work} {self.dtype} {self.shape}"


def _is_worthwhile(case: Case) -> bool:
    # Autocast differs from bfloat16 by the casts alone: three shapes show them.
    if case.work is Work.AUTOCAST:
        return case.dtype == "float32" and case.shape in (*TUTORIAL_SHAPES, Shape(64, 512, 512))
    # On a CPU the peers need up to a second for a call in float16: two shapes show it.
    if case.device == "cpu" and case.dtype == "float16":
        return case.shape in TUTORIAL_SHAPES
    # The ugly shapes are there to catch a cliff, not to fill tables.
    if case.shape in UGLY_SHAPES:
        return case.dtype in ("float32", "bfloat16") and (case.device == "cuda" or case.dtype == "float32")
    return True


def make_cases(
    devices: list[str], threads: list[int], works: list[Work], dtypes: list[str], shapes: list[Shape]
) -> list[Case]:
    """Every worthwhile combination; a CUDA case does not depend on the threads and has the first of them."""
    return [
        case
        for device in devices
        for count in (threads if device == "cpu" else threads[:1])
        for work in works
        for dtype in DTYPES[device]
        if dtype in dtypes
        for shape in shapes
        if _is_worthwhile(case := Case(device, count, work, dtype, shape))
    ]
