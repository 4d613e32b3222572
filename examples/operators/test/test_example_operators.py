"""Tests for every operator: values, gradients, PyTorch's own checks, scripts and compilers."""

import pytest
import torch
from example_cases import CASES, ELEMENTWISE, Case, name_of, relative_error, tolerance
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad
from torch.library import opcheck

every_operator = pytest.mark.parametrize("case", CASES, ids=name_of)
every_elementwise = pytest.mark.parametrize("case", ELEMENTWISE, ids=name_of)


SCHEMAS = """
round_ste(Tensor x) -> Tensor
elementwise_mult(Tensor a, Tensor b) -> Tensor
linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor
mul_constant(Tensor x, float constant) -> Tensor
cube(Tensor x) -> Tensor
conv2d_batch_norm(Tensor input, Tensor weight, float eps=0.001) -> Tensor
conv2d(Tensor input, Tensor weight) -> Tensor
batch_norm2d(Tensor input, float eps=0.001) -> Tensor
"""


@pytest.mark.parametrize("schema", SCHEMAS.split("\n")[1:-1], ids=lambda schema: schema.split("(")[0])
def test_schema(schema):
    name = schema.split("(")[0]
    assert str(getattr(torch.ops.example_ops, name).default._schema) == f"example_ops::{schema}"


def check_against_formula(case: Case, arguments, gradient=None) -> None:
    """Compare the operator's values and gradients with those of the formula in float64, for the same inputs."""
    reference = [t.detach().double().requires_grad_(t.requires_grad) for t in arguments]
    result = case.call(*arguments)
    expected = case.formula(*reference, *case.constants)
    assert result.dtype == arguments[0].dtype
    assert result.shape == expected.shape
    assert result.is_contiguous()
    assert relative_error(result, expected) <= tolerance(result.dtype)

    if gradient is None:
        gradient = torch.randn(result.shape, dtype=torch.float64).to(result)
    wanted = [i for i, t in enumerate(arguments) if t.requires_grad]
    actual = torch.autograd.grad(result, [arguments[i] for i in wanted], gradient)
    exact = torch.autograd.grad(expected, [reference[i] for i in wanted], gradient.double())
    for i, ours, theirs in zip(wanted, actual, exact, strict=True):
        assert ours.dtype == result.dtype and ours.shape == theirs.shape
        assert relative_error(ours, theirs) <= tolerance(result.dtype), f"gradient of argument {i}"


@every_operator
def test_value_and_gradient(case, device, dtype):
    check_against_formula(case, case.arguments(device, dtype, requires_grad=True))


@every_operator
def test_strides(case, device):
    """Transposed, sliced with an offset, expanded; and a gradient of stride 0."""
    transposed = [t.mT.contiguous().mT for t in case.arguments(device) if t.dim() > 1]
    transposed += [t for t in case.arguments(device) if t.dim() <= 1]
    check_against_formula(case, [t.requires_grad_() for t in transposed])

    strided = [torch.stack([t, t, t], -1).flatten()[1::3].view(t.shape) for t in case.arguments(device)]
    assert not strided[0].is_contiguous()
    check_against_formula(case, [t.requires_grad_() for t in strided])

    expanded = [t[..., :1].expand(t.shape) for t in case.arguments(device)]
    check_against_formula(case, [t.requires_grad_() for t in expanded])

    arguments = case.arguments(device, requires_grad=True)
    one = torch.ones((), dtype=torch.float64, device=device)
    if case.name not in (
        "batch_norm2d",
        "conv2d_batch_norm",
    ):  # their outputs sum up to 0, so the gradient is only rounding error
        check_against_formula(case, arguments, one.expand_as(case.call(*arguments)))
    else:
        ours = torch.autograd.grad(case.call(*arguments), arguments, one.expand_as(case.call(*arguments)))
        assert all(gradient.abs().max() < 1e-12 for gradient in ours)


@every_operator
def test_empty(case, device, dtype):
    """An empty batch gives an empty result, and zero for the gradients that are sums over the batch."""
    shapes = [(0, *shape[1:]) if i == 0 or case in ELEMENTWISE else shape for i, shape in enumerate(case.shapes)]
    arguments = case.arguments(device, dtype, requires_grad=True, shapes=shapes)
    result = case.call(*arguments)
    assert result.numel() == 0 and result.dtype == dtype
    for argument, gradient in zip(arguments, torch.autograd.grad(result.sum(), arguments), strict=True):
        assert gradient.shape == argument.shape
        assert torch.equal(gradient, torch.zeros_like(argument))


