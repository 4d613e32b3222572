"""Calls of a sequence of any cell: the operator, that of its backward, and gradients by autograd."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lltm_testing import sequence_reference as reference
from lltm_testing.bounds import Bounded, Precision
from lltm_testing.random_calls.calls import Call, Results, differentiate, lay_out, modes, seed_generator
from lltm_testing.random_calls.cases import MOST_COPIES, Case, common_choices, draw_layouts, draw_poison, draw_size
from lltm_testing.reference import precision_of
from lltm_testing.sequence_reference import Arguments, Expected, Sizes, specified

CELLS = {cell.operator: cell for cell in reference.CELLS.values()}
# The results that sequence_backward reads. The loop that it is compared with recomputes them.
KEPT = ("output", "cells", "gates")
# With repeated weights, all rounding errors of a step are equal, and accumulate over the steps faster than the random
# walk of sequence_reference.with_tolerance: to half of the bound on the CPU, beyond it on tensor cores, which truncate.
VARIED = ("weights", "weight_ih", "weight_hh", *KEPT)
# The same holds for an input that repeats: the errors of 40 equal steps reach twice the bound in float64, and those of
# d_weights four times the bound with 64 equal rows in each step. With up to this many steps, and MOST_COPIES rows in
# all of them, errors reach half of it.
MOST_EQUAL_STEPS = 8
# The most steps of a call. The loop that it is compared with takes about 100 us per step.
MOST_STEPS = 40
MOST_WORK = {"cpu": 2_000_000, "cuda": 20_000_000}


@dataclass(frozen=True, kw_only=True)
class SequenceCase(Case):
    """The sizes are those of sequence_reference.Sizes."""

    state: bool
    """Whether the initial states are given."""
    cell_dtype: torch.dtype
    """The dtype of c0, or of a GRU's h0, which may be float32 with 16-bit arguments."""
    lengths: bool
    reset: bool
    reverse: bool
    keep: bool

    @property
    def cell(self) -> type[Arguments]:
        return cell_of(self.operator)

    @property
    def gradient_names(self) -> tuple[str, ...]:
        return tuple(f"d_{name}" for name in self.cell.names)

    def features(self) -> list[str]:
        given = {
            "no state": not self.state,
            "float32 states beside 16 bits": self.state and self.cell_dtype != self.dtype,
            **{name: getattr(self, name) for name in ("lengths", "reset", "reverse", "keep")},
        }
        return super().features() + [name for name, is_given in given.items() if is_given]


def cell_of(operator: str) -> type[Arguments]:
    return CELLS[operator.partition("_")[0]]


