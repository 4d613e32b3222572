"""Draws the properties of a random call.

`random` is an object with the methods of random.Random: hypothesis's, which shrinks failing cases, or a seeded one.
"""

from dataclasses import dataclass, fields

import torch

from lltm_testing.layouts import KEEPING, LAYOUTS, contiguous
from lltm_testing.reference import NAMES

INCOMING = ("grad_h", "grad_cell")

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# PyTorch's names for a machine's capability and the lesser ones, which run, too. Without a name, everything that the
# machine has is used, which may be more than the name says.
CPU_CAPABILITIES = {"AVX512": ("avx512", "avx2", "default"), "AVX2": ("avx2", "default")}
CUDA_PATHS = ("auto", "few_rows", "hopper", "tiles", "library")
# Sizes around those of every vector, tile and panel of the kernels, on the CPU and on CUDA.
EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 24, 31, 32, 33)
WIDE_EDGES = (47, 48, 49, 63, 64, 65, 80, 96, 127, 128, 129, 130, 192, 255, 256, 257, 264, 511, 512, 513, 520)
# The most multiplications of a call, so that time goes into many calls rather than a few large ones.
MOST_WORK = {"cpu": 1_000_000, "cuda": 100_000_000}
# Up to this many copies of one row, whose rounding errors are equal, the bound of a sum still holds: see bounds.py.
MOST_COPIES = 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call, except for the values of its tensors, which are drawn from `seed`."""

    operator: str
    device: str
    seed: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    """batch, input_features, state_size; more for other operators"""
    bias: bool
    scale: float
    """The scale of the weights. With 1, every gate is in its nonlinear range."""
    layouts: tuple[tuple[str, str], ...]
    """Names of the arguments that are not contiguous, each with the name of a function in layouts.py."""
    absent: tuple[str, ...]
    """The incoming gradients that are None."""
    mask: tuple[bool, ...]
    """The requested gradients: output_mask, or which arguments require gradients."""
    grad_mode: str
    autocast: torch.dtype | None
    threads: int
    """PyTorch's number of threads within a call."""
    callers: int
    """The number of Python threads that make the same call at the same time."""
    repeated: bool
    """Whether the call is repeated and its bits are compared."""
    poison: tuple[tuple[str, float], ...] = ()
    """The names of arguments with one element that is NaN or infinite, and its value."""
    path: str | None
    """LLTM_CUDA_PATH."""
    tf32: bool
    origin: str = "hypothesis"
    """What to draw this case from again."""

    @property
    def arithmetic(self) -> torch.dtype:
        """The dtype that the operator computes with. Under autocast it differs from that of the arguments."""
        return self.autocast if self.autocast and self.dtype != torch.float64 else self.dtype

    def features(self) -> list[str]:
        """The special features of this call, for counting."""
        given = {
            **{f"{size} among the sizes": size in self.sizes for size in (0, 1)},
            "weights of 0": self.scale == 0,
            "no bias": not self.bias,
            "some gradients": not all(self.mask),
            "gradients absent": bool(self.absent),
            "autocast": self.autocast is not None,
            "several threads": self.threads > 1,
            "several callers": self.callers > 1,
            "tf32": self.tf32,
            self.grad_mode: self.grad_mode != "enabled",
            **{"NaN" if value != value else "infinity": True for _, value in self.poison},
            **{layout: True for _, layout in self.layouts},
        }
        return [name for name, is_given in given.items() if is_given]

    def __str__(self) -> str:
        return "\n".join(f"  {field.name} = {getattr(self, field.name)}" for field in fields(self))


def draw_size(random, device: str) -> int:
    kind = random.randrange(100)
    if kind < 4:
        return 0
    if kind < 15:
        return 1
    if kind < 60:
        return random.choice(EDGES)
    if kind < (92 if device == "cpu" else 80):
        return random.randrange(1, 41)
    if kind < (99 if device == "cpu" else 94):
        return random.choice(WIDE_EDGES)
    return random.randrange(1, 700)


