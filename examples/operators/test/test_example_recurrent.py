"""peephole, the recurrent operator: several results, one of them a workspace."""

import pytest
import torch
from torch import Tensor
from torch.library import opcheck


def peephole(z_x: Tensor, weight_hh: Tensor, peepholes: Tensor) -> tuple[Tensor, Tensor]:
    """The formula in plain PyTorch: output and cells."""
    h = c = z_x.new_zeros(z_x.size(1), weight_hh.size(1))
    output, cells = [], []
    for z in z_x:
        z_i, z_f, z_g, z_o = (z + h @ weight_hh.t()).chunk(4, 1)
        i, f = torch.sigmoid(z_i + peepholes[0] * c), torch.sigmoid(z_f + peepholes[1] * c)
        c = f * c + i * torch.tanh(z_g)
        h = torch.sigmoid(z_o + peepholes[2] * c) * torch.tanh(c)
        output.append(h)
        cells.append(c)
    return torch.stack(output), torch.stack(cells)


@pytest.fixture
def arguments(device) -> tuple[Tensor, ...]:
    shapes = ((5, 3, 8), (8, 2), (3, 2))  # steps, batch, hidden: 5, 3, 2
    return tuple(torch.randn(shape, dtype=torch.float64, device=device).requires_grad_() for shape in shapes)


def operator(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.example_ops.peephole(*arguments)[:2]


def test_results_and_gradients_are_those_of_the_formula(arguments):
    torch.testing.assert_close(operator(*arguments), peephole(*arguments))
    assert torch.autograd.gradcheck(operator, arguments)


@pytest.mark.parametrize("result", [0, 1])
def test_either_result_may_have_no_gradient(arguments, result):
    ours, theirs = (
        torch.autograd.grad(function(*arguments)[result].sin().sum(), arguments) for function in (operator, peephole)
    )
    torch.testing.assert_close(ours, theirs)


def test_gates_are_not_differentiable(arguments):
    assert [result.requires_grad for result in torch.ops.example_ops.peephole(*arguments)] == [True, True, False]


def test_passes_pytorchs_own_checks(arguments):
    opcheck(torch.ops.example_ops.peephole.default, arguments)


def test_a_second_derivative_raises_by_name(arguments):
    (gradient,) = torch.autograd.grad(operator(*arguments)[0].sum(), arguments[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="example_ops::peephole: double backward is not implemented"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (0, (5, 8), r"expected z_x of shape \[steps, batch, 4 \* hidden\], got \[5, 8\]"),
        (1, (7, 2), r"expected weight_hh of shape \[4 \* hidden, hidden\], its size 0 being 8, got \[7, 2\]"),
        (2, (3, 4), r"expected peepholes of shape \[3, hidden\], its size 1 being 2, got \[3, 4\]"),
    ],
)
def test_wrong_shapes_are_errors(arguments, index, shape, message):
    wrong = list(arguments)
    wrong[index] = arguments[index].new_zeros(shape)
    with pytest.raises(RuntimeError, match="example_ops::peephole: " + message):
        operator(*wrong)
