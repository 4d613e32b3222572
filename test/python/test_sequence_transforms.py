"""Derivatives of sequences: finite differences, vmap, grad, jvp, autocast."""

import itertools

import pytest
import torch
from reference import assert_no_aliases
from sequence_reference import NAMES, Sizes, call, call_backward, make, make_gradients, run
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

EXAMPLES = 3
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
operator = torch.ops.lltm.sequence


def double_arguments(device, lengths=True, reset=True, reverse=False, **kwargs):
    return make(Sizes(3, 3, 1, 2), torch.float64, device, lengths=lengths, reset=reset, reverse=reverse, **kwargs)


def results_of(arguments, keep=True):
    """The differentiable results as a function of the differentiable arguments."""
    names = arguments.given()
    return lambda *tensors: call(arguments._replace(**dict(zip(names, tensors, strict=True))), keep)[: 3 + keep]


def loop_of(arguments):
    """The same as a loop of the formula."""
    return lambda *tensors: run(arguments._replace(**dict(zip(NAMES, tensors, strict=True))))


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@REVERSE
@pytest.mark.parametrize("plain", [False, True], ids=["lengths_and_reset", "plain"])
def test_gradients(device, reverse, plain):
    arguments = double_arguments(device, not plain, not plain, reverse).require_grad()
    assert gradcheck(
        results_of(arguments),
        arguments.leaves(),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@REVERSE
@pytest.mark.parametrize("keep", [False, True])
def test_second_gradients(device, reverse, keep):
    arguments = double_arguments(device, reverse=reverse).require_grad()
    assert gradgradcheck(results_of(arguments, keep), arguments.leaves(), check_batched_grad=True)


@pytest.mark.parametrize("absent", NAMES[2:])
@pytest.mark.parametrize("output", range(4), ids=["output", "h_n", "c_n", "cells"])
def test_second_gradients_of_one_output(device, output, absent):
    """The gradients of the other outputs are undefined."""
    arguments = double_arguments(device)._replace(**{absent: None}).require_grad()
    leaves = arguments.leaves()
    assert gradgradcheck(lambda *tensors: results_of(arguments)(*tensors)[output], leaves, fast_mode=True)


@REVERSE
def test_gradients_of_backward(device, reverse):
    """lltm::sequence_backward as a separate operator. gates are recomputed from the inputs, as in a sequence."""
    arguments = double_arguments(device, reverse=reverse)
    output, h_n, c_n, cells, gates = call(arguments, keep=True)
    incoming = [torch.randn_like(t) for t in (output, h_n, c_n, cells)]
    # Values beyond the length are not used.
    runs = torch.arange(3, device=device)[:, None, None] < arguments.lengths[:, None]
    differentiable = [t.detach().clone().requires_grad_() for t in (*incoming, cells, *arguments[1:4], arguments.c0)]

    def backward(grad_output, grad_h_n, grad_c_n, grad_cells, cells, weights, bias, h0, c0):
        return torch.ops.lltm.sequence_backward(
            grad_output, grad_h_n, grad_c_n, grad_cells, output, cells * runs, gates, arguments.input, weights, bias,
            h0, c0, arguments.lengths, arguments.reset, reverse, [True] * 5,
        )  # fmt: skip

    assert gradcheck(lambda *g: backward(*g, *differentiable[4:]), differentiable[:4])
    # With respect to the other arguments, this is the double backward, which recomputes the gates.
    found = torch.autograd.grad(sum(r.sum() for r in backward(*differentiable)), differentiable, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in found)


def ragged_arguments(device, reverse):
    """A row that is not run, one that ends early and a whole one; and where steps are beyond a row's length."""
    lengths = torch.tensor([0, 2, 3], device=device)
    beyond = (torch.arange(3, device=device)[:, None] >= lengths).unsqueeze(2)
    return double_arguments(device, reverse=reverse)._replace(lengths=lengths), beyond


@REVERSE
@pytest.mark.parametrize("name", ["h0", "c0"])
def test_transforms_never_use_the_state_of_a_row_that_is_not_run(device, reverse, name):
    arguments, _ = ragged_arguments(device, reverse)
    spoiled = arguments._replace(**{name: getattr(arguments, name).clone()})
    getattr(spoiled, name)[0] = torch.nan
    found, expected = (
        grad(lambda w, a=a: call(a._replace(weights=w))[0].sum())(a.weights) for a in (spoiled, arguments)
    )
    assert torch.equal(found, expected)


@REVERSE
@pytest.mark.parametrize("name", ["h0", "c0"])
def test_transforms_replace_a_state_that_is_reset(device, reverse, name):
    """Rather than multiply it by zero, which leaves NaN."""
    arguments = double_arguments(device, lengths=False, reverse=reverse)
    reset = torch.zeros_like(arguments.reset)
    reset[-1 if reverse else 0, 0] = True  # in the first step that is run
    arguments = arguments._replace(reset=reset)
    spoiled = arguments._replace(**{name: getattr(arguments, name).clone()})
    getattr(spoiled, name)[0] = torch.nan
    found, expected = (
        grad(lambda w, a=a: loss(call(a._replace(weights=w), keep=True)))(a.weights) for a in (spoiled, arguments)
    )
    assert torch.equal(found, expected)


@REVERSE
def test_second_gradients_never_use_what_is_beyond_the_length(device, reverse):
    arguments, beyond = ragged_arguments(device, reverse)
    *results, _ = call(arguments, keep=True)
    clean = [torch.randn_like(result) for result in results]
    # The gradients of h_n and c_n of a row that is not run go to h0 and c0.
    spoiled = [g.masked_fill(beyond if g.dim() == 3 else beyond.all(0), torch.nan) for g in clean]
    found = []
    for incoming in (spoiled, clean):
        leaves = arguments.require_grad()
        *results, _ = call(leaves, keep=True)
        first = torch.autograd.grad(results, (leaves.input, leaves.weights, leaves.bias), incoming, create_graph=True)
        found.append(first + torch.autograd.grad(sum(g.square().sum() for g in first), leaves.leaves()))
    for result, expected in zip(*found, strict=True):
        assert torch.equal(result, expected)


def test_differentiable_d_input_beyond_the_length_is_zero_whatever_the_weights(device):
    arguments, beyond = ragged_arguments(device, reverse=False)
    leaves = arguments._replace(weights=torch.full_like(arguments.weights, torch.nan)).require_grad()
    (d_input,) = torch.autograd.grad(call(leaves)[0].sum(), leaves.input, create_graph=True)
    assert d_input.masked_select(beyond).eq(0).all()


@pytest.mark.parametrize("batched", [*itertools.combinations(range(7), 1), (0, 1), (1, 2, 3), (5, 6), tuple(range(7))])
@REVERSE
def test_vmap_over_any_argument(device, batched, reverse):
    arguments = [double_arguments(device, reverse=reverse) for _ in range(EXAMPLES)]
    values = [torch.stack([a[k] for a in arguments]) if k in batched else arguments[0][k] for k in range(7)]
    found = vmap(lambda *t: operator(*t, reverse, True), in_dims=tuple(0 if k in batched else None for k in range(7)))(
        *values
    )
    for example in range(EXAMPLES):
        one = [value[example] if k in batched else value for k, value in enumerate(values)]
        for result, expected in zip(found, operator(*one, reverse, True), strict=True):
            assert_equal(result[example], expected)


def test_vmap_keeps_the_shapes_of_what_is_not_kept(device):
    arguments = double_arguments(device)
    found = vmap(lambda x: operator(x, *arguments[1:7]))(arguments.input.expand(2, 3, 3, 1))
    assert found[3].shape == (2, 0, 3, 2) and found[4].shape == (2, 0, 3, 6)


def test_no_steps_below_vmap(device):
    """The final state is the initial one, and its gradient that of the final one, but they are copies."""
    arguments = make(Sizes(0, 3, 1, 2), torch.float64, device)
    state = [part[None] for part in arguments[3:5]]
    final = vmap(lambda h, c: call(arguments._replace(h0=h, c0=c))[1:3])(*state)
    assert_no_aliases(final, state)
    output, _, _, cells, gates = call(arguments, keep=True)

    def backward(grad_h_n, grad_c_n):
        given = None, grad_h_n, grad_c_n, None, output, cells, gates, *arguments
        return torch.ops.lltm.sequence_backward(*given, [True] * 5)

    d_input, d_weights, d_bias, *d_state = vmap(backward)(*state)
    assert_no_aliases(d_state, state)
    for found, expected in ((final, state), (d_state, state)):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert d_input.numel() == 0 and not d_weights.any() and not d_bias.any()
    assert d_weights.shape[-2:] == (6, 3) and d_bias.shape[-1:] == (6,)


def test_gates_have_no_gradient_below_a_transform(device):
    arguments = double_arguments(device)
    found = grad(lambda w: call(arguments._replace(weights=w), keep=True)[4].sum())(arguments.weights)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_the_formula_carries_the_cell_state_in_float32(device, dtype):
    """200 increments, each of which a 16-bit cell state would lose."""
    steps, start, increment = 200, 64.0, 0.005
    # sigmoid(0) * elu(2 * increment), with weights of zero.
    bias = torch.tensor([0.0, 0.0, 2 * increment], device=device, dtype=dtype)
    inputs = torch.zeros(1, steps, 2, 1, device=device, dtype=dtype)
    c0 = torch.full((2, 1), start, device=device, dtype=dtype)
    c_n = vmap(lambda x: operator(x, x.new_zeros(3, 2), bias, None, c0)[2])(inputs)
    expected = start + steps * bias[2].item() / 2
    assert abs(c_n.float() / expected - 1).max() < torch.finfo(dtype).eps


@REVERSE
def test_vmap_of_backward(device, reverse):
    arguments = [double_arguments(device, reverse=reverse) for _ in range(EXAMPLES)]

    def tensors_of(one):
        output, h_n, c_n, cells, gates = call(one, keep=True)
        return (output.sin(), h_n.sin(), None, cells.cos(), output, cells, gates, *one[:7])

    examples = [tensors_of(one) for one in arguments]
    mask = [True, True, False, True, True]

    def backward(*tensors):
        return tuple(r for r in torch.ops.lltm.sequence_backward(*tensors, reverse, mask) if r is not None)

    stacked = [None if t[0] is None else torch.stack(t) for t in zip(*examples, strict=True)]
    found = vmap(backward, in_dims=tuple(None if t is None else 0 for t in stacked))(*stacked)
    for k, one in enumerate(examples):
        for result, expected in zip(found, backward(*one), strict=True):
            assert_equal(result[k], expected)


def loss(results):
    output, h_n, c_n, cells = results[:4]
    return (output * cells.sin()).sum() + (h_n * c_n).sum()


@REVERSE
def test_lengths_in_int32(device, reverse):
    """vmap, one and two derivatives, and jvp."""
    arguments = double_arguments(device, reverse=reverse)
    short = arguments._replace(lengths=arguments.lengths.int())
    batch = torch.randint(-1, 5, (3, 3), device=device)
    assert_equal(*(vmap(lambda n: call(arguments._replace(lengths=n), keep=True))(n) for n in (batch.int(), batch)))
    gradients = []
    for given in (short, arguments):
        leaves = given.require_grad()
        first = torch.autograd.grad(loss(call(leaves, keep=True)), leaves.leaves(), create_graph=True)
        gradients.append((*first, *torch.autograd.grad(sum(part.sin().sum() for part in first), leaves.leaves())))
    assert_equal(*gradients)
    tangents = tuple(torch.randn_like(t) for t in arguments[:5])
    assert_equal(*(jvp(results_of(given), given[:5], tangents) for given in (short, arguments)))


@REVERSE
@pytest.mark.parametrize("argnum", range(5), ids=NAMES)
def test_grad_of_grad(device, argnum, reverse):
    arguments = double_arguments(device, reverse=reverse)

    def second(results):
        first = grad(lambda *t: loss(results(*t)), argnum)
        return grad(lambda *t: first(*t).sin().sum(), tuple(range(5)))(*arguments[:5])

    assert_equal(second(results_of(arguments)), second(loop_of(arguments)))


@REVERSE
@pytest.mark.parametrize("argnum", range(5), ids=NAMES)
def test_vjp_of_a_gradient(device, argnum, reverse):
    """The node of the double backward runs after the transform that recorded it has returned."""
    arguments = double_arguments(device, reverse=reverse)
    gradients = torch.randn_like(arguments[argnum])

    examples = torch.stack([arguments.h0, arguments.h0.sin()])

    def second(results, *values):
        _, pull_back = vjp(grad(lambda *t: loss(results(*t)), argnum), *values)
        return pull_back(gradients), vmap(pull_back)(torch.stack([gradients, 2 * gradients]))

    def of_examples(results):
        return vmap(lambda h0: second(results, *arguments[:3], h0, arguments.c0))(examples)

    results, loop = results_of(arguments), loop_of(arguments)
    assert_equal(second(results, *arguments[:5]), second(loop, *arguments[:5]))
    assert_equal(of_examples(results), of_examples(loop))


@pytest.mark.parametrize("outer", [jacrev, jacfwd])
@pytest.mark.parametrize("inner", [jacrev, jacfwd])
def test_second_jacobians(device, inner, outer):
    arguments = double_arguments(device)

    def second(results):
        return outer(inner(lambda *t: loss(results(*t)), 0), tuple(range(5)))(*arguments[:5])

    assert_equal(second(results_of(arguments)), second(loop_of(arguments)))


@REVERSE
def test_jvp(device, reverse):
    arguments = double_arguments(device, reverse=reverse)
    tangents = tuple(torch.randn_like(t) for t in arguments[:5])
    found = jvp(results_of(arguments), arguments[:5], tangents)
    expected = jvp(lambda *t: loop_of(arguments)(*t)[:4], arguments[:5], tangents)
    assert_equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("cell_dtype", [torch.float32, None], ids=["float32_c0", "16_bit_c0"])
def test_differentiable_gradients_have_the_dtypes_of_the_arguments(device, dtype, cell_dtype):
    arguments = make(Sizes(5, 6, 5, 7), dtype, device, lengths=True, reset=True, cell_dtype=cell_dtype)
    gradients = make_gradients(arguments)
    expected = call_backward(gradients, arguments)
    arguments.weights.requires_grad_()
    for found, plain in zip(call_backward(gradients, arguments), expected, strict=True):
        assert found.requires_grad and found.dtype == plain.dtype
        assert (found - plain).abs().max() <= 0.05 * plain.abs().max()


LOWER = pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


@LOWER
@pytest.mark.parametrize("cell_dtype", [torch.float32, None], ids=["float32_c0", "no_c0"])
def test_autocast_casts_everything_but_c0(device, lower, cell_dtype):
    arguments = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True)
    arguments = arguments._replace(c0=arguments.c0 if cell_dtype else None)
    lowered = arguments.map(lambda t: t.to(lower))._replace(c0=arguments.c0)
    with torch.autocast(device.type, dtype=lower):
        results = call(arguments, keep=True)
    assert results[2].dtype == (cell_dtype or lower)
    for result, expected in zip(results, call(lowered, keep=True), strict=True):
        assert torch.equal(result, expected)


