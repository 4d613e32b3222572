"""The paths of the CUDA kernels, forced: accuracy, layouts, reproducibility."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lltm_testing.reference import (
    Arguments,
    assert_forward_close,
    assert_gradients_close,
    assert_identical,
    backward,
    call,
    call_backward,
    forward,
    make_arguments,
    make_gradients,
)

pytestmark = pytest.mark.usefixtures("needs_cuda")

SIZES = [
    (16, 32, 128),
    (37, 77, 200),
    (33, 65, 129),
    (1, 512, 512),
    (5, 1000, 1000),
    (64, 1024, 128),
    (130, 72, 264),
    (3, 42, 533),
    (70, 400, 200),
    (1500, 40, 24),
    (2900, 33, 45),
    (2, 42, 1753),
    (40, 31, 33),  # rows of weights start at multiples of 16 bytes, but not their columns of input
]


def check_values(sizes, dtype):
    arguments = make_arguments(sizes, dtype, "cuda")
    assert_forward_close(call(arguments), arguments)
    grads = make_gradients(arguments)
    assert_gradients_close(call_backward(*grads, arguments), *grads, arguments)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values(path, dtype, sizes):
    check_values(sizes, dtype)


# Half of the column counts are multiples of 8, so that rows start at multiples of 16 bytes, as TMA requires.
columns = st.integers(0, 600) | st.integers(0, 75).map(lambda n: 8 * n)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.tuples(st.integers(1, 400) | st.integers(1, 8), columns, columns.filter(bool)))
def test_values_at_any_size(path, dtype, sizes):
    check_values(sizes, dtype)


@pytest.mark.parametrize("sizes", SIZES[:4], ids=str)
def test_rows_that_start_anywhere(path, dtype, sizes):
    """Slices of larger matrices, and transposed and expanded ones, give the same results as their copies."""
    batch, input_features, state_size = sizes
    wide = make_arguments((batch, input_features + 3, state_size + 5), dtype, "cuda")
    strided = wide._replace(
        input=wide.input[:, 1 : 1 + input_features],
        old_h=wide.old_h[:, 3 : 3 + state_size],
        old_cell=torch.randn(state_size, batch, device="cuda").to(dtype).t(),
        weights=wide.weights[: 3 * state_size, 1 : 1 + state_size + input_features],
        bias=torch.randn(1, device="cuda").to(dtype).expand(3 * state_size),
    )
    copies = strided.map(torch.Tensor.contiguous)
    assert_forward_close(call(strided), copies)
    if path == "tiles" and dtype != torch.float64:
        for found, expected in zip(call(strided), call(copies), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    grads = (torch.ones((), device="cuda", dtype=dtype).expand(batch, state_size), None)
    found = call_backward(*grads, strided)
    assert_gradients_close(found, *grads, copies)


@pytest.mark.parametrize("sizes", [(1, 512, 512), (3, 42, 533), (8, 99, 70), (37, 77, 200)], ids=str)
def test_tensors_that_start_anywhere(path, dtype, sizes):
    """Contiguous ones whose first element is the second one of their memory."""

    def moved(tensor):
        return tensor.new_empty(tensor.numel() + 1)[1:].view_as(tensor).copy_(tensor)

    arguments = make_arguments(sizes, dtype, "cuda")
    odd = arguments.map(moved)
    assert_forward_close(call(odd), arguments)
    grads = make_gradients(arguments)
    assert_gradients_close(call_backward(*grads, odd), *grads, arguments)


@pytest.fixture
def tf32():
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


def assert_close_in_tf32(results, expected, candidate=""):
    for found, exact in zip(results, expected, strict=True):
        assert (found - exact).abs().max() <= 5e-3 * exact.abs().max().clamp(min=1), candidate


def candidate_names(monkeypatch):
    """The candidates of a cell, from the error that lists them."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "?")
    with pytest.raises(RuntimeError) as error:
        call(make_arguments((2, 3, 4), device="cuda"))
    return re.findall(r"\b(?:forward|backward)_\w+", str(error.value).splitlines()[0])


