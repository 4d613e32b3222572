"""What every operator promises: new results, unchanged arguments, and the rules of autograd."""

import itertools

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.graphs import Operators
from lltm_testing.named_arguments import NAMES, call, optional
from lltm_testing.reference import assert_identical, assert_no_aliases, assert_same_up_to_rounding

pytestmark = pytest.mark.pytorch

each_backward = pytest.mark.parametrize("operator", [name for name in NAMES if "backward" in name])
forward_operators = pytest.mark.parametrize("operator", ["forward", "sequence"])
SAVED = [
    ("forward", ("input", "weights", "old_h")),
    ("sequence", ("input", "weights", "h0", "lengths", "reset")),
]


def make_leaves(operator, device, dtype=torch.float32) -> dict:
    return named_arguments.leaves_of(named_arguments.make(operator, device, dtype))


def loss(results):
    return sum((k * result).sum() for k, result in enumerate(results[:-1], 1))


@pytest.mark.parametrize(
    ("operator", "absent"),
    [(name, absent) for name in NAMES for absent in [(), *((one,) for one in optional(name)), optional(name)]],
    ids=str,
)
def test_results_are_new_and_arguments_stay_as_they_were(device, dtype, operator, absent):
    arguments = named_arguments.make(operator, device, dtype) | dict.fromkeys(absent)
    copies = {name: t.clone() for name, t in arguments.items() if t is not None}
    results = call(operator, arguments)
    assert_no_aliases(results, arguments.values())
    assert all(result.is_contiguous() and result.device == arguments["input"].device for result in results)
    for name, copy in copies.items():
        assert torch.equal(arguments[name], copy) and arguments[name]._version == 0, name


@each_backward
@pytest.mark.parametrize("given", [True, False], ids=["everything", "required"])
def test_a_mask_leaves_out_what_is_not_wanted(device, products, operator, given):
    """d_bias, d_h0 and d_c0 have their shapes even if the argument is absent. Without incoming gradients, all are 0."""
    incoming = [name for name in NAMES[operator] if name.startswith("grad_")]
    absent = () if given else set(optional(operator)) - set(incoming)
    arguments = named_arguments.make(operator, device) | dict.fromkeys(absent)
    everything = call(operator, arguments)
    for mask in itertools.product([False, True], repeat=len(everything)):
        expected = [value if wanted else None for value, wanted in zip(everything, mask, strict=True)]
        results = call(operator, arguments, mask)
        assert_same_up_to_rounding(results, expected)
        assert_no_aliases(results, arguments.values())
        zeros = call(operator, arguments | dict.fromkeys(incoming), mask)
        assert_no_aliases(zeros, arguments.values())
        for zero, value in zip(zeros, expected, strict=True):
            assert zero is value is None or torch.equal(zero, torch.zeros_like(value))


@each_backward
def test_an_absent_gradient_is_one_of_zeros(device, products, dtype, operator):
    arguments = named_arguments.make(operator, device, dtype)
    incoming = [name for name in NAMES[operator] if name.startswith("grad_")]
    for absent in itertools.chain.from_iterable(itertools.combinations(incoming, n) for n in range(1, len(incoming))):
        zeros = {name: torch.zeros_like(arguments[name]) for name in absent}
        found, expected = (call(operator, arguments | given) for given in (dict.fromkeys(absent), zeros))
        assert_same_up_to_rounding(found, expected)


@pytest.mark.parametrize("operator", NAMES)
def test_inference_mode(device, operator):
    arguments = named_arguments.make(operator, device)
    with torch.inference_mode():
        results = call(operator, arguments)
    assert all(result.is_inference() for result in results)
    assert_identical(results, call(operator, arguments))


@forward_operators
def test_without_gradients_there_is_no_node(device, operator):
    assert all(result.grad_fn is None for result in call(operator, named_arguments.make(operator, device)))
    leaves = make_leaves(operator, device)
    with torch.no_grad():
        assert all(result.grad_fn is None for result in call(operator, leaves))
    assert [result.requires_grad for result in call(operator, leaves)][-1] is False  # gates


@pytest.mark.parametrize(
    ("operator", "leaves", "given", "mask"),
    [
        ("forward", ("weights", "old_h"), (True, False), (False, True, False, True, False)),
        ("sequence", ("weights", "bias"), (True, False, False, False), (False, True, True, False, False)),
    ],
)
def test_autograd_asks_only_for_what_is_wanted(device, operator, leaves, given, mask):
    """The mask that is passed to backward, and which gradients: absent ones stay absent."""
    arguments = named_arguments.make(operator, device)
    for name in leaves:
        arguments[name].requires_grad_()
    with Operators() as operators:
        call(operator, arguments)[0].sum().backward()
    (arguments,) = (args for function, args in operators.calls if "backward" in function.name())
    assert tuple(gradient is not None for gradient in arguments[: len(given)]) == given
    assert tuple(arguments[-1]) == mask


@pytest.mark.parametrize(("operator", "name"), [(operator, name) for operator, names in SAVED for name in names])
def test_changing_a_saved_tensor_is_an_error(device, operator, name):
    leaves = make_leaves(operator, device)
    output = call(operator, leaves)[0]
    with torch.no_grad():
        leaves[name].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@forward_operators
def test_backward_twice(device, dtype, operator):
    leaves = make_leaves(operator, device, dtype)
    total, wanted = loss(call(operator, leaves)), [leaf for leaf in leaves.values() if leaf.requires_grad]
    first = torch.autograd.grad(total, wanted, retain_graph=True)
    assert_identical(first, torch.autograd.grad(total, wanted))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, wanted)


@forward_operators
def test_no_incoming_gradient_leaves_the_leaves_without_one(device, operator):
    """A gradient that is undefined is not the same as one of zeros: optimizers skip parameters without a gradient."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    leaves = make_leaves(operator, device)
    Stop.apply(call(operator, leaves)[0]).sum().backward()
    assert all(leaf.grad is None for leaf in leaves.values())
