"""What every operator promises: new results, unchanged arguments, and the rules of autograd."""

import itertools

import pytest
import torch
from lltm_testing import named_arguments, sequence_reference
from lltm_testing.graphs import Operators
from lltm_testing.named_arguments import FORWARDS, NAMES, call, each_backward, each_forward, optional
from lltm_testing.reference import assert_identical, assert_no_aliases, assert_same_up_to_rounding

pytestmark = pytest.mark.pytorch


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


@pytest.mark.parametrize("keep", [False, True], ids=["plain", "keep"])
@pytest.mark.parametrize("steps", [0, 5])
def test_the_last_state_is_new(device, dtype, cell, steps, keep):
    """Without steps, it is a copy of the initial one."""
    arguments = sequence_reference.make((steps, 6, 5, 7), dtype, device, lengths=True, reset=True, cell=cell)
    assert_no_aliases(sequence_reference.call(arguments, keep), arguments[:-1])


def test_inference_mode(device, operator):
    arguments = named_arguments.make(operator, device)
    with torch.inference_mode():
        results = call(operator, arguments)
    assert all(result.is_inference() for result in results)
    assert_identical(results, call(operator, arguments))


@each_forward
def test_without_gradients_there_is_no_node(device, operator):
    assert all(result.grad_fn is None for result in call(operator, named_arguments.make(operator, device)))
    leaves = make_leaves(operator, device)
    with torch.no_grad():
        assert all(result.grad_fn is None for result in call(operator, leaves))
    assert [result.requires_grad for result in call(operator, leaves)][-1] is False  # gates


@each_forward
def test_autograd_asks_only_for_what_is_wanted(device, operator):
    """The mask that is passed to backward, and which gradients: absent ones stay absent."""
    arguments = named_arguments.make(operator, device)
    leaves = {named_arguments.WEIGHTS[operator], named_arguments.CELLS[operator].bias_names()[-1]}
    for name in leaves:
        arguments[name].requires_grad_()
    with Operators() as operators:
        call(operator, arguments)[0].sum().backward()
    ((function, given),) = ((f, given) for f, given in operators.calls if "backward" in f.name())
    names = [argument.name for argument in function._schema.arguments]
    incoming = [tensor is not None for name, tensor in zip(names, given, strict=True) if name.startswith("grad_")]
    assert incoming == [True, *[False] * (len(incoming) - 1)]
    gradients = [result.name.removeprefix("d_") for result in function._schema.returns]
    assert list(given[-1]) == [name in leaves for name in gradients]


# The backward of a step of an LLTM does not read old_cell.
@pytest.mark.parametrize(("operator", "name"), [(o, name) for o in FORWARDS for name in NAMES[o] if name != "old_cell"])
def test_changing_a_saved_tensor_is_an_error(device, operator, name):
    leaves = make_leaves(operator, device)
    output = call(operator, leaves)[0]
    with torch.no_grad():
        leaves[name].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@each_forward
def test_changing_a_saved_result_is_an_error(device, operator):
    names = [result.name for result in getattr(torch.ops.lltm, operator).default._schema.returns]
    for name in {"new_cell", "output", "cells", "gates"}.intersection(names):
        results = call(operator, make_leaves(operator, device))
        results[names.index(name)].detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss(results).backward()


@each_forward
def test_nothing_is_saved_but_arguments_and_results(device, operator):
    leaves, saved = make_leaves(operator, device), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        results = call(operator, leaves)
    alive = {t.untyped_storage().data_ptr() for t in (*leaves.values(), *results)}
    assert saved and {t.untyped_storage().data_ptr() for t in saved} <= alive


@each_forward
def test_backward_twice(device, dtype, operator):
    leaves = make_leaves(operator, device, dtype)
    total, wanted = loss(call(operator, leaves)), [leaf for leaf in leaves.values() if leaf.requires_grad]
    first = torch.autograd.grad(total, wanted, retain_graph=True)
    assert_identical(first, torch.autograd.grad(total, wanted))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, wanted)


@each_forward
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
