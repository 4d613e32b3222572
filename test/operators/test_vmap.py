"""vmap runs the fused kernels: once where the examples share the weights, once per example where they do not."""

import itertools

import pytest
import torch
from lltm_testing import differentiable, sequence_reference
from lltm_testing.differentiable import assert_equal
from lltm_testing.graphs import Operators
from lltm_testing.reference import assert_identical, make_arguments
from lltm_testing.sequence_reference import NAMES, Sizes, make
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap

import lltm

pytestmark = pytest.mark.pytorch

EXAMPLES = 3
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def sequence_arguments(device, reverse=False, lengths=True, reset=True, sizes=(5, 3, 2, 4), **kwargs):
    return make(Sizes(*sizes), torch.float64, device, lengths=lengths, reset=reset, reverse=reverse, **kwargs)


def examples_of(arguments):
    """Another value of every argument for each example."""
    return [
        arguments._replace(
            **{name: torch.randn_like(getattr(arguments, name)) for name in arguments.given()},
            lengths=None if arguments.lengths is None else torch.randint_like(arguments.lengths, -1, 7),
            reset=None if arguments.reset is None else torch.rand_like(arguments.reset, dtype=torch.float64) < 0.3,
        )
        for _ in range(EXAMPLES)
    ]


def stacked(examples, names):
    """The examples' values of these arguments, one tensor each, and the in_dims of all arguments."""
    first = examples[0]
    values = [
        torch.stack([getattr(e, name) for e in examples]) if name in names else getattr(first, name)
        for name in first._fields[:7]
    ]
    return values, tuple(0 if name in names else None for name in first._fields[:7])


def sequence(*tensors, reverse=False, keep=True):
    return torch.ops.lltm.sequence(*tensors, reverse, keep)


def loss(results):
    return differentiable.loss(results[:4])


def assert_examples_equal(found, function, values, in_dims):
    """Those of a vmap, to calls of the function."""
    for k in range(EXAMPLES):
        one = function(*(v[k] if dim == 0 else v for v, dim in zip(values, in_dims, strict=True)))
        assert_equal(tuple(f[k] for f in found), one)


ROWS = ("input", "h0", "c0", "lengths", "reset")


@REVERSE
@pytest.mark.parametrize("names", [*itertools.combinations(ROWS, 1), ROWS], ids=str)
def test_a_sequence_folds_what_has_rows_into_one_batch(device, names, reverse):
    values, in_dims = stacked(examples_of(sequence_arguments(device, reverse)), names)
    with Operators() as operators:
        vmap(lambda *t: sequence(*t, reverse=reverse), in_dims)(*values)
    assert operators.fused() == ["sequence"] and not operators.products()


@pytest.mark.parametrize("names", [("weights",), ("bias",), ("input", "weights", "bias")], ids=str)
def test_a_sequence_with_weights_of_each_example_runs_once_for_each(device, names):
    values, in_dims = stacked(examples_of(sequence_arguments(device)), names)
    with Operators() as operators:
        vmap(sequence, in_dims)(*values)
    assert operators.fused() == ["sequence"] * EXAMPLES and not operators.products()


@pytest.mark.parametrize("name", ["input", "weights"])
def test_a_cell_runs_fused(device, name):
    arguments = make_arguments((4, 2, 3), torch.float64, device, bias=True)
    values = [
        torch.stack([torch.randn_like(t) for _ in range(EXAMPLES)]) if n == name else t
        for n, t in zip(arguments._fields, arguments, strict=True)
    ]
    in_dims = tuple(0 if n == name else None for n in arguments._fields)

    def gradients(*tensors):
        return grad(lambda *t: sum(r.sin().sum() for r in torch.ops.lltm.forward(*t)[:2]), (0, 3, 4))(*tensors)

    with Operators() as operators:
        found = vmap(gradients, in_dims)(*values)
    count = 1 if name == "input" else EXAMPLES
    assert operators.fused() == ["forward"] * count + ["backward"] * count and not operators.products()
    assert_examples_equal(found, gradients, values, in_dims)


