"""torch.func and forward-mode AD: vmap, grad, jvp, and their compositions, of the forward operators and their
gradients. test_vmap.py tests which kernels run below vmap."""

import itertools

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.differentiable import assert_equal, each_argument, each_function, loss, of_cell, of_loss
from lltm_testing.named_arguments import NAMES, WEIGHTS, each_forward
from lltm_testing.reference import assert_identical, assert_no_aliases
from lltm_testing.sequence_reference import (
    CELLS,
    Sizes,
    assert_carries_the_state_in_float32,
    call,
    call_backward,
    make,
    make_gradients,
    ragged,
)
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

pytestmark = pytest.mark.pytorch

EXAMPLES = 3
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
SIXTEEN_BITS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


def other_values(argument):
    """A random tensor of the same kind for each example."""
    shape, device = (EXAMPLES, *argument.shape), argument.device
    if argument.dtype == torch.bool:
        return torch.rand(shape, device=device) < 0.3
    if not argument.is_floating_point():
        return torch.randint(-1, 9, shape, device=device)
    return torch.randn(shape, dtype=argument.dtype, device=device)


def subsets(names):
    """Each by itself, all but one, all, and the pairs."""
    sizes = {1, 2, len(names) - 1, len(names)} if len(names) <= 8 else {1, len(names) - 1, len(names)}
    return [subset for size in sorted(sizes) for subset in itertools.combinations(names, size)]


def assert_near(found, plain) -> None:
    """A few units of the largest result apart: the same numbers, perhaps from another kernel."""
    for result, value in zip(found, plain, strict=True):
        assert result.dtype == value.dtype and result.shape == value.shape
        assert (result - value).abs().max() <= 4 * torch.finfo(value.dtype).eps * value.abs().max()


def without_none(results):
    return tuple(result for result in results if result is not None)


@pytest.mark.parametrize(
    ("operator", "mapped"), [(name, mapped) for name, names in NAMES.items() for mapped in subsets(names)], ids=str
)
def test_vmap_over_any_arguments(device, operator, mapped):
    """With all arguments, and without those that are optional and not mapped over."""
    arguments = named_arguments.make(operator, device, torch.float64)
    values = {name: other_values(t) if name in mapped else t for name, t in arguments.items()}
    absent = dict.fromkeys(name for name in named_arguments.optional(operator) if name not in mapped)
    some = named_arguments.mask_of(operator, [True, False, True, False, True])
    for given, mask in ((values, None), (values | absent, some)):

        def run(*tensors, mask=mask):
            named = dict(zip(values, tensors, strict=True))
            return without_none(named_arguments.call(operator, named, mask))

        found = vmap(run, tuple(0 if name in mapped else None for name in given))(*given.values())
        for k in range(EXAMPLES):
            expected = run(*(t[k] if name in mapped else t for name, t in given.items()))
            assert_equal(tuple(result[k] for result in found), expected)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_vmap_over_each_dimension(device, dim):
    operator, _, (input, *others) = of_cell(device)
    inputs = other_values(input)
    found = vmap(lambda x: operator(x, *others), dim, out_dims=1)(inputs.movedim(0, dim))
    assert_equal(found[0], torch.stack([operator(x, *others)[0] for x in inputs], dim=1))


def test_vmap_gives_the_dtypes_and_shapes_of_a_plain_call(device, dtype, operator):
    arguments = named_arguments.make(operator, device, dtype, torch.float32 if dtype.itemsize == 2 else dtype)
    name = WEIGHTS[operator]
    found = vmap(lambda w: named_arguments.call(operator, arguments | {name: w}))(arguments[name][None])
    assert_near([mapped[0] for mapped in found], named_arguments.call(operator, arguments))


def test_vmap_keeps_the_shapes_of_what_is_not_kept(device, cell):
    arguments = make((3, 3, 1, 2), torch.float64, device, cell=cell)
    found = vmap(lambda x: call(arguments._replace(input=x)))(arguments.input.expand(2, 3, 3, 1))
    of_steps = found[1 + len(cell.states) :]
    assert [t.shape for t in of_steps[:-1]] == [(2, 0, 3, 2)] * (len(cell.states) - 1)
    assert of_steps[-1].shape == (2, 0, 3, 2 * cell.saved)


def last_states(arguments, states):
    """Those after the call with these initial ones."""
    named = dict(zip(arguments.states, states, strict=True))
    return call(arguments._replace(**named))[1 : 1 + len(states)]


