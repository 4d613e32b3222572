"""vmap runs the fused kernels: once where the examples share the weights, once per example where they do not."""

import itertools
from operator import itemgetter

import pytest
import torch
from lltm_testing import differentiable, sequence_reference
from lltm_testing.differentiable import assert_equal
from lltm_testing.graphs import Operators
from lltm_testing.named_arguments import WEIGHTS
from lltm_testing.reference import assert_identical, make_arguments
from lltm_testing.sequence_reference import Sizes, call, kept_of, make, make_gradients
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.utils._pytree import tree_map

import lltm

pytestmark = pytest.mark.pytorch

EXAMPLES = 3
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def make_sequence(cell, device, reverse=False, lengths=True, reset=True, sizes=(5, 3, 2, 4)):
    return make(sizes, torch.float64, device, lengths=lengths, reset=reset, reverse=reverse, cell=cell)


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
        for name in first._fields[:-1]
    ]
    return values, tuple(0 if name in names else None for name in first._fields[:-1])


def operator_of(arguments):
    """The operator as a function of all tensors."""
    return lambda *tensors: call(type(arguments)(*tensors, arguments.reverse), keep=True)


def function_of(arguments, *names):
    """The operator as a function of the named tensors."""
    return lambda *tensors: call(arguments._replace(**dict(zip(names, tensors, strict=True))), keep=True)


def loss(results):
    return differentiable.loss(results[:-1])


def loss_of(function):
    return lambda *tensors: loss(function(*tensors))


def gradients_of(arguments):
    """Those of all floating-point arguments, as a function of all tensors."""
    return grad(loss_of(operator_of(arguments)), tuple(range(len(arguments.names))))


def gate_gradients(cell) -> str:
    return f"_{cell.operator}_gate_gradients"


def weights_of(arguments):
    """Of the state, by name and value."""
    name = WEIGHTS[arguments.operator]
    return name, getattr(arguments, name)


def assert_examples_equal(found, function, values, in_dims):
    """Those of a vmap, to calls of the function."""
    for k in range(EXAMPLES):
        one = function(*(v[k] if dim == 0 else v for v, dim in zip(values, in_dims, strict=True)))
        assert_equal(tuple(f[k] for f in found), one)


def rows_of(cell) -> tuple[str, ...]:
    """The arguments that have rows."""
    return "input", *cell.states, "lengths", "reset"


@REVERSE
def test_a_sequence_folds_what_has_rows_into_one_batch(device, cell, reverse):
    arguments = make_sequence(cell, device, reverse)
    for names in (*itertools.combinations(rows_of(cell), 1), rows_of(cell)):
        check_one_batch(arguments, names)


def check_one_batch(arguments, names):
    values, in_dims = stacked(examples_of(arguments), names)
    with Operators() as operators:
        vmap(operator_of(arguments), in_dims)(*values)
    assert operators.fused() == [arguments.operator] and not operators.products()


@pytest.mark.parametrize("which", ["weights", "biases", "all"])
def test_a_sequence_with_weights_of_each_example_runs_once_for_each(device, cell, which):
    weights, biases = cell.weight_names(), cell.bias_names()
    names = {"weights": weights, "biases": biases, "all": ("input", *weights, *biases)}[which]
    arguments = make_sequence(cell, device)
    values, in_dims = stacked(examples_of(arguments), names)
    with Operators() as operators:
        vmap(operator_of(arguments), in_dims)(*values)
    assert operators.fused() == [cell.operator] * EXAMPLES and not operators.products()


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
@pytest.mark.parametrize("which", ["input", "states", "all"])
def test_gradients_of_each_example(device, cell, which, plain, reverse):
    """The gradients of shared parameters: one fused call of each direction, and one product over the steps."""
    arguments = make_sequence(cell, device, reverse, not plain, not plain)
    names = {"input": ("input",), "states": cell.states, "all": rows_of(cell)}[which]
    names = [name for name in names if getattr(arguments, name) is not None]
    values, in_dims = stacked(examples_of(arguments), names)
    gradients = gradients_of(arguments)
    with Operators() as operators:
        found = vmap(gradients, in_dims)(*values)
    assert operators.fused() == [cell.operator, gate_gradients(cell)]
    assert len(operators.products()) == 1 + len(cell.weight_names())  # d_input and those of the weights
    assert_examples_equal(found, gradients, values, in_dims)