@REVERSE
@pytest.mark.parametrize("plain", [False, True], ids=["lengths_and_reset", "plain"])
@pytest.mark.parametrize("names", [("input",), ("h0", "c0"), ROWS], ids=str)
def test_gradients_of_each_example(device, names, plain, reverse):
    """The gradients of shared parameters: one fused call of each direction, and one product over the steps."""
    arguments = sequence_arguments(device, reverse, not plain, not plain)
    examples = examples_of(arguments)
    names = [name for name in names if getattr(arguments, name) is not None]
    values, in_dims = stacked(examples, names)

    def gradients(*tensors):
        return grad(lambda *t: loss(sequence(*t, reverse=reverse)), tuple(range(5)))(*tensors)

    with Operators() as operators:
        found = vmap(gradients, in_dims)(*values)
    assert operators.fused() == ["sequence", "_sequence_gate_gradients"]
    assert len(operators.products()) == 2  # d_weights and d_input
    assert_examples_equal(found, gradients, values, in_dims)


def test_only_the_wanted_gradients_of_each_example_are_computed(device):
    arguments = sequence_arguments(device)
    values, in_dims = stacked(examples_of(arguments), ("input",))
    for argument, fused, products in (
        (0, "sequence_backward", 0), (1, "_sequence_gate_gradients", 1), (2, "_sequence_gate_gradients", 0),
    ):  # fmt: skip
        with Operators() as operators:
            vmap(grad(lambda *t: loss(sequence(*t)), argument), in_dims)(*values)
        assert operators.fused() == ["sequence", fused] and len(operators.products()) == products


@pytest.mark.parametrize("name", ["weights", "bias"])
def test_gradients_with_weights_of_each_example(device, name):
    arguments = sequence_arguments(device)
    values, in_dims = stacked(examples_of(arguments), (name, "input"))
    gradients = grad(lambda *t: loss(sequence(*t)), tuple(range(5)))
    with Operators() as operators:
        found = vmap(gradients, in_dims)(*values)
    assert operators.fused() == ["sequence"] * EXAMPLES + ["sequence_backward"] * EXAMPLES
    assert_examples_equal(found, gradients, values, in_dims)


def test_a_gradient_without_vmap_runs_the_fused_backward(device):
    """torch.func.grad makes every gradient differentiable, whether it is differentiated or not."""
    arguments = sequence_arguments(device)
    with Operators() as operators:
        grad(lambda w: loss(sequence(arguments.input, w, *arguments[2:7])))(arguments.weights)
    assert operators.fused() == ["sequence", "sequence_backward"] and not operators.products()


@REVERSE
def test_tangents_run_the_fused_forward(device, reverse):
    """Its results are those of a plain call, and the products of the tangents are one a step and a few of all steps."""
    arguments = sequence_arguments(device, reverse, sizes=(20, 3, 2, 4))

    def run(x):
        return sequence(x, *arguments[1:7], reverse=reverse)[:4]

    with Operators() as operators:
        found, _ = jvp(run, (arguments.input,), (arguments.input,))
    assert operators.fused() == ["sequence"] and len(operators.products()) <= 20 + 4
    assert_identical(found, run(arguments.input))


@pytest.mark.parametrize("argnum", [0, 1, 3])
def test_gradients_of_each_example_of_parameters_that_require_one(device, argnum):
    """As without detach(): the results can be differentiated once more outside."""
    arguments = sequence_arguments(device, sizes=(3, 2, 1, 2)).require_grad()
    inputs = torch.randn(EXAMPLES, 3, 2, 1, dtype=torch.float64, device=device)
    leaves = arguments.leaves()

    def first(x):
        return grad(lambda w: loss(sequence(x, w, *arguments[2:7])))(arguments.weights)

    with Operators() as operators:
        found = vmap(first)(inputs)
    assert operators.fused() == ["sequence", "_sequence_gate_gradients"]
    second = torch.autograd.grad(found.sin().sum(), leaves[1:])
    expected = torch.stack([first(x) for x in inputs])
    assert_equal(found, expected)
    assert_equal(second, torch.autograd.grad(expected.sin().sum(), leaves[1:]))