def draw_sequence_case(random, operator: str, device: str) -> SequenceCase:
    cell = cell_of(operator)
    steps = random.choice((0, 1, 1, 2, 3, 4, 5, 7, 8, 12, random.randrange(MOST_STEPS + 1)))
    batch, input_features, state_size = (draw_size(random, device) for _ in range(3))
    while steps * batch * cell.gates * state_size * (state_size + input_features) > MOST_WORK[device]:
        batch, input_features, state_size = (-(-size // 2) for size in (batch, input_features, state_size))
        steps = -(-steps // 2)
    sizes = Sizes(steps, batch, input_features, state_size)
    choices = common_choices(random, operator, device, len(cell.names))
    # Autocast does not cast a c0, nor a float32 h0, so in the other 16-bit type it would not match.
    is_16_bit = choices["dtype"].itemsize == 2
    is_float32 = is_16_bit and (choices["autocast"] is not None or random.randrange(2) == 0)
    may_repeat_input = steps <= MOST_EQUAL_STEPS and steps * batch <= MOST_COPIES
    varied = VARIED if may_repeat_input else ("input", *VARIED)
    state = random.randrange(3) > 0
    # On CUDA, d_weights may leave out a first step that starts from zeros (docs/features.md).
    incoming = cell.incoming() if state or device == "cpu" else ()
    return SequenceCase(
        **choices,
        poison=draw_poison(random, choices, (*cell.names, *incoming)),
        sizes=sizes,
        scale=random.choice((1.0, 1.0, 1.0, 0.0, 0.01)),
        layouts=draw_layouts(
            random,
            [n for n in (*cell.names, "lengths", "reset", *cell.incoming()) if n not in varied],
            sizes,
            keeping=[name for name in varied if name in (*cell.names, *KEPT)],
        ),
        absent=tuple(name for name in cell.incoming() if random.randrange(4) == 0),
        state=state,
        cell_dtype=torch.float32 if is_float32 else choices["dtype"],
        lengths=random.randrange(2) == 0,
        reset=random.randrange(3) == 0,
        reverse=random.randrange(2) == 0,
        keep=random.randrange(2) == 0,
    )


def make_sequence(case: SequenceCase) -> Arguments:
    seed_generator(case)
    flags = {name: getattr(case, name) for name in ("bias", "state", "lengths", "reset", "reverse", "cell_dtype")}
    arguments = reference.make(case.sizes, case.dtype, case.device, cell=case.cell, **flags)
    if case.scale != 1:
        scaled = {name: getattr(arguments, name) * case.scale for name in arguments.weight_names()}
        arguments = arguments._replace(**scaled)
    tensors = {n: lay_out(case, n, t) for n, t in arguments._asdict().items() if isinstance(t, Tensor)}
    return arguments._replace(**tensors)


def requiring_grad(case: SequenceCase, arguments: Arguments) -> Arguments:
    """Leaves that share the tensors' memory. Those selected by the mask require gradients."""
    wanted = dict(zip(case.cell.names, case.mask, strict=True))
    leaves = {name: getattr(arguments, name).detach().requires_grad_(wanted[name]) for name in arguments.given()}
    return arguments._replace(**leaves)


def as_computed(case: SequenceCase, arguments: Arguments) -> Arguments:
    """The arguments after autocast's casts, which leave the state that steps carry in float32 as it is."""
    if case.arithmetic == case.dtype:
        return arguments
    carried = case.cell.states[-1]
    cast = arguments.map(lambda tensor: tensor.detach().to(case.arithmetic))
    return cast._replace(**{carried: getattr(arguments, carried)})


def bounded(expected: Expected, arguments: Arguments) -> Bounded:
    """On the arguments' device."""
    value, tolerance = (tensor.to(arguments.input.device) for tensor in expected)
    return Bounded(value, tolerance, Precision.of(arguments.input.dtype))


def on_cpu(values):
    """The loop runs on the CPU: its many small operations would wait for a GPU that other processes use, too."""
    return [value.cpu() if isinstance(value, Tensor) else value for value in values]


def expected_results(case: SequenceCase, arguments: Arguments) -> list[Bounded]:
    arguments = as_computed(case, arguments)
    with torch.no_grad():
        results = reference.expected_results(type(arguments)(*on_cpu(arguments)), precision_of(arguments.input))
    if not case.keep:
        of_steps = 1 + len(case.cell.states)
        results[of_steps:] = (Expected(value[:0], value.new_zeros(())) for value, _ in results[of_steps:])
    return [bounded(result, arguments) for result in results]


def prepare_sequence(case: SequenceCase) -> Call:
    arguments = requiring_grad(case, make_sequence(case))

    def run() -> Results:
        with modes(case):
            return specified(arguments, reference.call(arguments, case.keep))

    return Call(
        names=case.cell.outputs,
        dtypes=reference.result_dtypes(as_computed(case, arguments)),
        arguments=tensors_of(arguments),
        run=run,
        expected=lambda: expected_results(case, arguments),
    )


def tensors_of(arguments: Arguments) -> list[Tensor]:
    return [argument for argument in arguments if isinstance(argument, Tensor)]


def make_incoming(case: SequenceCase, arguments: Arguments) -> list[Tensor | None]:
    """Of results of a call with these arguments, after autocast's casts."""
    steps, batch, _, state_size = case.sizes
    incoming, dtypes = case.cell.incoming(), reference.result_dtypes(arguments)[:-1]

    def draw(name: str, dtype: torch.dtype) -> Tensor:
        shape = (batch, state_size) if name.endswith("_n") else (steps, batch, state_size)
        return lay_out(case, name, torch.randn(shape, dtype=torch.float64, device=case.device).to(dtype))

    return [None if n in case.absent else draw(n, dtype) for n, dtype in zip(incoming, dtypes, strict=True)]


def expected_gradients(arguments: Arguments, grads, wanted) -> list[Bounded | None]:
    here = type(arguments)(*on_cpu(arguments))
    gradients = reference.expected_gradients(on_cpu(grads), here, precision_of(arguments.input))
    return [bounded(g, arguments) if want else None for g, want in zip(gradients, wanted, strict=True)]


def prepare_sequence_backward(case: SequenceCase) -> Call:
    """The backward operator itself, which autocast does not affect."""
    arguments = make_sequence(case)
    results = dict(zip(case.cell.outputs, reference.call(arguments, keep=True), strict=True))
    kept = [lay_out(case, name, results[name]) for name in KEPT if name in results]
    grads = make_incoming(case, arguments)
    given = (*grads, *kept, *arguments)

    def run() -> Results:
        with modes(case):
            return getattr(torch.ops.lltm, f"{arguments.operator}_backward")(*given, case.mask)

    return Call(
        names=case.gradient_names,
        dtypes=reference.gradient_dtypes(arguments),
        arguments=[tensor for tensor in given if not isinstance(tensor, bool)],
        run=run,
        expected=lambda: expected_gradients(arguments, grads, case.mask),
    )


def prepare_sequence_autograd(case: SequenceCase) -> Call:
    """The forward, and its gradients by autograd."""
    arguments = requiring_grad(case, make_sequence(case))
    grads = make_incoming(case, as_computed(case, arguments))
    if "cells" in case.cell.outputs and not case.keep:
        grads[case.cell.outputs.index("cells")] = None
    leaves = [getattr(arguments, name) for name in arguments.names]

    def run() -> Results:
        with modes(case, "enabled"):
            results = reference.call(arguments, case.keep)
        detached = (result.detach() for result in specified(arguments, results))
        return (*detached, *differentiate(results[:-1], grads, leaves))

    def expected() -> list[Bounded | None]:
        has_incoming = any(grad is not None for grad in grads)
        wanted = [has_incoming and leaf is not None and leaf.requires_grad for leaf in leaves]
        gradients = expected_gradients(as_computed(case, arguments), grads, wanted)
        return [*expected_results(case, arguments), *gradients]

    return Call(
        names=(*case.cell.outputs, *case.gradient_names),
        dtypes=(
            *reference.result_dtypes(as_computed(case, arguments)),
            *reference.gradient_dtypes(arguments),
        ),
        arguments=[*tensors_of(arguments), *grads],
        run=run,
        expected=expected,
    )
