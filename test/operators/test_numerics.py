"""Accuracy where it is easily lost: small and huge pre-activations, NaN; and bitwise reproducibility."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from lltm_testing import sequence_reference
from lltm_testing.reference import (
    Arguments,
    assert_backward_close,
    assert_forward_close,
    assert_identical,
    assert_no_aliases,
    backward,
    call,
    call_backward,
    forward,
    library_product_spreads_nan,
    make_arguments,
    make_gradients,
)

SMALL = [sign * 10.0**-k for k in (1, 2, 3, 4, 5, 7, 10, 15, 20, 30) for sign in (1, -1)]
TAIL = [-30.0, -20.0, -10.0, -5.0, 5.0, 10.0, 20.0, 30.0]


def cell_of_preactivations(z_i, z_o, z_g, old_cell, dtype, device) -> Arguments:
    """A batch of one with exactly these pre-activations: the input is 1, and the weights are z."""
    z = torch.cat([torch.tensor(part, dtype=dtype) for part in (z_i, z_o, z_g)])
    state_size = len(z_i)
    return Arguments(
        input=torch.ones(1, 1, dtype=dtype),
        weights=torch.cat([torch.zeros(3 * state_size, state_size, dtype=dtype), z[:, None]], dim=1),
        bias=None,
        old_h=torch.zeros(1, state_size, dtype=dtype),
        old_cell=torch.tensor([old_cell], dtype=dtype),
    ).map(lambda tensor: tensor.to(device))


def assert_relatively_close(actual, expected, dtype, units=8):
    """Compares every element separately, except subnormal ones, which have fewer digits."""
    normal = expected.abs() >= torch.finfo(dtype).tiny
    error = ((actual.double() - expected).abs() / expected.abs())[normal]
    assert normal.any() and error.max() <= units * torch.finfo(dtype).eps


def representable(values, dtype):
    """The values whose cell, at most a quarter of the value, is a normal number in this dtype."""
    return [value for value in values if abs(value) >= 16 * torch.finfo(dtype).tiny]


def test_small_preactivations_keep_their_relative_accuracy(device, dtype):
    z = representable(SMALL, dtype)
    arguments = cell_of_preactivations(z, z[::-1], z, [0.0] * len(z), dtype, device)
    new_h, new_cell, gates = call(arguments)
    expected_h, expected_cell, expected_gates = forward(*arguments.map(torch.Tensor.double))
    assert_relatively_close(new_h, expected_h, dtype)
    assert_relatively_close(new_cell, expected_cell, dtype)
    if device.type == "cuda" and dtype == torch.float32:
        # A product made of three TF32 products has 22 bits of each factor.
        assert_relatively_close(gates, expected_gates, dtype)
    else:
        assert torch.equal(gates.double(), expected_gates)


def positive_gradients(arguments):
    """Gradients of new_h and new_cell that do not cancel: otherwise d_cell would lose its relative accuracy."""
    return tuple(torch.rand_like(t) + 0.5 for t in (arguments.old_h, arguments.old_cell))


def test_gradients_of_small_preactivations(device, dtype):
    """With one example, d_bias is the gradient of the pre-activations."""
    z = representable(SMALL, dtype)
    arguments = cell_of_preactivations(z, z[::-1], z, [0.0] * len(z), dtype, device)
    grads = positive_gradients(arguments)
    d_bias = call_backward(*grads, arguments)[2]
    assert_relatively_close(d_bias, gradient_of_preactivations(grads, arguments), dtype)


@pytest.mark.parametrize("gate", ["input_gate", "output_gate", "candidate"])
def test_gradients_in_the_tails_of_a_gate(device, dtype, gate):
    """If a sigmoid s is almost 1, s(1-s) from the rounded s would be entirely wrong, as would 1+g for the ELU."""
    ones = [1.0] * len(TAIL)
    z = {"input_gate": ones, "output_gate": ones, "candidate": ones} | {gate: TAIL}
    arguments = cell_of_preactivations(*z.values(), [0.5] * len(TAIL), dtype, device)
    grads = positive_gradients(arguments)
    d_bias = call_backward(*grads, arguments)[2]
    # 16 additional units for 1 - tanh^2 of a cell around 1.
    assert_relatively_close(d_bias, gradient_of_preactivations(grads, arguments), dtype, units=24)


def gradient_of_preactivations(grads, arguments):
    """dz in float64, from the same new_cell as the operator's, whose rounding is not an error of backward."""
    _, new_cell, gates = call(arguments)
    z_i, z_o, z_g = gates.double().chunk(3, dim=1)
    dh, dc = (gradient.double() for gradient in grads)
    i, o, t = torch.sigmoid(z_i), torch.sigmoid(z_o), torch.tanh(new_cell.double())
    d_cell = dc + dh * o / torch.cosh(new_cell.double()) ** 2
    g = torch.where(z_g > 0, z_g, torch.expm1(z_g))
    dz_i = d_cell * g * i * torch.sigmoid(-z_i)
    dz_o = dh * t * o * torch.sigmoid(-z_o)
    dz_g = d_cell * i * torch.exp(z_g.clamp(max=0))
    return torch.cat([dz_i, dz_o, dz_g], dim=1)[0]


