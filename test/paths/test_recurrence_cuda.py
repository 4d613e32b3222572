"""The kernels that run all steps of a sequence on a GPU, each forced by its name."""

import contextlib
import ctypes
import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from lltm_testing.gpus import kernels_of, skip_without_clusters, skip_without_wgmma, with_what_is_missing
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import (
    Gru,
    Lstm,
    Sequence,
    Sizes,
    assert_gradients_close,
    assert_results_close,
    call,
    call_backward,
    kept_of,
    make,
    make_gradients,
    ragged,
)

import lltm

pytestmark = pytest.mark.usefixtures("needs_cuda")

DTYPES = {"fma": (torch.float32,), "mma": (torch.float16, torch.bfloat16)}  # of a product
CELLS = {None: Sequence, "lstm_": Lstm, "gru_": Gru}


class Kernel(NamedTuple):
    name: str
    cell: type[Sequence | Lstm | Gru]
    dtype: torch.dtype
    state_size: int  # the largest

    def arguments(self, sizes: Sizes, **flags) -> Sequence | Lstm | Gru:
        return make(sizes, self.dtype, "cuda", cell=self.cell, **flags)


def kernels() -> list:
    """Those that the library lists, each for every dtype that it takes; none without CUDA."""
    if not lltm.has_cuda:
        return []
    library = ctypes.CDLL(str(lltm.library_path))
    library.lltm_cuda_paths.restype = ctypes.c_char_p
    found = []
    for name in library.lltm_cuda_paths().decode().split():
        if name.startswith("recurrence_"):
            match = re.match(r"recurrence_(lstm_|gru_)?(fma|mma)_(\d+)x", name)
            if match is None:  # those across the grid have a test of their own
                continue
            cell, product, state = match.groups()
            for dtype in DTYPES[product]:
                kernel = Kernel(name, CELLS[cell], dtype, int(state))
                found.append(pytest.param(kernel, id=f"{name.removeprefix('recurrence_')}-{str(dtype)[6:]}"))
    return found


KERNELS = kernels()
X_INSIDE = [param for param in KERNELS if param.values[0].name.endswith("_x")]
IN_CLUSTERS = [param for param in KERNELS if "cluster" in param.values[0].name]
# LLTM and LSTM in every dtype that has kernels, each of blocks by themselves, of clusters and across the grid.
RECURRENT = [
    pytest.param((path, cell, dtype), id=f"{path}-{cell.__name__}-{str(dtype)[6:]}")
    for path in ("block", "cluster", "grid")
    for cell, dtype in dict.fromkeys((param.values[0].cell, param.values[0].dtype) for param in KERNELS)
    if cell is not Gru
]
of_lltm = pytest.mark.parametrize("recurrent", [p for p in RECURRENT if p.values[0][1] is Sequence], indirect=True)


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch) -> Kernel:
    """Forces a kernel."""
    if request.param in [param.values[0] for param in IN_CLUSTERS]:
        skip_without_clusters()
    monkeypatch.setenv("LLTM_CUDA_PATH", request.param.name)
    return request.param


@pytest.fixture(params=RECURRENT)
def recurrent(request, monkeypatch) -> Callable[..., Sequence | Lstm]:
    """Forces a kernel for all steps. Makes the arguments of every cell and dtype that has one."""
    path, cell, dtype = request.param
    if path == "cluster":
        skip_without_clusters()
    monkeypatch.setenv("LLTM_CUDA_PATH", path)
    return functools.partial(make, dtype=dtype, device="cuda", cell=cell)


@pytest.fixture
def many_rows(request) -> Callable[[int, int], tuple[int, int]]:
    """As many rows in all, but of more steps across the grid, where all of them run at the same time."""
    factor = 1024 if request.node.callspec.params["recurrent"][0] == "grid" else 1
    return lambda steps, rows: (factor * steps, rows // factor)


def plan_of(arguments: Sequence | Lstm | Gru) -> str:
    return getattr(torch.ops.lltm, f"{arguments.operator}_plan")(*arguments)


def backward_of(arguments: Sequence | Lstm | Gru) -> Callable:
    return getattr(torch.ops.lltm, f"{arguments.operator}_backward")


def check(arguments):
    """Results and gradients are as close to float64 as rounding allows, and the same again."""
    results = call(arguments, keep=True)
    assert_results_close(results, arguments, keep=True)
    last = 1 + len(arguments.states)
    assert_identical(call(arguments)[:last], results[:last])
    gradients = make_gradients(arguments)
    found = call_backward(gradients, arguments)
    assert_gradients_close(found, gradients, arguments)
    assert_identical(call_backward(gradients, arguments), found)


# Whole and partial tiles of rows, and columns of which some do not exist.
@pytest.mark.parametrize(
    ("rows_of_their_own", "reverse"), [(False, False), (True, False), (True, True)], ids=["plain", "rows", "reverse"]
)
@pytest.mark.parametrize("missing", [0, 1, 11])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (2, 5), (9, 8), (5, 33)])
def test_every_kernel(kernel, steps, rows, missing, rows_of_their_own, reverse):
    sizes = Sizes(steps, rows, 6, kernel.state_size - missing)
    arguments = kernel.arguments(sizes, lengths=rows_of_their_own, reset=rows_of_their_own, reverse=reverse)
    if missing == 0 and not kernel.name.endswith("_x"):  # others need pairs of elements
        assert f"kernel={kernel.name} " in plan_of(arguments)
    check(arguments)