@LOWER
def test_autocast_gives_gradients_of_the_parameters(device, lower):
    leaves = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True).require_grad()
    with torch.autocast(device.type, dtype=lower):
        output, h_n, c_n, _, _ = call(leaves)
    (output.float().sum() + h_n.float().sum() + c_n.sum()).backward()
    lowered = leaves.map(lambda t: t.detach().to(lower))._replace(c0=leaves.c0.detach()).require_grad()
    output, h_n, c_n, _, _ = call(lowered)
    (output.float().sum() + h_n.float().sum() + c_n.sum()).backward()
    for leaf, expected in zip(leaves.leaves(), lowered.leaves(), strict=True):
        assert leaf.grad.dtype == torch.float32 and torch.equal(leaf.grad, expected.grad.float())


@pytest.mark.parametrize("products", ["own", "aten", "differentiable"])
def test_autocast_leaves_the_arguments_of_backward(device, monkeypatch, products):
    """Autograd passes it the tensors that the sequence received after the casts, and may do so under autocast."""
    if products != "differentiable":
        monkeypatch.setenv("LLTM_CPU_GEMM", products)
    arguments = make(Sizes(5, 6, 5, 7), device=device, lengths=True, reset=True)
    gradients = make_gradients(arguments)
    output, _, _, cells, gates = call(arguments, keep=True)
    arguments.weights.requires_grad_(products == "differentiable")
    given = *gradients, output, cells, gates, *arguments, [True] * 5
    expected = torch.ops.lltm.sequence_backward(*given)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found = torch.ops.lltm.sequence_backward(*given)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@LOWER
def test_autocast_leaves_float64(device, lower):
    arguments = make(Sizes(5, 6, 5, 7), torch.float64, device)
    with torch.autocast(device.type, dtype=lower):
        results = call(arguments)
    assert all(torch.equal(a, b) for a, b in zip(results, call(arguments), strict=True))
