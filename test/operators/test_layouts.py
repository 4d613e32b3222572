"""Any strides: transposed, strided, offset and expanded tensors, in every argument of every operator."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lltm_testing import named_arguments
from lltm_testing.layouts import LAYOUTS, column_major, contiguous
from lltm_testing.named_arguments import NAMES, call
from lltm_testing.reference import assert_same_up_to_rounding

# Steps, batch, input features and state size: odd, aligned, and a single step, whose results are dense in any order.
SIZES = [(3, 6, 5, 7), (3, 8, 16, 32), (1, 6, 5, 7)]


def assert_strides_do_not_matter(operator, arguments) -> None:
    plain = {name: contiguous(t) for name, t in arguments.items()}
    assert_same_up_to_rounding(call(operator, arguments), call(operator, plain))


@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
@pytest.mark.parametrize(("operator", "name"), [(operator, name) for operator in NAMES for name in NAMES[operator]])
def test_one_argument(device, dtype, operator, name, sizes):
    arguments = named_arguments.make(operator, device, dtype, sizes=sizes)
    for layout in [*LAYOUTS, column_major]:
        assert_strides_do_not_matter(operator, arguments | {name: layout(arguments[name])})


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_all_arguments(device, products, dtype, operator, sizes):
    arguments = named_arguments.make(operator, device, dtype, sizes=sizes)
    for layout in [*LAYOUTS, column_major]:
        assert_strides_do_not_matter(operator, {name: layout(t) for name, t in arguments.items()})


@given(data=st.data())
def test_any_mixture(device, dtype, operator, data):
    sizes = data.draw(st.tuples(*[st.integers(1, 12)] * 4))
    arguments = named_arguments.make(operator, device, dtype, sizes=sizes)
    layouts = {name: data.draw(st.sampled_from([contiguous, *LAYOUTS])) for name in arguments}
    assert_strides_do_not_matter(operator, {name: layouts[name](t) for name, t in arguments.items()})
