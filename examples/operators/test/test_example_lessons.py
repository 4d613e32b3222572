"""The lesson that each operator teaches."""

import math

import pytest
import torch
from example_cases import batch_norm
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class CallRecorder(TorchDispatchMode):
    """Records the names of the operators that are called below autograd while it is active."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def calls_of_backward(result: Tensor) -> list[str]:
    with CallRecorder() as recorder:
        result.backward(torch.ones_like(result))
    return recorder.names


def saved_for_backward(function, *arguments) -> list[Tensor]:
    """The tensors that autograd saves for the call, except for parameters, which stay alive anyway."""
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*arguments)
    return saved


class TestRoundSte:
    @pytest.mark.parametrize(
        "x, expected",
        [
            (0.5, 1.0), (-0.5, 0.0), (1.5, 2.0), (-1.5, -1.0), (0.0, 0.0), (0.25, 0.0), (-0.75, -1.0),
            (math.inf, math.inf), (-math.inf, -math.inf),
        ],
    )  # fmt: skip
    def test_halves_go_up(self, x, expected, device, dtype):
        x = torch.tensor([x], dtype=dtype, device=device)
        assert torch.ops.example_ops.round_ste(x).item() == expected

    def test_numbers_beside_a_half(self, device, dtype):
        """Numbers for which floor(x + 0.5) is wrong: the one below 0.5, and odd ones with no half next to them."""
        half = torch.tensor([0.5, 1.5, -0.5, -1.5], dtype=dtype, device=device)
        below = torch.nextafter(half, torch.full_like(half, -torch.inf))
        above = torch.nextafter(half, torch.full_like(half, torch.inf))
        assert torch.ops.example_ops.round_ste(below).tolist() == [0, 1, -1, -2]
        assert torch.ops.example_ops.round_ste(half).tolist() == [1, 2, 0, -1]
        assert torch.ops.example_ops.round_ste(above).tolist() == [1, 2, 0, -1]
        bits = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}[dtype]
        odd = torch.tensor([2.0**bits + 1, -(2.0**bits) - 1], dtype=dtype, device=device)
        assert torch.equal(torch.ops.example_ops.round_ste(odd), odd)

    def test_not_a_number(self, device, dtype):
        assert torch.ops.example_ops.round_ste(torch.tensor([torch.nan], dtype=dtype, device=device)).isnan().all()

    def test_gradient_passes_unchanged(self, device, dtype):
        x = (10 * torch.randn(50, device=device)).to(dtype).requires_grad_()
        gradient = torch.randn(50, device=device).to(dtype)
        torch.ops.example_ops.round_ste(x).backward(gradient)
        assert torch.equal(x.grad, gradient)

    def test_gradient_of_the_gradient(self, device):
        """The gradient of the square is 2 round(x); its straight-through derivative is 2."""
        x = (10 * torch.randn(50, device=device)).requires_grad_()
        (once,) = torch.autograd.grad(torch.ops.example_ops.round_ste(x).square().sum(), x, create_graph=True)
        (twice,) = torch.autograd.grad(once.sum(), x)
        assert torch.equal(once, 2 * torch.ops.example_ops.round_ste(x))
        assert torch.equal(twice, torch.full_like(x, 2))


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
def test_elementwise_mult_computes_wanted_gradients_only(wanted):
    a, b = (torch.randn(4, requires_grad=flag) for flag in wanted)
    calls = calls_of_backward(torch.ops.example_ops.elementwise_mult(a, b))
    assert calls.count("example_ops::elementwise_mult") == sum(wanted)


class TestLinear:
    @pytest.mark.parametrize("names", ["i", "w", "b", "iw", "ib", "wb", "iwb"])
    def test_computes_wanted_gradients_only(self, names):
        input, weight, bias = torch.randn(5, 7), torch.randn(3, 7), torch.randn(3)
        for name, tensor in zip("iwb", (input, weight, bias), strict=True):
            tensor.requires_grad_(name in names)
        saved = saved_for_backward(torch.ops.example_ops.linear, input, weight, bias)
        # Each of the two is saved for the gradient of the other.
        assert {tensor.shape for tensor in saved} == {
            tensor.shape for tensor, name in ((input, "w"), (weight, "i")) if name in names
        }
        calls = calls_of_backward(torch.ops.example_ops.linear(input, weight, bias))
        assert calls.count("aten::mm") == ("i" in names) + ("w" in names)
        assert calls.count("aten::sum") == ("b" in names)
        assert [tensor.grad is not None for tensor in (input, weight, bias)] == [name in names for name in "iwb"]


def test_mul_constant_keeps_no_tensor():
    x = torch.randn(4, requires_grad=True)
    assert saved_for_backward(torch.ops.example_ops.mul_constant, x, 2.0) == []


class TestCube:
    def test_derivatives_of_every_order(self, device):
        x = torch.randn(50, dtype=torch.float64, device=device, requires_grad=True)
        derivative = torch.ops.example_ops.cube(x)
        for expected in (3 * x**2, 6 * x, torch.full_like(x, 6)):
            (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=True)
            torch.testing.assert_close(derivative, expected)

    def test_slope_is_computed_only_for_a_gradient(self):
        with CallRecorder() as recorder:
            torch.ops.example_ops.cube(torch.randn(4))
        assert recorder.names == ["aten::randn", "example_ops::cube"]


class TestConv2dBatchNorm:
    IMAGES, WEIGHT = (8, 3, 12, 11), (5, 3, 3, 2)

    def arguments(self, device="cpu"):
        return [torch.randn(shape, device=device, requires_grad=True) for shape in (self.IMAGES, self.WEIGHT)]

    def test_keeps_input_weight_and_two_numbers_per_channel(self, device):
        images, weight = self.arguments(device)
        saved = saved_for_backward(torch.ops.example_ops.conv2d_batch_norm, images, weight)
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in saved}
        for argument in (images, weight):
            del storages[argument.untyped_storage().data_ptr()]
        assert sorted(tensor.numel() for tensor in storages.values()) == [weight.size(0)] * 2

        # The two parts also save the convolution's result.
        parts = saved_for_backward(
            lambda: torch.ops.example_ops.batch_norm2d(torch.ops.example_ops.conv2d(images, weight))
        )
        assert any(tensor.numel() == 8 * 5 * 10 * 10 for tensor in parts)

    def test_keeps_no_more_when_compiled(self, device):
        """The partitioner of torch.compile moves nothing from backward to forward."""
        from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

        outputs = []

        def record(graph, _):
            output = next(node for node in graph.graph.nodes if node.op == "output")
            outputs.extend(node.meta["val"] for node in output.args[0] if node is not None)
            return nop(graph, _)

        compiled = aot_function(
            torch.ops.example_ops.conv2d_batch_norm, record, nop, partition_fn=min_cut_rematerialization_partition
        )
        images, weight = self.arguments(device)
        result = compiled(images, weight)
        kept = [value for value in outputs if isinstance(value, Tensor)]
        # The result itself, the inputs, and the statistics.
        assert sorted(value.numel() for value in kept) == sorted([result.numel(), images.numel(), weight.numel(), 5, 5])

    def test_equal_values_in_a_channel(self, device):
        """No deviation: the result is 0 and the gradient finite."""
        images = torch.ones(4, 2, 5, 5, device=device, requires_grad=True)
        weight = torch.zeros(3, 2, 2, 2, device=device, requires_grad=True)
        result = torch.ops.example_ops.conv2d_batch_norm(images, weight)
        assert torch.equal(result, torch.zeros_like(result))
        for gradient in torch.autograd.grad(result, (images, weight), torch.randn_like(result)):
            assert gradient.isfinite().all()

    def test_is_its_parts(self, device):
        images, weight = self.arguments(device)
        fused = torch.ops.example_ops.conv2d_batch_norm(images, weight, 0.5)
        parts = torch.ops.example_ops.batch_norm2d(torch.ops.example_ops.conv2d(images, weight), 0.5)
        torch.testing.assert_close(fused, parts)

    def test_eps_is_a_thousandth_where_it_is_not_given(self):
        images = torch.randn(4, 3, 5, 5, dtype=torch.float64)
        torch.testing.assert_close(torch.ops.example_ops.batch_norm2d(images), batch_norm(images, 1e-3))