@pytest.mark.parametrize("case", [case for case in CASES if case.derived], ids=name_of)
def test_gradcheck(case, device):
    arguments = case.arguments(device, requires_grad=True)
    assert torch.autograd.gradcheck(case.call, arguments)
    for frozen in range(len(arguments) if len(arguments) > 1 else 0):
        some = [t.detach() if i == frozen else t for i, t in enumerate(arguments)]
        assert torch.autograd.gradcheck(case.call, some)


@pytest.mark.parametrize("case", [case for case in CASES if case.derived and case.twice], ids=name_of)
def test_gradgradcheck(case, device):
    assert torch.autograd.gradgradcheck(case.call, case.arguments(device, requires_grad=True))


@pytest.mark.parametrize("case", [case for case in CASES if not case.twice], ids=name_of)
def test_no_second_derivative(case, device):
    """create_graph=True alone is allowed, but differentiating the gradient raises an error."""
    arguments = case.arguments(device, requires_grad=True)
    result = case.call(*arguments)
    once = torch.autograd.grad(result.square().sum(), arguments, create_graph=True)
    plain = torch.autograd.grad(case.call(*arguments).square().sum(), arguments)
    for with_graph, without in zip(once, plain, strict=True):
        assert torch.equal(with_graph, without)
    with pytest.raises(RuntimeError, match=f"example_ops::{case.name}: double backward is not implemented"):
        once[0].sum().backward()


@every_operator
def test_opcheck(case, device):
    arguments = case.arguments(device, requires_grad=True)
    opcheck(case.operator().default, (*arguments, *case.constants))
    opcheck(case.operator().default, (*[t.detach() for t in arguments], *case.constants))


@pytest.mark.parametrize("wanted", [[True, True], [True, False], [False, True]], ids=str)
def test_opcheck_of_the_recomputing_backward(wanted, device):
    case = CASES[-1]
    images, weight = case.arguments(device)
    out, mean, deviation = torch.ops.example_ops._conv2d_batch_norm(images, weight, 0.1)
    arguments = (torch.randn_like(out), images, weight, mean, deviation, 0.1, wanted)
    opcheck(torch.ops.example_ops._conv2d_batch_norm_backward.default, arguments)


@every_operator
def test_script(case, tmp_path, device):
    """TorchScript saves and loads a function that calls the operator, and differentiates it."""
    arguments = case.arguments(device, requires_grad=True)
    names = [f"x{i}" for i in range(len(arguments))]
    source = (
        f"def call({', '.join(names)}):\n"
        f"    return torch.ops.example_ops.{case.name}({', '.join([*names, *map(str, case.constants)])})\n"
    )
    unit = torch.jit.CompilationUnit(source)
    result = unit.call(*arguments)
    assert torch.equal(result, case.call(*arguments))
    gradients = torch.autograd.grad(result.square().sum(), arguments)
    expected = torch.autograd.grad(case.call(*arguments).square().sum(), arguments)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, expected, strict=True))

    traced = torch.jit.trace(lambda *tensors: case.call(*tensors), [t.detach() for t in arguments])
    traced.save(str(tmp_path / "traced.pt"))
    assert torch.equal(torch.jit.load(str(tmp_path / "traced.pt"))(*arguments), result)