def test_only_the_wanted_gradients_of_each_example_are_computed(device, cell):
    arguments = make_sequence(cell, device)
    values, in_dims = stacked(examples_of(arguments), ("input",))
    for name, fused, products in (
        ("input", f"{cell.operator}_backward", 0),
        (WEIGHTS[cell.operator], gate_gradients(cell), 1),
        (cell.bias_names()[-1], gate_gradients(cell), 0),
    ):
        with Operators() as operators:
            vmap(grad(loss_of(operator_of(arguments)), cell.names.index(name)), in_dims)(*values)
        assert operators.fused() == [cell.operator, fused] and len(operators.products()) == products


@pytest.mark.parametrize("name", ["weights", "bias"])
def test_gradients_with_weights_of_each_example(device, cell, name):
    arguments = make_sequence(cell, device)
    name = WEIGHTS[cell.operator] if name == "weights" else cell.bias_names()[-1]
    values, in_dims = stacked(examples_of(arguments), (name, "input"))
    gradients = gradients_of(arguments)
    with Operators() as operators:
        found = vmap(gradients, in_dims)(*values)
    assert operators.fused() == [cell.operator] * EXAMPLES + [f"{cell.operator}_backward"] * EXAMPLES
    assert_examples_equal(found, gradients, values, in_dims)


def test_a_gradient_without_vmap_runs_the_fused_backward(device, cell):
    """torch.func.grad makes every gradient differentiable, whether it is differentiated or not."""
    arguments = make_sequence(cell, device)
    name, weights = weights_of(arguments)
    with Operators() as operators:
        grad(loss_of(function_of(arguments, name)))(weights)
    assert operators.fused() == [cell.operator, f"{cell.operator}_backward"] and not operators.products()


@REVERSE
def test_tangents_run_the_fused_forward(device, cell, reverse):
    """Its results are those of a plain call, and the products of the tangents are one a step and a few of all steps."""
    arguments = make_sequence(cell, device, reverse, sizes=(20, 3, 2, 4))

    def run(x):
        return function_of(arguments, "input")(x)[:-1]

    with Operators() as operators:
        found, _ = jvp(run, (arguments.input,), (arguments.input,))
    assert operators.fused() == [cell.operator] and len(operators.products()) <= 20 + 4
    assert_identical(found, run(arguments.input))


@pytest.mark.parametrize("name", ["input", "weights", "h0"])
def test_gradients_of_each_example_of_parameters_that_require_one(device, cell, name):
    """As without detach(): the results can be differentiated once more outside."""
    arguments = make_sequence(cell, device, sizes=(3, 2, 1, 2)).require_grad()
    of = WEIGHTS[cell.operator]
    name = of if name in ("input", "weights") else name
    inputs = torch.randn(EXAMPLES, 3, 2, 1, dtype=torch.float64, device=device)
    leaves = arguments.leaves()

    def first(x):
        return grad(lambda w: loss(function_of(arguments, "input", name)(x, w)))(getattr(arguments, name))

    with Operators() as operators:
        found = vmap(first)(inputs)
    assert operators.fused()[0] == cell.operator and len(operators.fused()) == 2
    second = torch.autograd.grad(found.sin().sum(), leaves[1:])
    expected = torch.stack([first(x) for x in inputs])
    assert_equal(found, expected)
    assert_equal(second, torch.autograd.grad(expected.sin().sum(), leaves[1:]))


