"""The messages for invalid arguments of the operators, on every path of a call. hostile.py has those of
other layouts and of what is no tensor.

T = 7, N = 6, I = 5, H = 4 throughout (named_arguments.py): an LLTM's weights are (12, 9).
"""

import re

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.named_arguments import BACKWARDS, FORWARDS, NAMES, each_forward, optional

import lltm

ARGUMENTS = [(operator, name) for operator, names in NAMES.items() for name in names]

WEIGHTS = "weights of shape [3*state_size, state_size+input_features]"
WEIGHT_IH = "weight_ih of shape [4*state_size, input_features]"
WEIGHT_HH = "weight_hh of shape [4*state_size, state_size]"
COMMON_SHAPES = [
    ("weights", (12,), f"{WEIGHTS}, got [12]"),
    ("weights", (12, 9, 1), f"{WEIGHTS}, got [12, 9, 1]"),
    ("weights", (12, 8), f"{WEIGHTS} = [12, 9], got [12, 8]"),
    ("weights", (9, 9), f"{WEIGHTS} = [9, 8], got [9, 9]"),
    ("weights", (13, 9), f"{WEIGHTS}, its first size a multiple of 3, got [13, 9]"),
    *(("bias", s, f"bias of shape [3*state_size] = [12], got {list(s)}") for s in [(11,), (1,), (), (1, 12)]),
]
LSTM_SHAPES = [
    ("weight_ih", (16,), f"{WEIGHT_IH}, got [16]"),
    ("weight_ih", (16, 5, 1), f"{WEIGHT_IH}, got [16, 5, 1]"),
    ("weight_ih", (16, 4), f"{WEIGHT_IH} = [16, 5], got [16, 4]"),
    ("weight_ih", (12, 5), f"{WEIGHT_HH} = [12, 3], got [16, 4]"),
    ("weight_ih", (18, 5), f"{WEIGHT_IH}, its first size a multiple of 4, got [18, 5]"),
    *(
        ("weight_hh", s, f"{WEIGHT_HH} = [16, 4], got {list(s)}")
        for s in [(16,), (16, 5), (12, 4), (4, 16), (16, 4, 1)]
    ),
    *(("bias", s, f"bias of shape [4*state_size] = [16], got {list(s)}") for s in [(15,), (1,), (), (1, 16)]),
    *(("input", s, f"input of shape [steps, batch, input_features], got {list(s)}") for s in [(6, 5), (7, 6, 5, 1)]),
    ("input", (7, 6, 6), f"{WEIGHT_IH} = [16, 6], got [16, 5]"),
]


def input_shapes(terms, shapes, wider):
    of_other_ranks = [("input", shape, f"input of shape {terms}, got {list(shape)}") for shape in shapes]
    return [*of_other_ranks, ("input", wider, f"{WEIGHTS} = [12, 10], got [12, 9]")]


def shapes_of(names, terms, expected, *shapes):
    return [(n, s, f"{n} of shape {terms} = {expected}, got {list(s)}") for n in names for s in shapes]


def states(*names):
    shapes = [(4,), (6, 4, 1), (5, 4), (1, 4), (6, 3), (6, 1), (7, 6, 4)]
    return shapes_of(names, "[batch, state_size]", [6, 4], *shapes)


def kept(name, terms, expected, shape, operator="sequence"):
    ((_, _, message),) = shapes_of([name], terms, expected, shape)
    return name, shape, f"{message} (lltm::{operator} returns all of it with keep=True)"


OF_CELL = [*COMMON_SHAPES, *input_shapes("[batch, input_features]", [(6,), (6, 5, 1), ()], (6, 6))]
OF_EVERY_CELL = [
    *states("h0"),
    *shapes_of(["lengths"], "[batch]", [6], (), (1,), (7,), (6, 1)),
    *shapes_of(["reset"], "[steps, batch]", [7, 6], (7,), (6, 7), (1, 6), (7, 6, 1)),
]
OF_SEQUENCE = [
    *COMMON_SHAPES,
    *input_shapes("[steps, batch, input_features]", [(6, 5), (7, 6, 5, 1)], (7, 6, 6)),
    *states("c0"),
    *OF_EVERY_CELL,
]
STEPS = "[steps, batch, state_size]"


def results_and_gradients(forward, terms, gates):
    """Of a backward operator, beside the arguments of its forward."""
    return [
        *states("grad_h_n", "grad_c_n"),
        *shapes_of(["grad_output", "grad_cells", "output", "cells"], STEPS, [7, 6, 4], (6, 4), (6, 6, 4), (7, 6, 3)),
        *shapes_of(["gates"], terms, [7, 6, gates], (6, gates), (7, 6, 4)),
        kept("cells", STEPS, [7, 6, 4], (0, 6, 4), forward),
        kept("gates", terms, [7, 6, gates], (0, 6, gates), forward),
    ]


