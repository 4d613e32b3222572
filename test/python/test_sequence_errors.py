"""The messages for invalid arguments of lltm::sequence and lltm::sequence_backward, on every path of a call.

T = 7, N = 6, I = 5, H = 4 throughout: weights are (12, 9).
"""

import re

import pytest
import torch
from sequence_reference import Sequence, Sizes, call, make, make_gradients

import lltm

FORWARD = Sequence._fields[:7]
INCOMING = ("grad_output", "grad_h_n", "grad_c_n", "grad_cells")
KEPT = ("output", "cells", "gates")
BACKWARD = (*INCOMING, *KEPT, *FORWARD)
REQUIRED = ("input", "weights", *KEPT)

WEIGHTS = "weights of shape [3*state_size, state_size+input_features]"
BIAS = "bias of shape [3*state_size] = [12], got "
STEPS = "{} of shape [steps, batch, state_size] = [7, 6, 4], got "
STATE = "{} of shape [batch, state_size] = [6, 4], got "
FORWARD_SHAPES = [
    ("input", (6, 5), "input of shape [steps, batch, input_features], got [6, 5]"),
    ("input", (7, 6, 5, 1), "input of shape [steps, batch, input_features], got [7, 6, 5, 1]"),
    ("input", (7, 6, 6), WEIGHTS + " = [12, 10], got [12, 9]"),
    ("weights", (12,), WEIGHTS + ", got [12]"),
    ("weights", (12, 8), WEIGHTS + " = [12, 9], got [12, 8]"),
    ("weights", (13, 9), WEIGHTS + ", its first size a multiple of 3, got [13, 9]"),
    ("bias", (11,), BIAS + "[11]"),
    ("bias", (1, 12), BIAS + "[1, 12]"),
    *((n, s, STATE.format(n) + str(list(s))) for n in ("h0", "c0") for s in [(4,), (1, 4), (6, 3), (1, 6, 4)]),
    *(("lengths", s, f"lengths of shape [batch] = [6], got {list(s)}") for s in [(), (1,), (7,), (6, 1)]),
    *(
        ("reset", s, f"reset of shape [steps, batch] = [7, 6], got {list(s)}")
        for s in [(7,), (6, 7), (1, 6), (7, 6, 1)]
    ),
]
BACKWARD_SHAPES = [
    *FORWARD_SHAPES,
    *(
        (n, s, STEPS.format(n) + str(list(s)))
        for n in ("grad_output", "grad_cells", "output", "cells")
        for s in [(6, 4), (6, 6, 4), (7, 6, 3)]
    ),
    *((n, s, STATE.format(n) + str(list(s))) for n in ("grad_h_n", "grad_c_n") for s in [(4,), (7, 6, 4)]),
    *(("gates", s, f"gates of shape [steps, batch, 3*state_size] = [7, 6, 12], got {list(s)}") for s in [(6, 12)]),
    *(
        (n, s, f"{n} of shape [steps, batch, {c}] = {[7, 6, s[2]]}, got {list(s)} (lltm::sequence returns all of it")
        for n, c, s in [("cells", "state_size", (0, 6, 4)), ("gates", "3*state_size", (0, 6, 12))]
    ),
]


def forward_arguments(device, dtype=torch.float32, cell_dtype=None) -> dict:
    arguments = make(Sizes(7, 6, 5, 4), dtype, device, lengths=True, reset=True, cell_dtype=cell_dtype)
    return dict(zip(FORWARD, arguments, strict=False))


def backward_arguments(device, dtype=torch.float32, cell_dtype=None) -> dict:
    arguments = Sequence(**forward_arguments(device, dtype, cell_dtype))
    output, _, _, cells, gates = call(arguments, keep=True)
    values = (*make_gradients(arguments), output, cells, gates, *arguments[:7])
    return dict(zip(BACKWARD, values, strict=True))


class Operator:
    """One of the two operators, and a way to call it that determines the first dispatch key."""

    def __init__(self, name, path, device):
        self.name, self.path, self.device = name, path, device
        self.names = FORWARD if name == "sequence" else BACKWARD

    def arguments(self, dtype=torch.float32, cell_dtype=None) -> dict:
        make_them = forward_arguments if self.name == "sequence" else backward_arguments
        return make_them(self.device, dtype, cell_dtype)

    def __call__(self, arguments: dict):
        if self.path == "gradients":
            arguments = {
                n: t.detach().requires_grad_() if t is not None and t.is_floating_point() else t
                for n, t in arguments.items()
            }
        rest = [] if self.name == "sequence" else [False, [True] * 5]
        with torch.set_grad_enabled(self.path != "no_grad"):
            return getattr(torch.ops.lltm, self.name)(*arguments.values(), *rest)

    def fails(self, arguments: dict, message: str):
        with pytest.raises(RuntimeError, match="^" + re.escape(f"lltm::{self.name}: expected {message}")):
            self(arguments)


@pytest.fixture(params=["plain", "gradients", "no_grad"])
def path(request):
    return request.param