@REVERSE
def test_third_gradients(device, reverse):
    arguments = sequence_arguments(device, reverse, sizes=(2, 2, 1, 1))
    tensors = arguments[:5]

    def third(run):
        function = lambda *t: loss(run(*t))  # noqa: E731
        for argnum in (1, 0):
            function = (lambda f, n: lambda *t: grad(f, n)(*t).sin().sum())(function, argnum)
        return grad(function, (0, 1, 2, 3, 4))(*tensors)

    def loop(*t):
        return sequence_reference.run(arguments._replace(**dict(zip(NAMES, t, strict=True))))

    assert_equal(third(lambda *t: sequence(*t, *arguments[5:7], reverse=reverse)), third(loop))


@pytest.mark.parametrize("in_dims", [(0, 1), (1, 0), (2, 2)], ids=str)
def test_nested(device, in_dims):
    """Both levels fold into one batch."""
    arguments = sequence_arguments(device)
    outer, inner = in_dims
    x = torch.randn(2, EXAMPLES, 5, 3, 2, dtype=torch.float64, device=device)
    function = lambda x: sequence(x, *arguments[1:7])  # noqa: E731
    with Operators() as operators:
        found = vmap(vmap(function, inner), outer)(x.movedim(1, 1 + inner).movedim(0, outer))
    assert operators.fused() == ["sequence"]
    for a, b in itertools.product(range(2), range(EXAMPLES)):
        for result, expected in zip(found, function(x[a, b]), strict=True):
            assert_equal(result[a, b], expected)


def test_nested_gradients_of_each_example(device):
    arguments = sequence_arguments(device)
    x = torch.randn(2, EXAMPLES, 5, 3, 2, dtype=torch.float64, device=device)
    gradient = grad(lambda w, x: loss(sequence(x, w, *arguments[2:7])))
    per_example = vmap(vmap(gradient, (None, 0)), (None, 0))
    with Operators() as operators:
        found = per_example(arguments.weights, x)
    assert operators.fused() == ["sequence", "_sequence_gate_gradients"]
    for a, b in itertools.product(range(2), range(EXAMPLES)):
        assert_equal(found[a, b], gradient(arguments.weights, x[a, b]))


def test_an_outer_vmap_alone(device):
    """The call depends on the examples of the outer vmap only, and is made once."""
    arguments = sequence_arguments(device)
    x = torch.randn(2, 5, 3, 2, dtype=torch.float64, device=device)
    scales = torch.arange(4.0, device=device, dtype=torch.float64)
    with Operators() as operators:
        found = vmap(lambda x: vmap(lambda s: s * sequence(x, *arguments[1:7])[0])(scales))(x)
    assert operators.fused() == ["sequence"]
    expected = torch.stack([s * torch.stack([sequence(one, *arguments[1:7])[0] for one in x]) for s in scales], 1)
    assert_equal(found, expected)


def test_an_outer_vmap_alone_with_a_gradient_between(device):
    arguments = sequence_arguments(device, sizes=(3, 2, 1, 2))
    x = torch.randn(2, 3, 2, 1, dtype=torch.float64, device=device)
    scales = torch.arange(1.0, 4.0, device=device, dtype=torch.float64)

    def total(weights, x, over):
        return over(lambda s: s.sin() * loss(sequence(x, weights, *arguments[2:7])))(scales).sum()

    def with_loop(function):
        return lambda values: torch.stack([function(value) for value in values])

    found = vmap(lambda x: grad(total)(arguments.weights, x, vmap))(x)
    expected = torch.stack([grad(total)(arguments.weights, one, with_loop) for one in x])
    assert_equal(found, expected)


