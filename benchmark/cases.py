"""The cases to measure: shapes, dtypes, devices, threads and kinds of work."""

import math
import random
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from enum import Enum

import torch
from typing_extensions import Self


class Work(str, Enum):
    """The work of a call."""

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
class Sizes:
    """The sizes of a call, written as "64,512,512"."""

    def __str__(self) -> str:
        return ",".join(map(str, astuple(self)))

    @classmethod
    def parse(cls, text: str) -> Self:
        names, sizes = [field.name.upper() for field in fields(cls)], text.split(",")
        if len(sizes) != len(names) or not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
            raise ValueError(f"expected a shape as {','.join(names)}, got {text!r}")
        return cls(*map(int, sizes))


def log_uniform(generator: random.Random, low: int, high: int) -> int:
    return min(high, max(low, round(math.exp(generator.uniform(math.log(low), math.log(high))))))


@dataclass(frozen=True)
class Shape(Sizes):
    batch: int
    input_features: int
    state_size: int

    @property
    def multiply_adds_of_a_gate(self) -> int:
        return self.batch * (self.input_features + self.state_size) * self.state_size


TUTORIAL_SHAPES = (Shape(16, 32, 128), Shape(64, 1024, 128))
SHAPES = (
    *TUTORIAL_SHAPES,
    Shape(1, 512, 512),
    Shape(64, 512, 512),
    Shape(128, 1024, 1024),
    Shape(256, 2048, 2048),
)
# No size is a multiple of a tile.
UGLY_SHAPES = (Shape(37, 77, 200), Shape(33, 65, 129), Shape(5, 1000, 1000))
QUICK_SHAPES = (Shape(16, 32, 128), Shape(64, 512, 512))

# "tf32" means float32 tensors with PyTorch's TF32 setting turned on.
TORCH_DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "cuda": ("float32", "tf32", "bfloat16", "float16")}


def threads_on(device: str, threads: list[int]) -> list[int]:
    """The numbers of threads to measure with: on a GPU, the first alone."""
    return threads if device == "cpu" else threads[:1]


def dtypes_on(device: str, dtypes: list[str]) -> list[str]:
    """Those of the dtypes that are measured on a device, in the order of DTYPES."""
    return [dtype for dtype in DTYPES[device] if dtype in dtypes]


@dataclass(frozen=True)
class Case:
    device: str
    threads: int
    work: Work
    dtype: str
    shape: Sizes
    seed: int = 0
    """The seed that a random shape was drawn with."""

    @property
    def torch_dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.dtype]

    def columns(self) -> dict[str, str | int]:
        """As in a row of the results."""
        names = ("device", "threads", "dtype", "seed")
        return {name: getattr(self, name) for name in names} | {"work": str(self.work), "shape": str(self.shape)}

    def __str__(self) -> str:
        threads = f" {self.threads} thread{'s' if self.threads > 1 else ''}" if self.device == "cpu" else ""
        return f"{self.device}{threads} {self.work} {self.dtype} {self.shape}"


def _is_worthwhile(case: Case) -> bool:
    # Autocast differs from bfloat16 only by the casts, so three shapes suffice.
    if case.work is Work.AUTOCAST:
        return case.dtype == "float32" and case.shape in (*TUTORIAL_SHAPES, Shape(64, 512, 512))
    # On a CPU, a float16 call of a peer can take a second, so two shapes suffice.
    if case.device == "cpu" and case.dtype == "float16":
        return case.shape in TUTORIAL_SHAPES
    # The ugly shapes are only there to detect performance cliffs.
    if case.shape in UGLY_SHAPES:
        return case.dtype in ("float32", "bfloat16") and (case.device == "cuda" or case.dtype == "float32")
    return True


def make_cases(
    devices: list[str], threads: list[int], works: list[Work], dtypes: list[str], shapes: list[Shape]
) -> list[Case]:
    """Every worthwhile combination. CUDA cases do not depend on the number of threads, and use the first one."""
    return [
        case
        for device in devices
        for count in threads_on(device, threads)
        for work in works
        for dtype in dtypes_on(device, dtypes)
        for shape in shapes
        if _is_worthwhile(case := Case(device, count, work, dtype, shape))
    ]


def sweep_cases(
    make: Callable[..., Case],
    draws: list[tuple[int, Sizes]],
    devices: list[str],
    threads: list[int],
    dtypes: list[str],
    works: list[Work],
) -> list[Case]:
    """Every combination with shapes and their seeds, shape by shape: an interrupted run has as many shapes for every
    dtype."""
    return [
        make(device, count, work, dtype, shape, seed)
        for seed, shape in draws
        for device in devices
        for count in threads_on(device, threads)
        for dtype in dtypes_on(device, dtypes)
        for work in works
    ]
