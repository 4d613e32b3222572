"""lltm.forward, lltm.ops.sequence and the others are the operators, called directly, scripted and compiled."""

import inspect

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.named_arguments import NAMES, flags

from lltm import ops

pytestmark = [
    pytest.mark.pytorch,
    # TorchScript is deprecated, but deployed models use it.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning"),
]

FUNCTIONS = [name for name in NAMES if hasattr(ops, name)]
BACKWARDS = [name for name in FUNCTIONS if "backward" in name]
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def plain(function):
    return function


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def call_operator(name: str, arguments: dict) -> tuple:
    """With all gradients, where there is a mask."""
    mask = {"output_mask": named_arguments.mask_of(name, ())} if name in BACKWARDS else {}
    return getattr(torch.ops.lltm, name)(**arguments, **mask)


def assert_equal(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@each_function
@pytest.mark.parametrize("way", [plain, torch.jit.script, compiled], ids=lambda way: way.__name__)
def test_every_argument_has_its_place(device, fresh_compiler, name, way):
    arguments = named_arguments.make(name, device) | dict.fromkeys(flags(name), True)
    function = way(getattr(ops, name))
    for _ in range(3):  # TorchScript specializes after some calls
        assert_equal(function(**arguments), call_operator(name, arguments))


@each_function
def test_the_others_are_absent_by_default(device, name):
    arguments, function = named_arguments.make(name, device), getattr(ops, name)
    parameters = inspect.signature(function).parameters.values()
    given = {p.name: arguments[p.name] for p in parameters if p.default is p.empty}
    absent = dict.fromkeys(arguments) | dict.fromkeys(flags(name), False)
    assert_equal(function(**given), call_operator(name, absent | given))


@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.parametrize("way", [plain, torch.jit.script], ids=lambda way: way.__name__)
def test_masks(name, way):
    function, arguments = way(getattr(ops, name)), named_arguments.make(name)
    mask = named_arguments.mask_of(name, [False, True, False, True, False])
    assert [gradient is not None for gradient in function(**arguments, output_mask=mask)] == mask
    for length in (0, len(mask) - 1, len(mask) + 1):
        message = f"lltm::{name}: expected output_mask of {len(mask)} flags, got {length}"
        with pytest.raises((RuntimeError, torch.jit.Error), match=message):
            function(**arguments, output_mask=[True] * length)