@every_operator
def test_compile(case, device):
    """No graph breaks, one compilation for two batch sizes, and the same value and gradients."""
    torch._dynamo.reset()
    graphs = []

    def record(graph, _):
        graphs.append(graph)
        return graph

    def step(*tensors):
        return case.call(*tensors) * 2

    batched = [i == 0 or case in ELEMENTWISE for i in range(len(case.shapes))]
    captured = torch.compile(step, backend=record, fullgraph=True, dynamic=True)
    trained = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch in (5, 8):
        shapes = [(batch, *shape[1:]) if b else shape for b, shape in zip(batched, case.shapes, strict=True)]
        arguments = case.arguments(device, requires_grad=True, shapes=shapes)
        expected = step(*arguments)
        assert torch.equal(captured(*arguments), expected)
        result = trained(*arguments)
        assert torch.equal(result, expected)
        gradients = torch.autograd.grad(result.square().sum(), arguments)
        eager = torch.autograd.grad(expected.square().sum(), arguments)
        for ours, theirs in zip(gradients, eager, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert len(graphs) == 1
    assert case.name in str(graphs[0].graph)


@every_operator
def test_compiled_autograd(case, device):
    """The backward pass is traced, too, as is_traceable promises."""
    torch._dynamo.reset()
    arguments = case.arguments(device, requires_grad=True)
    expected = torch.autograd.grad(case.call(*arguments).square().sum(), arguments)
    loss = case.call(*arguments).square().sum()
    with compiled_autograd._enable(torch.compile(backend="aot_eager")):
        gradients = torch.autograd.grad(loss, arguments)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@every_operator
def test_forward_mode_is_refused(case, device):
    """A tangent that would be lost is an error, not zero."""
    arguments = case.arguments(device)
    with pytest.raises(RuntimeError, match="jvp is not implemented"):
        with forward_ad.dual_level():
            case.call(*[forward_ad.make_dual(t, torch.ones_like(t)) for t in arguments])
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.jvp(case.call, arguments, arguments)


@every_operator
def test_the_tangent_of_a_gradient_is_not_lost(case, device):
    """The gradients have one, too, or there is an error."""
    leaves = [t.requires_grad_() for t in case.arguments(device)]
    output = case.call(*leaves)
    with forward_ad.dual_level():
        gradient = forward_ad.make_dual(torch.ones_like(output), torch.ones_like(output))
        try:
            found = torch.autograd.grad(output, leaves, gradient)
        except RuntimeError as error:
            assert "not implemented" in str(error)
        else:
            assert all(forward_ad.unpack_dual(g).tangent is not None for g in found)


@every_operator
def test_undefined_gradient_stays_undefined(case, device):
    """If there is no incoming gradient, the gradients stay undefined and do not become zeros."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    arguments = case.arguments(device, requires_grad=True)
    Stop.apply(case.call(*arguments)).sum().backward()
    assert all(argument.grad is None for argument in arguments)


@every_operator
def test_autocast_changes_nothing(case, device):
    arguments = case.arguments(device, torch.float32, requires_grad=True)
    expected = case.call(*arguments)
    with torch.autocast(device.type):
        result = case.call(*arguments)
    assert torch.equal(result, expected)


@every_elementwise
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 15, 17, 255, 4099, 100_003])
def test_tail_and_misaligned(case, size, device, dtype):
    """Sizes around those of a pack and a block, and data that does not start at a 16-byte boundary."""
    for offset in (0, 1, 3):
        arguments = [t[offset:] for t in case.arguments(device, dtype, shapes=[(size + offset,)] * len(case.shapes))]
        result = case.call(*arguments)
        expected = case.formula(*[t.double() for t in arguments], *case.constants)
        assert relative_error(result, expected) <= tolerance(dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@every_elementwise
def test_more_than_2_to_the_31_elements(case, device):
    """A 32-bit index would be wrong, and so would a product of two 32-bit numbers."""
    if device.type == "cpu":
        pytest.skip("the GPU's kernel is meant")
    size = 2**31 + 4099
    x = torch.ones(size, dtype=torch.float16, device=device)
    for begin in (0, 2**31 - 3, size - 5):
        x[begin : begin + 3] = torch.tensor([0.25, -1.25, 3.0], device=device, dtype=x.dtype)
    arguments = [x] * len(case.shapes)
    result = case.call(*arguments)
    for begin in (0, 1000, 2**31 - 5, size - 7):
        part = slice(begin, begin + 7)
        expected = case.formula(*[t[part].double() for t in arguments], *case.constants)
        assert torch.equal(result[part].double(), expected)
    untouched = case.formula(*[torch.ones((), device=device)] * len(case.shapes), *case.constants)
    assert (result != untouched).sum().item() == (x != 1).sum().item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@every_elementwise
def test_current_stream(case, device):
    """The work is on the current stream: a graph captures nothing that goes to another one."""
    if device.type == "cpu":
        pytest.skip("streams are the GPU's")
    arguments = case.arguments(device, torch.float32)
    expected = case.call(*arguments)
    case.call(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = case.call(*arguments)
    result.fill_(-7)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
@every_elementwise
def test_second_device(case):
    arguments = case.arguments("cuda:1", torch.float32)
    result = case.call(*arguments)
    assert result.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    expected = case.formula(*[t.double() for t in arguments], *case.constants)
    assert relative_error(result, expected) <= tolerance(torch.float32)
