"""Any strides: transposed, strided, offset and expanded tensors, in every argument of both operators."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing import named_arguments
from lltm_testing.layouts import LAYOUTS, every_other_row, transposed, wide_rows
from lltm_testing.reference import (
    NAMES,
    assert_backward_close,
    assert_forward_close,
    assert_gradients_close,
    call,
    gradients,
    make_arguments,
    make_gradients,
)

BACKWARD_NAMES = named_arguments.NAMES["backward"]
SIZES = [(6, 5, 7), (8, 16, 32)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("name", (*NAMES, "all"))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward(device, dtype, sizes, name, layout):
    arguments = make_arguments(sizes, dtype, device)
    changed = {n: layout(getattr(arguments, n)) for n in NAMES if name in (n, "all")}
    arguments = arguments._replace(**changed)
    assert_forward_close(call(arguments), arguments)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("name", (*BACKWARD_NAMES, "all"))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_backward(device, dtype, sizes, name, layout):
    arguments = make_arguments(sizes, dtype, device)
    _, new_cell, gates = call(arguments)
    given = [*make_gradients(arguments), new_cell, gates, *arguments[:4]]
    given = [layout(t) if name in (n, "all") else t for n, t in zip(BACKWARD_NAMES, given, strict=True)]
    assert_backward_close(torch.ops.lltm.backward(*given, [True] * 5), *given)


@given(data=st.data())
def test_forward_of_any_mixture(device, dtype, data):
    sizes = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)))
    arguments = make_arguments(sizes, dtype, device)
    arguments = arguments.map(lambda t: data.draw(st.sampled_from([torch.clone, *LAYOUTS]))(t))
    grads = [data.draw(st.sampled_from([torch.clone, *LAYOUTS]))(t) for t in make_gradients(arguments)]
    assert_forward_close(call(arguments), arguments)
    assert_gradients_close(gradients(arguments, *grads), *grads, arguments)


def test_gradients_of_a_sum(device, dtype):
    """Autograd's gradient of a sum is a single number, expanded."""
    arguments = make_arguments((6, 5, 7), dtype, device)
    leaves = arguments.require_grad()
    new_h, new_cell, _ = call(leaves)
    (new_h.sum() + new_cell.sum()).backward()
    ones = torch.ones_like(new_h)
    assert_gradients_close(leaves.map(lambda leaf: leaf.grad), ones, ones, arguments)


@pytest.mark.parametrize("layout", [transposed, wide_rows, every_other_row], ids=lambda layout: layout.__name__)
def test_gradients_reach_a_view(device, layout):
    """The arguments are views of leaves, such as slices of a larger parameter."""
    arguments = make_arguments((6, 5, 7), torch.float64, device)
    leaves = arguments.require_grad()
    grads = make_gradients(arguments)
    new_h, new_cell, _ = call(leaves.map(layout))
    torch.autograd.backward((new_h, new_cell), grads)
    assert_gradients_close(leaves.map(lambda leaf: leaf.grad), *grads, arguments)
