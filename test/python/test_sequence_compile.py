"""Both sequence operators under PyTorch's own checks, its compilers and TorchScript."""

import itertools

import pytest
import torch
from graphs import calls_of, keep_in
from sequence_reference import Sizes, assert_gradients_close, assert_results_close, call, make, make_gradients
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

pytestmark = pytest.mark.usefixtures("fresh_compiler")

sequence = torch.ops.lltm.sequence.default
sequence_backward = torch.ops.lltm.sequence_backward.default
KEEP = pytest.mark.parametrize("keep", [False, True], ids=["plain", "keep"])


def backward_tensors(arguments, gradients):
    output, _, _, cells, gates = call(arguments, keep=True)
    return (*gradients, output, cells, gates, *arguments[:7])


@KEEP
@pytest.mark.parametrize("sizes", [(4, 3, 2, 3), (0, 3, 2, 3), (4, 0, 2, 3)], ids=str)
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
def test_opcheck(device, sizes, gradients, keep):
    arguments = make(sizes, device=device, lengths=True, reset=True, reverse=True)
    opcheck(sequence, (*(arguments.require_grad() if gradients else arguments), keep))


def test_opcheck_of_little(device):
    arguments = make((4, 3, 2, 3), device=device, bias=False, state=False)
    opcheck(sequence, arguments[:2])
    opcheck(sequence, arguments.require_grad()[:2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_opcheck_of_a_float32_c0(device, dtype):
    arguments = make((4, 3, 2, 3), dtype, device, cell_dtype=torch.float32)
    opcheck(sequence, tuple(arguments.require_grad()))
    opcheck(sequence_backward, (*backward_tensors(arguments, make_gradients(arguments)), False, [True] * 5))


@pytest.mark.parametrize("mask", [(True,) * 5, (False, True, False, True, False), (False,) * 5], ids=str)
@pytest.mark.parametrize("given", [(True,) * 4, (False, True, False, False), (False,) * 4], ids=str)
def test_opcheck_of_backward(device, mask, given):
    arguments = make((4, 3, 2, 3), device=device, lengths=True, reset=True)
    tensors = backward_tensors(arguments, make_gradients(arguments, given))
    opcheck(sequence_backward, (*tensors, False, list(mask)))


def test_opcheck_of_backward_with_gradients(device):
    arguments = make((3, 2, 2, 3), torch.float64, device, lengths=True, reset=True, reverse=True)
    tensors = backward_tensors(arguments, make_gradients(arguments))
    leaves = [t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors]
    leaves[6] = tensors[6]  # gates have no gradient
    opcheck(sequence_backward, (*leaves, True, [True] * 5))


def test_one_node_in_each_graph(device):
    forward_graphs, backward_graphs = [], []
    backend = aot_autograd(fw_compiler=keep_in(forward_graphs), bw_compiler=keep_in(backward_graphs))
    arguments = make((5, 4, 3, 7), device=device, lengths=True, reset=True)
    gradients = make_gradients(arguments, (True, True, True, False))
    leaves = arguments.require_grad()
    compiled = torch.compile(lambda *t: torch.ops.lltm.sequence(*t)[:3], backend=backend, fullgraph=True)
    torch.autograd.backward(compiled(*leaves), gradients[:3])
    assert calls_of(forward_graphs, sequence) == 1 and calls_of(forward_graphs, sequence_backward) == 0
    assert calls_of(backward_graphs, sequence) == 0 and calls_of(backward_graphs, sequence_backward) == 1
    assert_gradients_close([leaf.grad for leaf in leaves[:5]], gradients, arguments)


@KEEP
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_one_compilation_for_all_steps_and_batches(device, training, keep):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda *t: torch.ops.lltm.sequence(*t, keep=keep), backend=counter, fullgraph=True, dynamic=True
    )
    for steps, batch in ((5, 4), (9, 6), (2, 3), (17, 2)):
        arguments = make((steps, batch, 3, 7), device=device, lengths=True, reset=True)
        gradients = make_gradients(arguments, (True, True, True, keep))
        leaves = arguments.require_grad() if training else arguments
        results = compiled(*leaves)
        assert_results_close(results, arguments, keep)
        if training:
            torch.autograd.backward(results[: 3 + keep], gradients[: 3 + keep])
            assert_gradients_close([leaf.grad for leaf in leaves[:5]], gradients, arguments)
    assert counter.frame_count == 1


@torch._inductor.config.patch(fx_graph_cache=True)
@torch._functorch.config.patch(enable_autograd_cache=True)
def test_compiled_graphs_are_cached():
    """Without pointwise operators beside the sequence, nothing is compiled in C++."""
    arguments = make((5, 4, 3, 7), lengths=True, reset=True)
    gradients = make_gradients(arguments, (True, False, False, False))

    def train():
        torch._dynamo.reset()
        counters.clear()
        leaves = arguments.require_grad()
        compiled = torch.compile(lambda *t: torch.ops.lltm.sequence(*t)[0], fullgraph=True)
        compiled(*leaves).backward(gradients[0])
        assert_gradients_close([leaf.grad for leaf in leaves[:5]], gradients, arguments)

    with fresh_cache():
        train()
        assert counters["aot_autograd"]["autograd_cache_miss"] == 1
        assert counters["aot_autograd"]["autograd_cache_hit"] == counters["inductor"]["fxgraph_cache_hit"] == 0
        train()
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1
        assert counters["aot_autograd"]["autograd_cache_miss"] == counters["inductor"]["fxgraph_cache_miss"] == 0
        # Of inductor's own cache alone.
        with torch._functorch.config.patch(enable_autograd_cache=False):
            train()
        assert counters["inductor"]["fxgraph_cache_hit"] == 2  # forward and backward
        assert counters["inductor"]["fxgraph_cache_miss"] == 0


def test_shapes_become_dynamic_by_themselves(device):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *t: torch.ops.lltm.sequence(*t)[0], backend=counter, fullgraph=True)
    for steps, batch in ((5, 4), (9, 6), (2, 3), (17, 2)):
        arguments = make((steps, batch, 3, 7), device=device)
        compiled(*arguments[:5])
    assert counter.frame_count == 2


