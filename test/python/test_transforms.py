"""torch.func and forward-mode AD: vmap, grad, jvp, and their compositions."""

import itertools

import named_arguments
import pytest
import torch
from reference import NAMES, Arguments, call, forward, make_arguments, make_gradients
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

operator = torch.ops.lltm.forward
EXAMPLES = 3


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def state(step):
    return lambda *arguments: step(*arguments)[:2]


def loss(step):
    """A number that depends nonlinearly on both results."""

    def run(*arguments):
        new_h, new_cell, _ = step(*arguments)
        return (new_h * new_cell.sin()).sum()

    return run


def double_arguments(device, bias=True, sizes=(4, 2, 3)) -> Arguments:
    return make_arguments(sizes, torch.float64, device, bias)


def stacked(argument):
    return torch.randn(EXAMPLES, *argument.shape, dtype=argument.dtype, device=argument.device)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize(
    "batched", list(itertools.product([False, True], repeat=5))[1:], ids=lambda flags: "".join("01"[f] for f in flags)
)
def test_vmap_over_each_combination(device, batched, bias):
    if batched[2] and not bias:
        pytest.skip("there is no bias to map over")
    arguments = double_arguments(device, bias)
    values = [stacked(t) if flag else t for t, flag in zip(arguments, batched, strict=True)]
    in_dims = tuple(0 if flag else None for flag in batched)
    found = vmap(operator, in_dims=in_dims)(*values)
    examples = [
        operator(*(value[k] if flag else value for value, flag in zip(values, batched, strict=True)))
        for k in range(EXAMPLES)
    ]
    for result, expected in zip(found, zip(*examples, strict=True), strict=True):
        assert_equal(result, torch.stack(expected))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_vmap_over_each_dimension(device, dim):
    arguments = double_arguments(device)
    inputs = stacked(arguments.input).movedim(0, dim)
    in_dims = (dim, None, None, None, None)
    found = vmap(operator, in_dims=in_dims, out_dims=1)(inputs, *arguments[1:])
    expected = torch.stack([operator(x, *arguments[1:])[0] for x in inputs.movedim(dim, 0)], dim=1)
    assert_equal(found[0], expected)


@pytest.mark.parametrize("name", named_arguments.NAMES)
def test_vmap_gives_the_dtypes_and_shapes_of_a_plain_call(device, dtype, name):
    """In 16 bits, the formula computes in float32, and rounds what is not the carried cell state."""
    arguments = named_arguments.make(name, device, dtype, torch.float32 if dtype.itemsize == 2 else dtype)
    weights = arguments["weights"]
    found = vmap(lambda w: named_arguments.call(name, arguments | {"weights": w}))(weights[None])
    for mapped, plain in zip(found, named_arguments.call(name, arguments), strict=True):
        assert mapped.dtype == plain.dtype and mapped[0].shape == plain.shape
        assert (mapped[0] - plain).abs().max() <= 0.05 * plain.abs().max()


@pytest.mark.parametrize("mask", [(True,) * 5, (True, False, True, False, True)], ids=["all", "some"])
@pytest.mark.parametrize("incoming", [(True, True), (True, False), (False, True)], ids=str)
def test_vmap_of_backward(device, incoming, mask):
    arguments = double_arguments(device)
    values = Arguments(*(stacked(t) for t in arguments))
    _, new_cell, gates = vmap(operator)(*values)
    grads = [g if given else None for g, given in zip(make_gradients(values), incoming, strict=True)]
    given = (*grads, new_cell, gates, *values[:4])

    def run(*tensors):
        results = torch.ops.lltm.backward(*tensors, list(mask))
        return tuple(result for result in results if result is not None)

    found = vmap(run, in_dims=tuple(None if t is None else 0 for t in given))(*given)
    examples = [run(*(None if t is None else t[k] for t in given)) for k in range(EXAMPLES)]
    for result, expected in zip(found, zip(*examples, strict=True), strict=True):
        assert_equal(result, torch.stack(expected))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("argnum", range(5), ids=NAMES)
