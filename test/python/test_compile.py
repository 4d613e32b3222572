"""The cell by torch.compile and torch.export: no graph breaks, both operators in the graphs, any batch size."""

import pytest
import torch
from graphs import calls_of, keep_in
from reference import NAMES, assert_forward_close, assert_gradients_close, make_arguments, make_gradients
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._higher_order_ops.scan import scan
from torch.fx.experimental.proxy_tensor import make_fx

import lltm

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def is_in_place(node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def state(*arguments):
    new_h, new_cell, _ = torch.ops.lltm.forward(*arguments)
    return new_h, new_cell


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_both_operators_are_in_the_graphs(device, bias):
    forward_graphs, backward_graphs = [], []
    backend = aot_autograd(fw_compiler=keep_in(forward_graphs), bw_compiler=keep_in(backward_graphs))
    compiled = torch.compile(state, backend=backend, fullgraph=True)
    arguments = make_arguments((6, 5, 7), device=device, bias=bias)
    grads = make_gradients(arguments)
    leaves = arguments.require_grad()
    outputs = compiled(*leaves)
    torch.autograd.backward(outputs, grads)
    assert calls_of(forward_graphs, torch.ops.lltm.forward.default) == 1
    assert calls_of(backward_graphs, torch.ops.lltm.backward.default) == 1
    assert calls_of(backward_graphs, torch.ops.lltm.forward.default) == 0
    assert_gradients_close(leaves.map(lambda leaf: leaf.grad), *grads, arguments)


@pytest.mark.parametrize("names", [(), NAMES], ids=["inference", "training"])
def test_one_compilation_for_two_batch_sizes(device, names):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(torch.ops.lltm.forward, backend=counter, fullgraph=True, dynamic=True)
    for batch in (6, 11):
        arguments = make_arguments((batch, 5, 7), device=device)
        grads = make_gradients(arguments)
        leaves = arguments.require_grad(names)
        results = compiled(*leaves)
        assert_forward_close(results, arguments)
        if names:
            torch.autograd.backward(results[:2], grads)
            assert_gradients_close(leaves.map(lambda leaf: leaf.grad), *grads, arguments)
    assert counter.frame_count == 1


def test_backward_compiles_with_dynamic_shapes(device):
    counter = CompileCounterWithBackend("aot_eager")
    mask = [True, True, False, True, True]
    compiled = torch.compile(
        lambda *tensors: torch.ops.lltm.backward(*tensors, mask), backend=counter, fullgraph=True, dynamic=True
    )
    for batch in (6, 11):
        arguments = make_arguments((batch, 5, 7), device=device)
        _, new_cell, gates = torch.ops.lltm.forward(*arguments)
        grads = make_gradients(arguments)
        results = compiled(*grads, new_cell, gates, *arguments[:4])
        assert tuple(result is not None for result in results) == tuple(mask)
        assert_gradients_close(results, *grads, arguments)
    assert counter.frame_count == 1


def test_the_typed_functions_compile(device):
    compiled = torch.compile(lambda *arguments: lltm.forward(*arguments), backend="aot_eager", fullgraph=True)
    arguments = make_arguments((6, 5, 7), device=device)
    assert_forward_close(compiled(*arguments), arguments)


def test_autocast_compiles(device):
    arguments = make_arguments((6, 5, 7), device=device)

    def step(*arguments):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return state(*arguments)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for result, expected in zip(compiled(*arguments), step(*arguments), strict=True):
        assert result.dtype == torch.bfloat16 and torch.equal(result, expected)


def test_a_traced_differentiable_backward_is_functional(device):
    """torch.scan and the export of a training step trace gradients with autograd on, where in-place operations fail."""
    arguments = make_arguments((6, 5, 7), device=device)
    grads = make_gradients(arguments)

    def gradients(*leaves):
        return torch.autograd.grad(state(*leaves), leaves, grads, create_graph=True)

    leaves = arguments.require_grad()
    graph = make_fx(gradients)(*leaves)
    in_place = [str(node.target) for node in graph.graph.nodes if node.op == "call_function" and is_in_place(node)]
    assert in_place == []
    assert_gradients_close(graph(*leaves), *grads, arguments)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 refuses to differentiate every scan")
def test_training_through_scan(device):
    cell = lltm.LLTMCell(5, 7, device=device)
    inputs = torch.randn(4, 6, 5, device=device)

    def step(state, input):
        new_h, new_cell = cell(input, state)
        return (new_h * 1, new_cell * 1), new_h * 1

    def loss(inputs):
        state = torch.zeros(6, 7, device=device), torch.zeros(6, 7, device=device)
        return scan(step, state, inputs)[1].sum()

    parameters = list(cell.parameters())
    found = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(inputs), parameters)
    torch.testing.assert_close(found, torch.autograd.grad(loss(inputs), parameters))


