"""The operators that are called at random. To add one, add an entry to OPERATORS."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lltm_testing.random_calls import cells, sequences
from lltm_testing.random_calls.calls import Call
from lltm_testing.random_calls.cases import Case, draw_cell_case


@dataclass(frozen=True)
class Operator:
    draw: Callable[..., Case]
    """(random, name of the operator, device)"""
    prepare: Callable[[Case], Call]


OPERATORS = {
    "forward": Operator(draw_cell_case, cells.prepare_forward),
    "backward": Operator(draw_cell_case, cells.prepare_backward),
    "autograd": Operator(draw_cell_case, cells.prepare_autograd),
    "double_backward": Operator(draw_cell_case, cells.prepare_double_backward),
} | {
    name + suffix: Operator(sequences.draw_sequence_case, prepare)
    for name in sequences.CELLS
    for suffix, prepare in {
        "": sequences.prepare_sequence,
        "_backward": sequences.prepare_sequence_backward,
        "_autograd": sequences.prepare_sequence_autograd,
    }.items()
}
# Most calls are of the operators themselves, which run this library's kernels.
WEIGHTS = {"forward": 4, "backward": 4, "autograd": 3, "double_backward": 1} | {
    name + suffix: weight
    for name in sequences.CELLS
    for suffix, weight in {"": 3, "_backward": 2, "_autograd": 1}.items()
}


def draw_case(random, device: str, operators: Sequence[str] = tuple(OPERATORS)) -> Case:
    name = random.choice([name for name in operators for _ in range(WEIGHTS[name])])
    return OPERATORS[name].draw(random, name, device)
