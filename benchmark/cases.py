"""The cases to measure, of cells and of sequences: shapes, dtypes, devices, threads and kinds of work."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
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


def log_uniform(generator: random.Random, low: int, high: int) -> int:
    return min(high, max(low, round(math.exp(generator.uniform(math.log(low), math.log(high))))))


@dataclass(frozen=True)
class Shape:
    """The sizes of a call: "64,512,512" of a cell, "128,64,512,512" of a sequence, whose steps come first."""

    batch: int
    input_features: int
    state_size: int
    steps: int = 1

    def __str__(self) -> str:
        steps = (self.steps,) if self.steps > 1 else ()
        return ",".join(map(str, (*steps, self.batch, self.input_features, self.state_size)))

    @classmethod
    def parse(cls, text: str) -> Self:
        sizes = text.split(",")
        if len(sizes) not in (3, 4) or not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
            raise ValueError(f"expected a shape as [STEPS,]BATCH,INPUT_FEATURES,STATE_SIZE, got {text!r}")
        *steps, batch, input_features, state_size = map(int, sizes)
        return cls(batch, input_features, state_size, *steps)

    @property
    def multiply_adds_of_a_gate(self) -> int:
        """Those of a step."""
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

STEP_SHAPES = (
    Shape(1, 128, 512),
    Shape(1, 64, 64),
    Shape(64, 256, 256),
    Shape(16, 768, 1024),
    Shape(256, 512, 512),
    Shape(1024, 128, 128),
    Shape(4, 300, 256),
)
"""Of decoders, of acting in reinforcement learning, and of streams: single steps, and a few."""
FEW_STEPS = (1, 2, 4, 8)

QUICK_SEQUENCE = Shape(16, 128, 128, steps=128)
SEQUENCES = {
    "cpu": (
        QUICK_SEQUENCE,
        Shape(32, 512, 512, steps=64),
        Shape(1, 256, 256, steps=512),
        Shape(1, 4, 32, steps=1000),
        Shape(1, 64, 64, steps=1),
    ),
    "cuda": (
        QUICK_SEQUENCE,
        Shape(32, 512, 512, steps=256),
        Shape(64, 1024, 1024, steps=256),
        Shape(128, 2048, 2048, steps=128),
        Shape(4096, 128, 128, steps=64),
        Shape(256, 384, 384, steps=256),
    ),
}
HIDDEN_SIZES = tuple(Shape(64, size, size, steps=256) for size in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048))
"""The series that the picture of speed shows: sequences that differ only in their hidden size."""


@dataclass(frozen=True)
class Variant:
    """How layers run a sequence."""

    what: str
    layers: int = 1
    bidirectional: bool = False
    packed: bool = False
    """Rows have from a quarter of the steps to all of them."""
    shape: Shape | None = None
    """Of a model."""


SEQUENCE_VARIANTS = {
    "padded": Variant("every row has all steps"),
    "packed": Variant("rows have from a quarter of the steps to all of them", packed=True),
    "two layers": Variant("two layers, every row has all steps", layers=2),
    "both directions": Variant("a bidirectional layer, every row has all steps", bidirectional=True),
}
MODELS = {
    "tagger": Variant("2 layers, both directions, packed", 2, True, True, Shape(32, 128, 256, steps=64)),
    "translation encoder": Variant("4 layers, packed", 4, False, True, Shape(64, 512, 512, steps=50)),
    "speech encoder": Variant("5 layers, both directions, packed", 5, True, True, Shape(16, 80, 320, steps=400)),
    "language model": Variant("3 layers", 3, shape=Shape(64, 400, 1152, steps=70)),
    "source separation": Variant("3 layers, both directions", 3, True, shape=Shape(16, 512, 256, steps=255)),
    "transcription": Variant("6 layers, both directions", 6, True, shape=Shape(32, 384, 384, steps=200)),
    "forecast": Variant("2 layers", 2, shape=Shape(256, 32, 64, steps=168)),
}
"""The recurrent layers of typical models."""
VARIANTS = {**SEQUENCE_VARIANTS, **MODELS}

AMP = {"bfloat16 AMP": torch.bfloat16, "float16 AMP": torch.float16}
"""float32 modules and inputs under autocast to these."""
# "tf32" means float32 tensors with PyTorch's TF32 settings turned on.
TORCH_DTYPES = {
    **dict.fromkeys(AMP, torch.float32),
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
DTYPES = {"cpu": ("float32", "bfloat16", "float16"), "cuda": ("float32", "tf32", "bfloat16", "float16")}
MODEL_DTYPES = {"cpu": ("float32", "bfloat16 AMP"), "cuda": ("tf32", "bfloat16", "float16", *AMP)}


def threads_on(device: str, threads: list[int]) -> list[int]:
    """The numbers of threads to measure with: on a GPU, the first alone."""
    return threads if device == "cpu" else threads[:1]


def dtypes_on(device: str, dtypes: list[str], known: dict[str, tuple[str, ...]] = DTYPES) -> list[str]:
    """Those of the dtypes that are measured on a device, in the order of `known`."""
    return [dtype for dtype in known[device] if dtype in dtypes]


@dataclass(frozen=True)
class Case:
    device: str
    threads: int
    work: Work
    dtype: str
    shape: Shape
    seed: int = 0
    """The seed that a random shape was drawn with."""
    variant: str = ""
    """Of a sequence, one of VARIANTS; empty for a cell."""

    @property
    def layers(self) -> Variant:
        return VARIANTS[self.variant]

    @property
    def torch_dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.dtype]

    @property
    def lengths(self) -> torch.Tensor:
        """The number of steps that each row runs."""
        first = max(1, self.shape.steps // 4) if self.layers.packed else self.shape.steps
        return torch.linspace(self.shape.steps, first, self.shape.batch).round().long()

    @property
    def multiply_adds(self) -> float:
        """Those of three gates in a step's forward, of all layers and directions, on average over the steps."""
        shape, directions = self.shape, 2 if self.layers.bidirectional else 1
        # Of each call of the operator.
        features = [shape.input_features] + [directions * shape.state_size] * (self.layers.layers - 1)
        rows = self.lengths.sum().item() / shape.steps
        return directions * sum(rows * 3 * shape.state_size * (shape.state_size + count) for count in features)

    @property
    def clocks(self) -> tuple[str, ...]:
        """On a GPU both, but of models, and of packed sequences, which nn.LSTM cannot run in a graph, the wall's. On a
        CPU processor time, which other work does not lengthen, if there is one thread."""
        if self.device == "cpu":
            return ("processor",) if self.variant and self.threads == 1 else ("wall",)
        return ("wall",) if self.variant in MODELS or (self.variant and self.layers.packed) else ("device", "wall")

    def columns(self) -> dict[str, str | int]:
        """As in a row of the results."""
        names = ("device", "threads", "dtype", "seed", "variant")
        return {name: getattr(self, name) for name in names} | {"work": str(self.work), "shape": self.sizes}

    @property
    def sizes(self) -> str:
        """Those of the shape, of a sequence with its steps, even if there is one."""
        return f"1,{self.shape}" if self.variant and self.shape.steps == 1 else str(self.shape)

    def __str__(self) -> str:
        threads = f" {self.threads} thread{'s' if self.threads > 1 else ''}" if self.device == "cpu" else ""
        variant = f", {self.variant}" if self.variant else ""
        return f"{self.device}{threads} {self.work} {self.dtype} {self.sizes}{variant}"


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