CANDIDATE_SIZES = pytest.mark.parametrize("sizes", [(37, 77, 200), (129, 65, 130), (200, 136, 168)], ids=str)


@CANDIDATE_SIZES
def test_every_candidate(monkeypatch, dtype, sizes):
    """Forced by its name, whatever the planner would choose. Others take over what one does not support."""
    names = candidate_names(monkeypatch)
    assert len(names) > 20
    for name in names:
        monkeypatch.setenv("LLTM_CUDA_PATH", name)
        print(name)  # shown if the test fails
        check_values(sizes, dtype)


@CANDIDATE_SIZES
def test_every_candidate_in_tf32(monkeypatch, tf32, sizes):
    arguments = make_arguments(sizes, torch.float32, "cuda")
    grads = make_gradients(arguments)
    expected = (*forward(*arguments.map(torch.Tensor.double)), *backward(*grads, arguments))
    for name in candidate_names(monkeypatch):
        monkeypatch.setenv("LLTM_CUDA_PATH", name)
        assert_close_in_tf32((*call(arguments), *call_backward(*grads, arguments)), expected, name)


@pytest.mark.parametrize("sizes", [(70, 13, 40), (130, 261, 264), (300, 29, 520)], ids=str)
def test_any_width_in_rows_that_start_at_16_bytes(path, tf32, sizes):
    """TF32, whose kernels write four elements of a gradient at once where they can."""
    batch, input_features, state_size = sizes
    wide = make_arguments((batch, input_features + 11, state_size), torch.float32, "cuda")
    narrow = wide._replace(input=wide.input[:, :input_features], weights=wide.weights[:, : state_size + input_features])
    grads = make_gradients(narrow)
    assert_close_in_tf32(call_backward(*grads, narrow), backward(*grads, narrow))


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize(
    "sizes", [(3, 41, 1), (40, 700, 301), (100, 333, 802), (300, 29, 901), (600, 520, 512)], ids=str
)
def test_weights_in_rows_that_start_anywhere(monkeypatch, tf32, sizes, first):
    """In TF32, with NaN before and behind each row of weights."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "backward_wgmma")
    arguments = make_arguments(sizes, torch.float32, "cuda")
    rows, columns = arguments.weights.shape
    around = torch.full((rows + 2, columns + 6), float("nan"), device="cuda")
    weights = around[1:-1, first : first + columns].copy_(arguments.weights)
    grads = make_gradients(arguments)
    found = call_backward(*grads, arguments._replace(weights=weights))
    assert_close_in_tf32(found, backward(*grads, arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "sizes",
    [
        (5, 256, 512),
        (7, 42, 1839),
        (16, 32, 128),
        (64, 200, 136),
        (128, 264, 520),
        (300, 520, 256),
        (200, 1064, 1000),
        (1500, 33, 45),
        (2900, 40, 24),
    ],
    ids=str,
)
def test_the_same_bits_on_every_run(path, dtype, sizes):
    arguments = make_arguments(sizes, dtype, "cuda")
    grads = make_gradients(arguments)
    first = (*call(arguments), *call_backward(*grads, arguments))
    for _ in range(20):
        assert_identical((*call(arguments), *call_backward(*grads, arguments)), first)


@pytest.mark.parametrize("sizes", [(40, 31, 33), (37, 77, 200), (130, 72, 264)], ids=str)
def test_a_gradient_has_the_same_bits_by_itself(path, dtype, sizes):
    arguments = make_arguments(sizes, dtype, "cuda")
    grads = make_gradients(arguments)
    for i, expected in enumerate(call_backward(*grads, arguments)):
        assert torch.equal(call_backward(*grads, arguments, [i == k for k in range(5)])[i], expected)


@pytest.mark.parametrize("sizes", [(5, 8192, 2048), (64, 8192, 1032)], ids=str)
def test_few_rows_of_many_columns(monkeypatch, sizes):
    """TMA may still be reading a tile of d_old_h or d_input when the next tile, of d_weights and with a single chunk,
    takes its place."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "backward_wgmma")
    arguments = make_arguments(sizes, torch.bfloat16, "cuda")
    grads = make_gradients(arguments)
    first = call_backward(*grads, arguments)
    assert_gradients_close(first, *grads, arguments)
    for _ in range(50):
        assert_identical(call_backward(*grads, arguments), first)