def test_no_steps_below_vmap(device, cell):
    """The final state is the initial one, and its gradient that of the final one, but they are copies."""
    arguments = make(Sizes(0, 3, 1, 2), torch.float64, device, cell=cell)
    state, of_states = [part[None] for part in arguments.initial_states()], len(cell.states)
    final = vmap(lambda *s: last_states(arguments, s))(*state)
    assert_no_aliases(final, state)

    def backward(*grads):
        return call_backward((None, *grads, *[None] * (of_states - 1)), arguments)

    d_input, *gradients = vmap(backward)(*state)
    of_parameters, d_state = gradients[:-of_states], gradients[-of_states:]
    assert_no_aliases(d_state, state)
    for found in (final, d_state):
        assert_identical(found, state)
    assert d_input.numel() == 0
    for gradient, parameter in zip(of_parameters, arguments.weights_and_biases(), strict=True):
        assert not gradient.any() and gradient.shape[-parameter.dim() :] == parameter.shape


def test_no_steps_in_the_formula(device, cell):
    """Of derivatives of derivatives and in forward mode. The final state passes on what comes in, as a copy."""
    arguments = make(Sizes(0, 3, 1, 2), torch.float64, device, cell=cell)
    state = arguments.initial_states()
    tangents = tuple(torch.randn_like(part) for part in state)
    final, of_final = jvp(lambda *s: last_states(arguments, s), state, tangents)
    assert_identical((*final, *of_final), (*state, *tangents))
    assert_no_aliases((*final, *of_final), (*state, *tangents))
    leaves = arguments.require_grad()
    incoming = [part.clone().requires_grad_() for part in tangents]
    last = last_states(leaves, leaves.initial_states())
    first = torch.autograd.grad(last, leaves.leaves(), incoming, create_graph=True)
    others, d_state = first[: -len(state)], first[-len(state) :]
    assert not any(gradient.any() for gradient in others)
    assert_identical(d_state, incoming)
    assert_no_aliases(first, incoming)
    assert_identical(torch.autograd.grad(d_state, incoming, state), state)


@each_argument
def test_grad(device, make, argnum):
    operator, formula, tensors = make(device)
    for argnums in (argnum, tuple(range(len(tensors)))):
        assert_equal(grad(of_loss(operator), argnums)(*tensors), grad(of_loss(formula), argnums)(*tensors))


@each_argument
def test_grad_of_grad(device, make, argnum):
    operator, formula, tensors = make(device)

    def second(run):
        first = grad(of_loss(run), argnum)
        return grad(lambda *t: first(*t).sin().sum(), tuple(range(len(tensors))))(*tensors)

    assert_equal(second(operator), second(formula))


@each_function
def test_grad_through_autograd(device, make):
    """A transform inside of a computation on leaves that require gradients."""
    operator, formula, tensors = make(device)
    leaves = [t.requires_grad_() for t in tensors]

    def outer(run):
        return torch.autograd.grad(grad(of_loss(run), 1)(*leaves).sin().sum(), leaves)

    assert_equal(outer(operator), outer(formula))


@each_argument
def test_jvp(device, make, argnum):
    """Of one argument, and of all."""
    operator, formula, tensors = make(device)
    tangents = tuple(torch.randn_like(t) for t in tensors)

    def of_one(run):
        return lambda value: run(*tensors[:argnum], value, *tensors[argnum + 1 :])

    one = (tensors[argnum],), (tangents[argnum],)
    assert_equal(jvp(of_one(operator), *one), jvp(of_one(formula), *one))
    assert_equal(jvp(operator, tensors, tangents), jvp(formula, tensors, tangents))


@each_function
@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_mode(device, make, requires_grad):
    operator, formula, tensors = make(device)
    tangents = [torch.randn_like(t) for t in tensors]

    def run(function):
        leaves = [t.detach().clone().requires_grad_(requires_grad) for t in tensors]
        with torch.autograd.forward_ad.dual_level():
            results = function(*map(torch.autograd.forward_ad.make_dual, leaves, tangents))
            results = [torch.autograd.forward_ad.unpack_dual(result) for result in results]
        return [tensor.detach() for result in results for tensor in result]

    assert_equal(run(operator), run(formula))


# The values of c0 do not affect the gradients.
ALONE = [
    (operator, argument)
    for operator, arguments in NAMES.items()
    for argument in arguments
    if argument not in ("gates", "lengths", "reset") and (operator, argument) != ("sequence_backward", "c0")
]
each_argument_alone = pytest.mark.parametrize(("operator", "argument"), ALONE)