@REVERSE
def test_third_gradients(device, cell, reverse):
    arguments = make_sequence(cell, device, reverse, sizes=(2, 2, 1, 1))
    tensors = [getattr(arguments, name) for name in cell.names]

    def third(run):
        function = lambda *t: loss(run(*t))  # noqa: E731
        for argnum in (1, 0):
            function = (lambda f, n: lambda *t: grad(f, n)(*t).sin().sum())(function, argnum)
        return grad(function, tuple(range(len(tensors))))(*tensors)

    def loop(*t):
        return sequence_reference.run(arguments._replace(**dict(zip(cell.names, t, strict=True))))

    assert_equal(third(function_of(arguments, *cell.names)), third(loop))


@pytest.mark.parametrize("in_dims", [(0, 1), (1, 0), (2, 2)], ids=str)
def test_nested(device, cell, in_dims):
    """Both levels fold into one batch."""
    function = function_of(make_sequence(cell, device), "input")
    outer, inner = in_dims
    x = torch.randn(2, EXAMPLES, 5, 3, 2, dtype=torch.float64, device=device)
    with Operators() as operators:
        found = vmap(vmap(function, inner), outer)(x.movedim(1, 1 + inner).movedim(0, outer))
    assert operators.fused() == [cell.operator]
    for a, b in itertools.product(range(2), range(EXAMPLES)):
        for result, expected in zip(found, function(x[a, b]), strict=True):
            assert_equal(result[a, b], expected)


def gradient_of_weights(arguments):
    """That of the weights of the state, as a function of them and the input."""
    return grad(loss_of(function_of(arguments, WEIGHTS[arguments.operator], "input")))


def test_nested_gradients_of_each_example(device, cell):
    arguments = make_sequence(cell, device)
    x = torch.randn(2, EXAMPLES, 5, 3, 2, dtype=torch.float64, device=device)
    gradient, (_, weights) = gradient_of_weights(arguments), weights_of(arguments)
    with Operators() as operators:
        found = vmap(vmap(gradient, (None, 0)), (None, 0))(weights, x)
    assert operators.fused() == [cell.operator, gate_gradients(cell)]
    for a, b in itertools.product(range(2), range(EXAMPLES)):
        assert_equal(found[a, b], gradient(weights, x[a, b]))


def test_an_outer_vmap_alone(device, cell):
    """The call depends on the examples of the outer vmap only, and is made once."""
    function = function_of(make_sequence(cell, device), "input")
    x = torch.randn(2, 5, 3, 2, dtype=torch.float64, device=device)
    scales = torch.arange(4.0, device=device, dtype=torch.float64)
    with Operators() as operators:
        found = vmap(lambda x: vmap(lambda s: s * function(x)[0])(scales))(x)
    assert operators.fused() == [cell.operator]
    expected = torch.stack([s * torch.stack([function(one)[0] for one in x]) for s in scales], 1)
    assert_equal(found, expected)


def test_an_outer_vmap_alone_with_a_gradient_between(device, cell):
    arguments = make_sequence(cell, device, sizes=(3, 2, 1, 2))
    (name, weights), x = weights_of(arguments), torch.randn(2, 3, 2, 1, dtype=torch.float64, device=device)
    scales = torch.arange(1.0, 4.0, device=device, dtype=torch.float64)

    def total(weights, x, over):
        return over(lambda s: s.sin() * loss(function_of(arguments, "input", name)(x, weights)))(scales).sum()

    def with_loop(function):
        return lambda values: torch.stack([function(value) for value in values])

    found = vmap(lambda x: grad(total)(weights, x, vmap))(x)
    expected = torch.stack([grad(total)(weights, one, with_loop) for one in x])
    assert_equal(found, expected)