@pytest.mark.parametrize(
    ("own_path", "sizes"),
    [
        ("few_rows", (1, 512, 512)),
        ("few_rows", (5, 1000, 1000)),
        ("hopper", (64, 1024, 128)),
        ("hopper", (64, 512, 512)),
        ("hopper", (128, 1024, 1024)),
        ("hopper", (32, 64, 4096)),
        ("tiles", (64, 512, 512)),
        ("tiles", (128, 1024, 1024)),
        ("tiles", (32, 64, 4096)),
    ],
    ids=str,
)
def test_float32_is_as_exact_as_the_librarys_product(monkeypatch, own_path, sizes):
    """With TF32 off: the mean and largest errors of new_h and new_cell against those of the same cell with SGEMM."""
    assert not torch.backends.cuda.matmul.allow_tf32

    def errors(path, arguments, expected):
        monkeypatch.setenv("LLTM_CUDA_PATH", path)
        return torch.stack(
            [
                torch.stack(((found.double() - exact).abs().mean(), (found.double() - exact).abs().max()))
                for found, exact in zip(call(arguments)[:2], expected, strict=True)
            ]
        )

    of_ours = of_library = 0
    for seed in range(10):
        torch.manual_seed(seed)
        arguments = make_arguments(sizes, torch.float32, "cuda")
        expected = forward(*arguments.map(torch.Tensor.double))[:2]
        of_ours += errors(own_path, arguments, expected)
        of_library += errors("library", arguments, expected)
    assert (of_ours[:, 0] <= 1.05 * of_library[:, 0]).all(), (of_ours, of_library)
    assert (of_ours[:, 1] <= 1.5 * of_library[:, 1]).all(), (of_ours, of_library)


def test_one_memory_for_several_sizes(path, dtype):
    """Cached descriptions of matrices are not used for other matrices at the same addresses."""
    memory = [torch.empty(1 << 20, dtype=dtype, device="cuda") for _ in Arguments._fields]
    for sizes in [(64, 512, 256), (64, 256, 256), (16, 32, 128), (128, 40, 72), (200, 32, 128), (16, 32, 128)]:
        arguments = Arguments(
            *(
                place[: tensor.numel()].view_as(tensor).copy_(tensor)
                for place, tensor in zip(memory, make_arguments(sizes, dtype, "cuda"), strict=True)
            )
        )
        grads = make_gradients(arguments)
        assert_forward_close(call(arguments), arguments)
        assert_gradients_close(call_backward(*grads, arguments), *grads, arguments)


@pytest.mark.parametrize("sizes", [(16, 32, 128), (128, 264, 520)], ids=str)
def test_a_threads_first_call(path, dtype, sizes):
    """A thread that has never called CUDA has no context until one is bound."""
    arguments = make_arguments(sizes, dtype, "cuda")
    grads = make_gradients(arguments)
    _, new_cell, gates = call(arguments)

    def backward():
        return torch.ops.lltm.backward(*grads, new_cell, gates, *arguments[:4], [True] * 5)

    for function in (lambda: call(arguments), backward):
        expected = function()
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(function).result()
        assert_identical(found, expected)


def test_tf32_follows_pytorchs_switch(path):
    arguments = make_arguments((64, 256, 256), torch.float32, "cuda")
    expected = forward(*arguments.map(torch.Tensor.double))[2]

    def error():
        return (call(arguments)[2].double() - expected).abs().mean().item()

    exact = error()
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert error() > 50 * exact
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert error() == exact


def test_nan_stays_in_its_row(path, dtype):
    arguments = make_arguments((20, 24, 40), dtype, "cuda")
    arguments.input[3, 5] = float("nan")
    arguments.old_h[17, 39] = float("nan")
    new_h, new_cell, gates = call(arguments)
    for output in (new_h, new_cell, gates):
        rows = output.isnan().all(1).nonzero().flatten().tolist()
        assert rows == [3, 17]
        assert output.isnan().any(1).sum() == 2