GRU_IH = "weight_ih of shape [3*state_size, input_features]"
GRU_HH = "weight_hh of shape [3*state_size, state_size]"
GRU_SHAPES = [
    ("weight_ih", (13, 5), f"{GRU_IH}, its first size a multiple of 3, got [13, 5]"),
    ("weight_hh", (12, 5), f"{GRU_HH} = [12, 4], got [12, 5]"),
    *shapes_of(["bias_ih", "bias_hh"], "[3*state_size]", [12], (11,), (1,), (), (1, 12)),
    ("input", (7, 6, 6), f"{GRU_IH} = [12, 6], got [12, 5]"),
    *OF_EVERY_CELL,
]


SHAPES = {
    "forward": [*OF_CELL, *states("old_h", "old_cell")],
    "backward": [
        *OF_CELL,
        *states("old_h", "new_cell", "grad_h", "grad_cell"),
        *shapes_of(["gates"], "[batch, 3*state_size]", [6, 12], (6,), (6, 12, 1), (5, 12), (6, 11), (6, 4)),
    ],
    "sequence": OF_SEQUENCE,
    "sequence_backward": [*OF_SEQUENCE, *results_and_gradients("sequence", "[steps, batch, 3*state_size]", 12)],
    "lstm": [*LSTM_SHAPES, *states("c0"), *OF_EVERY_CELL],
    "lstm_backward": [
        *LSTM_SHAPES,
        *states("c0"),
        *OF_EVERY_CELL,
        *results_and_gradients("lstm", "[steps, batch, 4*state_size]", 16),
    ],
    "gru": GRU_SHAPES,
    "gru_backward": [
        *GRU_SHAPES,
        *states("grad_h_n"),
        *shapes_of(["grad_output", "output"], STEPS, [7, 6, 4], (6, 4), (6, 6, 4), (7, 6, 3)),
        *shapes_of(["gates"], "[steps, batch, 4*state_size]", [7, 6, 16], (6, 16), (7, 6, 4)),
        kept("gates", "[steps, batch, 4*state_size]", [7, 6, 16], (0, 6, 16), "gru"),
    ],
}
UNSUPPORTED = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn]


class Operator:
    """One of the operators, and a way to call it that determines the first dispatch key."""

    def __init__(self, name, path="plain", device="cpu"):
        self.name, self.path, self.device = name, path, device
        self.names = NAMES[name]
        self.state = named_arguments.CELLS[name].states[-1]
        self.carried = self.state[0]

    def arguments(self, dtype=torch.float32, cell_dtype=None) -> dict:
        return named_arguments.make(self.name, self.device, dtype, cell_dtype)

    def __call__(self, arguments: dict, mask=None):
        if self.path == "gradients":
            arguments = {
                n: t.detach().requires_grad_() if t is not None and (t.is_floating_point() or t.is_complex()) else t
                for n, t in arguments.items()
            }
        return named_arguments.call(self.name, arguments, mask)

    def fails(self, arguments: dict, message: str):
        with pytest.raises(RuntimeError, match="^" + re.escape(f"lltm::{self.name}: expected {message}")):
            self(arguments)


@pytest.fixture(params=["plain", "gradients"])
def path(request):
    return request.param


@pytest.fixture
def operator(request, path, device):
    return Operator(request.param, path, device)


each_operator = pytest.mark.parametrize("operator", NAMES, indirect=True)
each_argument = pytest.mark.parametrize(("operator", "name"), ARGUMENTS, indirect=["operator"])
sequences = pytest.mark.parametrize("operator", list(NAMES)[2:], indirect=True)


@each_operator
def test_good_arguments_pass(operator):
    operator(operator.arguments())


@sequences
def test_the_carried_state_may_be_float32(operator):
    operator(operator.arguments(torch.bfloat16, cell_dtype=torch.float32))


@pytest.mark.parametrize(
    ("operator", "name", "shape", "message"),
    [(operator, *case) for operator, cases in SHAPES.items() for case in cases],
    indirect=["operator"],
    ids=str,
)
def test_shapes(operator, name, shape, message):
    arguments = operator.arguments()
    operator.fails(arguments | {name: arguments[name].new_zeros(shape)}, message)


@each_operator
def test_another_batch(operator):
    """The batch is taken from input, so the message names the first of the other arguments."""
    arguments = operator.arguments()
    first = {"forward": "old_h", "backward": "grad_h"}.get(operator.name, "h0")
    message = f"{first} of shape [batch, state_size] = [7, 4], got [6, 4]"
    *steps, _, features = arguments["input"].shape
    operator.fails(arguments | {"input": arguments["input"].new_zeros(*steps, 7, features)}, message)


