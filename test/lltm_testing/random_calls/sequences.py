"""Calls of a sequence of either cell: the operator, that of its backward, and gradients by autograd."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lltm_testing import sequence_reference as reference
from lltm_testing.bounds import Bounded, Precision
from lltm_testing.named_arguments import GRADIENTS as INCOMING
from lltm_testing.random_calls.calls import Call, Results, differentiate, lay_out, modes, seed_generator
from lltm_testing.random_calls.cases import MOST_COPIES, Case, common_choices, draw_layouts, draw_poison, draw_size
from lltm_testing.reference import precision_of
from lltm_testing.sequence_reference import CELLS, OUTPUTS, Expected, Lstm, Sequence, Sizes

# The results that sequence_backward reads. The loop that it is compared with recomputes them.
KEPT = ("output", "cells", "gates")
# With repeated weights, all rounding errors of a step are equal, and accumulate over the steps faster than the random
# walk of sequence_reference.with_tolerance: to half of the bound on the CPU, beyond it on tensor cores, which truncate.
VARIED = ("weights", "weight_ih", "weight_hh", *KEPT)
REPEATABLE = ("input", "bias", "h0", "c0", "lengths", "reset", *INCOMING)
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
    """Whether h0 and c0 are given."""
    cell_dtype: torch.dtype
    """The dtype of c0, which may be float32 with 16-bit arguments."""
    lengths: bool
    reset: bool
    reverse: bool
    keep: bool

    @property
    def cell(self) -> type[Sequence] | type[Lstm]:
        return cell_of(self.operator)

    @property
    def gradient_names(self) -> tuple[str, ...]:
        return tuple(f"d_{name}" for name in self.cell.names)

    def features(self) -> list[str]:
        given = {
            "no state": not self.state,
            "float32 cells beside 16 bits": self.state and self.cell_dtype != self.dtype,
            **{name: getattr(self, name) for name in ("lengths", "reset", "reverse", "keep")},
        }
        return super().features() + [name for name, is_given in given.items() if is_given]


def cell_of(operator: str) -> type[Sequence] | type[Lstm]:
    return CELLS["lstm" if operator.startswith("lstm") else "lltm"]


def draw_sequence_case(random, operator: str, device: str) -> SequenceCase:
    cell = cell_of(operator)
    steps = random.choice((0, 1, 1, 2, 3, 4, 5, 7, 8, 12, random.randrange(MOST_STEPS + 1)))
    batch, input_features, state_size = (draw_size(random, device) for _ in range(3))
    while steps * batch * cell.gates * state_size * (state_size + input_features) > MOST_WORK[device]:
        batch, input_features, state_size = (-(-size // 2) for size in (batch, input_features, state_size))
        steps = -(-steps // 2)
    sizes = Sizes(steps, batch, input_features, state_size)
    choices = common_choices(random, operator, device, len(cell.names))
    # Autocast does not cast c0, so c0 in the other 16-bit type would not match the cast arguments.
    is_16_bit = choices["dtype"].itemsize == 2
    is_float32 = is_16_bit and (choices["autocast"] is not None or random.randrange(2) == 0)
    may_repeat_input = steps <= MOST_EQUAL_STEPS and steps * batch <= MOST_COPIES
    varied = VARIED if may_repeat_input else ("input", *VARIED)
    return SequenceCase(
        **choices,
        poison=draw_poison(random, choices, (*cell.names, *INCOMING)),
        sizes=sizes,
        scale=random.choice((1.0, 1.0, 1.0, 0.0, 0.01)),
        layouts=draw_layouts(
            random,
            [name for name in REPEATABLE if name not in varied],
            sizes,
            keeping=[name for name in varied if name in (*cell.names, *KEPT)],
        ),
        absent=tuple(name for name in INCOMING if random.randrange(4) == 0),
        state=random.randrange(3) > 0,
        cell_dtype=torch.float32 if is_float32 else choices["dtype"],
        lengths=random.randrange(2) == 0,
        reset=random.randrange(3) == 0,
        reverse=random.randrange(2) == 0,
        keep=random.randrange(2) == 0,
    )


def make_sequence(case: SequenceCase) -> Sequence | Lstm:
    seed_generator(case)
    flags = {name: getattr(case, name) for name in ("bias", "state", "lengths", "reset", "reverse", "cell_dtype")}
    arguments = reference.make(case.sizes, case.dtype, case.device, cell=case.cell, **flags)
    if case.scale != 1:
        weights = [name for name in arguments.names if name.startswith("weight")]
        arguments = arguments._replace(**{name: getattr(arguments, name) * case.scale for name in weights})
    tensors = {n: lay_out(case, n, t) for n, t in arguments._asdict().items() if isinstance(t, Tensor)}
    return arguments._replace(**tensors)


def requiring_grad(case: SequenceCase, arguments: Sequence | Lstm) -> Sequence | Lstm:
    """Leaves that share the tensors' memory. Those selected by the mask require gradients."""
    wanted = dict(zip(case.cell.names, case.mask, strict=True))
    leaves = {name: getattr(arguments, name).detach().requires_grad_(wanted[name]) for name in arguments.given()}
    return arguments._replace(**leaves)