@contextlib.contextmanager
def skipped_without_room():
    """Skips the rest of a test if the GPU has no room for the blocks of a recurrence across the grid."""
    try:
        yield
    except RuntimeError as error:
        if "on which all its blocks have to be resident" not in str(error):
            raise
        pytest.skip(str(error))


# Of tiles of the recurrence across the grid the largest state, and rows that make teams take one group or several.
# More steps than V has slots.
@pytest.mark.parametrize(
    ("rows_of_their_own", "reverse"), [(False, False), (True, False), (True, True)], ids=["plain", "rows", "reverse"]
)
@pytest.mark.parametrize("state_size", [1, 9, 128, 251, 256, 384, 512, 765, 768, 1024])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (3, 8), (37, 5), (20, 21)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_grid(cell, dtype, steps, rows, state_size, rows_of_their_own, reverse, monkeypatch):
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    sizes = Sizes(steps, rows, 6, state_size)
    arguments = make(
        sizes, dtype, "cuda", cell=cell, lengths=rows_of_their_own, reset=rows_of_their_own, reverse=reverse
    )
    if cell is not Gru:
        with skipped_without_room():
            plan = plan_of(arguments)
        assert f"kernel={'recurrence_lstm_grid' if cell is Lstm else 'recurrence_grid'} " in plan
    check_across_the_grid(arguments)


def check_across_the_grid(arguments):
    """As check(), for as much as the GPU has room for."""
    with skipped_without_room():
        gradients = make_gradients(arguments)
        results = call(arguments, keep=True)
    assert_results_close(results, arguments, keep=True)
    last = 1 + len(arguments.states)
    assert_identical(call(arguments)[:last], results[:last])
    with skipped_without_room():
        found = call_backward(gradients, arguments)
    assert_gradients_close(found, gradients, arguments)
    assert_identical(call_backward(gradients, arguments), found)