@pytest.mark.parametrize("steps", [1, 4], ids=["one_step", "all_steps"])
def test_a_forget_gate_close_to_1_has_only_its_own_rounding_error(device, steps):
    """The cell state is multiplied by it in every step, and 1 / (1 + e) would have the error of the sum, too."""
    z_f = torch.linspace(4, 16, 500, device=device)
    zeros = torch.zeros_like(z_f)
    bias = torch.stack([zeros, z_f, zeros, zeros]).flatten()  # the candidate is 0
    weights = bias.new_zeros(len(bias), 1), bias.new_zeros(len(bias), len(z_f))
    c0 = torch.ones_like(z_f).expand(1, -1).clone().requires_grad_()
    lengths = torch.ones(1, dtype=torch.int64, device=device)
    c_n = torch.ops.lltm.lstm(bias.new_zeros(steps, 1, 1), *weights, bias, None, c0, lengths)[2]
    (d_c0,) = torch.autograd.grad(c_n.sum(), c0)
    expected = z_f.double().sigmoid()
    for forget_gate in (c_n.detach(), d_c0):
        assert (forget_gate[0].double() - expected).abs().max() < 0.75 * 2**-24  # units below 1


def test_huge_preactivations_stay_finite(device, dtype):
    signs = [(a, b, c) for a in (1e4, -1e4) for b in (1e4, -1e4) for c in (1e4, -1e4)]
    z_i, z_o, z_g = ([float(sign[k]) for sign in signs] for k in range(3))
    for old_cell in (0.0, 1e4, -1e4):
        arguments = cell_of_preactivations(z_i, z_o, z_g, [old_cell] * len(signs), dtype, device)
        results = call(arguments)
        for result, value in zip(results, forward(*arguments.map(torch.Tensor.double)), strict=True):
            torch.testing.assert_close(result.double(), value, rtol=4 * torch.finfo(dtype).eps, atol=1e-12)
        grads = [torch.ones_like(arguments.old_h)] * 2
        found = call_backward(*grads, arguments, [False, False, True, False, True])
        expected = backward(*grads, arguments)
        for k in (2, 4):
            assert found[k].isfinite().all()
            torch.testing.assert_close(found[k].double(), expected[k], rtol=4 * torch.finfo(dtype).eps, atol=1e-12)


@pytest.mark.parametrize("sizes", [(1, 3, 1), (2, 5, 16), (21, 47, 31), (64, 40, 48)], ids=str)
def test_slopes_may_underflow(device, dtype, sizes):
    """exp of these pre-activations is close to the smallest normal number, above and below it."""
    arguments = make_arguments(sizes, dtype, device)
    grads = make_gradients(arguments)
    _, new_cell, gates = call(arguments)
    z = math.log(torch.finfo(dtype).tiny) + 8 * torch.rand(gates.shape, dtype=torch.float64, device=device) - 4
    for sign in (1, -1):
        gates = torch.cat([z[:, : -sizes[2]], sign * z[:, -sizes[2] :]], dim=1).to(dtype)
        given = (*grads, new_cell, gates, *arguments[:4])
        assert_backward_close(torch.ops.lltm.backward(*given, [True] * 5), *given)


def test_sigmoid_may_underflow(device, dtype):
    z = (math.log(torch.finfo(dtype).tiny) + torch.linspace(-4, 4, 33, dtype=torch.float64)).tolist()
    arguments = cell_of_preactivations(z, z, [-z_g for z_g in z], [0.5] * len(z), dtype, device)
    assert_forward_close(call(arguments), arguments)


@pytest.mark.parametrize("z", [1e4, -1e4])
def test_second_gradients_of_huge_preactivations_stay_finite(device, z):
    arguments = cell_of_preactivations([z], [z], [z], [z], torch.float64, device).require_grad()
    new_h, new_cell, _ = call(arguments)
    leaves = [leaf for leaf in arguments if leaf is not None]
    first = torch.autograd.grad(new_h.sum() + new_cell.sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(gradient.sum() for gradient in first), leaves, allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in (*first, *second))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["input", "old_h", "old_cell"])
@pytest.mark.parametrize("sizes", [(7, 5, 6), (40, 33, 65)], ids=str)
def test_what_is_wrong_in_one_row_stays_there(device, dtype, sizes, name, poison):
    if device.type == "cpu" and library_product_spreads_nan(dtype):
        pytest.skip("PyTorch's own product in this dtype carries a NaN into other rows on this CPU")
    clean = make_arguments(sizes, dtype, device)
    grads = make_gradients(clean)
    poisoned = clean.map(torch.clone)
    getattr(poisoned, name)[3] = poison
    others = torch.arange(sizes[0], device=device) != 3
    results = call(poisoned)
    for result, expected in zip(results, call(clean), strict=True):
        assert torch.equal(result[others], expected[others])
    if poison != poison:
        assert results[0][3].isnan().all() and results[1][3].isnan().all()
    mask = [True, False, False, True, True]
    found, expected = call_backward(*grads, poisoned, mask), call_backward(*grads, clean, mask)
    for k in (0, 3, 4):
        assert torch.equal(found[k][others], expected[k][others])


def assert_same_bits(run, arguments) -> None:
    """In several calls, also from several threads at once."""
    first = run()
    with ThreadPoolExecutor(4) as pool:
        runs = [run() for _ in range(4)] + list(pool.map(lambda _: run(), range(12)))
    for results in runs:
        assert_identical(first, results)
        assert_no_aliases((*first, *results), arguments)


@pytest.mark.parametrize("sizes", [(16, 32, 128), (33, 17, 65), (2048, 3, 5)], ids=str)
def test_the_same_bits_every_time(device, dtype, sizes):
    arguments = make_arguments(sizes, dtype, device)
    grads = make_gradients(arguments)
    assert_same_bits(lambda: (*call(arguments), *call_backward(*grads, arguments)), (*arguments, *grads))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_the_same_bits_of_a_sequence_every_time(device, dtype, reverse):
    arguments = sequence_reference.make((20, 65, 33, 65), dtype, device, lengths=True, reset=True, reverse=reverse)
    grads = sequence_reference.make_gradients(arguments)

    def run():
        return *sequence_reference.call(arguments, True), *sequence_reference.call_backward(grads, arguments)

    assert_same_bits(run, (*arguments[:7], *grads))
