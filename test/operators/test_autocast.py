"""Autocast on both devices: all arguments are cast but the carried state of a sequence, float64 is not, and gradients
have the parameters' dtype."""

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.graphs import Operators
from lltm_testing.named_arguments import CELLS, FORWARDS, NAMES, call, each_backward, each_forward, leaves_of
from torch import Tensor

pytestmark = pytest.mark.pytorch

LOWER = pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


def cast(arguments: dict, dtype: torch.dtype) -> dict:
    """What autocast does, which leaves the state that is carried in float32."""
    carried = "c0" if "c0" in arguments else "h0"
    return {
        name: t.to(dtype) if t is not None and t.is_floating_point() and name != carried else t
        for name, t in arguments.items()
    }


def gradients_of(results, leaves: dict, create_graph=False) -> tuple[Tensor, ...]:
    """Of a number that depends on all differentiable results."""
    wanted = [leaf for leaf in leaves.values() if leaf is not None and leaf.requires_grad]
    loss = sum(result.double().sin().sum() for result in results[:-1])
    return torch.autograd.grad(loss, wanted, create_graph=create_graph)


def assert_same(found, expected) -> None:
    for result, value in zip(found, expected, strict=True):
        assert result.dtype == value.dtype and torch.equal(result, value)


@LOWER
@pytest.mark.parametrize("absent", [(), ("bias",), ("bias", "h0", "c0")], ids=str)
@each_forward
def test_arguments_are_cast(device, lower, operator, absent):
    arguments = named_arguments.make(operator, device)
    arguments |= dict.fromkeys(set(absent) & set(arguments))
    with torch.autocast(device.type, dtype=lower):
        results = call(operator, arguments)
    assert results[0].dtype == lower
    assert_same(results, call(operator, cast(arguments, lower)))


@LOWER
@pytest.mark.parametrize(("operator", "name"), [(o, n) for o in FORWARDS for n in NAMES[o][: len(CELLS[o].names)]])
def test_a_mixture_is_cast(device, lower, operator, name):
    """The results of an earlier layer under autocast are in the lower precision already."""
    arguments = named_arguments.make(operator, device)
    mixture = arguments | {name: arguments[name].to(lower)}
    with torch.autocast(device.type, dtype=lower):
        results = call(operator, mixture)
    assert_same(results, call(operator, cast(mixture, lower)))


@LOWER
@each_forward
def test_float64_is_left_alone(device, lower, operator):
    leaves = leaves_of(named_arguments.make(operator, device, torch.float64))
    with torch.autocast(device.type, dtype=lower):
        results = call(operator, leaves)
        found = *results, *gradients_of(results, leaves)
    results = call(operator, leaves)
    assert_same(found, (*results, *gradients_of(results, leaves)))


@each_forward
def test_float64_among_float32_is_an_error(device, operator):
    arguments = named_arguments.make(operator, device)
    name = named_arguments.WEIGHTS[operator]
    arguments[name] = arguments[name].double()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match=f"expected {name} of input's dtype bfloat16, got float64"):
            call(operator, arguments)


@LOWER
@each_forward
@pytest.mark.parametrize("inside", [True, False], ids=["backward_inside", "backward_outside"])
def test_gradients(device, lower, operator, inside):
    """float32 parameters get float32 gradients, with the accuracy of the lower precision."""
    leaves = leaves_of(named_arguments.make(operator, device))
    with torch.autocast(device.type, dtype=lower):
        results = call(operator, leaves)
        with torch.autocast(device.type, enabled=inside):
            found = gradients_of(results, leaves)
    lowered = leaves_of(cast(leaves, lower))
    expected = gradients_of(call(operator, lowered), lowered)
    assert_same(found, [gradient.float() for gradient in expected])


@pytest.mark.parametrize("products", ["own", "aten", "differentiable"])
@each_backward
def test_backward_by_itself_keeps_the_dtype(device, monkeypatch, operator, products):
    """Autograd passes it the tensors that forward received after the casts, and may do so under autocast."""
    if products != "differentiable":
        monkeypatch.setenv("LLTM_CPU_GEMM", products)
    arguments = named_arguments.make(operator, device)
    arguments[named_arguments.WEIGHTS[operator]].requires_grad_(products == "differentiable")
    expected = call(operator, arguments)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert_same(call(operator, arguments), expected)


@each_backward
def test_backward_of_many_rows_keeps_the_dtype(device, monkeypatch, operator):
    """The gradients of biases are then products of ones, which ATen would compute in the lower precision."""
    if operator != "backward":
        monkeypatch.setenv("LLTM_CUDA_PATH", "steps")
    arguments = named_arguments.make(operator, device, sizes=(2, 600, 5, 4))
    expected = call(operator, arguments)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert_same(call(operator, arguments), expected)


@each_forward
def test_second_gradients(device, operator):
    leaves = leaves_of(named_arguments.make(operator, device))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        first = gradients_of(call(operator, leaves), leaves, create_graph=True)
        second = torch.autograd.grad(
            sum(g.square().sum() for g in first), [leaves["input"], leaves[named_arguments.WEIGHTS[operator]]]
        )
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in (*first, *second))


@LOWER
@each_forward
def test_transforms_cast_too(device, lower, operator):
    arguments = named_arguments.make(operator, device)
    input = arguments.pop("input")

    def output(x):
        return call(operator, {"input": x} | arguments)[0]

    expected = call(operator, cast({"input": input} | arguments, lower))[0]
    with torch.autocast(device.type, dtype=lower):
        mapped = torch.func.vmap(output)(input[None])[0]
        gradient, total = torch.func.grad_and_value(lambda x: output(x).sum())(input)
        _, tangent = torch.func.jvp(output, (input,), (input,))
    # Not total: autocast sums in float32 on CUDA.
    assert mapped.dtype == tangent.dtype == lower and gradient.dtype == torch.float32
    units = 8 * torch.finfo(lower).eps
    torch.testing.assert_close(mapped, expected, rtol=units, atol=units)
    torch.testing.assert_close(total.double(), expected.double().sum(), rtol=units, atol=units)


@each_forward
def test_parameters_are_cast_once(device, operator):
    """Autocast caches the cast of a leaf, so a loop over steps does not cast the weights in every step."""
    leaves = {n: t for n, t in leaves_of(named_arguments.make(operator, device)).items() if n in CELLS[operator].names}
    arguments = named_arguments.make(operator, device) | leaves
    with Operators() as operators, torch.autocast(device.type, dtype=torch.bfloat16):
        for _ in range(3):
            call(operator, arguments)
    casts = [args[0] for function, args in operators.calls if function is torch.ops.aten._to_copy.default]
    for name in (*CELLS[operator].weight_names(), *CELLS[operator].bias_names()):
        assert sum(cast.data_ptr() == leaves[name].data_ptr() for cast in casts) == 1, name


@each_forward
def test_switched_off_inside(device, operator):
    with torch.autocast(device.type, dtype=torch.bfloat16), torch.autocast(device.type, enabled=False):
        assert call(operator, named_arguments.make(operator, device))[0].dtype == torch.float32