def test_grad(device, argnum, bias):
    arguments = double_arguments(device, bias)
    if arguments[argnum] is None:
        pytest.skip("there is no bias")
    assert_equal(grad(loss(operator), argnum)(*arguments), grad(loss(forward), argnum)(*arguments))


def test_grad_of_all(device):
    arguments = double_arguments(device)
    everything = tuple(range(5))
    assert_equal(grad(loss(operator), everything)(*arguments), grad(loss(forward), everything)(*arguments))


@pytest.mark.parametrize("argnum", range(5), ids=NAMES)
def test_grad_of_grad(device, argnum):
    arguments = double_arguments(device)

    def second(step):
        first = grad(loss(step), argnum)
        return grad(lambda *a: first(*a).sin().sum(), tuple(range(5)))(*arguments)

    assert_equal(second(operator), second(forward))


def test_grad_through_autograd(device):
    """A transform inside of a computation on leaves that require gradients."""
    arguments = double_arguments(device)

    def outer(step):
        leaves = arguments.require_grad()
        first = grad(loss(step), 1)(*leaves)
        return torch.autograd.grad(first.sin().sum(), leaves)

    assert_equal(outer(operator), outer(forward))


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), NAMES], ids=str)
def test_jvp(device, names):
    arguments = double_arguments(device)
    chosen = [NAMES.index(name) for name in names]
    tangents = tuple(torch.randn_like(arguments[k]) for k in chosen)

    def run(step):
        def of_chosen(*values):
            return state(step)(*(values[chosen.index(k)] if k in chosen else t for k, t in enumerate(arguments)))

        return jvp(of_chosen, tuple(arguments[k] for k in chosen), tangents)

    assert_equal(run(operator), run(forward))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_mode(device, requires_grad):
    arguments = double_arguments(device)
    tangents = [torch.randn_like(t) for t in arguments]

    def run(step):
        leaves = arguments.require_grad(NAMES if requires_grad else ())
        with torch.autograd.forward_ad.dual_level():
            duals = [
                torch.autograd.forward_ad.make_dual(t, tangent) for t, tangent in zip(leaves, tangents, strict=True)
            ]
            results = [torch.autograd.forward_ad.unpack_dual(r) for r in state(step)(*duals)]
        return [tensor.detach() for result in results for tensor in result]

    assert_equal(run(operator), run(forward))


# The values of c0 do not affect the gradients.
ALONE = [
    (name, argument)
    for name, arguments in named_arguments.NAMES.items()
    for argument in arguments
    if argument not in ("gates", "lengths", "reset") and (name, argument) != ("sequence_backward", "c0")
]
each_argument_alone = pytest.mark.parametrize(("name", "argument"), ALONE)


def function_of_one(device, name, argument):
    """The differentiable results of an operator as a function of one argument, and the argument's value."""
    arguments = named_arguments.make(name, device, torch.float64)

    def results(value):
        results = named_arguments.call(name, arguments | {argument: value})
        return results if "backward" in name else results[:-1]

    return results, arguments[argument]


@each_argument_alone
def test_forward_mode_of_one_argument(device, name, argument):
    """A single tangent is enough, even if nothing requires a gradient."""
    results, value = function_of_one(device, name, argument)
    tangent = torch.randn_like(value)
    with torch.autograd.forward_ad.dual_level():
        duals = results(torch.autograd.forward_ad.make_dual(value, tangent))
        found = [torch.autograd.forward_ad.unpack_dual(result).tangent for result in duals]
    _, expected = jvp(results, (value,), (tangent,))
    for of_result, other in zip(found, expected, strict=True):
        assert_equal(torch.zeros_like(other) if of_result is None else of_result, other)


