"""The messages for invalid arguments, one test each, on every path of a call.

N = 6, I = 5, H = 4 throughout: weights are (12, 9).
"""

import re

import pytest
import torch
from reference import call, make_arguments, make_gradients

FORWARD = ("input", "weights", "bias", "old_h", "old_cell")
BACKWARD = ("grad_h", "grad_cell", "new_cell", "gates", "input", "weights", "bias", "old_h")
OPTIONAL = ("bias", "grad_h", "grad_cell")

WEIGHTS = "weights of shape [3*state_size, state_size+input_features]"
BIAS = "bias of shape [3*state_size] = [12], got "
STATE = "{} of shape [batch, state_size] = [6, 4], got "
GATES = "gates of shape [batch, 3*state_size] = [6, 12], got "
SHARED_SHAPES = [
    ("input", (6,), "input of shape [batch, input_features], got [6]"),
    ("input", (6, 5, 1), "input of shape [batch, input_features], got [6, 5, 1]"),
    ("input", (), "input of shape [batch, input_features], got []"),
    ("input", (6, 6), WEIGHTS + " = [12, 10], got [12, 9]"),
    ("weights", (12,), WEIGHTS + ", got [12]"),
    ("weights", (12, 9, 1), WEIGHTS + ", got [12, 9, 1]"),
    ("weights", (12, 8), WEIGHTS + " = [12, 9], got [12, 8]"),
    ("weights", (9, 9), WEIGHTS + " = [9, 8], got [9, 9]"),
    ("weights", (13, 9), WEIGHTS + ", its first size a multiple of 3, got [13, 9]"),
    ("bias", (11,), BIAS + "[11]"),
    ("bias", (1,), BIAS + "[1]"),
    ("bias", (), BIAS + "[]"),
    ("bias", (1, 12), BIAS + "[1, 12]"),
]


def state_shapes(name):
    start = STATE.format(name)
    shapes = [(4,), (6, 4, 1), (5, 4), (1, 4), (6, 3), (6, 1)]
    return [(name, shape, f"{start}{list(shape)}") for shape in shapes]


FORWARD_SHAPES = [*SHARED_SHAPES, *state_shapes("old_h"), *state_shapes("old_cell")]
BACKWARD_SHAPES = [
    *SHARED_SHAPES,
    *(case for name in ("old_h", "new_cell", "grad_h", "grad_cell") for case in state_shapes(name)),
    *(("gates", shape, f"{GATES}{list(shape)}") for shape in [(6,), (6, 12, 1), (5, 12), (6, 11), (6, 4)]),
]
UNSUPPORTED = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn]


def forward_arguments(device, dtype=torch.float32) -> dict:
    return make_arguments((6, 5, 4), dtype, device)._asdict()


def backward_arguments(device, dtype=torch.float32) -> dict:
    arguments = make_arguments((6, 5, 4), dtype, device)
    _, new_cell, gates = call(arguments)
    values = (*make_gradients(arguments), new_cell, gates, *arguments[:4])
    return dict(zip(BACKWARD, values, strict=True))


def want_gradients(arguments: dict) -> dict:
    """The same arguments, with gradients required for all that support them."""
    return {
        name: t.detach().requires_grad_() if t is not None and (t.is_floating_point() or t.is_complex()) else t
        for name, t in arguments.items()
    }


class Operator:
    """One of the two operators, and a way to call it that determines the first dispatch key."""

    def __init__(self, name, path, device):
        self.name, self.path, self.device = name, path, device
        self.names = FORWARD if name == "forward" else BACKWARD

    def arguments(self, dtype=torch.float32) -> dict:
        make = forward_arguments if self.name == "forward" else backward_arguments
        return make(self.device, dtype)

    def __call__(self, arguments: dict, mask=(True,) * 5):
        if self.path == "gradients":
            arguments = want_gradients(arguments)
        step = getattr(torch.ops.lltm, self.name)
        rest = [] if self.name == "forward" else [list(mask)]
        if self.path == "no_grad":
            with torch.no_grad():
                return step(*arguments.values(), *rest)
        return step(*arguments.values(), *rest)

    def fails(self, arguments: dict, message: str, **kwargs):
        with pytest.raises(RuntimeError, match="^" + re.escape(f"lltm::{self.name}: expected {message}")):
            self(arguments, **kwargs)