def test_training_through_inductor(device):
    """The compiled module learns exactly like the eager one."""
    eager = lltm.LLTMCell(5, 7, device=device)
    compiled = lltm.LLTMCell(5, 7, device=device)
    compiled.load_state_dict(eager.state_dict())
    step = torch.compile(compiled, fullgraph=True, dynamic=True)
    inputs = [torch.randn(batch, 5, device=device) for batch in (6, 11)]

    def losses(cell, parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for x in inputs * 2:
            new_h, new_cell = cell(x * 2)
            loss = (new_h.sigmoid() + new_cell**2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.detach()

    found = torch.stack(list(losses(step, compiled.parameters())))
    expected = torch.stack(list(losses(eager, eager.parameters())))
    torch.testing.assert_close(found, expected)
    assert found[2] < found[0] and found[3] < found[1]


@pytest.mark.parametrize("strict", [False, True], ids=["non_strict", "strict"])
def test_export(device, tmp_path, strict):
    batch = torch.export.Dim("batch")
    cell = lltm.LLTMCell(5, 7, device=device)
    x, h, c = (torch.randn(6, size, device=device) for size in (5, 7, 7))
    shapes = {"input": {0: batch}, "state": ({0: batch}, {0: batch})}
    program = torch.export.export(cell, (x, (h, c)), dynamic_shapes=shapes, strict=strict)
    assert calls_of([program.graph_module], torch.ops.lltm.forward.default) == 1
    assert calls_of([program.run_decompositions().graph_module], torch.ops.lltm.forward.default) == 1
    torch.export.save(program, tmp_path / "cell.pt2")
    loaded = torch.export.load(tmp_path / "cell.pt2").module()
    for size in (6, 11, 1):
        x, h, c = (torch.randn(size, features, device=device) for features in (5, 7, 7))
        for result, expected in zip(loaded(x, (h, c)), cell(x, (h, c)), strict=True):
            assert torch.equal(result, expected)


class Selected(torch.nn.Module):
    """As many rows as are chosen, which is unknown when the model is exported."""

    def forward(self, x, weights, h, c, rows, states):
        return torch.ops.lltm.forward(x[rows], weights, None, h[states], c[states])[0]


def test_export_with_sizes_that_depend_on_data(device):
    """That the numbers of rows agree is checked when the program runs."""
    x, weights, _, h, c = make_arguments((6, 5, 7), device=device)
    masks = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 1]], dtype=torch.bool, device=device)
    program = torch.export.export(Selected(), (x, weights, h, c, masks[0], masks[1])).module()
    for mask in masks:
        given = x, weights, h, c, mask, mask.flip(0)
        assert torch.equal(program(*given), Selected()(*given))
    with pytest.raises(RuntimeError):
        program(x, weights, h, c, masks[0], masks[2])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_compiled_autograd(device, bias):
    """The whole backward pass is in a separate graph that contains the operator."""
    arguments = make_arguments((6, 5, 7), device=device, bias=bias)
    grads = make_gradients(arguments)
    leaves = arguments.require_grad()
    graphs = []
    backend = aot_autograd(fw_compiler=keep_in(graphs))
    outputs = state(*leaves)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: torch.autograd.backward(outputs, grads), backend=backend)()
    assert calls_of(graphs, torch.ops.lltm.backward.default) == 1
    assert_gradients_close(leaves.map(lambda leaf: leaf.grad), *grads, arguments)