def test_a_gradient_of_gradients_of_each_example(device):
    """grad of vmap of grad, as in a meta-learner or a gradient penalty."""
    arguments = sequence_arguments(device, sizes=(3, 2, 1, 2))
    x = torch.randn(EXAMPLES, 3, 2, 1, dtype=torch.float64, device=device)
    gradient = grad(lambda w, x: loss(sequence(x, w, *arguments[2:7])))

    def penalty(weights, map):
        return map(lambda x: gradient(weights, x).sin())(x).pow(2).sum()

    loop = lambda f: lambda xs: torch.stack([f(one) for one in xs])  # noqa: E731
    assert_equal(grad(penalty)(arguments.weights, vmap), grad(penalty)(arguments.weights, loop))


def test_a_jvp_of_gradients_of_each_example(device):
    arguments = sequence_arguments(device, sizes=(3, 2, 1, 2))
    x = torch.randn(EXAMPLES, 3, 2, 1, dtype=torch.float64, device=device)
    gradient = grad(lambda w, x: loss(sequence(x, w, *arguments[2:7])))
    given = (arguments.weights,), (torch.randn_like(arguments.weights),)
    found = jvp(lambda w: vmap(gradient, (None, 0))(w, x), *given)
    expected = jvp(lambda w: torch.stack([gradient(w, one) for one in x]), *given)
    assert_equal(found, expected)


def test_hessian_of_each_example(device):
    arguments = sequence_arguments(device, sizes=(2, 2, 1, 1))
    x = torch.randn(2, 2, 2, 1, dtype=torch.float64, device=device)
    second = hessian(lambda w, x: loss(sequence(x, w, *arguments[2:7])))
    assert_equal(
        vmap(second, (None, 0))(arguments.weights, x), torch.stack([second(arguments.weights, one) for one in x])
    )


def test_jacobian(device):
    """The rows of a Jacobian share everything but the gradient of the result."""
    arguments = sequence_arguments(device, sizes=(3, 2, 1, 2))
    function = lambda w: sequence(arguments.input, w, *arguments[2:7])[0]  # noqa: E731
    with Operators() as operators:
        found = jacrev(function)(arguments.weights)
    assert operators.fused() == ["sequence", "_sequence_gate_gradients"]
    leaf = arguments.weights.clone().requires_grad_()
    output = function(leaf)
    rows = [torch.autograd.grad(y, leaf, retain_graph=True)[0] for y in output.flatten()]
    assert_equal(found, torch.stack(rows).view(*output.shape, *leaf.shape))


@pytest.mark.parametrize("names", [("input",), ("weights",)], ids=str)
@pytest.mark.parametrize("sizes", [(5, 0, 2, 4), (0, 3, 2, 4), (5, 3, 0, 4), (1, 1, 2, 4)], ids=str)
def test_empty_and_single(device, names, sizes):
    """No rows, no steps, no features; a single row and step."""
    arguments = sequence_arguments(device, sizes=sizes)
    values, in_dims = stacked(examples_of(arguments), names)
    gradients = grad(lambda *t: loss(sequence(*t)), tuple(range(5)))
    for function in (sequence, gradients):
        found = vmap(function, in_dims)(*values)
        assert_examples_equal(found, function, values, in_dims)