def as_computed(case: SequenceCase, arguments: Sequence | Lstm) -> Sequence | Lstm:
    """The arguments after autocast's casts, which leave c0 as it is."""
    if case.arithmetic == case.dtype:
        return arguments
    return arguments.map(lambda tensor: tensor.detach().to(case.arithmetic))._replace(c0=arguments.c0)


def final_cell_dtype(case: SequenceCase) -> torch.dtype:
    return case.cell_dtype if case.state else case.arithmetic


def bounded(expected: Expected, arguments: Sequence | Lstm) -> Bounded:
    """On the arguments' device."""
    value, tolerance = (tensor.to(arguments.input.device) for tensor in expected)
    return Bounded(value, tolerance, Precision.of(arguments.input.dtype))


def on_cpu(values):
    """The loop runs on the CPU: its many small operations would wait for a GPU that other processes use, too."""
    return [value.cpu() if isinstance(value, Tensor) else value for value in values]


def expected_results(case: SequenceCase, arguments: Sequence | Lstm) -> list[Bounded]:
    arguments = as_computed(case, arguments)
    with torch.no_grad():
        results = reference.expected_results(type(arguments)(*on_cpu(arguments)), precision_of(arguments.input))
    if not case.keep:
        results[3:] = (Expected(value[:0], value.new_zeros(())) for value, _ in results[3:])
    return [bounded(result, arguments) for result in results]


def prepare_sequence(case: SequenceCase) -> Call:
    arguments = requiring_grad(case, make_sequence(case))

    def run() -> Results:
        with modes(case):
            return reference.call(arguments, case.keep)

    return Call(
        names=OUTPUTS,
        dtypes=(case.arithmetic, case.arithmetic, final_cell_dtype(case), case.arithmetic, case.arithmetic),
        arguments=tensors_of(arguments),
        run=run,
        expected=lambda: expected_results(case, arguments),
    )


def tensors_of(arguments: Sequence | Lstm) -> list[Tensor]:
    return [argument for argument in arguments if isinstance(argument, Tensor)]


def make_incoming(case: SequenceCase, dtype: torch.dtype, cell_dtype: torch.dtype) -> list[Tensor | None]:
    steps, batch, _, state_size = case.sizes
    shapes = [(steps, batch, state_size), (batch, state_size), (batch, state_size), (steps, batch, state_size)]
    dtypes = [dtype, dtype, cell_dtype, dtype]
    return [
        None
        if name in case.absent
        else lay_out(case, name, torch.randn(shape, dtype=torch.float64, device=case.device).to(dtype))
        for name, shape, dtype in zip(INCOMING, shapes, dtypes, strict=True)
    ]


def expected_gradients(arguments: Sequence | Lstm, grads, wanted) -> list[Bounded | None]:
    here = type(arguments)(*on_cpu(arguments))
    gradients = reference.expected_gradients(on_cpu(grads), here, precision_of(arguments.input))
    return [bounded(g, arguments) if want else None for g, want in zip(gradients, wanted, strict=True)]


def prepare_sequence_backward(case: SequenceCase) -> Call:
    """The backward operator itself, which autocast does not affect."""
    cell_dtype = case.cell_dtype if case.state else case.dtype
    arguments = make_sequence(case)
    output, _, _, cells, gates = reference.call(arguments, keep=True)
    kept = [lay_out(case, n, t) for n, t in (("output", output), ("cells", cells), ("gates", gates))]
    grads = make_incoming(case, case.dtype, cell_dtype)
    given = (*grads, *kept, *arguments)

    def run() -> Results:
        with modes(case):
            return getattr(torch.ops.lltm, f"{arguments.operator}_backward")(*given, case.mask)

    return Call(
        names=case.gradient_names,
        dtypes=(*(case.dtype,) * (len(case.cell.names) - 1), cell_dtype),
        arguments=[tensor for tensor in given if not isinstance(tensor, bool)],
        run=run,
        expected=lambda: expected_gradients(arguments, grads, case.mask),
    )


def prepare_sequence_autograd(case: SequenceCase) -> Call:
    """The forward, and its gradients by autograd."""
    arguments = requiring_grad(case, make_sequence(case))
    grads = make_incoming(case, case.arithmetic, final_cell_dtype(case))
    if not case.keep:
        grads[3] = None
    leaves = [getattr(arguments, name) for name in arguments.names]

    def run() -> Results:
        with modes(case, "enabled"):
            results = reference.call(arguments, case.keep)
        return (*(result.detach() for result in results), *differentiate(results[:4], grads, leaves))

    def expected() -> list[Bounded | None]:
        has_incoming = any(grad is not None for grad in grads)
        wanted = [has_incoming and leaf is not None and leaf.requires_grad for leaf in leaves]
        gradients = expected_gradients(as_computed(case, arguments), grads, wanted)
        return [*expected_results(case, arguments), *gradients]

    return Call(
        names=(*OUTPUTS, *case.gradient_names),
        dtypes=(
            *(case.arithmetic, case.arithmetic, final_cell_dtype(case), case.arithmetic, case.arithmetic),
            *(*(case.dtype,) * (len(leaves) - 1), case.cell_dtype),
        ),
        arguments=[*tensors_of(arguments), *grads],
        run=run,
        expected=expected,
    )
