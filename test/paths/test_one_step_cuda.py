"""A single step of the LSTM and the GRU on a GPU, by each kernel that computes it, forced by its name."""

import pytest
import torch
from lltm_testing.gpus import has_wgmma, kernels_of, skip_without_wgmma, wgmma_kernels
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import (
    Gru,
    Lstm,
    Sizes,
    assert_gradients_close,
    assert_results_close,
    call,
    call_backward,
    make,
    make_gradients,
)

pytestmark = pytest.mark.usefixtures("needs_cuda")
each_cell = pytest.mark.parametrize("cell", [Lstm, Gru])
each_precision = pytest.mark.parametrize("precision", ["float32", "tf32", "float16", "bfloat16"])

# Few rows, in one group or two, and rows around the tiles; columns that start at multiples of 16 bytes and elsewhere;
# no input, and more blocks than chunks of h or of x.
SIZES = [
    Sizes(1, *sizes)
    for sizes in [
        (1, 1, 1),
        (1, 128, 512),
        (3, 9, 33),
        (5, 7, 4),
        (8, 300, 257),
        (11, 0, 40),
        (16, 60, 64),
        (17, 33, 65),
        (70, 1024, 33),
        (130, 72, 264),
        (257, 16, 100),
        (300, 0, 248),
    ]
]
SIZES_OF_GRADIENTS = [sizes for sizes in SIZES if sizes.batch in (1, 3, 8, 11, 130, 257, 300)]
absent = pytest.mark.parametrize("absent", [{}, {"state": False, "bias": False}], ids=["all given", "inputs alone"])


def dtype_of(precision: str, set_tf32) -> torch.dtype:
    set_tf32(precision == "tf32")
    return torch.float32 if precision == "tf32" else getattr(torch, precision)


def tiles_of(monkeypatch, cell, precision) -> list[str]:
    names = wgmma_kernels(monkeypatch, cell)
    return [name for name in names if ("float32" in name) == (precision == "float32")]


@each_precision
@each_cell
def test_a_kernel_is_taken_by_its_name(cell, precision, set_tf32, monkeypatch):
    arguments = make((1, 16, 512, 512), dtype_of(precision, set_tf32), "cuda", cell=cell)
    tiles = tiles_of(monkeypatch, cell, precision)
    names = [name + ranks for name in tiles for ranks in ("", ":1", ":2") if "pairs" not in name or ranks != ":2"]
    assert len(names) > 5
    for name in ["forward_few_rows", *(names if has_wgmma() else ())]:
        monkeypatch.setenv("LLTM_CUDA_PATH", name)
        kernels = kernels_of(lambda: call(arguments))
        assert ("forward_few_rows_kernel" if "few_rows" in name else "forward_wgmma_kernel") in " ".join(kernels), name


@absent
@each_precision
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@each_cell
def test_every_kernel(cell, sizes, precision, absent, set_tf32, monkeypatch):
    arguments = make(sizes, dtype_of(precision, set_tf32), "cuda", cell=cell, **absent)
    tiles = tiles_of(monkeypatch, cell, precision)
    for name in ["few_rows", *(name + ranks for name in tiles for ranks in ("", ":1", ":2"))]:
        monkeypatch.setenv("LLTM_CUDA_PATH", name)
        results = call(arguments, keep=True)
        assert_results_close(results, arguments, keep=True)
        states = 1 + len(cell.states)
        assert_identical(call(arguments)[:states], results[:states])


@pytest.mark.parametrize("bias", ["bias_ih", "bias_hh"])
@pytest.mark.parametrize("batch", [3, 70])
def test_one_bias_of_a_gru(dtype, batch, bias):
    arguments = make((1, batch, 24, 40), dtype, "cuda", cell=Gru)._replace(**{bias: None})
    assert_results_close(call(arguments, keep=True), arguments, keep=True)
    gradients = make_gradients(arguments)
    assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)


@pytest.mark.parametrize("path", ["few_rows", "library", "auto"])
@absent
@pytest.mark.parametrize("sizes", SIZES_OF_GRADIENTS, ids=str)
@each_cell
def test_gradients(dtype, cell, sizes, absent, path, monkeypatch):
    """By a kernel that is forced, a gradient has the same bits whichever others are wanted."""
    monkeypatch.setenv("LLTM_CUDA_PATH", path)
    arguments = make(sizes, dtype, "cuda", cell=cell, **absent)
    # One each of h and of the cell state, or of a state that is h itself both or the last.
    for given in (
        [(True, False, True, False), (False, True, False, True)] if cell is Lstm else [(True, True), (False, True)]
    ):
        gradients = make_gradients(arguments, given)
        found = call_backward(gradients, arguments)
        assert_gradients_close(found, gradients, arguments)
    for i in range(0 if path == "auto" else len(found)):
        alone = call_backward(gradients, arguments, [j == i for j in range(len(found))])
        assert torch.equal(alone[i], found[i]), cell.names[i]


@each_precision
@each_cell
def test_the_backward_of_a_few_rows_is_one_launch(cell, precision, set_tf32, monkeypatch):
    monkeypatch.setenv("LLTM_CUDA_PATH", "few_rows")
    arguments = make((1, 4, 64, 64), dtype_of(precision, set_tf32), "cuda", cell=cell)
    gradients = make_gradients(arguments, (True, False, False, True) if cell is Lstm else (True, True))
    kernels = [name for name in kernels_of(lambda: call_backward(gradients, arguments)) if "_kernel" in name]
    assert len(kernels) == 2 and all("few_rows" in name for name in kernels), "with the forward's"


@pytest.mark.parametrize("state_size", [96, 97])
def test_float32_products_of_the_sides_of_a_gru(state_size, monkeypatch):
    """By the kernel of the cell's products, which does not add: the product with h is added to d_h0 by itself."""
    skip_without_wgmma()
    monkeypatch.setenv("LLTM_CUDA_PATH", "backward_wgmma_float32")
    arguments = make((1, 130, 72, state_size), torch.float32, "cuda", cell=Gru)
    gradients = make_gradients(arguments)
    assert any("backward_wgmma_float32" in name for name in kernels_of(lambda: call_backward(gradients, arguments)))
    assert_gradients_close(call_backward(gradients, arguments), gradients, arguments)