def function_of_one(device, operator, argument):
    """The differentiable results of an operator as a function of one argument, and the argument's value."""
    arguments = named_arguments.make(operator, device, torch.float64)

    def results(value):
        results = named_arguments.call(operator, arguments | {argument: value})
        return results if "backward" in operator else results[:-1]

    return results, arguments[argument]


@each_argument_alone
def test_forward_mode_of_one_argument(device, operator, argument):
    """A single tangent is enough, even if nothing requires a gradient."""
    results, value = function_of_one(device, operator, argument)
    tangent = torch.randn_like(value)
    with torch.autograd.forward_ad.dual_level():
        duals = results(torch.autograd.forward_ad.make_dual(value, tangent))
        found = [torch.autograd.forward_ad.unpack_dual(result).tangent for result in duals]
    _, expected = jvp(results, (value,), (tangent,))
    for of_result, other in zip(found, expected, strict=True):
        assert_equal(torch.zeros_like(other) if of_result is None else of_result, other)


@each_argument_alone
def test_gradient_of_one_argument(device, operator, argument):
    """A single argument that requires a gradient is enough, also in the double backward."""
    results, value = function_of_one(device, operator, argument)

    def total(value):
        return sum(result.sin().sum() for result in results(value))

    leaf = value.detach().clone().requires_grad_()
    assert_equal(torch.autograd.grad(total(leaf), leaf)[0], grad(total)(value))


@each_argument
def test_jacobians(device, make, argnum):
    operator, formula, tensors = make(device)
    expected = jacrev(formula, argnum)(*tensors)
    assert_equal(jacrev(operator, argnum)(*tensors), expected)
    assert_equal(jacfwd(operator, argnum)(*tensors), expected)


@each_function
@pytest.mark.parametrize("outer", [jacrev, jacfwd])
@pytest.mark.parametrize("inner", [jacrev, jacfwd])
def test_second_jacobians(device, make, inner, outer):
    operator, formula, tensors = make(device)

    def second(run):
        return outer(inner(of_loss(run), 1), tuple(range(len(tensors))))(*tensors)

    assert_equal(second(operator), second(formula))


@each_argument
def test_vjp_of_a_gradient(device, make, argnum):
    """The node of the double backward runs after the transform that recorded it has returned."""
    operator, formula, tensors = make(device)
    gradients, examples = torch.randn_like(tensors[argnum]), other_values(tensors[-2])

    def second(run, *tensors):
        _, pull_back = vjp(grad(of_loss(run), argnum), *tensors)
        return pull_back(gradients), vmap(pull_back)(torch.stack([gradients, 2 * gradients]))

    def of_examples(run):
        return vmap(lambda h: second(run, *tensors[:-2], h, tensors[-1]))(examples)

    assert_equal(second(operator, *tensors), second(formula, *tensors))
    assert_equal(of_examples(operator), of_examples(formula))


@each_function
def test_autograd_through_vmap(device, make):
    operator, formula, tensors = make(device)
    leaves = [other_values(t).requires_grad_() for t in tensors]
    found = torch.autograd.grad(vmap(of_loss(operator))(*leaves).sum(), leaves)
    total = sum(loss(formula(*(t[k] for t in leaves))) for k in range(EXAMPLES))
    assert_equal(found, torch.autograd.grad(total, leaves))


@each_function
def test_batched_gradients(device, make):
    """is_grads_batched maps over the incoming gradients of an ordinary graph."""
    operator, _, tensors = make(device)
    leaves = [t.requires_grad_() for t in tensors]
    outputs = operator(*leaves)
    grads = [other_values(output) for output in outputs]
    found = torch.autograd.grad(outputs, leaves, grads, is_grads_batched=True, retain_graph=True)
    for k in range(EXAMPLES):
        expected = torch.autograd.grad(outputs, leaves, [g[k] for g in grads], retain_graph=True)
        assert_equal(tuple(g[k] for g in found), expected)


@each_forward
def test_gates_have_no_gradient_below_a_transform(device, operator):
    arguments, name = named_arguments.make(operator, device), WEIGHTS[operator]
    found = grad(lambda w: named_arguments.call(operator, arguments | {name: w})[-1].sum())(arguments[name])
    assert torch.equal(found, torch.zeros_like(found))