@pytest.mark.parametrize("other", [torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize(
    ("operator", "name"), [a for a in ARGUMENTS if a[1] not in ("input", "lengths", "reset")], indirect=["operator"]
)
def test_mixed_dtypes(operator, name, other):
    arguments = operator.arguments()
    whose = f"{name[5:]}'s" if name == f"grad_{operator.carried}_n" else "input's"
    got = str(other).removeprefix("torch.")
    operator.fails(arguments | {name: arguments[name].to(other)}, f"{name} of {whose} dtype float32, got {got}")


@each_operator
def test_float32_among_float64(operator):
    arguments = operator.arguments(torch.float64)
    name = "weight_ih" if "weight_ih" in arguments else "weights"
    operator.fails(arguments | {name: arguments[name].float()}, f"{name} of input's dtype float64, got float32")


@sequences
def test_dtypes_of_lengths_and_reset(operator):
    arguments = operator.arguments()
    for dtype in (torch.int16, torch.uint8, torch.float32, torch.bool):
        got = str(dtype).removeprefix("torch.")
        lengths = arguments["lengths"].to(dtype)
        operator.fails(arguments | {"lengths": lengths}, f"lengths of dtype int32 or int64, got {got}")
    for dtype in (torch.float32, torch.uint8, torch.int64):
        got = str(dtype).removeprefix("torch.")
        operator.fails(
            arguments | {"reset": arguments["reset"].to(dtype)},
            f"reset of dtype bool (True where an episode begins), got {got}: write episode_starts.bool(), or mask == 0 "
            "for a mask that keeps the state",
        )


@sequences
def test_dtypes_of_the_carried_state(operator):
    """It may be float32 with a 16-bit input, and must otherwise have input's dtype."""
    state = operator.state
    arguments = operator.arguments(torch.bfloat16)
    message = f"{state} of dtype float32 or input's dtype bfloat16, got "
    for other in (torch.float64, torch.float16, torch.int64):
        operator.fails(arguments | {state: arguments[state].to(other)}, message + str(other).removeprefix("torch."))
    arguments = operator.arguments(torch.float64)
    for name in named_arguments.CELLS[operator.name].states:
        operator.fails(arguments | {name: arguments[name].float()}, f"{name} of input's dtype float64, got float32")


@pytest.mark.parametrize("name", BACKWARDS[1:])
def test_the_gradient_of_the_carried_state_has_its_dtype(path, device, name):
    operator = Operator(name, path, device)
    arguments = operator.arguments(torch.bfloat16, cell_dtype=torch.float32)
    last = f"{operator.carried}_n"
    lower = arguments[f"grad_{last}"].bfloat16()
    operator.fails(arguments | {f"grad_{last}": lower}, f"grad_{last} of {last}'s dtype float32, got bfloat16")


@pytest.mark.parametrize("dtype", UNSUPPORTED, ids=str)
@pytest.mark.parametrize("which", ["input", "all"])
@each_operator
def test_unsupported_dtypes(operator, which, dtype):
    arguments = {n: t.to(dtype) if which in (n, "all") else t for n, t in operator.arguments().items()}
    got = str(dtype).removeprefix("torch.")
    operator.fails(arguments, f"input of dtype float64, float32, float16 or bfloat16, got {got}")


@pytest.mark.parametrize(
    ("operator", "name"),
    [(operator, name) for operator, name in ARGUMENTS if name not in optional(operator)],
    indirect=["operator"],
)
def test_none_where_a_tensor_is_due(operator, name):
    operator.fails(operator.arguments() | {name: None}, f"{name} to be a tensor, got None or an undefined tensor")


@each_operator
def test_nothing_but_none(operator):
    first = {"backward": "new_cell"}.get(operator.name, "output" if "_backward" in operator.name else "input")
    operator.fails(dict.fromkeys(operator.names), f"{first} to be a tensor, got None or an undefined tensor")


def assert_another_device_fails(operator, name, other):
    arguments = operator.arguments()
    here = arguments["input"].device
    moved = arguments[name].to(other)
    # The message names an argument that is not where input is.
    message = rf"\w+ on input's device {moved.device}, got {here}"
    if name != "input":
        message = f"{name} on input's device {here}, got {moved.device}"
    with pytest.raises(RuntimeError, match=f"^lltm::{operator.name}: expected {message}"):
        operator(arguments | {name: moved})


@each_argument
def test_meta_among_others(operator, name):
    assert_another_device_fails(operator, name, "meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@each_argument
def test_cpu_and_cuda(operator, name):
    assert_another_device_fails(operator, name, "cpu" if operator.device.type == "cuda" else "cuda")


@pytest.mark.parametrize("length", [0, 4, 6])
@pytest.mark.parametrize("operator", BACKWARDS, indirect=True)
def test_masks_of_a_wrong_length(operator, length):
    """PyTorch's own conversion error, which does not name the argument."""
    flags = len(named_arguments.mask_of(operator.name, ()))
    length += length == flags
    message = f"^Tried to convert a List with {length} elements to a fixed-size array of size {flags}$"
    with pytest.raises(RuntimeError, match=message):
        operator(operator.arguments(), mask=[True] * length)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in SHAPES.items() for case in cases[::3]], ids=str
)
def test_meta_tensors_are_checked(name, case):
    argument, shape, message = case
    operator = Operator(name)
    arguments = {n: t.to("meta") for n, t in operator.arguments().items()}
    operator.fails(arguments | {argument: arguments[argument].new_empty(shape)}, message)


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
@pytest.mark.parametrize(("name", "case"), [(name, case) for name in FORWARDS for case in SHAPES[name][::3]], ids=str)
def test_the_formula_below_transforms_is_checked(device, name, case, transform):
    argument, shape, message = case
    arguments = Operator(name, device=device).arguments()
    arguments |= {argument: arguments[argument].new_zeros(shape)}
    name_of_weights = named_arguments.WEIGHTS[name]
    weights = arguments[name_of_weights]

    def function(weights):
        return getattr(torch.ops.lltm, name)(**(arguments | {name_of_weights: weights}))[0].sum()

    with pytest.raises(RuntimeError, match="^" + re.escape(f"lltm::{name}: expected {message}")):
        if transform == "vmap":
            torch.func.vmap(function)(weights.expand(3, *weights.shape))
        elif transform == "grad":
            torch.func.grad(function)(weights)
        else:
            torch.func.jvp(function, (weights,), (weights,))


@pytest.mark.parametrize("name", NAMES)
def test_none_where_a_tensor_is_due_below_vmap(device, name):
    operator = Operator(name, device=device)
    arguments, name_of_weights = operator.arguments() | {"input": None}, named_arguments.WEIGHTS[name]
    weights = arguments[name_of_weights]
    with pytest.raises(RuntimeError, match=f"^lltm::{name}: expected input to be a tensor, got None or an undefined"):
        torch.func.vmap(lambda w: operator(arguments | {name_of_weights: w})[0])(weights.expand(3, *weights.shape))


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors_are_checked(device, name):
    operator = Operator(name, device=device)
    arguments = operator.arguments()
    with torch._subclasses.FakeTensorMode() as mode:
        bias, gates = named_arguments.CELLS[name].bias_names()[0], named_arguments.CELLS[name].gates
        fakes = {n: mode.from_tensor(t) for n, t in arguments.items()} | {bias: torch.empty(11, device=device)}
        operator.fails(fakes, f"{bias} of shape [{gates}*state_size] = [{4 * gates}], got [11]")


@pytest.mark.skipif(lltm.has_cuda, reason="lltm was built with CUDA")
@pytest.mark.parametrize("name", NAMES)
def test_a_build_without_cuda_says_so(name):
    """Calls the CUDA key directly, as the dispatcher would for a CUDA tensor."""
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    values = *named_arguments.make(name).values(), *named_arguments.after_tensors(name)
    message = (
        f"lltm was built without CUDA: lltm::{name} cannot take CUDA tensors. Move them to the CPU, or rebuild lltm "
        "with CUDA: `CMAKE_ARGS=-DLLTM_CUDA=ON pip install --no-build-isolation .` in a checkout, or cmake with "
        "-DLLTM_CUDA=ON. This needs the CUDA Toolkit and a CUDA build of PyTorch."
    )
    with pytest.raises(RuntimeError, match="^" + re.escape(message)):
        getattr(torch.ops.lltm, name).default.redispatch(cuda, *values)


@pytest.mark.skipif(lltm.has_cuda or not torch.cuda.is_available(), reason="no GPU, or lltm was built with CUDA")
@pytest.mark.parametrize("path", ["plain", "gradients"])
def test_a_cuda_tensor_in_a_build_without_cuda(path):
    operator = Operator("forward", path)
    with pytest.raises(RuntimeError, match="^lltm was built without CUDA"):
        operator({name: tensor.cuda() for name, tensor in operator.arguments().items()})


@pytest.mark.parametrize("operator", ["sequence", "lstm", "gru"])
def test_a_plan_is_for_a_gpu(operator):
    plan = f"{operator}_plan"
    with pytest.raises(RuntimeError, match=f"^lltm::{plan}: expected input on a CUDA device, got cpu$"):
        getattr(lltm.ops, plan)(**named_arguments.make(operator))


@each_forward
def test_an_unknown_choice_of_products(monkeypatch, operator):
    arguments = named_arguments.make(operator)
    monkeypatch.setenv("LLTM_CPU_GEMM", "mine")
    message = "^lltm: expected the environment variable LLTM_CPU_GEMM to be auto, own or aten, got mine$"
    with pytest.raises(RuntimeError, match=message):
        named_arguments.call(operator, arguments)
