"""lltm::gru against nn.GRU in float64, and the contract of its operators."""

import re
from typing import NamedTuple

import pytest
import torch
from lltm_testing.settings import WITH_CUDA
from torch import Tensor

import lltm

T, N, I, H = 7, 6, 5, 4  # noqa: E741
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


@pytest.fixture(params=["own", "aten", *(["cuda", "cuda-steps", "cuda-library"] if WITH_CUDA else [])])
def device(request, monkeypatch) -> str:
    """On the CPU by this library's kernels or ATen's, or on a GPU as chosen, by steps or by the library."""
    device, _, path = request.param.partition("-")
    if device == "cuda":
        monkeypatch.setenv("LLTM_CUDA_PATH", path)
        return device
    monkeypatch.setenv("LLTM_CPU_GEMM", device)
    return "cpu"


class Arguments(NamedTuple):
    input: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    h0: Tensor | None
    lengths: Tensor | None = None
    reset: Tensor | None = None


def make(sizes=(T, N, I, H), dtype=torch.float64, ragged=False, device="cpu", **given) -> Arguments:
    torch.manual_seed(0)
    steps, batch, features, state = sizes
    shapes = [(steps, batch, features), (3 * state, features), (3 * state, state), (3 * state,), (3 * state,)]
    scales = [1, features**-0.5 if features else 1, state**-0.5, 1, 1, 1]
    tensors = [torch.randn(shape).mul(scale).to(dtype) for shape, scale in zip(shapes, scales, strict=False)]
    arguments = Arguments(*tensors, torch.randn(batch, state).to(dtype))
    if ragged:
        arguments = arguments._replace(lengths=torch.arange(batch) % (steps + 1), reset=torch.rand(steps, batch) < 0.3)
    return Arguments(*(None if t is None else t.to(device) for t in arguments._replace(**given)))


def reference(arguments: Arguments, reverse=False) -> tuple[Tensor, Tensor]:
    """output and h_n by nn.GRU's formula in float64, step by step. Not masked by products: NaN must not spread."""
    values = [t.double() if t is not None and t.is_floating_point() else t for t in arguments]
    input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset = values
    steps, batch, _ = input.shape
    state = weight_hh.size(1)
    h = input.new_zeros(batch, state) if h0 is None else h0
    zeros = input.new_zeros(3 * state)
    biases = [zeros if bias is None else bias for bias in (bias_ih, bias_hh)]
    output = [input.new_zeros(batch, state)] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        runs = (torch.ones(batch).to(input) if lengths is None else lengths - t).unsqueeze(1) > 0
        old = h if reset is None else torch.where(reset[t].unsqueeze(1) & runs, 0.0, h)
        x = torch.where(runs, input[t], 0.0)
        new = torch._VF.gru_cell(x, old, weight_ih, weight_hh, *biases)
        h = torch.where(runs, new, h)
        output[t] = torch.where(runs, new, 0.0)
    return (torch.stack(output) if steps else input.new_zeros(0, batch, state)), h


def leaves(arguments: Arguments) -> Arguments:
    return Arguments(
        *(t.detach().clone().requires_grad_() if t is not None and t.is_floating_point() else t for t in arguments)
    )


def gradients(results, arguments: Arguments) -> list[Tensor]:
    inputs = [t for t in arguments if t is not None and t.requires_grad]
    weights = [torch.linspace(-1, 1, r.numel(), dtype=torch.float64, device=r.device).view(r.shape) for r in results]
    loss = sum((r.double() * w).sum() for r, w in zip(results, weights, strict=True))
    return torch.autograd.grad(loss, inputs)


SIZES = [(7, 6, 5, 4), (3, 1, 9, 33), (5, 17, 1, 16), (1, 5, 4, 3), (1, 40, 7, 18), (4, 3, 0, 5), (40, 2, 12, 70)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *SIXTEEN_BITS], ids=str)
@pytest.mark.parametrize(("ragged", "reverse"), [(False, False), (True, False), (True, True)])
def test_values_and_gradients_are_those_of_the_formula(device, sizes, dtype, ragged, reverse):
    check_values_and_gradients(device, sizes, dtype, ragged, reverse)


