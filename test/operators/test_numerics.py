"""Accuracy where it is easily lost: small and huge pre-activations, NaN; and bitwise reproducibility. Of a step of each
cell, in every way to compute it."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from lltm_testing import sequence_reference
from lltm_testing.reference import assert_identical, assert_no_aliases, library_product_spreads_nan
from lltm_testing.steps import STEPS, make_gradients

SMALL = [sign * 10.0**-k for k in (1, 2, 3, 4, 5, 7, 10, 15, 20, 30) for sign in (1, -1)]
TAIL = [-30.0, -20.0, -10.0, -5.0, 5.0, 10.0, 20.0, 30.0]


def assert_relatively_close(actual, expected, dtype, units=8):
    """Compares every element separately, except subnormal ones, which have fewer digits."""
    normal = expected.abs() >= torch.finfo(dtype).tiny
    error = ((actual.double() - expected).abs() / expected.abs())[normal]
    assert normal.any() and error.max() <= units * torch.finfo(dtype).eps


def small_preactivations(step, dtype, device):
    """Those whose cell state, at most a quarter of them, is a normal number in this dtype."""
    z = [value for value in SMALL if abs(value) >= 16 * torch.finfo(dtype).tiny]
    gates = dict.fromkeys(range(step.cell.gates), z) | {1: z[::-1]}
    return step.of_preactivations(gates, [0.0] * len(z), dtype, device)


def test_small_preactivations_keep_their_relative_accuracy(device, dtype, step):
    arguments = small_preactivations(step, dtype, device)
    *state, gates = step.call(arguments)
    *expected, expected_gates = (result.value for result in step.bounded(arguments))
    for found, value in zip(state, expected, strict=True):
        assert_relatively_close(found, value, dtype)
    if device.type == "cuda" and dtype == torch.float32:
        # A product made of three TF32 products has 22 bits of each factor.
        assert_relatively_close(gates, expected_gates, dtype)
    else:
        assert torch.equal(gates.double(), expected_gates)


def gradients_of_preactivations(step, arguments):
    """dz, which is d_bias with one example, and the same in float64, of the same new_cell, whose rounding is no error
    of the backward. The incoming gradients do not cancel: otherwise that of the cell would lose its accuracy."""
    grads = tuple(torch.rand_like(t) + 0.5 for t in arguments.initial_states())
    _, *kept = step.call(arguments)
    found, k = step.call_backward(grads, arguments, *kept), step.cell.names.index(step.cell.bias_names()[0])
    step.assert_gradients_close(found, grads, arguments, *kept)
    gates = step.cell.gates
    return found[k].view(gates, -1), step.bounded_backward(grads, arguments, *kept)[k].value.view(gates, -1)


def test_gradients_of_small_preactivations(device, dtype, step):
    arguments = small_preactivations(step, dtype, device)
    for found, expected in zip(*gradients_of_preactivations(step, arguments), strict=True):
        if expected.any():  # that of a forget gate is zero beside a cell state of zero
            assert_relatively_close(found, expected, dtype)


def test_gradients_in_the_tails_of_a_gate(device, dtype, step):
    """If a sigmoid s is almost 1, s(1-s) from the rounded s would be entirely wrong, as would 1+g for the ELU. The tanh
    of a candidate has an absolute error, by the bounds."""
    for gate in range(step.cell.gates):
        arguments = step.of_preactivations({gate: TAIL}, [0.5] * len(TAIL), dtype, device)
        found, expected = gradients_of_preactivations(step, arguments)
        if step.cell is not sequence_reference.Sequence and gate == 2:
            continue
        # 16 additional units for 1 - tanh^2 of a cell around 1.
        assert_relatively_close(found, expected, dtype, units=24)


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


def test_huge_preactivations_stay_finite(device, dtype, step):
    signs = list(itertools.product((1e4, -1e4), repeat=step.cell.gates))
    for old_cell in (0.0, 1e4, -1e4):
        gates = dict(enumerate(map(list, zip(*signs, strict=True))))
        arguments = step.of_preactivations(gates, [old_cell] * len(signs), dtype, device)
        grads = [torch.ones_like(arguments.h0)] * len(step.cell.states)
        for found, expected in (
            (step.call(arguments), step.bounded(arguments)),
            (step.call_backward(grads, arguments)[-3:], step.bounded_backward(grads, arguments)[-3:]),
        ):
            for result, value in zip(found, expected, strict=True):
                units = 4 * torch.finfo(dtype).eps
                torch.testing.assert_close(result.double(), value.value, rtol=units, atol=1e-12)


@pytest.mark.parametrize("sizes", [(1, 3, 1), (2, 5, 16), (21, 47, 31), (64, 40, 48)], ids=str)
def test_slopes_may_underflow(device, dtype, step, sizes):
    """exp of these pre-activations is close to the smallest normal number, above and below it."""
    arguments = step.make(sizes, dtype, device)
    grads = make_gradients(arguments)
    _, *cells, gates = step.call(arguments)
    z = math.log(torch.finfo(dtype).tiny) + 8 * torch.rand(gates.shape, dtype=torch.float64, device=device) - 4
    for sign in (1, -1):
        kept = *cells, torch.cat([z[:, : -sizes[2]], sign * z[:, -sizes[2] :]], dim=1).to(dtype)
        step.assert_gradients_close(step.call_backward(grads, arguments, *kept), grads, arguments, *kept)


def test_sigmoid_may_underflow(device, dtype, step):
    z = (math.log(torch.finfo(dtype).tiny) + torch.linspace(-4, 4, 33, dtype=torch.float64)).tolist()
    gates = dict.fromkeys(range(step.cell.gates), z) | {2: [-z_g for z_g in z]}
    arguments = step.of_preactivations(gates, [0.5] * len(z), dtype, device)
    step.assert_close(step.call(arguments), arguments)


@pytest.mark.parametrize("z", [1e4, -1e4])
def test_second_gradients_of_huge_preactivations_stay_finite(device, step, z):
    gates = dict.fromkeys(range(step.cell.gates), [z])
    arguments = step.of_preactivations(gates, [z], torch.float64, device).require_grad()
    *states, _ = step.call(arguments)
    first = torch.autograd.grad(sum(state.sum() for state in states), arguments.leaves(), create_graph=True)
    second = torch.autograd.grad(sum(gradient.sum() for gradient in first), arguments.leaves(), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in (*first, *second))


@pytest.mark.parametrize(
    ("step", "name"), [(s, n) for s in STEPS for n in ("input", *STEPS[s].cell.states)], indirect=["step"]
)
@pytest.mark.parametrize("sizes", [(7, 5, 6), (40, 33, 65)], ids=str)
def test_what_is_wrong_in_one_row_stays_there(device, dtype, step, sizes, name):
    if device.type == "cpu" and library_product_spreads_nan(dtype):
        pytest.skip("PyTorch's own product in this dtype carries a NaN into other rows on this CPU")
    clean = step.make(sizes, dtype, device)
    grads = make_gradients(clean)
    others = torch.arange(sizes[0], device=device) != 3
    mask = [row in ("input", "h0", "c0") for row in step.cell.names]
    for poison in (torch.nan, torch.inf):
        poisoned = clean.map(torch.clone)
        getattr(poisoned, name)[..., 3, :] = poison
        results = step.call(poisoned)
        for result, expected in zip(results, step.call(clean), strict=True):
            assert torch.equal(result[others], expected[others])
        if poison != poison:
            assert all(state[3].isnan().all() for state in results[:-1])
        found, expected = step.call_backward(grads, poisoned, mask=mask), step.call_backward(grads, clean, mask=mask)
        for result, value in zip(found, expected, strict=True):
            if result is not None:
                assert torch.equal(result[..., others, :], value[..., others, :])


def assert_same_bits(run, arguments) -> None:
    """In several calls, also from several threads at once."""
    first = run()
    with ThreadPoolExecutor(4) as pool:
        runs = [run() for _ in range(4)] + list(pool.map(lambda _: run(), range(12)))
    for results in runs:
        assert_identical(first, results)
        assert_no_aliases((*first, *results), arguments)


@pytest.mark.parametrize("sizes", [(16, 32, 128), (33, 17, 65), (2048, 3, 5)], ids=str)
def test_the_same_bits_every_time(device, dtype, step, sizes):
    arguments = step.make(sizes, dtype, device)
    grads = make_gradients(arguments)
    assert_same_bits(lambda: (*step.call(arguments), *step.call_backward(grads, arguments)), (*arguments[:6], *grads))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_the_same_bits_of_a_sequence_every_time(device, dtype, cell, reverse):
    options = {"lengths": True, "reset": True, "reverse": reverse, "cell": cell}
    arguments = sequence_reference.make((20, 65, 33, 65), dtype, device, **options)
    grads = sequence_reference.make_gradients(arguments)

    def run():
        results = sequence_reference.specified(arguments, sequence_reference.call(arguments, True))
        return *results, *sequence_reference.call_backward(grads, arguments)

    assert_same_bits(run, (*arguments[:-1], *grads))