def test_a_gradient_of_gradients_of_each_example(device, cell):
    """grad of vmap of grad, as in a meta-learner or a gradient penalty."""
    arguments = make_sequence(cell, device, sizes=(3, 2, 1, 2))
    gradient, (_, weights) = gradient_of_weights(arguments), weights_of(arguments)
    x = torch.randn(EXAMPLES, 3, 2, 1, dtype=torch.float64, device=device)

    def penalty(weights, map):
        return map(lambda x: gradient(weights, x).sin())(x).pow(2).sum()

    loop = lambda f: lambda xs: torch.stack([f(one) for one in xs])  # noqa: E731
    assert_equal(grad(penalty)(weights, vmap), grad(penalty)(weights, loop))


def test_a_jvp_of_gradients_of_each_example(device, cell):
    arguments = make_sequence(cell, device, sizes=(3, 2, 1, 2))
    gradient, (_, weights) = gradient_of_weights(arguments), weights_of(arguments)
    x = torch.randn(EXAMPLES, 3, 2, 1, dtype=torch.float64, device=device)
    given = (weights,), (torch.randn_like(weights),)
    found = jvp(lambda w: vmap(gradient, (None, 0))(w, x), *given)
    expected = jvp(lambda w: torch.stack([gradient(w, one) for one in x]), *given)
    assert_equal(found, expected)


def test_hessian_of_each_example(device, cell):
    arguments = make_sequence(cell, device, sizes=(2, 2, 1, 1))
    name, weights = weights_of(arguments)
    x = torch.randn(2, 2, 2, 1, dtype=torch.float64, device=device)
    second = hessian(loss_of(function_of(arguments, name, "input")))
    assert_equal(vmap(second, (None, 0))(weights, x), torch.stack([second(weights, one) for one in x]))


def test_jacobian(device, cell):
    """The rows of a Jacobian share everything but the gradient of the result."""
    arguments = make_sequence(cell, device, sizes=(3, 2, 1, 2))
    name, weights = weights_of(arguments)
    function = lambda w: function_of(arguments, name)(w)[0]  # noqa: E731
    with Operators() as operators:
        found = jacrev(function)(weights)
    assert operators.fused() == [cell.operator, gate_gradients(cell)]
    leaf = weights.clone().requires_grad_()
    output = function(leaf)
    rows = [torch.autograd.grad(y, leaf, retain_graph=True)[0] for y in output.flatten()]
    assert_equal(found, torch.stack(rows).view(*output.shape, *leaf.shape))


@pytest.mark.parametrize("name", ["input", "weights"])
@pytest.mark.parametrize("sizes", [(5, 0, 2, 4), (0, 3, 2, 4), (5, 3, 0, 4), (1, 1, 2, 4)], ids=str)
def test_empty_and_single(device, cell, name, sizes):
    """No rows, no steps, no features; a single row and step."""
    arguments = make_sequence(cell, device, sizes=sizes)
    values, in_dims = stacked(examples_of(arguments), (WEIGHTS[cell.operator] if name == "weights" else name,))
    for function in (operator_of(arguments), gradients_of(arguments)):
        found = vmap(function, in_dims)(*values)
        assert_examples_equal(found, function, values, in_dims)


