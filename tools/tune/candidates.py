"""The candidates of the CUDA planner: their names, and the time of each when it is forced."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

import model
import numpy
import timing
import torch
from cases import Case, Work
from peers import Operator
from workload import INPUT_SETS, Inputs

import lltm

VARIABLE = "LLTM_CUDA_PATH"
AUTO = "auto"
STEP = "step"
"""A step of a sequence, by the candidates of a forward."""
STEP_BACKWARD = "step_backward"
"""A step of a sequence's backward, without the products over all steps."""
LSTM = "lstm"
"""A single step of an LSTM."""
LSTM_STEP = "lstm_step"
"""A step of an LSTM's sequence, which multiplies the input."""
_OF_LSTM = ("lstm_", "forward_few_rows", "forward_library")
PREFIXES = {
    "forward": "forward_",
    "backward": "backward_",
    STEP: "forward_",
    STEP_BACKWARD: "sequence_backward_",
    LSTM: _OF_LSTM,
    LSTM_STEP: _OF_LSTM,
}
"""How the names of each direction's candidates begin."""
DIRECTIONS = tuple(PREFIXES)
STEPS = 24
MOST_RANKS = 8


def kind_of(direction: str) -> model.Kind:
    return model.Kind(of_lstm=direction in (LSTM, LSTM_STEP), of_steps=direction in (STEP, LSTM_STEP))


def problems(case: Case, ranks: tuple[int, ...]) -> numpy.ndarray:
    """The case for the model, with each number of ranks."""
    shape, arithmetic = case.shape, model.ARITHMETICS.index(case.dtype)
    sizes = (arithmetic, shape.batch, shape.input_features, shape.state_size)
    return numpy.array([(*sizes, count) for count in ranks], model.PROBLEM)


def names(case: Case, direction: str, every_rank: bool = False) -> list[str]:
    """The values of LLTM_CUDA_PATH that select a candidate that supports the case on the current GPU. With
    `every_rank`, candidates whose ranks the model chooses are named with each number of ranks instead, unless it should
    take twice as long as another one."""
    known = model.load()
    if known is None:
        return []
    facts, found = known.current_facts(), []
    for name in known.selectable:
        if not name.startswith(PREFIXES[direction]):
            continue
        estimates = known.estimates(name, kind_of(direction), facts, problems(case, tuple(range(MOST_RANKS + 1))))
        least, *forced = estimates["us"]
        if every_rank and estimates[0]["ranks"]:
            found += [f"{name}:{ranks}" for ranks, us in enumerate(forced, 1) if us <= 2 * least]
        elif not numpy.isnan(least):
            found.append(name)
    return found


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
    """One call of lltm::forward, of lltm::backward alone, with all gradients, of lltm::sequence over STEPS steps, of
    their backward alone, with the gradient of the initial h, or of lltm::lstm over one step or STEPS steps."""
    if direction in (LSTM, LSTM_STEP):
        return _lstm(case, STEPS if direction == LSTM_STEP else 1)
    cell = Operator(case.shape, case.device, case.torch_dtype)
    weights, bias = cell.weights.detach(), cell.bias.detach()
    if direction == STEP:
        input, h0, c0 = _sequence(case)
        return partial(torch.ops.lltm.sequence.default, input, weights, bias, h0, c0)
    if direction == STEP_BACKWARD:
        return _sequence_backward(case, weights, bias, STEPS, [False, False, False, True, False])
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


def _lstm(case: Case, steps: int) -> Callable[[], object]:
    layer = torch.nn.LSTM(case.shape.input_features, case.shape.state_size, device=case.device, dtype=case.torch_dtype)
    weight_ih, weight_hh, bias, _ = (parameter.detach() for parameter in layer.parameters())
    calls = []
    for first in range(1 if steps > 1 else INPUT_SETS):
        states = [Inputs(case, seed).states for seed in range(first, first + steps)]
        input = torch.stack([input for input, _, _ in states]).detach()
        arguments = (input, weight_ih, weight_hh, bias, *(state.detach() for state in states[0][1:]))
        calls.append(partial(torch.ops.lltm.lstm.default, *arguments))
    sets = cycle(calls)
    return calls[0] if steps > 1 else lambda: next(sets)()


def _sequence(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The input of STEPS steps, and the initial state."""
    steps = [Inputs(case, seed).states for seed in range(STEPS)]
    return torch.stack([states[0] for states in steps]), steps[0][1], steps[0][2].float()


def _sequence_backward(
    case: Case, weights: torch.Tensor, bias: torch.Tensor, steps: int, mask: list[bool]
) -> Callable[[], object]:
    """lltm::sequence_backward over some of the STEPS steps, from a gradient of the output."""
    input, h0, c0 = _sequence(case)
    output, _, _, cells, gates = torch.ops.lltm.sequence(input[:steps], weights, bias, h0, c0, keep=True)
    saved = (output, cells, gates, input[:steps], weights, bias, h0, c0, None, None, False)
    gradient = torch.randn_like(output)
    return lambda: torch.ops.lltm.sequence_backward.default(gradient, None, None, None, *saved, mask)


def _beside_steps(case: Case) -> timing.Sampler:
    """What lltm::sequence_backward takes beside the products of its steps: one step without a product."""
    cell = Operator(case.shape, case.device, case.torch_dtype)
    mask = [False, False, False, False, True]
    return timing.graph_sampler(_sequence_backward(case, cell.weights.detach(), cell.bias.detach(), 1, mask))


@dataclass(frozen=True)
class Candidates:
    """Device microseconds of every candidate that supports the problem and of `auto`, and the errors of the others.

    Of a sequence, microseconds per step.
    """

    times: dict[str, float]
    refused: dict[str, str]


def measure(case: Case, direction: str, calls_per_graph: int, every_rank: bool = False) -> Candidates:
    """Race the automatic choice against every candidate, by graph replay. The caller sets the environment."""
    samplers, refused = {}, {}
    case = replace(case, work=Work.FORWARD)
    with torch.no_grad():
        call = operator_call(case, direction)
        steps = STEPS if direction in (STEP, STEP_BACKWARD, LSTM_STEP) else 1
        for name in (AUTO, *names(case, direction, every_rank)):
            try:
                with forced(name):
                    plan = {STEP: lltm.ops.sequence_plan, LSTM_STEP: lltm.ops.lstm_plan}.get(direction)
                    if plan is not None and name != AUTO and "x=outside" in plan(*call.args):
                        continue
                    samplers[name] = timing.graph_sampler(call, -(-calls_per_graph // steps))
            except RuntimeError as error:
                refused[name] = str(error).splitlines()[0]
        times = timing.race(samplers, {AUTO}, timing.GPU_RACE)
        beside = 0.0
        if direction == STEP_BACKWARD:
            beside = timing.race({AUTO: _beside_steps(case)}, {AUTO}, timing.GPU_RACE)[AUTO]
        return Candidates({name: (us - beside) / steps for name, us in times.items()}, refused)