def check_values_and_gradients(device, sizes, dtype, ragged, reverse):
    arguments = leaves(make(sizes, dtype, ragged, device))
    results = torch.ops.lltm.gru(*arguments, reverse)[:2]
    exact = leaves(arguments)
    expected = reference(exact, reverse)
    atol = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}[dtype]
    for actual, value in zip(results, expected, strict=True):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), value, rtol=0, atol=atol / 5)
    for name, actual, value in zip(
        Arguments._fields, gradients(results, arguments), gradients(expected, exact), strict=False
    ):
        scale = max(1.0, value.abs().max().item()) if value.numel() else 1.0
        torch.testing.assert_close(actual.double(), value.double(), rtol=0, atol=atol * scale, msg=name)


def test_gates_are_the_sums_that_the_backward_reads(device):
    arguments = make((1, N, I, H), device=device)
    _, _, gates = torch.ops.lltm.gru(*arguments, False, True)
    x = torch.nn.functional.linear(arguments.input[0], arguments.weight_ih, arguments.bias_ih).chunk(3, 1)
    s = torch.nn.functional.linear(arguments.h0, arguments.weight_hh, arguments.bias_hh).chunk(3, 1)
    expected = torch.cat([x[0] + s[0], x[1] + s[1], x[2], s[2]], 1)
    torch.testing.assert_close(gates[0], expected, rtol=0, atol=1e-12)
    assert torch.ops.lltm.gru(*arguments)[2].shape == (0, N, 4 * H)


def update_gate_near_one(dtype, device) -> Arguments:
    bias = torch.zeros(3 * 32)
    bias[32:64] = 7.0  # 1 - z is 1e-3: h moves by less than half a unit of 16 bits in most steps
    return make((1024, 8, 16, 32), dtype, device=device, bias_ih=bias.to(dtype), bias_hh=bias.to(dtype) * 0)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
def test_h_is_carried_in_float32(device, dtype):
    arguments = update_gate_near_one(dtype, device)
    expected, expected_h_n = reference(arguments)
    output, h_n, _ = torch.ops.lltm.gru(*arguments)
    rounded, loop = arguments.h0, []
    for x in arguments.input:  # a loop that rounds h every step
        rounded = reference(arguments._replace(input=x.unsqueeze(0), h0=rounded))[1].to(dtype)
        loop.append(rounded)

    def error(values):
        return (values.double() - expected)[-256:].abs().max()

    assert error(output) < error(torch.stack(loop)) / 2
    exact = arguments._replace(h0=arguments.h0.float())
    _, exact_h_n, _ = torch.ops.lltm.gru(*exact)
    assert h_n.dtype == dtype and exact_h_n.dtype == torch.float32
    halves = exact.h0
    for part in arguments.input.chunk(4):
        halves = torch.ops.lltm.gru(part, *exact[1:5], halves)[1]
    # On a GPU, the product with fewer inputs may round differently.
    torch.testing.assert_close(halves, exact_h_n, rtol=0, atol=0 if device == "cpu" else 1e-5)
    torch.testing.assert_close(exact_h_n.double(), expected_h_n, rtol=0, atol=error(output).item() + 1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_float32_h0_has_a_float32_gradient(device, steps):
    check_a_float32_h0(device, (steps, N, I, H), torch.bfloat16)


def check_a_float32_h0(device, sizes, dtype):
    arguments = leaves(make(sizes, dtype, device=device, h0=torch.full((sizes[1], sizes[3]), 1 + 2**-12)))
    h_n = torch.ops.lltm.gru(*arguments)[1]
    found = gradients([h_n], arguments)[-1]
    exact = leaves(arguments)
    expected = gradients(reference(exact)[1:], exact)[-1]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


# More steps than in a chunk of z_x, more rows than run at a time, and rows that start anywhere.
CUDA_SIZES = [(3, 70, 33, 65), (2, 5000, 3, 2), (300, 500, 64, 40), (5, 16, 128, 512), (2, 700, 5, 1100)]


@pytest.mark.parametrize("sizes", CUDA_SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *SIXTEEN_BITS], ids=str)
@pytest.mark.parametrize(("ragged", "reverse"), [(False, False), (True, True)])
def test_larger_sizes_on_a_gpu(needs_cuda, sizes, dtype, ragged, reverse):
    check_values_and_gradients("cuda", sizes, dtype, ragged, reverse)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *SIXTEEN_BITS], ids=str)