@pytest.fixture(params=["plain", "gradients", "no_grad"])
def path(request):
    return request.param


@pytest.fixture
def forward(path, device):
    return Operator("forward", path, device)


@pytest.fixture
def backward(path, device):
    return Operator("backward", path, device)


@pytest.fixture(params=["forward", "backward"])
def operator(request, path, device):
    return Operator(request.param, path, device)


def test_good_arguments_pass(operator):
    operator(operator.arguments())


@pytest.mark.parametrize(("name", "shape", "message"), FORWARD_SHAPES, ids=str)
def test_shapes_of_forward(forward, name, shape, message):
    arguments = forward.arguments()
    forward.fails(arguments | {name: arguments[name].new_zeros(shape)}, message)


@pytest.mark.parametrize(("name", "shape", "message"), BACKWARD_SHAPES, ids=str)
def test_shapes_of_backward(backward, name, shape, message):
    arguments = backward.arguments()
    backward.fails(arguments | {name: arguments[name].new_zeros(shape)}, message)


def test_another_batch(operator):
    """The batch is taken from input, so the message names the first of the other arguments."""
    arguments = operator.arguments()
    first = "old_h" if operator.name == "forward" else "grad_h"
    message = f"{first} of shape [batch, state_size] = [7, 4], got [6, 4]"
    operator.fails(arguments | {"input": arguments["input"].new_zeros(7, 5)}, message)


