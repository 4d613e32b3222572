"""The candidates of the CUDA planner: their names, and the time of each when it is forced."""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle

import timing
import torch
from cases import Case, Work
from peers import Operator
from workload import INPUT_SETS, Inputs

VARIABLE = "LLTM_CUDA_PATH"
AUTO = "auto"
STEP = "step"
"""A step of a sequence, by the candidates of a forward."""
DIRECTIONS = ("forward", "backward", STEP)
STEPS = 24

GROUPS = ("few_rows", "hopper", "tiles", "library")


def names(direction: str) -> tuple[str, ...]:
    """The values of LLTM_CUDA_PATH for one direction, except auto: the library's list of candidates, or their groups if
    it lists no candidates for the direction."""
    return names_of(direction, _selectable())


def names_of(direction: str, selectable: Sequence[str]) -> tuple[str, ...]:
    """The candidates of a direction in a list of all selectable names, or the groups if there are none."""
    prefix = "forward_" if direction == STEP else f"{direction}_"
    return tuple(name for name in selectable if name.startswith(prefix)) or GROUPS


@cache
def _selectable() -> tuple[str, ...]:
    import lltm  # only here: reports are also written on machines without the library

    try:
        function = ctypes.CDLL(str(lltm.library_path)).lltm_cuda_paths
    except AttributeError:  # a library without CUDA
        return ()
    function.restype = ctypes.c_char_p
    return tuple(function().decode().split())


def features(direction: str, name: str, case: Case) -> dict[str, float]:
    """The features that a candidate reports for the planner's estimate of a problem (bytes, waves, chunks, ...); empty
    if the library reports none."""
    import lltm

    exposed = getattr(lltm, "cuda_candidate_features", None)
    shape = case.shape
    sizes = (shape.batch, shape.input_features, shape.state_size)
    return dict(exposed(direction, name, case.torch_dtype, *sizes)) if exposed and name != AUTO else {}


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Force the planner to choose one candidate. The library reads the variable at every call."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def operator_call(case: Case, direction: str) -> Callable[[], object]:
    """One call of lltm::forward, of lltm::backward alone, with all gradients, or of lltm::sequence over STEPS steps."""
    cell = Operator(case.shape, case.device, case.torch_dtype)
    weights, bias = cell.weights.detach(), cell.bias.detach()
    if direction == STEP:
        steps = [Inputs(case, seed).states for seed in range(STEPS)]
        input, (_, h0, c0) = torch.stack([states[0] for states in steps]), steps[0]
        c0 = c0.float()
        return lambda: torch.ops.lltm.sequence.default(input, weights, bias, h0, c0)
    arguments = []
    for seed in range(INPUT_SETS):
        inputs = Inputs(case, seed)
        input, old_h, old_cell = (state.detach() for state in inputs.states)
        if direction == "forward":
            arguments.append((input, weights, bias, old_h, old_cell))
        else:
            with torch.enable_grad():  # gates are only written if a gradient needs them
                input.requires_grad_()
                _, new_cell, gates = torch.ops.lltm.forward(input, weights, bias, old_h, old_cell)
            saved = (new_cell.detach(), gates.detach(), input.detach(), weights, bias, old_h)
            arguments.append((*inputs.gradients, *saved, [True] * 5))
    operator = getattr(torch.ops.lltm, direction).default
    sets = cycle(arguments)
    return lambda: operator(*next(sets))


@dataclass(frozen=True)
class Candidates:
    """Device microseconds of every candidate that supports the problem and of `auto`, and the errors of the others.

    Of a sequence, microseconds a step.
    """

    times: dict[str, float]
    refused: dict[str, str]


def measure(case: Case, direction: str, calls_per_graph: int) -> Candidates:
    """Race the automatic choice against every candidate, by graph replay. The caller sets the environment."""
    samplers, refused = {}, {}
    with torch.no_grad():
        call = operator_call(replace(case, work=Work.FORWARD), direction)
        steps = STEPS if direction == STEP else 1
        for name in (AUTO, *names(direction)):
            try:
                with forced(name):
                    samplers[name] = timing.graph_sampler(call, -(-calls_per_graph // steps))
            except RuntimeError as error:
                refused[name] = str(error).splitlines()[0]
        times = timing.race(samplers, {AUTO}, timing.GPU_RACE)
        return Candidates({name: us / steps for name, us in times.items()}, refused)