@pytest.mark.parametrize("sizes", [(T, N, I, H), (20, 32, 64, 96)], ids=str)
def test_a_graph_and_the_same_bits(needs_cuda, sizes, dtype):
    arguments = make(sizes, dtype, ragged=True, device="cuda")

    def run():
        leaf = leaves(arguments)
        results = torch.ops.lltm.gru(*leaf)[:2]
        return [*results, *gradients(results, leaf)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()  # cuBLAS allocates its workspace
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = run()
    for factor in (1.0, -0.5):
        for tensor in arguments[:6]:
            tensor.mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        expected = run()
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(run(), expected, rtol=0, atol=0)


def test_tf32_is_that_of_cudnn(needs_cuda, monkeypatch):
    """Of the settings, nn.GRU's counts: with it, the sums are less exact."""
    arguments = make((3, 200, 300, 520), torch.float32, device="cuda")
    exact = torch.ops.lltm.gru(*arguments.__class__(*(t if t is None else t.double() for t in arguments)), False, True)

    def gates(cudnn: bool, matmul: bool) -> torch.Tensor:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", cudnn)
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", matmul)
        return torch.ops.lltm.gru(*arguments, False, True)[2]

    assert torch.equal(gates(False, True), gates(False, False)) and torch.equal(gates(True, True), gates(True, False))
    errors = [(gates(cudnn, False).double() - exact[2]).abs().mean() for cudnn in (False, True)]
    assert errors[1] > 20 * errors[0]


RECURRENCES = [
    *(f"recurrence_gru_fma_{tile}" for tile in ["32x1", "32x4", "64x1", "64x4", "96x1", "128x1", "128x2", "128x4"]),
    *(f"recurrence_gru_fma_{of}" for of in ["256x1_cluster4", "256x2_cluster4", "256x4_cluster4"]),
    *(f"recurrence_gru_fma_{of}" for of in ["512x1_cluster16", "512x2_cluster16", "512x4_cluster16"]),
    *(f"recurrence_gru_mma_{state}x{rows}" for state in (32, 64, 96, 128) for rows in (1, 8)),
    *("recurrence_gru_mma_128x32", "recurrence_gru_mma_128x32_x", "recurrence_gru_mma_256x32_cluster4"),
    *("recurrence_gru_mma_384x32_cluster6", "recurrence_gru_mma_512x16_cluster8"),
]


@pytest.mark.parametrize("missing", [0, 1, 6])
@pytest.mark.parametrize("rows", [1, 5, 41])
@pytest.mark.parametrize("name", RECURRENCES)
def test_every_recurrence(needs_cuda, monkeypatch, name, rows, missing):
    """Of its largest state, and of some that it has to pad, with fewer rows than it takes at once and more."""
    monkeypatch.setenv("LLTM_CUDA_PATH", name)
    sizes = (9, rows, 6, int(re.search(r"_(\d+)x", name)[1]) - missing)
    for dtype in [torch.float32] if "fma" in name else SIXTEEN_BITS:
        for ragged, reverse in [(False, False), (True, True)]:
            check_values_and_gradients("cuda", sizes, dtype, ragged, reverse)
        check_a_float32_h0("cuda", sizes, dtype)


@pytest.mark.parametrize("sizes", [(37, 5, 6, 251), (9, 70, 3, 384), (20, 21, 6, 512), (7, 9, 6, 1021)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *SIXTEEN_BITS], ids=str)
@pytest.mark.parametrize(("ragged", "reverse"), [(False, False), (True, True)])
def test_across_the_grid(needs_cuda, monkeypatch, sizes, dtype, ragged, reverse):
    """With other kernels where it has no room, as the backward in float32 of large states."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "recurrence_gru_grid")
    check_values_and_gradients("cuda", sizes, dtype, ragged, reverse)
    check_a_float32_h0("cuda", sizes, dtype)


def test_plan(needs_cuda, monkeypatch):
    arguments = make((9, 5, 6, 128), torch.float32, device="cuda")
    before = torch.cuda.memory_allocated()
    for path, kernel in [
        ("recurrence_gru_fma_128x4", "recurrence_gru_fma_128x4 cluster=1 rows=4"),
        ("library", "library cluster=1 rows=5"),
    ]:
        monkeypatch.setenv("LLTM_CUDA_PATH", path)
        plan = f"kernel={kernel} x=outside tf32=off setting=cudnn.rnn"
        assert torch.ops.lltm.gru_plan(*arguments) == plan
        assert lltm.ops.gru_plan(*arguments).startswith(plan)
    assert torch.cuda.memory_allocated() == before


def test_a_path_that_is_impossible_says_why(needs_cuda, monkeypatch):
    monkeypatch.setenv("LLTM_CUDA_PATH", "block")
    with pytest.raises(
        RuntimeError, match="lltm::gru: LLTM_CUDA_PATH=block takes a state_size of at most 128, got 200"
    ):
        torch.ops.lltm.gru(*make((3, 3, 5, 200), torch.float32, device="cuda"))


STEPS = [
    *(f"forward_wgmma_{tile}" for tile in ["64x8", "64x24", "64x40", "64x40_pairs", "128x32", "128x32_pairs"]),
    *(f"forward_wgmma_{tile}" for tile in ["128x64_pairs", "192x32"]),
    *(f"{cell}_wgmma_float32_{tile}" for cell in ("forward", "gru") for tile in ["64x8", "64x32", "128x32"]),
    *(f"gru_wgmma_{tile}" for tile in ["64x8", "64x24", "128x32", "128x32_pairs"]),
]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("sizes", [(4, 33, 9, 20), (3, 150, 40, 301), (5, 260, 16, 1044), (3, 5, 8, 6)], ids=str)
def test_every_step(needs_cuda, monkeypatch, name, sizes):
    """Of states of any size, whose elements are written by fours or one by one, and of more rows than in a tile. The
    GRU's own multiply x, others read z_x."""
    monkeypatch.setenv("LLTM_CUDA_PATH", name)
    for dtype in [torch.float32] if "float32" in name else SIXTEEN_BITS:
        for ragged, reverse in [(False, False), (True, True)]:
            check_values_and_gradients("cuda", sizes, dtype, ragged, reverse)
        check_a_float32_h0("cuda", sizes, dtype)


@pytest.mark.parametrize("tile", ["64x32", "64x64", "128x64", "float32_64x96", "float32_128x96"])
@pytest.mark.parametrize("sizes", [(4, 33, 9, 64), (3, 150, 7, 320), (2, 90, 6, 300), (3, 5, 8, 96)], ids=str)
def test_every_step_of_the_backward(needs_cuda, monkeypatch, tile, sizes):
    """The weights have zeros where what is saved belongs to x alone. Whole chunks of these are left out."""
    monkeypatch.setenv("LLTM_CUDA_PATH", f"sequence_backward_wgmma_{tile}")
    for dtype in [torch.float32] if "float32" in tile else SIXTEEN_BITS:
        for ragged, reverse in [(False, False), (True, True)]:
            check_values_and_gradients("cuda", sizes, dtype, ragged, reverse)