@pytest.fixture(params=["sequence", "sequence_backward"])
def operator(request, path, device):
    return Operator(request.param, path, device)


def test_good_arguments_pass(operator):
    operator(operator.arguments())
    operator(operator.arguments(torch.bfloat16, cell_dtype=torch.float32))


@pytest.mark.parametrize(("name", "shape", "message"), BACKWARD_SHAPES, ids=str)
def test_shapes(operator, name, shape, message):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    arguments = operator.arguments()
    operator.fails(arguments | {name: arguments[name].new_zeros(shape)}, message)


@pytest.mark.parametrize("other", [torch.float64, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("name", [n for n in BACKWARD if n not in ("input", "lengths", "reset")])
def test_mixed_dtypes(operator, name, other):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    arguments = operator.arguments()
    whose = "c_n's" if name == "grad_c_n" else "input's"
    got = str(other).removeprefix("torch.")
    operator.fails(arguments | {name: arguments[name].to(other)}, f"{name} of {whose} dtype float32, got {got}")


def test_dtypes_of_lengths_and_reset(operator):
    arguments = operator.arguments()
    operator.fails(arguments | {"lengths": arguments["lengths"].int()}, "lengths of dtype int64, got int32")
    operator.fails(arguments | {"reset": arguments["reset"].byte()}, "reset of dtype bool, got uint8")


def test_dtypes_of_c0(operator):
    """c0 may be float32 with a 16-bit input, and must otherwise have input's dtype."""
    arguments = operator.arguments(torch.bfloat16)
    message = "c0 of dtype float32 or input's dtype bfloat16, got "
    for other in (torch.float64, torch.float16, torch.int64):
        operator.fails(arguments | {"c0": arguments["c0"].to(other)}, message + str(other).removeprefix("torch."))
    arguments = operator.arguments(torch.float64)
    operator.fails(arguments | {"c0": arguments["c0"].float()}, "c0 of input's dtype float64, got float32")
    operator.fails(arguments | {"h0": arguments["h0"].float()}, "h0 of input's dtype float64, got float32")


def test_the_gradient_of_c_n_has_its_dtype(path, device):
    operator = Operator("sequence_backward", path, device)
    arguments = operator.arguments(torch.bfloat16, cell_dtype=torch.float32)
    lower = arguments["grad_c_n"].bfloat16()
    operator.fails(arguments | {"grad_c_n": lower}, "grad_c_n of c_n's dtype float32, got bfloat16")


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64], ids=str)
def test_unsupported_dtypes(operator, dtype):
    arguments = operator.arguments()
    got = str(dtype).removeprefix("torch.")
    message = f"input of dtype float64, float32, float16 or bfloat16, got {got}"
    operator.fails(arguments | {"input": arguments["input"].to(dtype)}, message)


@pytest.mark.parametrize("name", REQUIRED)
def test_none_where_a_tensor_is_due(operator, name):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    operator.fails(operator.arguments() | {name: None}, f"{name} to be a tensor, got None")


@pytest.mark.parametrize("name", BACKWARD)
def test_another_device(operator, name):
    if name not in operator.names:
        pytest.skip("not an argument of this operator")
    arguments = operator.arguments()
    device = arguments["input"].device
    if name == "input":
        message = rf"expected \w+ on input's device meta, got {device}"
    else:
        message = f"expected {name} on input's device {device}, got meta"
    with pytest.raises(RuntimeError, match=f"^lltm::{operator.name}: {message}"):
        operator(arguments | {name: arguments[name].to("meta")})


@pytest.mark.parametrize("case", BACKWARD_SHAPES[::3], ids=str)
def test_meta_tensors_are_checked(case):
    name, shape, message = case
    operator = Operator("sequence_backward", "plain", "cpu")
    arguments = {n: t.to("meta") for n, t in operator.arguments().items()}
    operator.fails(arguments | {name: arguments[name].new_empty(shape)}, message)


@pytest.mark.parametrize("case", FORWARD_SHAPES[::3], ids=str)
def test_the_formula_below_transforms_is_checked(device, case):
    name, shape, message = case
    arguments = forward_arguments(device)
    arguments |= {name: arguments[name].new_zeros(shape)}
    with pytest.raises(RuntimeError, match="^" + re.escape(f"lltm::sequence: expected {message}")):
        torch.func.jvp(
            lambda w: torch.ops.lltm.sequence(**(arguments | {"weights": w}))[0], *[(arguments["weights"],)] * 2
        )


@pytest.mark.skipif(lltm.has_cuda, reason="lltm was built with CUDA")
@pytest.mark.parametrize("name", ["sequence", "sequence_backward"])
def test_a_build_without_cuda_says_so(name):
    """Calls the CUDA key directly, as the dispatcher would for a CUDA tensor."""
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    operator = Operator(name, "plain", "cpu")
    rest = [] if name == "sequence" else [False, [True] * 5]
    with pytest.raises(RuntimeError, match=f"^lltm was built without CUDA: .*lltm::{name} .*LLTM_CUDA"):
        getattr(torch.ops.lltm, name).default.redispatch(cuda, *operator.arguments().values(), *rest)