@pytest.mark.parametrize("name", ["input", "weights"])
def test_no_examples(device, cell, name):
    arguments = make_sequence(cell, device)
    values, in_dims = stacked(examples_of(arguments), (WEIGHTS[cell.operator] if name == "weights" else name,))
    values = [v[:0] if dim == 0 else v for v, dim in zip(values, in_dims, strict=True)]
    for function in (operator_of(arguments), gradients_of(arguments)):
        for found, expected in zip(vmap(function, in_dims)(*values), function(*arguments[:-1]), strict=True):
            assert found.shape == (0, *expected.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(device, cell, dtype):
    cell_dtype = torch.float32 if dtype.itemsize == 2 else None
    options = {"lengths": True, "reset": True, "cell_dtype": cell_dtype, "cell": cell}
    arguments = make(Sizes(7, 3, 5, 8), dtype, device, **options)
    values, in_dims = stacked(examples_of(arguments), ("input", cell.states[-1]))

    def total(*tensors):
        return sum(result.float().sum() for result in operator_of(arguments)(*tensors)[: 1 + len(cell.states)])

    gradients = grad(total, tuple(range(len(cell.names))))
    found = vmap(gradients, in_dims)(*values)
    for k in range(EXAMPLES):
        one = [v[k] if dim == 0 else v for v, dim in zip(values, in_dims, strict=True)]
        for result, expected in zip(found, gradients(*one), strict=True):
            assert result.dtype == expected.dtype
            assert (result[k] - expected).abs().max() <= 20 * torch.finfo(dtype).eps * (1 + expected.abs().max())


@REVERSE
def test_gate_gradients_are_the_input_gradients_of_identity_weights(device, products, cell, reverse):
    """How devices without a kernel of their own compute them."""
    arguments = make_sequence(cell, device, reverse)
    given = *make_gradients(arguments), *kept_of(arguments, call(arguments, keep=True))
    operator = getattr(torch.ops.lltm, gate_gradients(cell))
    d_gates, *d_state = operator(*given, *arguments, [True] * len(cell.states))
    columns = cell.gates * 4
    identity = torch.eye(columns, dtype=torch.float64, device=device)
    padding = torch.zeros(5, 3, columns, dtype=torch.float64, device=device)
    if len(cell.weight_names()) == 1:
        same = arguments._replace(input=padding, weights=torch.cat([arguments.weights[:, :4], identity], 1))
    else:
        same = arguments._replace(input=padding, weight_ih=identity)
    mask = [name in ("input", *cell.states) for name in cell.names]
    expected = getattr(torch.ops.lltm, f"{cell.operator}_backward")(*given, *same, mask)
    # The gradients that reach the input, which of a GRU are those of its first three saved numbers.
    assert_equal((d_gates[..., :columns], *d_state), tuple(e for e in expected if e is not None))
    only, *none = operator(*given, *arguments, [False] * len(cell.states))
    assert torch.equal(only, d_gates) and none == [None] * len(cell.states)


def test_errors_name_the_sizes_of_an_example(device, cell):
    arguments = make_sequence(cell, device)
    states = torch.zeros(5, 2, 4, dtype=torch.float64, device=device)
    message = rf"lltm::{cell.operator}: expected h0 of shape .* = \[3, 4\], got \[2, 4\]"
    with pytest.raises(RuntimeError, match=message):
        vmap(function_of(arguments, "h0"))(states)


def test_names_of_the_nodes(device, cell):
    """What profilers show."""
    arguments, name = make_sequence(cell, device).require_grad(), f"Lltm{cell.operator.capitalize()}Backward"
    output = call(arguments)[0]
    assert output.grad_fn.name() == name
    d_input = torch.autograd.grad(output.sum(), arguments.input, create_graph=True)[0]
    assert d_input.grad_fn.name() == f"{name}Backward"


def test_names_of_the_nodes_of_a_cell(device):
    cell = make_arguments((4, 2, 3), torch.float64, device, bias=True).require_grad()
    new_h = torch.ops.lltm.forward(*cell)[0]
    assert new_h.grad_fn.name() == "LltmForwardBackward"
    d_input = torch.autograd.grad(new_h.sum(), cell.input, create_graph=True)[0]
    assert d_input.grad_fn.name() == "LltmBackwardBackward"


each_module = pytest.mark.parametrize("cls", [lltm.LLTM, lltm.LSTM, lltm.GRU])


@pytest.mark.parametrize("layers", [1, 2])
@each_module
def test_gradients_of_each_example_of_a_module(device, cls, layers):
    rnn = cls(2, 4, layers, batch_first=True, bidirectional=layers == 2, device=device, dtype=torch.float64)
    x = torch.randn(EXAMPLES, 5, 2, device=device, dtype=torch.float64)
    parameters = dict(rnn.named_parameters())

    def gradients(parameters, x):
        return grad(lambda p: functional_call(rnn, p, (x,))[0].sin().sum())(parameters)

    with Operators() as operators:
        found = vmap(gradients, (None, 0))(parameters, x)
    assert len(operators.fused()) == (2 if layers == 1 else 8)
    for k in range(EXAMPLES):
        assert_equal({name: g[k] for name, g in found.items()}, gradients(parameters, x[k]))


@each_module
def test_lengths_and_reset_of_each_example_of_a_module(device, cls):
    rnn = cls(2, 4, 2, device=device, dtype=torch.float64)
    x = torch.randn(EXAMPLES, 5, 3, 2, device=device, dtype=torch.float64)
    lengths = torch.randint(0, 6, (EXAMPLES, 3), device=device)
    reset = torch.rand(EXAMPLES, 5, 3, device=device) < 0.3
    found = vmap(lambda x, n, r: rnn(x, lengths=n, reset=r))(x, lengths, reset)
    for k in range(EXAMPLES):
        assert_equal(tree_map(itemgetter(k), found), rnn(x[k], lengths=lengths[k], reset=reset[k]))


@each_module
def test_an_ensemble_of_modules(device, cls):
    options = {"num_layers": 2, "bidirectional": True, "device": device, "dtype": torch.float64}
    models = [cls(2, 4, **options) for _ in range(EXAMPLES)]
    parameters, _ = stack_module_state(models)
    x = torch.randn(5, 3, 2, device=device, dtype=torch.float64)
    outputs = vmap(lambda p: functional_call(models[0], p, (x,))[0])(parameters)
    assert_equal(outputs, torch.stack([model(x)[0] for model in models]))

    def gradients(parameters):
        return grad(lambda p: functional_call(models[0], p, (x,))[0].sin().sum())(parameters)

    with Operators() as operators:
        found = vmap(gradients)({name: p.detach() for name, p in parameters.items()})
    name = {lltm.LLTM: "sequence", lltm.LSTM: "lstm", lltm.GRU: "gru"}[cls]
    assert sorted(operators.fused()) == [name] * 4 * EXAMPLES + [f"{name}_backward"] * 4 * EXAMPLES
    for k, model in enumerate(models):
        model(x)[0].sin().sum().backward()
        assert_equal({name: g[k] for name, g in found.items()}, {n: p.grad for n, p in model.named_parameters()})


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
@each_module
def test_dropout_between_the_layers(device, cls, randomness):
    """Below vmap, it obeys the mode of randomness, as nn.Dropout does."""
    rnn = cls(2, 16, 2, dropout=0.5, device=device)
    x = torch.randn(5, 3, 2, device=device).expand(EXAMPLES, 5, 3, 2).clone()
    run = vmap(lambda x: rnn(x)[0], randomness=randomness)
    if randomness == "error":
        with pytest.raises(RuntimeError, match="randomness"):
            run(x)
        return
    found = run(x)
    assert torch.equal(found[0], found[1]) == (randomness == "same")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_compiled(device, fresh_compiler, cell, requires_grad):
    arguments = make_sequence(cell, device)
    weights = weights_of(arguments)[1].clone().requires_grad_(requires_grad)
    x = torch.randn(EXAMPLES, 5, 3, 2, dtype=torch.float64, device=device)

    def run(weights, x):
        return vmap(gradient_of_weights(arguments), (None, 0))(weights, x)

    found = torch.compile(run, backend="aot_eager", fullgraph=True)(weights.detach(), x)
    assert_equal(found, run(weights, x))


@REVERSE
def test_opcheck_of_the_private_operator(device, cell, reverse):
    arguments = make_sequence(cell, device, reverse)
    results = call(arguments, keep=True)
    incoming = *results[:2], *[None] * (len(cell.incoming()) - 2)
    operator = getattr(torch.ops.lltm, gate_gradients(cell)).default
    for first in (True, False):
        mask = [first, True][-len(cell.states) :]
        torch.library.opcheck(operator, (*incoming, *kept_of(arguments, results), *arguments, mask))
