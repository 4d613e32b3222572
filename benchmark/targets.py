"""What the cell is asked to reach on an NVIDIA H200."""

from cases import Shape

# Of a sweep, speedup over the fastest baseline: the worst shape, and the median forward and with gradients.
SWEEP = {
    "float32": {"worst": 0.95, "forward": 2.2, "training": 2.2},
    "tf32": {"worst": 0.95, "forward": 2.0, "training": 2.0},
    "bfloat16": {"worst": 0.93, "forward": 1.8, "training": 1.8},
    "float16": {"worst": 0.93, "forward": 1.8, "training": 1.8},
}

# Time of the chosen candidate over that of the best one: at most this in nine shapes of ten.
CHOSEN_OVER_BEST = 1.15

# Device microseconds in bfloat16: at most, forward and with gradients.
NAMED = {
    Shape(64, 500, 500): {"forward": 6, "training": 20},
    Shape(100, 300, 700): {"forward": 10, "training": 30},
    Shape(2048, 128, 128): {"forward": 4.5, "training": 16},
    Shape(512, 512, 512): {"forward": 6, "training": 22},
    Shape(4096, 256, 256): {"forward": 11, "training": 40},
    Shape(8, 2048, 2048): {"forward": 17, "training": 56},
    Shape(16, 40, 1076): {"forward": 9, "training": 28},
    Shape(567, 8, 138): {"forward": 6, "training": 22},
}

# Speedup of a sequence over the faster of nn.LSTM and nn.GRU on the CPU, forward and with gradients:
# (dtype, variant, steps, batch, input features, state size).
SEQUENCE_ON_CPU = {
    ("float32", "padded", 128, 16, 128, 128): {"forward": 1.35, "training": 1.4},
    ("float32", "padded", 64, 32, 512, 512): {"forward": 1.4, "training": 1.4},
    ("float32", "padded", 512, 1, 256, 256): {"forward": 1.5, "training": 1.3},
    ("float32", "packed", 128, 16, 128, 128): {"forward": 2, "training": 3},
    ("float32", "packed", 64, 32, 512, 512): {"forward": 1.5, "training": 1.8},
    ("bfloat16", "padded", 64, 32, 512, 512): {"forward": 1.2, "training": 1.2},
}