@pytest.mark.parametrize("names", [("input",), ("weights",)], ids=str)
def test_no_examples(device, names):
    arguments = sequence_arguments(device)
    values, in_dims = stacked(examples_of(arguments), names)
    values = [v[:0] if dim == 0 else v for v, dim in zip(values, in_dims, strict=True)]
    gradients = grad(lambda *t: loss(sequence(*t)), tuple(range(5)))
    for function in (sequence, gradients):
        for found, expected in zip(vmap(function, in_dims)(*values), function(*arguments[:7]), strict=True):
            assert found.shape == (0, *expected.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(device, dtype):
    cell_dtype = torch.float32 if dtype.itemsize == 2 else None
    arguments = make(Sizes(7, 3, 5, 8), dtype, device, lengths=True, reset=True, cell_dtype=cell_dtype)
    values, in_dims = stacked(examples_of(arguments), ("input", "c0"))
    gradients = grad(lambda *t: sum(r.float().sum() for r in sequence(*t)[:3]), tuple(range(5)))
    found = vmap(gradients, in_dims)(*values)
    for k in range(EXAMPLES):
        one = [v[k] if dim == 0 else v for v, dim in zip(values, in_dims, strict=True)]
        for result, expected in zip(found, gradients(*one), strict=True):
            assert result.dtype == expected.dtype
            assert (result[k] - expected).abs().max() <= 20 * torch.finfo(dtype).eps * (1 + expected.abs().max())


@REVERSE
def test_gate_gradients_are_the_input_gradients_of_identity_weights(device, products, reverse):
    """How devices without a kernel of their own compute them."""
    arguments = sequence_arguments(device, reverse)
    output, h_n, c_n, cells, gates = sequence_reference.call(arguments, keep=True)
    incoming = [torch.randn_like(t) for t in (output, h_n, c_n, cells)]
    given = *incoming, output, cells, gates, *arguments[:7], reverse
    d_gates, d_h0, d_c0 = torch.ops.lltm._sequence_gate_gradients(*given, [True, True])
    identity = torch.eye(12, dtype=torch.float64, device=device)
    weights = torch.cat([arguments.weights[:, :4], identity], 1)
    padding = torch.zeros(5, 3, 12, dtype=torch.float64, device=device)
    given = *incoming, output, cells, gates, padding, weights, *arguments[2:7], reverse
    expected = torch.ops.lltm.sequence_backward(*given, [True, False, False, True, True])
    assert_equal((d_gates, d_h0, d_c0), tuple(e for e in expected if e is not None))
    only = torch.ops.lltm._sequence_gate_gradients(*given, [False, False])
    assert torch.equal(only[0], d_gates) and only[1] is None and only[2] is None


def test_errors_name_the_sizes_of_an_example(device):
    arguments = sequence_arguments(device)
    states = torch.zeros(5, 2, 4, dtype=torch.float64, device=device)
    with pytest.raises(RuntimeError, match=r"lltm::sequence: expected h0 of shape .* = \[3, 4\], got \[2, 4\]"):
        vmap(lambda h: sequence(*arguments[:3], h, *arguments[4:7]))(states)


def test_names_of_the_nodes(device):
    """What profilers show."""
    arguments = sequence_arguments(device).require_grad()
    output = sequence(*arguments[:7])[0]
    assert output.grad_fn.name() == "LltmSequenceBackward"
    d_weights = torch.autograd.grad(output.sum(), arguments.weights, create_graph=True)[0]
    assert d_weights.grad_fn.name() == "LltmSequenceBackwardBackward"
    cell = make_arguments((4, 2, 3), torch.float64, device, bias=True).require_grad()
    new_h = torch.ops.lltm.forward(*cell)[0]
    assert new_h.grad_fn.name() == "LltmForwardBackward"
    d_input = torch.autograd.grad(new_h.sum(), cell.input, create_graph=True)[0]
    assert d_input.grad_fn.name() == "LltmBackwardBackward"


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_of_each_example_of_a_module(device, layers):
    rnn = lltm.LLTM(2, 4, layers, batch_first=True, bidirectional=layers == 2, device=device, dtype=torch.float64)
    x = torch.randn(EXAMPLES, 5, 2, device=device, dtype=torch.float64)
    parameters = dict(rnn.named_parameters())

    def gradients(parameters, x):
        return grad(lambda p: functional_call(rnn, p, (x,))[0].sin().sum())(parameters)

    with Operators() as operators:
        found = vmap(gradients, (None, 0))(parameters, x)
    assert len(operators.fused()) == (2 if layers == 1 else 8)
    for k in range(EXAMPLES):
        assert_equal({name: g[k] for name, g in found.items()}, gradients(parameters, x[k]))


def test_lengths_and_reset_of_each_example_of_a_module(device):
    rnn = lltm.LLTM(2, 4, 2, device=device, dtype=torch.float64)
    x = torch.randn(EXAMPLES, 5, 3, 2, device=device, dtype=torch.float64)
    lengths = torch.randint(0, 6, (EXAMPLES, 3), device=device)
    reset = torch.rand(EXAMPLES, 5, 3, device=device) < 0.3
    found = vmap(lambda x, n, r: rnn(x, lengths=n, reset=r))(x, lengths, reset)
    for k in range(EXAMPLES):
        output, (h_n, c_n) = rnn(x[k], lengths=lengths[k], reset=reset[k])
        assert_equal((found[0][k], found[1][0][k], found[1][1][k]), (output, h_n, c_n))


def test_an_ensemble_of_modules(device):
    options = {"num_layers": 2, "bidirectional": True, "device": device, "dtype": torch.float64}
    models = [lltm.LLTM(2, 4, **options) for _ in range(EXAMPLES)]
    parameters, _ = stack_module_state(models)
    x = torch.randn(5, 3, 2, device=device, dtype=torch.float64)
    outputs = vmap(lambda p: functional_call(models[0], p, (x,))[0])(parameters)
    assert_equal(outputs, torch.stack([model(x)[0] for model in models]))

    def gradients(parameters):
        return grad(lambda p: functional_call(models[0], p, (x,))[0].sin().sum())(parameters)

    with Operators() as operators:
        found = vmap(gradients)({name: p.detach() for name, p in parameters.items()})
    assert sorted(operators.fused()) == ["sequence"] * 4 * EXAMPLES + ["sequence_backward"] * 4 * EXAMPLES
    for k, model in enumerate(models):
        model(x)[0].sin().sum().backward()
        assert_equal({name: g[k] for name, g in found.items()}, {n: p.grad for n, p in model.named_parameters()})


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_dropout_between_the_layers(device, randomness):
    """Below vmap, it obeys the mode of randomness, as nn.Dropout does."""
    rnn = lltm.LLTM(2, 16, 2, dropout=0.5, device=device)
    x = torch.randn(5, 3, 2, device=device).expand(EXAMPLES, 5, 3, 2).clone()
    run = vmap(lambda x: rnn(x)[0], randomness=randomness)
    if randomness == "error":
        with pytest.raises(RuntimeError, match="randomness"):
            run(x)
        return
    found = run(x)
    assert torch.equal(found[0], found[1]) == (randomness == "same")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_compiled(device, fresh_compiler, requires_grad):
    arguments = sequence_arguments(device)
    weights = arguments.weights.clone().requires_grad_(requires_grad)
    x = torch.randn(EXAMPLES, 5, 3, 2, dtype=torch.float64, device=device)

    def run(weights, x):
        return vmap(grad(lambda w, x: loss(sequence(x, w, *arguments[2:7]))), (None, 0))(weights, x)

    found = torch.compile(run, backend="aot_eager", fullgraph=True)(weights.detach(), x)
    assert_equal(found, run(weights, x))


@pytest.mark.parametrize("reverse", [False, True])
def test_opcheck_of_the_private_operator(device, reverse):
    arguments = sequence_arguments(device, reverse)
    output, h_n, c_n, cells, gates = sequence_reference.call(arguments, keep=True)
    given = output, h_n, None, None, output, cells, gates, *arguments[:7], reverse
    for mask in ([True, True], [False, True]):
        torch.library.opcheck(torch.ops.lltm._sequence_gate_gradients.default, (*given, mask))