@pytest.mark.parametrize("other", [torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("name", sorted({*FORWARD, *BACKWARD} - {"input"}))
def test_mixed_dtypes(operator, name, other):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    arguments = operator.arguments()
    got = str(other).removeprefix("torch.")
    message = f"{name} of input's dtype float32, got {got}"
    operator.fails(arguments | {name: arguments[name].to(other)}, message)


def test_float32_among_float64(operator):
    arguments = operator.arguments(torch.float64)
    operator.fails(
        arguments | {"weights": arguments["weights"].float()}, "weights of input's dtype float64, got float32"
    )


@pytest.mark.parametrize("dtype", UNSUPPORTED, ids=str)
@pytest.mark.parametrize("which", ["input", "all"])
def test_unsupported_dtypes(operator, which, dtype):
    arguments = operator.arguments()
    arguments = {n: t.to(dtype) if which in (n, "all") else t for n, t in arguments.items()}
    got = str(dtype).removeprefix("torch.")
    operator.fails(arguments, f"input of dtype float64, float32, float16 or bfloat16, got {got}")


@pytest.mark.parametrize("name", sorted({*FORWARD, *BACKWARD} - {*OPTIONAL}))
def test_none_where_a_tensor_is_due(operator, name):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    operator.fails(operator.arguments() | {name: None}, f"{name} to be a tensor, got None")


def test_nothing_but_none(operator):
    first = operator.names[0] if operator.name == "forward" else "new_cell"
    operator.fails(dict.fromkeys(operator.names), f"{first} to be a tensor, got None")


@pytest.mark.parametrize("name", sorted({*FORWARD, *BACKWARD}))
def test_meta_among_others(operator, name):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    arguments = operator.arguments()
    mixed = arguments | {name: arguments[name].to("meta")}
    if name == "input":
        message = r"expected \w+ on input's device meta, got " + str(arguments["input"].device)
    else:
        message = f"expected {name} on input's device {arguments['input'].device}, got meta"
    with pytest.raises(RuntimeError, match=f"^lltm::{operator.name}: {message}"):
        operator(mixed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", sorted({*FORWARD, *BACKWARD}))
def test_cpu_and_cuda(operator, name):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    arguments = operator.arguments()
    other = "cpu" if operator.device.type == "cuda" else "cuda"
    mixed = arguments | {name: arguments[name].to(other)}
    with pytest.raises(RuntimeError, match=f"^lltm::{operator.name}: expected .* on input's device .*, got "):
        operator(mixed)


@pytest.mark.parametrize("name", sorted({*FORWARD, *BACKWARD} - {"bias"}))
def test_sparse(operator, name):
    """Other layouts get the dispatcher's message, or ours where the double backward's formula would run."""
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    arguments = operator.arguments()
    message = f"^Could not run 'lltm::{operator.name}'"
    if operator.name == "backward" and operator.path == "gradients":
        message = f"^lltm::backward: expected {name} to be dense, got the layout Sparse"
    with pytest.raises(RuntimeError, match=message):
        operator(arguments | {name: arguments[name].to_sparse()})


@pytest.mark.parametrize("length", [0, 4, 6])
def test_masks_of_a_wrong_length(backward, length):
    """PyTorch's own conversion error, which does not name the argument."""
    message = f"^Tried to convert a List with {length} elements to a fixed-size array of size 5$"
    with pytest.raises(RuntimeError, match=message):
        backward(backward.arguments(), mask=[True] * length)


def test_nothing_is_broadcast(forward):
    arguments = forward.arguments()
    one = {"old_h": arguments["old_h"][:1]}
    forward.fails(arguments | one, "old_h of shape [batch, state_size] = [6, 4], got [1, 4]")


@pytest.mark.parametrize("case", FORWARD_SHAPES[::3], ids=str)
def test_meta_tensors_are_checked(case):
    name, shape, message = case
    arguments = {n: t.to("meta") for n, t in forward_arguments("cpu").items()}
    Operator("forward", "plain", "meta").fails(arguments | {name: torch.empty(shape, device="meta")}, message)


@pytest.mark.parametrize("case", BACKWARD_SHAPES[::3], ids=str)
def test_meta_tensors_are_checked_in_backward(case):
    name, shape, message = case
    arguments = {n: t.to("meta") for n, t in backward_arguments("cpu").items()}
    Operator("backward", "plain", "meta").fails(arguments | {name: torch.empty(shape, device="meta")}, message)


@pytest.mark.parametrize("case", FORWARD_SHAPES[::3], ids=str)
def test_the_formula_below_transforms_is_checked(device, case):
    name, shape, message = case
    arguments = forward_arguments(device)
    arguments |= {name: arguments[name].new_zeros(shape)}
    expected = "^" + re.escape(f"lltm::forward: expected {message}")
    with pytest.raises(RuntimeError, match=expected):
        torch.func.vmap(lambda c: torch.ops.lltm.forward(*list(arguments.values())[:4], c)[0])(
            arguments["old_cell"].expand(3, *arguments["old_cell"].shape)
        )
    with pytest.raises(RuntimeError, match=expected):
        torch.func.grad(lambda w: torch.ops.lltm.forward(*(arguments | {"weights": w}).values())[0].sum())(
            arguments["weights"]
        )


def test_double_backward_is_checked(device):
    arguments = want_gradients(backward_arguments(device)) | {"old_h": torch.zeros(6, 3, device=device)}
    expected = re.escape("lltm::backward: expected old_h of shape [batch, state_size] = [6, 4], got [6, 3]")
    with pytest.raises(RuntimeError, match=expected):
        torch.ops.lltm.backward(*arguments.values(), [True] * 5)


def test_fake_tensors_are_checked(device):
    arguments = forward_arguments(device)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {n: mode.from_tensor(t) for n, t in arguments.items()} | {"bias": torch.empty(11, device=device)}
        with pytest.raises(RuntimeError, match=re.escape("lltm::forward: expected " + BIAS + "[11]")):
            torch.ops.lltm.forward(*fakes.values())


def test_what_is_no_tensor(forward):
    arguments = forward.arguments()
    with pytest.raises(RuntimeError, match="lltm::forward.*weights"):
        torch.ops.lltm.forward(*(arguments | {"weights": "weights"}).values())
    with pytest.raises(RuntimeError, match="lltm::forward.*old_cell"):
        torch.ops.lltm.forward(*list(arguments.values())[:4])
