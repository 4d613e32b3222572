"""The targets: for the cell on an NVIDIA H200, and for sequences on any CPU."""

from cases import Shape

# The speedup over the fastest baseline in a sweep: the worst shape, and the medians of forward and with gradients.
SWEEP = {
    "float32": {"worst": 0.95, "forward": 2.2, "training": 2.2},
    "tf32": {"worst": 0.95, "forward": 2.0, "training": 2.0},
    "bfloat16": {"worst": 0.93, "forward": 1.8, "training": 1.8},
    "float16": {"worst": 0.93, "forward": 1.8, "training": 1.8},
}

# The limit for the time of the chosen candidate over that of the best one, at nine of ten shapes.
CHOSEN_OVER_BEST = 1.15

# The limits in device microseconds, in bfloat16, of shapes at which a baseline was once faster.
_NAMED_SHAPES = {
    Shape(64, 500, 500): (6, 20),
    Shape(100, 300, 700): (10, 30),
    Shape(2048, 128, 128): (4.5, 16),
    Shape(512, 512, 512): (6, 22),
    Shape(4096, 256, 256): (11, 40),
    Shape(8, 2048, 2048): (17, 56),
    Shape(16, 40, 1076): (9, 28),
    Shape(567, 8, 138): (6, 22),
}
# Device microseconds of RESULTS.md, 2026-11-21, which must stay within 5 %.
_REFERENCE_SHAPES = (
    Shape(16, 32, 128),
    Shape(64, 1024, 128),
    Shape(64, 512, 512),
    Shape(128, 1024, 1024),
    Shape(256, 2048, 2048),
)
_REFERENCE = {
    "float32": ((2.7, 8.42), (4.6, 13.5), (6.86, 23.1), (21.5, 71.8), (108, 386)),
    "tf32": ((2.39, 7.69), (3.26, 10.7), (3.96, 17.1), (8.92, 41.4), (41.2, 153)),
    "bfloat16": ((2.13, 5.4), (2.8, 6.85), (3.26, 9.4), (5.92, 23.1), (22.7, 80.6)),
    "float16": ((2.12, 5.4), (2.8, 6.78), (3.27, 9.42), (5.96, 23.1), (23.3, 82.2)),
}


def _named() -> dict[tuple[str, Shape], dict[str, float]]:
    named = {("bfloat16", shape): limits for shape, limits in _NAMED_SHAPES.items()}
    for dtype, times in _REFERENCE.items():
        for shape, of_shape in zip(_REFERENCE_SHAPES, times, strict=True):
            named[dtype, shape] = tuple(1.05 * time for time in of_shape)
    return {key: {"forward": forward, "training": training} for key, (forward, training) in named.items()}


NAMED = _named()
"""The limits in device microseconds by dtype and shape: forward, and with gradients."""

# The speedup of a sequence over the faster of nn.LSTM and nn.GRU on the CPU, forward and with gradients,
# by dtype, variant and shape.
SEQUENCE_ON_CPU = {
    ("float32", "padded", "128,16,128,128"): {"forward": 1.35, "training": 1.4},
    ("float32", "padded", "64,32,512,512"): {"forward": 1.4, "training": 1.4},
    ("float32", "padded", "512,1,256,256"): {"forward": 1.5, "training": 1.3},
    ("float32", "packed", "128,16,128,128"): {"forward": 2, "training": 3},
    ("float32", "packed", "64,32,512,512"): {"forward": 1.5, "training": 1.8},
    ("bfloat16", "padded", "64,32,512,512"): {"forward": 1.2, "training": 1.2},
}

# For a padded sequence on CUDA, the time of the loop of cells over ours.
SEQUENCE_OVER_LOOP = {"forward": 1.0, "training": 1 / 0.6}
