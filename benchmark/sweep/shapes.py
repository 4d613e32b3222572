"""The random shapes of a sweep."""

import math
import random
from dataclasses import dataclass, replace

from cases import Shape

SMALLEST = Shape(1, 8, 16)
LARGEST = Shape(4096, 2048, 2048)
WORK_LIMIT = 256 * 4096 * 2048
"""The largest Shape.multiply_adds_of_a_gate: the batch is halved until there are no more."""
MULTIPLE = 8
UNROUNDED_OF_FIVE = 2


@dataclass(frozen=True)
class Draw:
    """A random shape and its seed (None for a named shape)."""

    seed: int | None
    shape: Shape


def draw(count: int, seed: int, largest: Shape = LARGEST) -> list[Draw]:
    """Draws `count` shapes with log-uniform sizes between SMALLEST and `largest`. In three of five, input features and
    state size are rounded up to a multiple of 8; the others are not rounded, so most of them are unaligned."""
    generator = random.Random(seed)

    def log_uniform(low: int, high: int) -> int:
        return min(high, max(low, round(math.exp(generator.uniform(math.log(low), math.log(high))))))

    def rounded(size: int, high: int) -> int:
        return min(math.ceil(size / MULTIPLE) * MULTIPLE, high)

    shapes = []
    for index in range(count):
        batch = log_uniform(SMALLEST.batch, largest.batch)
        features = log_uniform(SMALLEST.input_features, largest.input_features)
        state = log_uniform(SMALLEST.state_size, largest.state_size)
        if index % 5 >= UNROUNDED_OF_FIVE:
            features, state = rounded(features, largest.input_features), rounded(state, largest.state_size)
        shape = Shape(batch, features, state)
        while shape.batch > 1 and shape.multiply_adds_of_a_gate > WORK_LIMIT:
            shape = replace(shape, batch=shape.batch // 2)
        shapes.append(Draw(seed, shape))
    return shapes