def _is_worthwhile_sequence(case: Case) -> bool:
    if case.device == "cpu" and case.dtype == "float16":
        return False
    # The other variants only at the most common shapes.
    return case.variant == "padded" or case.shape in SEQUENCES[case.device][:2]


def make_models(
    devices: list[str], threads: list[int], works: list[Work], dtypes: list[str], models: list[str]
) -> list[Case]:
    """Every combination of MODELS."""
    return [
        Case(device, count, work, dtype, MODELS[name].shape, variant=name)
        for device in devices
        for count in threads_on(device, threads)
        for dtype in dtypes_on(device, dtypes, MODEL_DTYPES)
        for name in models
        for work in works
    ]


def make_cases(
    devices: list[str], threads: list[int], works: list[Work], dtypes: list[str], shapes: Sequence[Shape]
) -> list[Case]:
    """Every worthwhile combination of a cell. On CUDA, with the first number of threads alone."""
    return [
        case
        for device in devices
        for count in threads_on(device, threads)
        for work in works
        for dtype in dtypes_on(device, dtypes)
        for shape in shapes
        if _is_worthwhile(case := Case(device, count, work, dtype, shape))
    ]


def make_sequences(
    devices: list[str],
    threads: list[int],
    works: list[Work],
    dtypes: list[str],
    variants: list[str],
    shapes: Sequence[Shape] | None,
) -> list[Case]:
    """Every worthwhile combination of a sequence. Requested shapes are measured in all of them."""
    return [
        case
        for device in devices
        for count in threads_on(device, threads)
        for dtype in dtypes_on(device, dtypes)
        for variant in variants
        for shape in (shapes or SEQUENCES[device])
        for work in works
        if _is_worthwhile_sequence(case := Case(device, count, work, dtype, shape, variant=variant)) or shapes
    ]


def sweep_cases(
    draws: list[tuple[int, Shape]],
    devices: list[str],
    threads: list[int],
    dtypes: list[str],
    works: list[Work],
    variant: str = "",
) -> list[Case]:
    """Every combination with shapes and their seeds, shape by shape: an interrupted run has as many shapes for every
    dtype."""
    return [
        Case(device, count, work, dtype, shape, seed, variant)
        for seed, shape in draws
        for device in devices
        for count in threads_on(device, threads)
        for dtype in dtypes_on(device, dtypes)
        for work in works
    ]