# The last carries h itself, and does not read it rounded.
@pytest.mark.parametrize("sizes", [(37, 9, 6, 251), (20, 70, 6, 384), (5, 21, 6, 1024)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_grid_with_a_state_in_float32(cell, dtype, sizes, monkeypatch):
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    check_across_the_grid(
        make(sizes, dtype, "cuda", cell=cell, cell_dtype=torch.float32, lengths=True, reset=True, reverse=True)
    )


@pytest.mark.parametrize("sizes", [(20, 21, 6, 200), (5, 70, 6, 384), (3, 9, 6, 512)], ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_grid_in_tf32(cell, sizes, set_tf32, monkeypatch):
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    set_tf32(True)
    check_across_the_grid(make(sizes, torch.float32, "cuda", cell=cell, lengths=True, reset=True))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("allow_tf32", [False, True], ids=["float32", "tf32"])
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_grid_of_large_states(cell, allow_tf32, reverse, set_tf32, monkeypatch):
    """The range of the float16 in which h is multiplied follows h0, as long as a row has not been reset."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    set_tf32(allow_tf32)
    arguments = make((20, 21, 6, 200), torch.float32, "cuda", cell=cell, lengths=True, reset=True, reverse=reverse)
    if cell is Gru:
        arguments.bias_ih[200:400] = 6.0  # an update gate near 1
    for factor in (8.0, 1e-9):
        other = arguments._replace(h0=arguments.h0 * factor)
        results = call(other, keep=True)
        assert_results_close(results, other, keep=True)
    arguments = arguments._replace(lengths=None)
    arguments.reset[10] = True
    last = slice(0, 11) if reverse else slice(10, None)  # which no h0 reaches
    expected = call(arguments, keep=True)
    for factor in (1e30, 1e-30):
        found = call(arguments._replace(h0=arguments.h0 * factor), keep=True)
        assert_identical([found[0][last], found[-1][last]], [expected[0][last], expected[-1][last]])


@pytest.mark.parametrize("allow_tf32", [False, True], ids=["float32", "tf32"])
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_grid_of_weights_of_any_size(cell, allow_tf32, set_tf32, monkeypatch):
    """A row of weights is multiplied in float16, beyond whose range its scale is. With 2^k times the row, its part of a
    gate has the same bits, times 2^k."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    set_tf32(allow_tf32)
    arguments = make((1, 9, 0, 200), torch.float32, "cuda", cell=cell, bias=False)
    name = "weights" if cell is Sequence else "weight_hh"
    weights = getattr(arguments, name)
    factors = torch.linspace(-100, 100, len(weights), device="cuda").round().exp2()
    scaled = arguments._replace(**{name: weights * factors[:, None]})
    if cell is Gru:  # whose gates have the candidate's part of the input, too, which is zero
        factors = torch.cat([factors[:400], factors.new_ones(200), factors[400:]])
    gates, found = (call(of, keep=True)[-1][0] for of in (arguments, scaled))
    assert gates[:, :200].abs().min() > 0
    assert_identical([found], [gates * factors])


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("spoiled", ["input", "h0", "weights", "gradients"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_the_bits_of_an_empty_slot(cell, dtype, spoiled, reverse, monkeypatch):
    """They are a NaN, which counts as any other where a caller writes it."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    empty = torch.full((), -1, dtype=torch.int16 if dtype.itemsize == 2 else torch.int32, device="cuda").view(dtype)
    nan = torch.full((), torch.nan, dtype=dtype, device="cuda")
    arguments = make((20, 9, 6, 40), dtype, "cuda", cell=cell, lengths=True, reset=True, reverse=reverse)
    arguments.lengths[0] = 0
    gradients = make_gradients(arguments)
    if spoiled == "weights" and cell is not Sequence:
        spoiled = "weight_hh"

    def call_with(value):
        other, others = arguments, gradients
        if spoiled == "gradients":
            others = [value.expand_as(gradient).contiguous() for gradient in gradients]
        else:
            tensor = getattr(arguments, spoiled)
            other = arguments._replace(**{spoiled: value.expand_as(tensor).contiguous()})
        return (*call(other, keep=True), *call_backward(others, other))

    for found, expected in zip(call_with(empty), call_with(nan), strict=True):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_backward_across_the_grid_of_weights_that_are_not_finite(cell, dtype, monkeypatch):
    """The gradient of h0 is infinite or NaN where it is in float64: where it reads an infinity, a NaN or both."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    arguments = make((1, 9, 6, 40), dtype, "cuda", cell=cell)
    gradients, kept = make_gradients(arguments), kept_of(arguments, call(arguments, keep=True))
    name = "weights" if cell is Sequence else "weight_hh"
    weights = getattr(arguments, name).clone()
    weights[[7, 8, 9, 90], [2, 3, 4, 4]] = weights.new_tensor([torch.inf, torch.nan, torch.inf, torch.nan])
    spoiled = arguments._replace(**{name: weights})

    def d_h0(arguments, convert):
        tensors = [convert(tensor) for tensor in (*gradients, *kept)]
        mask = [of == "h0" for of in arguments.names]
        return backward_of(arguments)(*tensors, *arguments.map(convert), mask)[mask.index(True)].cpu()

    found, exact = d_h0(spoiled, lambda tensor: tensor), d_h0(spoiled, lambda tensor: tensor.double().cpu())
    assert exact[:, 2].isinf().all() and exact[:, 3:5].isnan().all() and exact[:, 5:].isfinite().all()
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.isinf(), exact.isinf())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", [Sequence, Lstm, Gru])
def test_inputs_across_the_grid_that_are_not_finite(cell, dtype, monkeypatch):
    """Also in float32, whose elements are taken apart: the parts of an infinity must not cancel out."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "grid")
    arguments = make((4, 5, 24, 40), dtype, "cuda", cell=cell)
    arguments.input[0, 1, 2], arguments.input[1, 3, 5] = torch.inf, -torch.inf
    arguments.input[2, 2, 7], arguments.input[3, 4, :2] = torch.nan, torch.inf
    exact = call(arguments.map(lambda tensor: tensor.double().cpu()))
    for found, expected in zip(call(arguments), exact, strict=True):
        torch.testing.assert_close(found.double().cpu(), expected, rtol=0.05, atol=0.05, equal_nan=True)


@pytest.mark.parametrize("missing", [0, 1, 66])
@pytest.mark.parametrize("rows", [100, 263, 700])
@pytest.mark.parametrize("kernel", IN_CLUSTERS, indirect=True)
def test_clusters_of_many_rows(kernel, rows, missing):
    arguments = kernel.arguments(Sizes(4, rows, 5, kernel.state_size - missing), lengths=True, reset=True)
    blocks = kernel.name.rpartition("cluster")[2]
    assert f"kernel={kernel.name} cluster={blocks} rows=" in plan_of(arguments)
    check(arguments)


@pytest.fixture(params=X_INSIDE)
def x_inside(request, monkeypatch) -> Kernel:
    """Forces a kernel that multiplies the input itself, where it can. It takes as many inputs as columns of a state."""
    monkeypatch.setenv("LLTM_CUDA_PATH", request.param.name)
    return request.param


def takes_x_inside(arguments) -> bool:
    plan = plan_of(arguments)
    inside = re.fullmatch(r"kernel=recurrence_\w+_x cluster=1 rows=\d+ x=inside( tf32=off .+)?", plan) is not None
    assert inside or "recurrence" not in plan
    return inside


@pytest.mark.parametrize("rows_of_their_own", [False, True], ids=["plain", "rows"])
@pytest.mark.parametrize("input_features", [0, 1, 2, 6, 7, 8, 32, 33, 64, 65, 100, 126, 128, 129, 130])
@pytest.mark.parametrize("missing", [0, 22])
def test_input_features_inside(x_inside, missing, input_features, rows_of_their_own):
    sizes = Sizes(6, 41, input_features, x_inside.state_size - missing)
    arguments = x_inside.arguments(sizes, lengths=rows_of_their_own, reset=rows_of_their_own)
    in_pairs = x_inside.dtype == torch.float32 or input_features % 2 == 0
    assert takes_x_inside(arguments) == (0 < input_features <= x_inside.state_size and in_pairs)
    check(arguments)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_layouts_of_what_is_multiplied_inside(x_inside, reverse):
    """Each is computed as its contiguous copy is, to the bit, unless pairs of the input are not aligned."""
    arguments = x_inside.arguments((7, 35, 24, 30), lengths=True, reset=True, reverse=reverse)
    expected = call(arguments, keep=True)
    inputs, (bias_name, *_) = arguments.input, arguments.bias_names()
    bias = getattr(arguments, bias_name)
    wide = torch.full((7, 35, 34), torch.nan, dtype=inputs.dtype, device="cuda")
    wide[..., 2:26] = inputs
    layouts = [
        arguments._replace(input=inputs.transpose(0, 1).contiguous().transpose(0, 1)),
        arguments._replace(input=wide[..., 2:26]),
        arguments._replace(**{bias_name: torch.stack([bias, bias], dim=1)[:, 0]}),
    ]
    for name in arguments._fields:
        if name.startswith("weight"):
            weights = getattr(arguments, name)
            columns = weights.size(1)
            layouts += [
                arguments._replace(**{name: weights.t().contiguous().t()}),
                arguments._replace(**{name: torch.cat([weights, weights], dim=1)[:, :columns]}),
                arguments._replace(**{name: torch.cat([weights[:, :1], weights], dim=1)[:, 1:]}),
            ]
    for layout in layouts:
        assert takes_x_inside(layout)
        assert_identical(call(layout, keep=True), expected)
    wide[..., 1:25] = inputs
    for layout in (wide[..., 1:25], inputs.transpose(1, 2).contiguous().transpose(1, 2)):
        odd = arguments._replace(input=layout)
        assert takes_x_inside(odd) == (x_inside.dtype == torch.float32)
        assert_results_close(call(odd, keep=True), odd, keep=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_input_beyond_a_length_inside(x_inside, value):
    arguments = x_inside.arguments((6, 37, 18, 30), lengths=True, reset=True)
    results = call(arguments, keep=True)
    beyond = torch.arange(6, device="cuda").unsqueeze(1) >= arguments.lengths
    spoiled = arguments._replace(input=arguments.input.masked_fill(beyond.unsqueeze(2), value))
    assert takes_x_inside(spoiled)
    assert_identical(call(spoiled, keep=True), results)


def workspace_bytes(arguments) -> int:
    """What a call allocates beside its results, after a first one."""
    call(arguments)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = call(arguments)
    outputs = sum(result.untyped_storage().nbytes() for result in results)
    return torch.cuda.max_memory_allocated() - before - outputs


def test_inside_there_is_no_workspace(x_inside):
    arguments = x_inside.arguments((64, 4096, 16, 32))
    assert takes_x_inside(arguments)
    assert workspace_bytes(arguments) <= 1 << 20


# In tiles of 64 and of 128 rows, with rows of z_x that start at pairs of elements, and with others. Of the last, the
# input and the weights are copied.
LARGE_INPUTS = [(2, 1056, 2000, 64), (2, 1056, 2000, 95), (4, 4200, 96, 64), (8, 2000, 128, 99), (6, 500, 510, 201)]


@pytest.fixture
def large_input(request, monkeypatch) -> tuple[int, int, int, int]:
    """Sizes at which a kernel of this library multiplies the input in float32."""
    skip_without_wgmma()
    monkeypatch.setenv("LLTM_CUDA_PATH", "cluster" if request.param[3] > 128 else "block")
    return request.param


def large_inputs(sizes):
    return pytest.mark.parametrize("large_input", sizes, ids=str, indirect=True)


def runs_wgmma(arguments) -> bool:
    """Whether a kernel of this library multiplies a large input."""
    return any("input_product_wgmma" in name for name in kernels_of(lambda: call(arguments)))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@large_inputs(LARGE_INPUTS)
def test_large_inputs(large_input, bias):
    arguments = make(large_input, device="cuda", bias=bias, reset=True)
    assert runs_wgmma(arguments)
    results = call(arguments, keep=True)
    assert_results_close(results, arguments, keep=True)
    assert_identical(call(arguments)[:3], results[:3])
    # Where nothing comes from h, gates are the product and the bias.
    steps, rows, features, state_size = large_input
    without_h = arguments.weights.clone()
    without_h[:, :state_size] = 0
    gates = call(arguments._replace(weights=without_h), keep=True)[4].reshape(steps * rows, -1).double()
    input = arguments.input.reshape(steps * rows, features).double()
    added = arguments.bias.double() if bias else 0
    exact = input @ arguments.weights[:, state_size:].double().t() + added
    by_library = (input.float() @ arguments.weights[:, state_size:].t()).double() + added
    assert (gates - exact).abs().max() <= 2 * (by_library - exact).abs().max()


@large_inputs([LARGE_INPUTS[2], LARGE_INPUTS[-1]])
def test_layouts_of_large_inputs(large_input):
    """Each is computed as its contiguous copy is, to the bit."""
    arguments = make(large_input, device="cuda")
    expected = call(arguments, keep=True)
    input, weights, bias = arguments.input, arguments.weights, arguments.bias

    def inside_wider_rows(first):
        wide = torch.full((*input.shape[:2], input.size(2) + 8), torch.nan, device="cuda")
        wide[..., first : first + input.size(2)] = input
        return wide[..., first : first + input.size(2)]

    for layout in [
        {"input": input.transpose(0, 1).contiguous().transpose(0, 1)},
        {"input": inside_wider_rows(3)},
        {"input": inside_wider_rows(4)},
        {"weights": weights.t().contiguous().t()},
        {"weights": torch.cat([weights[:, :1], weights], dim=1)[:, 1:]},
        {"bias": torch.stack([bias, bias], dim=1)[:, 0]},
    ]:
        other = arguments._replace(**layout)
        assert runs_wgmma(other)
        assert_identical(call(other, keep=True), expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@large_inputs(LARGE_INPUTS[2:])
def test_large_inputs_beyond_a_length(large_input, value):
    arguments, other, beyond = ragged(make(large_input, device="cuda"))
    other = other._replace(input=arguments.input.masked_fill(beyond.unsqueeze(2), value))
    assert runs_wgmma(other)
    assert_identical(call(other, keep=True), call(arguments, keep=True))


@large_inputs([(96, 1024, 300, 128)])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "offset"])
def test_the_workspace_of_large_inputs(large_input, layout):
    """A copy of the input counts."""
    arguments = make(large_input, device="cuda")
    if layout == "transposed":
        arguments = arguments._replace(input=arguments.input.transpose(0, 1).contiguous().transpose(0, 1))
    elif layout == "offset":
        memory = torch.cat([arguments.bias[:1], arguments.input.flatten()])
        arguments = arguments._replace(input=memory[1:].view_as(arguments.input))
    assert runs_wgmma(arguments)
    assert workspace_bytes(arguments) <= 64 << 20


@pytest.mark.parametrize("sizes", [(3, 2, 0, 1), (4, 3, 8, 17), (7, 4, 5, 90)], ids=str)
def test_absent_states_and_bias(recurrent, sizes):
    check(recurrent(sizes, bias=False, state=False))


@of_lltm
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_lengths_that_are_all_zero(recurrent, reverse):
    """The state passes through, whatever the weights are."""
    arguments = recurrent((5, 4, 3, 24), reverse=reverse)
    weights = arguments.weights.clone()
    weights[0, 0], weights[-1, -1] = torch.inf, torch.nan
    arguments = arguments._replace(lengths=torch.zeros(4, dtype=torch.int64, device="cuda"), weights=weights)
    output, h_n, c_n, cells, gates = call(arguments, keep=True)
    assert not output.any() and not cells.any() and not gates.any()
    assert torch.equal(h_n, arguments.h0) and torch.equal(c_n, arguments.c0)
    gradients = make_gradients(arguments)
    d_input, _, d_bias, d_h0, d_c0 = call_backward(gradients, arguments)
    assert not d_input.any() and not d_bias.any()
    assert torch.equal(d_h0, gradients[1]) and torch.equal(d_c0, gradients[2])


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_nothing_beyond_a_length_counts(recurrent, value, reverse):
    arguments = recurrent((6, 9, 5, 30), lengths=True, reset=True, reverse=reverse)
    gradients = make_gradients(arguments)
    results, found = call(arguments, keep=True), call_backward(gradients, arguments)
    beyond = torch.arange(6, device="cuda").unsqueeze(1) >= arguments.lengths
    spoiled = arguments._replace(input=arguments.input.masked_fill(beyond.unsqueeze(2), value))
    spoiled_gradients = [
        gradient.masked_fill(beyond.unsqueeze(2), value) if gradient.dim() == 3 else gradient for gradient in gradients
    ]
    assert_identical(call(spoiled, keep=True), results)
    assert_identical(call_backward(spoiled_gradients, spoiled), found)


@of_lltm
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_weights_that_are_not_finite(recurrent, value):
    arguments = recurrent((4, 5, 3, 20), lengths=True, reset=True)
    arguments.weights[7, 2] = value
    exact = call(
        arguments.map(lambda tensor: tensor.double().cpu())._replace(
            lengths=arguments.lengths.cpu(), reset=arguments.reset.cpu()
        )
    )
    for found, expected in zip(call(arguments)[:3], exact[:3], strict=True):
        assert torch.equal(found.isfinite().cpu(), expected.isfinite())
        assert torch.equal(found.isnan().cpu(), expected.isnan())


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_state_that_is_reset_is_not_multiplied(recurrent, reverse):
    arguments = recurrent((3, 4, 5, 16), reset=True, reverse=reverse)
    arguments.reset[2 if reverse else 0] = True
    arguments.h0.fill_(torch.nan)
    arguments.c0.fill_(torch.inf)
    assert all(result.isfinite().all() for result in call(arguments)[:3])
    assert all(gradient.isfinite().all() for gradient in call_backward(make_gradients(arguments), arguments))


def test_gradients_of_any_layout(recurrent):
    """Expanded, transposed and absent ones."""
    arguments = recurrent((6, 5, 4, 12), lengths=True)
    dense = make_gradients(arguments)
    layouts = {
        "expanded": [dense[0][:1, :1, :1].expand_as(dense[0]), None, None, dense[3][..., :1].expand_as(dense[3])],
        "transposed": [g.transpose(0, 1).contiguous().transpose(0, 1) for g in dense],
        "only the last state": [None, dense[1], None, None],
        "only cells": [None, None, None, dense[3]],
    }
    for gradients in layouts.values():
        assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)


# Of d_weights: one tile and several, one part and several. Sums of one term, and tiles that are cut off.
SMALL_PRODUCTS = [(1, 1, 1, 1), (1, 3, 70, 40), (40, 1, 0, 12), (9, 70, 33, 47), (31, 33, 6, 30)]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("sizes", SMALL_PRODUCTS, ids=str)
def test_small_products_of_gradients(recurrent, sizes, reverse):
    """Whichever gradients are wanted, and however the arguments are laid out, the bits are the same."""
    arguments = recurrent(sizes, lengths=True, reset=True, reverse=reverse)
    arguments.lengths[0] = sizes[0]
    gradients = make_gradients(arguments)
    expected = call_backward(gradients, arguments)
    assert_gradients_close(expected, gradients, arguments)
    inputs = arguments.input
    layouts = [
        arguments._replace(input=inputs.transpose(0, 1).contiguous().transpose(0, 1)),
        arguments._replace(input=inputs.transpose(0, 2).contiguous().transpose(0, 2)),
        arguments._replace(h0=arguments.h0.t().contiguous().t()),
        *(
            arguments._replace(**{name: getattr(arguments, name).t().contiguous().t()})
            for name in arguments._fields
            if name.startswith("weight")
        ),
    ]
    results, count = call(arguments, keep=True), len(expected)
    masks = [tuple(gradient == wanted for gradient in range(count)) for wanted in range(count)]
    for layout, mask in [*((layout, (True,) * count) for layout in layouts), *((arguments, mask) for mask in masks)]:
        found = backward_of(arguments)(*gradients, results[0], *results[3:], *layout, list(mask))
        for again, first, wanted in zip(found, expected, mask, strict=True):
            assert torch.equal(again, first) if wanted else again is None


@pytest.mark.parametrize("full", [False, True], ids=["zero", "full"])
def test_small_products_of_rows_of_any_length(recurrent, full):
    arguments = recurrent((6, 30, 7, 21), lengths=True)
    arguments.lengths.fill_(6 if full else 0)
    gradients = make_gradients(arguments)
    assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)


@of_lltm
def test_d_input_beyond_a_length_is_zero_whatever_the_weights_are(recurrent):
    arguments = recurrent((6, 9, 5, 20), lengths=True)
    arguments.lengths[0] = 3
    arguments.weights[7, -2] = torch.inf
    d_input = call_backward(make_gradients(arguments), arguments)[0]
    beyond = (torch.arange(6, device="cuda").unsqueeze(1) >= arguments.lengths).unsqueeze(2)
    assert d_input.masked_select(beyond).eq(0).all()


def test_small_products_in_a_graph(recurrent):
    arguments = recurrent((17, 20, 12, 24), lengths=True, reset=True)
    gradients = make_gradients(arguments)
    results = call(arguments, keep=True)
    expected = call_backward(gradients, arguments)
    backward = (*gradients, results[0], *results[3:], *arguments, [True] * len(expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = backward_of(arguments)(*backward)
    for _ in range(2):
        for gradient in found:
            gradient.fill_(torch.nan)
        graph.replay()
        assert_identical(found, expected)


@pytest.mark.parametrize(
    ("sizes", "most"), [((20, 1, 47, 47), 2), ((17, 43, 78, 78), 3), ((30, 20, 16, 16), 3)], ids=str
)
def test_kernels_of_a_short_backward(recurrent, sizes, most):
    arguments = recurrent(sizes, lengths=True, reset=True)
    gradients = make_gradients(arguments)
    results = call(arguments, keep=True)
    backward = (*gradients, results[0], *results[3:], *arguments, [True] * len(call_backward(gradients, arguments)))
    backward_of(arguments)(*backward)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        backward_of(arguments)(*backward)
        torch.cuda.synchronize()
    kernels = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert any("recurrence" in name for name in kernels)
    across_the_grid = any("grid" in name for name in kernels)  # with one that prepares the weights
    assert len(kernels) <= most + across_the_grid, kernels


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_chunks_of_steps(recurrent, many_rows, reverse):
    """Without keep, z_x of 40 steps of 20,000 rows is computed in several chunks."""
    arguments = recurrent((*many_rows(40, 20_000), 3, 32), lengths=True, reset=True, reverse=reverse)
    kept = call(arguments, keep=True)
    for found, expected in zip(call(arguments)[:3], kept[:3], strict=True):
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("recurrent_cell", [Sequence, Lstm])
def test_parts_of_rows(recurrent_cell, dtype, reverse, monkeypatch):
    """Without keep, the workspace has no room for z_x of a step of all rows."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "block")
    sizes = (3, 150_000, 3, 64)
    arguments = make(sizes, dtype, "cuda", lengths=True, reset=True, reverse=reverse, cell=recurrent_cell)
    kept = call(arguments, keep=True)
    for found, expected in zip(call(arguments)[:3], kept[:3], strict=True):
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)
    assert workspace_bytes(arguments) <= 64 << 20


def test_the_workspace_of_inference(recurrent, many_rows):
    arguments = recurrent((*many_rows(256, 4096), 16, 64))
    assert workspace_bytes(arguments) <= 64 << 20


def test_tf32_is_as_exact_as_float32(set_tf32, monkeypatch):
    """Only the product with the inputs is rounded to TF32."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "block")
    set_tf32(True)
    arguments = make((5, 6, 0, 40), torch.float32, "cuda")
    found = call(arguments)
    set_tf32(False)
    assert_identical(found[:3], call(arguments)[:3])


@of_lltm
def test_more_than_two_to_the_31_elements(recurrent, many_rows):
    if torch.cuda.mem_get_info()[0] < 48 << 30:
        pytest.skip("the GPU has too little memory that is free")
    arguments = recurrent((*many_rows(24, 1 << 18), 1, 128), bias=False, state=False)
    arguments.input[:, -2:] = arguments.input[:, :2]
    output, h_n, c_n, cells, gates = call(arguments, keep=True)
    assert gates.numel() > 2**31
    for kept in (output, cells, gates):
        assert torch.equal(kept[:, -2:], kept[:, :2])
    assert torch.equal(output[-1], h_n) and torch.equal(c_n[-2:], c_n[:2])


def test_two_to_the_29_steps(monkeypatch):
    """The gates of the last of them are beyond what a 32-bit index can address. Only a few steps run."""
    if torch.cuda.mem_get_info()[0] < 32 << 30:
        pytest.skip("the GPU has too little memory that is free")
    monkeypatch.setenv("LLTM_CUDA_PATH", "block")
    steps = 2**29 + 64
    # Exact in TF32: the library computes the product of so many inputs, and three TF32 products that of a few.
    weights = torch.randn(4, 1, device="cuda").half().float()
    inputs = torch.ones(steps, 1, 1, device="cuda")
    lengths = torch.tensor([5], device="cuda")
    output, h_n, _, cells, gates = torch.ops.lltm.lstm(inputs, weights, weights, lengths=lengths, keep=True)
    expected = torch.ops.lltm.lstm(inputs[:5], weights, weights, keep=True)
    assert_identical((output[:5], h_n, cells[:5], gates[:5]), (expected[0], expected[1], *expected[3:]))
    assert not any(kept[5:].any() for kept in (output, cells, gates))


@pytest.mark.parametrize(
    ("cell", "path", "dtype", "limit"),
    [
        (Sequence, "block", torch.float32, "takes a state_size of at most 128, got 633"),
        (Sequence, "block", torch.float64, "has no kernel for float64"),
        (Sequence, "cluster", torch.bfloat16, "takes a state_size of at most 512, got 633"),
        (Sequence, "cluster", torch.float64, "has no kernel for float64"),
        (Lstm, "block", torch.float32, "takes a state_size of at most 96, got 633"),
        (Lstm, "cluster", torch.float32, "takes a state_size of at most 256, got 633"),
        (Lstm, "cluster", torch.float64, "has no kernel for float64"),
    ],
)
def test_where_a_kernel_is_impossible(cell, path, dtype, limit, monkeypatch):
    monkeypatch.setenv("LLTM_CUDA_PATH", path)
    arguments = make((2, 3, 4, 633), dtype, "cuda", cell=cell)
    operator = f"lltm::{arguments.operator}"
    with pytest.raises(RuntimeError, match=f"{operator}: LLTM_CUDA_PATH={path} {limit}"):
        call(arguments)
    with pytest.raises(RuntimeError, match=limit):
        plan_of(arguments)
    monkeypatch.setenv("LLTM_CUDA_PATH", "steps")
    results = call(arguments, keep=True)
    gradients = make_gradients(arguments)
    monkeypatch.setenv("LLTM_CUDA_PATH", path)
    mask = [True] * len(arguments.names)
    with pytest.raises(RuntimeError, match=f"{operator}_backward: LLTM_CUDA_PATH={path} {limit}"):
        backward_of(arguments)(*gradients, results[0], results[3], results[4], *arguments, mask)


PRECISION = r" tf32=off setting=cuda.matmul"


def test_plan(monkeypatch):
    arguments = make((128, 16, 128, 128), torch.float32, "cuda")
    before = torch.cuda.memory_allocated()
    assert re.fullmatch(r"kernel=recurrence_fma_128x\d cluster=1 rows=\d x=outside" + PRECISION, plan_of(arguments))
    assert torch.cuda.memory_allocated() == before
    monkeypatch.setenv("LLTM_CUDA_PATH", "recurrence_fma_128x4")
    plan = "kernel=recurrence_fma_128x4 cluster=1 rows=4 x=outside" + PRECISION
    assert plan_of(arguments) == plan and lltm.ops.sequence_plan(*arguments) == with_what_is_missing(plan)
    monkeypatch.setenv("LLTM_CUDA_PATH", "steps")
    assert re.fullmatch(r"kernel=\w+ cluster=\d rows=\d+ x=(inside|outside)" + PRECISION, plan_of(arguments))
    monkeypatch.setenv("LLTM_CUDA_PATH", "library")
    library = "kernel=library cluster=1 rows=16 x=outside"
    assert plan_of(arguments) == library + PRECISION
    assert plan_of(make((9, 16, 8, 8), torch.bfloat16, "cuda")) == library
    lstm = make((9, 16, 8, 8), device="cuda", cell=Lstm)
    assert plan_of(lstm) == f"{library} tf32=off setting=cudnn.rnn"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert plan_of(lstm) == f"{library} tf32=on setting=cudnn.rnn"
    monkeypatch.delenv("LLTM_CUDA_PATH")
    assert plan_of(make((0, 2, 3, 4), device="cuda")) == "kernel=none cluster=0 rows=0 x=outside"


def test_plan_of_a_cluster():
    skip_without_clusters()
    lstm = make((128, 16, 128, 128), device="cuda", cell=Lstm)
    plan = plan_of(lstm)
    assert re.fullmatch(
        r"kernel=recurrence_lstm_fma_128x\d_cluster2 cluster=2 rows=\d x=outside tf32=off setting=cudnn.rnn", plan
    )
    assert lltm.ops.lstm_plan(*lstm) == with_what_is_missing(plan)
