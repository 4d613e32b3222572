"""lltm::forward against the formula in float64."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing.reference import SIZES, assert_forward_close, call, make_arguments


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_is_the_formula(device, dtype, sizes, bias):
    arguments = make_arguments(sizes, dtype, device, bias)
    assert_forward_close(call(arguments), arguments)


@given(sizes=st.tuples(st.integers(0, 40), st.integers(0, 70), st.integers(1, 70)), bias=st.booleans())
def test_is_the_formula_at_any_size(device, dtype, sizes, bias):
    arguments = make_arguments(sizes, dtype, device, bias)
    assert_forward_close(call(arguments), arguments)


def test_one_tensor_may_be_several_arguments(device):
    arguments = make_arguments((4, 4, 4), device=device)
    arguments = arguments._replace(old_h=arguments.input, old_cell=arguments.input)
    assert_forward_close(call(arguments), arguments)