@REVERSE
@pytest.mark.parametrize(("cell", "name"), [(c, n) for c in CELLS for n in CELLS[c].states], indirect=["cell"])
@pytest.mark.parametrize("unused", ["not run", "reset"])
def test_transforms_never_use_a_state_that_is_not_used(device, cell, reverse, name, unused):
    """That of a row that is not run, or is reset in the first step that is run. It is replaced: multiplied by zero, NaN
    would stay."""
    arguments, _, _ = ragged(make((3, 5, 1, 2), torch.float64, device, reset=True, reverse=reverse, cell=cell))
    if unused == "reset":
        reset = torch.zeros_like(arguments.reset)
        reset[-1 if reverse else 0, 0] = True
        arguments = arguments._replace(reset=reset, lengths=None)
    spoiled = arguments._replace(**{name: getattr(arguments, name).clone()})
    getattr(spoiled, name)[0] = torch.nan

    def gradient(arguments):
        bias = cell.bias_names()[-1]
        return grad(lambda b: sum(r.sin().sum() for r in call(arguments._replace(**{bias: b}), keep=True)[:-1]))(
            getattr(arguments, bias)
        )

    assert torch.equal(gradient(spoiled), gradient(arguments))


@REVERSE
def test_second_gradients_never_use_what_is_beyond_the_length(device, cell, reverse):
    arguments, _, beyond = ragged(make((3, 5, 1, 2), torch.float64, device, reset=True, reverse=reverse, cell=cell))
    beyond = beyond.unsqueeze(2)
    *results, _ = call(arguments, keep=True)
    clean = [torch.randn_like(result) for result in results]
    # The gradients of the last states of a row that is not run go to h0 and c0.
    spoiled = [g.masked_fill(beyond if g.dim() == 3 else beyond.all(0), torch.nan) for g in clean]
    found = []
    for incoming in (spoiled, clean):
        leaves = arguments.require_grad()
        *results, _ = call(leaves, keep=True)
        first = torch.autograd.grad(results, leaves.leaves()[: -len(cell.states)], incoming, create_graph=True)
        found.append(first + torch.autograd.grad(sum(g.square().sum() for g in first), leaves.leaves()))
    assert_identical(*found)


def test_differentiable_d_input_beyond_the_length_is_zero_whatever_the_weights(device, cell):
    arguments, _, beyond = ragged(make((3, 5, 1, 2), torch.float64, device, reset=True, cell=cell))
    name = WEIGHTS[cell.operator]
    leaves = arguments._replace(**{name: torch.full_like(getattr(arguments, name), torch.nan)}).require_grad()
    (d_input,) = torch.autograd.grad(call(leaves)[0].sum(), leaves.input, create_graph=True)
    assert d_input[beyond].eq(0).all()


@SIXTEEN_BITS
def test_vmap_carries_the_state_in_float32(device, cell, dtype):
    def run(input, *others):
        return vmap(lambda x: getattr(torch.ops.lltm, cell.operator)(x, *others)[len(cell.states)])(input[None])

    assert_carries_the_state_in_float32(run, dtype, device, steps=200, cell=cell)


@SIXTEEN_BITS
@pytest.mark.parametrize("cell_dtype", [torch.float32, None], ids=["float32_state", "16_bit_state"])
def test_differentiable_gradients_have_the_dtypes_of_the_arguments(device, cell, dtype, cell_dtype):
    options = {"lengths": True, "reset": True, "cell_dtype": cell_dtype, "cell": cell}
    arguments = make(Sizes(5, 6, 5, 7), dtype, device, **options)
    gradients = make_gradients(arguments)
    expected = call_backward(gradients, arguments)
    getattr(arguments, cell.bias_names()[0]).requires_grad_()
    found = call_backward(gradients, arguments)
    assert all(gradient.requires_grad for gradient in found)
    assert_near(found, expected)


@REVERSE
def test_lengths_in_int32(device, cell, reverse):
    """vmap, one and two derivatives, and jvp."""
    long = make((3, 3, 1, 2), torch.float64, device, lengths=True, reset=True, reverse=reverse, cell=cell)
    short = long._replace(lengths=long.lengths.int())
    batch = torch.randint(-1, 5, (3, 3), device=device)
    assert_equal(*(vmap(lambda n: call(long._replace(lengths=n), keep=True)[:-1])(n) for n in (batch.int(), batch)))
    tensors = tuple(getattr(long, name) for name in cell.names)

    def results(arguments):
        def run(*tensors):
            return call(arguments._replace(**dict(zip(cell.names, tensors, strict=True))), keep=True)[:-1]

        first = grad(of_loss(run), (0, 1))
        second = grad(lambda *t: sum(part.sin().sum() for part in first(*t)), tuple(range(len(tensors))))
        return first(*tensors), second(*tensors), jvp(run, tensors, tensors)

    assert_equal(results(short), results(long))
