"""First and second derivatives of gates that are almost 0 or 1, in forward and reverse mode. The derivative of a
sigmoid s is s*(1-s), which is entirely wrong, or 0, if 1-s is computed from an s that has been rounded to 1."""

import pytest
import torch
from torch.func import grad, jvp

TAILS = [sign * z for z in (3.0, 9.0, 20.0, 40.0, 80.0) for sign in (1, -1)]
OPERATORS = {
    "forward": ["input_gate", "output_gate", "candidate"],
    "sequence": ["input_gate", "output_gate", "candidate"],
    "lstm": ["input_gate", "forget_gate", "candidate", "output_gate"],
}
SIGMOIDS = [(operator, gate) for operator, gates in OPERATORS.items() for gate in gates if gate != "candidate"]


def derivatives_of_sigmoid(z):
    """The first and the second, in float64."""
    tail = torch.exp(-z.double().abs())
    first = tail / (1 + tail) ** 2
    return first, -first * torch.tanh(z.double() / 2)


def function_of(operator, gate, z):
    """The cell state, or h for an output gate, as a function of one gate's z, and what multiplies the gate in it. The
    other z, and the old cell state, are constants."""
    size, gates = len(z), OPERATORS[operator]
    others = {name: torch.full_like(z, 0.75) for name in gates}
    c0 = torch.full_like(z, 0.5).expand(1, size)
    zeros = z.new_zeros(1, size), z.new_zeros(len(gates) * size, size)

    def run(z):
        bias = torch.cat([z if name == gate else other for name, other in others.items()])
        h0, weight_hh = zeros
        if operator == "forward":
            h, c, _ = torch.ops.lltm.forward(h0[:, :1], weight_hh.new_zeros(len(bias), size + 1), bias, h0, c0)
        elif operator == "sequence":
            input, weights = z.new_zeros(1, 1, 1), weight_hh.new_zeros(len(bias), size + 1)
            _, h, c, *_ = torch.ops.lltm.sequence(input, weights, bias, h0, c0)
        else:
            input = z.new_zeros(1, 1, 1)
            _, h, c, *_ = torch.ops.lltm.lstm(input, weight_hh.new_zeros(len(bias), 1), weight_hh, bias, h0, c0)
        return (h if gate == "output_gate" else c)[0]

    other = torch.tensor(0.75, dtype=torch.float64)
    candidate = torch.tanh(other) if operator == "lstm" else other
    new_cell = candidate * torch.sigmoid(other) + 0.5 * (torch.sigmoid(other) if operator == "lstm" else 1)
    factors = {"input_gate": candidate, "forget_gate": 0.5, "output_gate": torch.tanh(new_cell)}
    return run, factors[gate]


def derivative(run, z):
    """By a forward pass."""
    return jvp(run, (z,), (torch.ones_like(z),))[1]


def gradient(run, z):
    """By a backward pass. The elements do not depend on each other."""
    return grad(lambda z: run(z).sum())(z)


MODES = {"forward_mode": derivative, "reverse_mode": gradient}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("operator", "gate"), SIGMOIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_first_derivatives(device, dtype, operator, gate, mode):
    z = torch.tensor(TAILS, dtype=dtype, device=device)
    run, factor = function_of(operator, gate, z)
    expected = factor * derivatives_of_sigmoid(z)[0]
    torch.testing.assert_close(MODES[mode](run, z).double(), expected, rtol=32 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("outer", MODES)
@pytest.mark.parametrize("inner", MODES)
@pytest.mark.parametrize(("operator", "gate"), SIGMOIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_second_derivatives(device, dtype, operator, gate, inner, outer):
    z = torch.tensor(TAILS, dtype=dtype, device=device)
    run, factor = function_of(operator, gate, z)
    expected = factor * derivatives_of_sigmoid(z)[1]
    result = MODES[outer](lambda z: MODES[inner](run, z), z)
    torch.testing.assert_close(result.double(), expected, rtol=32 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("operator", "gate"), SIGMOIDS)
def test_a_gate_of_zero_has_the_derivatives_of_both_sides(device, operator, gate, mode):
    """The two sides of a sigmoid may be computed apart, and meet at 0, where its second derivative is 0."""
    z = torch.zeros(3, dtype=torch.float64, device=device)
    run, factor = function_of(operator, gate, z)
    torch.testing.assert_close(MODES[mode](run, z), (factor / 4 + z).double())
    torch.testing.assert_close(gradient(lambda z: MODES[mode](run, z), z), z)
