"""The sequences to measure: shapes, dtypes, threads and variants."""

import random
from dataclasses import dataclass

import torch
from cases import Case, Sizes, Work, dtypes_on, log_uniform, threads_on

VARIANTS = {
    "padded": "every row has all steps",
    "packed": "rows have from a quarter of the steps to all of them",
    "two layers": "two layers, every row has all steps",
    "both directions": "a bidirectional layer, every row has all steps",
}


@dataclass(frozen=True)
class SequenceShape(Sizes):
    steps: int
    batch: int
    input_features: int
    state_size: int


@dataclass(frozen=True)
class SequenceCase(Case):
    variant: str = "padded"

    @property
    def lengths(self) -> torch.Tensor:
        """The number of steps that each row runs."""
        first = max(1, self.shape.steps // 4) if self.variant == "packed" else self.shape.steps
        return torch.linspace(self.shape.steps, first, self.shape.batch).round().long()

    @property
    def multiply_adds(self) -> float:
        """Those of a step's forward, of all layers and directions, on average over the steps."""
        shape = self.shape
        features = [shape.input_features]  # of each call of the operator
        if self.variant == "two layers":
            features.append(shape.state_size)
        elif self.variant == "both directions":
            features *= 2
        rows = self.lengths.sum().item() / shape.steps
        return sum(rows * 3 * shape.state_size * (shape.state_size + count) for count in features)

    @property
    def clock(self) -> str:
        """The clock: "wall" for packed sequences, because those of nn.LSTM cannot be captured in a graph."""
        return "device" if self.device == "cuda" and self.variant != "packed" else "wall"

    def columns(self) -> dict[str, str | int]:
        return super().columns() | {"variant": self.variant}

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.variant}"


QUICK_SHAPE = SequenceShape(128, 16, 128, 128)
SHAPES = {
    "cpu": (QUICK_SHAPE, SequenceShape(64, 32, 512, 512), SequenceShape(512, 1, 256, 256)),
    "cuda": (
        QUICK_SHAPE,
        SequenceShape(256, 32, 512, 512),
        SequenceShape(256, 64, 1024, 1024),
        SequenceShape(128, 128, 2048, 2048),
        SequenceShape(64, 4096, 128, 128),
        SequenceShape(256, 256, 384, 384),
    ),
}

HIDDEN_SIZES = tuple(SequenceShape(256, 64, size, size) for size in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048))
"""The series that the picture of speed shows: sequences that differ only in their hidden size."""


def _is_worthwhile(device: str, dtype: str, variant: str, shape: SequenceShape) -> bool:
    if device == "cpu" and dtype != "float32":
        return dtype == "bfloat16" and variant == "padded" and shape == SHAPES["cpu"][1]
    # The other variants only at the most common shapes.
    return variant == "padded" or shape in SHAPES[device][:2]


def make_cases(
    devices: list[str],
    threads: list[int],
    dtypes: list[str],
    works: list[Work],
    variants: list[str],
    shapes: list[SequenceShape] | None,
) -> list[SequenceCase]:
    """Every worthwhile combination. Requested shapes are measured in all of them."""
    return [
        SequenceCase(device, count, work, dtype, shape, variant=variant)
        for device in devices
        for count in threads_on(device, threads)
        for dtype in dtypes_on(device, dtypes)
        for variant in variants
        for shape in (shapes or SHAPES[device])
        if shapes or _is_worthwhile(device, dtype, variant, shape)
        for work in works
    ]


SMALLEST = SequenceShape(16, 1, 8, 16)
LARGEST = SequenceShape(512, 1024, 1024, 1024)


def draw(count: int, seeds: list[int], largest: SequenceShape = LARGEST) -> list[tuple[int, SequenceShape]]:
    """Draws `count` shapes of each seed, with log-uniform sizes between SMALLEST and `largest`. In half of them, the
    input has as many features as the state. The seeds take turns, so that a run that ends early has shapes of each."""

    def one(generator: random.Random) -> SequenceShape:
        steps = log_uniform(generator, SMALLEST.steps, largest.steps)
        batch = log_uniform(generator, SMALLEST.batch, largest.batch)
        features = log_uniform(generator, SMALLEST.input_features, largest.input_features)
        state = log_uniform(generator, SMALLEST.state_size, largest.state_size)
        return SequenceShape(steps, batch, state if generator.random() < 0.5 else features, state)

    generators = {seed: random.Random(seed) for seed in seeds}
    return [(seed, one(generator)) for _ in range(count) for seed, generator in generators.items()]