def draw_sizes(random, device: str) -> tuple[int, int, int]:
    batch, input_features, state_size = (draw_size(random, device) for _ in range(3))
    while batch * 3 * state_size * (state_size + input_features) > MOST_WORK[device]:
        largest = max(batch, input_features, state_size)
        batch, input_features, state_size = (
            size // 2 if size == largest else size for size in (batch, input_features, state_size)
        )
    return batch, input_features, state_size


def draw_layouts(random, names, sizes, keeping=()) -> tuple[tuple[str, str], ...]:
    """Mostly contiguous, for the fast paths. The tensors named in `keeping` keep their values."""
    if random.randrange(2):
        return ()
    drawn = []
    for name in (*names, *keeping):
        may_repeat = name not in keeping and max(sizes) <= MOST_COPIES
        drawn.append((name, random.choice([contiguous, *(LAYOUTS if may_repeat else KEEPING)])))
    return tuple((name, layout.__name__) for name, layout in drawn if layout is not contiguous)


def draw_flags(random, count: int) -> tuple[bool, ...]:
    return tuple(bool(random.randrange(2)) for _ in range(count))


def common_choices(random, operator: str, device: str, gradients: int = 5) -> dict:
    """The properties that are drawn in the same way for every operator, which has this many gradients."""
    dtype = random.choice(DTYPES)
    has_callers = random.randrange(50) == 0
    return {
        "operator": operator,
        "device": device,
        "seed": random.getrandbits(48),
        "dtype": dtype,
        "bias": random.randrange(4) > 0,
        "mask": (True,) * gradients if random.randrange(2) else draw_flags(random, gradients),
        "grad_mode": random.choice(("enabled", "enabled", "no_grad", "inference")),
        "autocast": random.choice((torch.bfloat16, torch.float16)) if random.randrange(8) == 0 else None,
        "threads": random.choice((1, 1, 1, 1, 1, 1, 2, 3)),
        "callers": random.choice((2, 4)) if has_callers else 1,
        "repeated": random.randrange(10) == 0,
        "path": random.choice(CUDA_PATHS) if device == "cuda" else None,
        "tf32": device == "cuda" and dtype == torch.float32 and random.randrange(3) == 0,
    }


def draw_poison(random, choices: dict, names) -> tuple[tuple[str, float], ...]:
    """Rarely any. NaN and infinity propagate as in the formula, except for infinite arguments on CUDA: a product made
    of three TF32 products gives infinity minus infinity, and kernels with tiles multiply some weights by zeros that pad
    the input (docs/cuda-kernels.md)."""
    if choices["operator"] == "double_backward" or random.randrange(12):
        return ()
    name = random.choice(names)
    is_cuda = choices["device"] == "cuda"
    has_tf32_parts = is_cuda and choices["dtype"] == torch.float32 and not choices["tf32"]
    may_meet_zeros = is_cuda and name.startswith("weight")
    values = [torch.nan] if has_tf32_parts or may_meet_zeros else [torch.nan, torch.inf, -torch.inf]
    return ((name, random.choice(values)),)


def draw_cell_case(random, operator: str, device: str) -> Case:
    """A call of one of the cell's two operators, or of forward followed by autograd."""
    sizes = draw_sizes(random, device)
    choices = common_choices(random, operator, device)
    return Case(
        **choices,
        poison=draw_poison(random, choices, (*NAMES, *INCOMING)),
        sizes=sizes,
        # No zero weights for the double backward: ELU's second derivative is undefined at z = 0.
        scale=random.choice((1.0, 1.0, 1.0, 1.0 if operator == "double_backward" else 0.0, 0.01, 6.0)),
        layouts=draw_layouts(random, (*NAMES, *INCOMING, "new_cell", "gates"), sizes),
        absent=random.choice(((), (), ("grad_h",), ("grad_cell",), INCOMING)),
    )