@each_argument_alone
def test_gradient_of_one_argument(device, name, argument):
    """A single argument that requires a gradient is enough, also in the double backward."""
    results, value = function_of_one(device, name, argument)

    def total(value):
        return sum(result.sin().sum() for result in results(value))

    leaf = value.detach().clone().requires_grad_()
    assert_equal(torch.autograd.grad(total(leaf), leaf)[0], grad(total)(value))


def test_forward_mode_over_reverse(device):
    """The tangent of a gradient, as in a Hessian-vector product."""
    arguments = double_arguments(device)
    tangents = tuple(torch.randn_like(t) for t in arguments)

    def run(step):
        return jvp(grad(loss(step), tuple(range(5))), tuple(arguments), tangents)

    assert_equal(run(operator), run(forward))


@pytest.mark.parametrize("argnum", range(5), ids=NAMES)
def test_jacobians(device, argnum):
    arguments = double_arguments(device, sizes=(2, 2, 3))
    expected = jacrev(state(forward), argnum)(*arguments)
    assert_equal(jacrev(state(operator), argnum)(*arguments), expected)
    assert_equal(jacfwd(state(operator), argnum)(*arguments), expected)


@pytest.mark.parametrize("argnum", range(5), ids=NAMES)
def test_vjp_of_a_gradient(device, argnum):
    """The node of the double backward runs after the transform that recorded it has returned."""
    arguments = double_arguments(device)
    gradients, examples = torch.randn_like(arguments[argnum]), stacked(arguments.old_h)

    def second(step, *arguments):
        _, pull_back = vjp(grad(loss(step), argnum), *arguments)
        return pull_back(gradients), vmap(pull_back)(torch.stack([gradients, 2 * gradients]))

    def of_examples(step):
        return vmap(lambda h: second(step, *arguments[:3], h, arguments.old_cell))(examples)

    assert_equal(second(operator, *arguments), second(forward, *arguments))
    assert_equal(of_examples(operator), of_examples(forward))


@pytest.mark.parametrize("outer", [jacrev, jacfwd])
@pytest.mark.parametrize("inner", [jacrev, jacfwd])
def test_second_jacobians(device, inner, outer):
    arguments = double_arguments(device, sizes=(2, 1, 2))

    def second(step):
        return outer(inner(loss(step), 1), tuple(range(5)))(*arguments)

    assert_equal(second(operator), second(forward))


def test_autograd_through_vmap(device):
    arguments = double_arguments(device)
    leaves, copies = ([stacked(t) for t in arguments] for _ in range(2))
    leaves = [t.requires_grad_() for t in leaves]
    copies = [t.detach().clone().requires_grad_() for t in leaves]
    vmap(loss(operator))(*leaves).sum().backward()
    sum(loss(forward)(*(t[k] for t in copies)) for k in range(EXAMPLES)).backward()
    assert_equal([t.grad for t in leaves], [t.grad for t in copies])


def test_batched_gradients(device):
    """is_grads_batched maps over the incoming gradients of an ordinary graph."""
    arguments = double_arguments(device).require_grad()
    outputs = state(operator)(*arguments)
    grads = [stacked(output) for output in outputs]
    found = torch.autograd.grad(outputs, arguments, grads, is_grads_batched=True, retain_graph=True)
    for k in range(EXAMPLES):
        expected = torch.autograd.grad(outputs, arguments, [g[k] for g in grads], retain_graph=True)
        assert_equal(tuple(g[k] for g in found), expected)


def test_gates_have_no_gradient_below_a_transform(device):
    arguments = double_arguments(device)
    found = grad(lambda *a: operator(*a)[2].sum(), 1)(*arguments)
    assert torch.equal(found, torch.zeros_like(found))


def test_call_without_a_transform_stays_fused(device):
    """After a transform, ordinary calls take the same path as before."""
    arguments = double_arguments(device)
    before = call(arguments)
    grad(loss(operator), 1)(*arguments)
    for a, b in zip(before, call(arguments), strict=True):
        assert torch.equal(a, b)