@pytest.mark.parametrize("mask", [(True, True, False, True, False), (False,) * 5], ids=["some", "none"])
def test_backward_is_traced_with_symbolic_sizes(device, mask):
    arguments = make((5, 4, 3, 7), device=device, lengths=True, reset=True)
    gradients = make_gradients(arguments)
    tensors = backward_tensors(arguments, gradients)
    graph = make_fx(lambda *t: torch.ops.lltm.sequence_backward(*t, False, list(mask)), tracing_mode="symbolic")(
        *tensors
    )
    assert calls_of([graph], sequence_backward) == 1
    other = make((8, 3, 3, 7), device=device, lengths=True, reset=True)
    others = make_gradients(other)
    assert_gradients_close(graph(*backward_tensors(other, others)), others, other, mask)


class Tagger(torch.nn.Module):
    """Both directions of a sequence of padded rows, as a user might export them."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(2, 21, 12) / 3)
        self.head = torch.nn.Linear(14, 3)

    def forward(self, x, lengths):
        ahead = torch.ops.lltm.sequence(x, self.weights[0], lengths=lengths)
        back = torch.ops.lltm.sequence(x, self.weights[1], lengths=lengths, reverse=True)
        return self.head(torch.cat([ahead[0], back[0]], dim=-1)), ahead[1]


class Gradients(torch.nn.Module):
    """Both backward operators with partial masks, as in a training step without autograd."""

    def forward(self, x, weights, h, c):
        output, h_n, c_n, cells, gates = torch.ops.lltm.sequence(x, weights, None, h, c, keep=True)
        of_sequence = torch.ops.lltm.sequence_backward(
            output, None, c_n, None, output, cells, gates, x, weights, None, h, c, None, None, False,
            [False, True, False, True, False],
        )  # fmt: skip
        new_h, new_cell, gates = torch.ops.lltm.forward(x[0], weights, None, h, c)
        of_cell = torch.ops.lltm.backward(
            new_h, None, new_cell, gates, x[0], weights, None, h, [True, False, True, False, False]
        )
        return [t for t in (*of_sequence, *of_cell) if t is not None]


def export(model, inputs, shapes, strict=False):
    return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=strict)


@pytest.mark.parametrize("strict", [False, True], ids=["non_strict", "strict"])
def test_export(device, tmp_path, strict):
    steps, batch = torch.export.Dim("steps", min=2), torch.export.Dim("batch", min=2)
    model = Tagger().to(device).eval()
    inputs = torch.randn(5, 4, 5, device=device), torch.tensor([5, 2, 0, 7], device=device)
    program = export(model, inputs, {"x": {0: steps, 1: batch}, "lengths": {0: batch}}, strict)
    assert calls_of([program.graph_module], sequence) == 2
    assert calls_of([program.run_decompositions().graph_module], sequence) == 2
    torch.export.save(program, tmp_path / "tagger.pt2")
    loaded = torch.export.load(tmp_path / "tagger.pt2").module()
    for steps, batch in ((5, 4), (9, 6), (2, 3)):
        x, lengths = torch.randn(steps, batch, 5, device=device), torch.randint(steps + 1, (batch,), device=device)
        for found, expected in zip(loaded(x, lengths), model(x, lengths), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.usefixtures("aot_inductor")
def test_aot_inductor_package(device, tmp_path):
    """A single package with all four operators, because building one takes half a minute."""
    steps, batch = torch.export.Dim("steps", min=2), torch.export.Dim("batch", min=2)

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tagger, self.gradients = Tagger(), Gradients()

        def forward(self, x, lengths, h, c):
            return *self.tagger(x, lengths), *self.gradients(x, self.tagger.weights[0], h, c)

    def inputs(steps, batch):
        tensors = torch.randn(steps, batch, 5), torch.randint(steps + 1, (batch,)), *torch.randn(2, batch, 7)
        return tuple(t.to(device) for t in tensors)

    model = Both().to(device).eval()
    shapes = {"x": {0: steps, 1: batch}, "lengths": {0: batch}, "h": {0: batch}, "c": {0: batch}}
    with torch.no_grad():
        program = export(model, inputs(5, 4), shapes)
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "both.pt2"))
        package = torch._inductor.aoti_load_package(path)
        for sizes in ((5, 4), (9, 6), (2, 3)):
            given = inputs(*sizes)
            torch.testing.assert_close(list(package(*given)), list(model(*given)))


def scripted(
    x: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None,
    h0: torch.Tensor | None,
    c0: torch.Tensor | None,
    lengths: torch.Tensor | None,
    reset: torch.Tensor | None,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.ops.lltm.sequence(x, weights, bias, h0, c0, lengths, reset, reverse=reverse, keep=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_script(device, tmp_path):
    torch.jit.script(scripted).save(str(tmp_path / "sequence.pt"))
    loaded = torch.jit.load(tmp_path / "sequence.pt")
    for given, reverse in itertools.product([False, True], repeat=2):
        arguments = make(
            Sizes(5, 4, 3, 7), device=device, bias=given, state=given, lengths=given, reset=given, reverse=reverse
        )
        for _ in range(3):  # TorchScript specializes after some calls
            leaves = arguments.require_grad()
            results = loaded(*leaves)
            assert_results_close(results, arguments, keep=True)
            results[0].sum().backward()
            assert leaves.weights.grad.isfinite().all()
