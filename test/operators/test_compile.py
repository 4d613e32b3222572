"""torch.compile, torch.export and AOTInductor: no graph breaks, the operators in the graphs, any sizes."""

from functools import partial

import pytest
import torch
from lltm_testing import named_arguments
from lltm_testing.graphs import calls_of, keep_in
from lltm_testing.named_arguments import backward_of, each_backward, each_forward, leaves_of
from lltm_testing.reference import assert_identical
from lltm_testing.sequence_reference import CELLS as BY_NAME
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._higher_order_ops.scan import scan
from torch._inductor.utils import fresh_cache
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

import lltm

pytestmark = [pytest.mark.pytorch, pytest.mark.usefixtures("fresh_compiler")]

ops = torch.ops.lltm
ABSENT = pytest.mark.parametrize(
    "absent", [(), ("bias", "bias_ih", "bias_hh", "h0", "c0", "lengths", "reset")], ids=["all", "required"]
)
CELLS = tuple(BY_NAME.values())
WITH_CELLS = ("forward", *(cell.operator for cell in CELLS))
each_cell = pytest.mark.parametrize("cls", [lltm.LLTMCell, lltm.LSTMCell, lltm.GRUCell])
SIZES = [(5, 4, 3, 7), (9, 6, 3, 7), (2, 3, 3, 7), (17, 2, 3, 7)]


def make(operator, device, absent=(), sizes=SIZES[0]) -> dict:
    arguments = named_arguments.make(operator, device, sizes=sizes)
    return arguments | {name: None for name in absent if name in arguments}


def results_of(operator, keep=True):
    """The differentiable results as a function of all tensors."""
    if operator == "forward":
        return lambda *tensors: ops.forward(*tensors)[:2]
    outputs = named_arguments.CELLS[operator].outputs
    count = len(set(outputs) - {"gates"} - ({"cells"} if not keep else set()))
    return lambda *tensors: getattr(ops, operator)(*tensors, keep=keep)[:count]


def gradients_of(results, leaves: dict):
    wanted = [t for t in leaves.values() if t is not None and t.requires_grad]
    return torch.autograd.grad([r.sin().sum() for r in results], wanted)


def assert_same(compiled, function, leaves: dict) -> None:
    """The results, and the gradients if any are required."""
    results, expected = compiled(*leaves.values()), function(*leaves.values())
    torch.testing.assert_close(results, expected)
    if expected[0].requires_grad:
        torch.testing.assert_close(gradients_of(results, leaves), gradients_of(expected, leaves))


@ABSENT
@each_forward
def test_one_node_in_each_graph(device, operator, absent):
    forward_graphs, backward_graphs = [], []
    backend = aot_autograd(fw_compiler=keep_in(forward_graphs), bw_compiler=keep_in(backward_graphs))
    function = results_of(operator, keep=False)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    assert_same(compiled, function, leaves_of(make(operator, device, absent)))
    forward = getattr(ops, operator).default
    backward = getattr(ops, backward_of(operator)).default
    assert calls_of(forward_graphs, forward) == 1 and calls_of(forward_graphs, backward) == 0
    assert calls_of(backward_graphs, forward) == 0 and calls_of(backward_graphs, backward) == 1


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("operator", "keep"), [("forward", True), *((cell.operator, keep) for cell in CELLS for keep in (False, True))]
)
def test_one_compilation_for_all_sizes(device, operator, training, keep):
    counter = CompileCounterWithBackend("aot_eager")
    function = results_of(operator, keep)
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for sizes in SIZES:
        arguments = make(operator, device, sizes=sizes)
        assert_same(compiled, function, leaves_of(arguments) if training else arguments)
    assert counter.frame_count == 1


def test_shapes_become_dynamic_by_themselves(device, cell):
    counter = CompileCounterWithBackend("aot_eager")
    function = results_of(cell.operator, keep=False)
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for sizes in SIZES:
        compiled(*make(cell.operator, device, ("lengths", "reset"), sizes).values())
    assert counter.frame_count == 2


@pytest.mark.parametrize("wanted", [(True, True, False, True, False, True), (False,) * 6], ids=["some", "none"])
@each_backward
def test_backward_is_traced_and_compiled_for_all_sizes(device, operator, wanted):
    mask = wanted[: len(named_arguments.mask_of(operator, ()))]
    others = named_arguments.after_tensors(operator, mask)

    def function(*tensors):
        return getattr(ops, operator)(*tensors, *others)

    tensors = list(make(operator, device).values())
    graph = make_fx(function, tracing_mode="symbolic")(*tensors)
    assert calls_of([graph], getattr(ops, operator).default) == 1
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for sizes in SIZES[:2]:
        tensors = list(make(operator, device, sizes=sizes).values())
        expected = function(*tensors)
        assert tuple(result is not None for result in expected) == mask
        torch.testing.assert_close(graph(*tensors), expected)
        torch.testing.assert_close(compiled(*tensors), expected)
    assert counter.frame_count == 1


@torch._inductor.config.patch(fx_graph_cache=True)
@torch._functorch.config.patch(enable_autograd_cache=True)
def test_compiled_graphs_are_cached(cell):
    """Without pointwise operators beside the sequence, nothing is compiled in C++."""
    arguments, function = make(cell.operator, "cpu"), getattr(ops, cell.operator)

    def train():
        torch._dynamo.reset()
        counters.clear()
        found = []
        for run in (torch.compile(lambda *t: function(*t)[0], fullgraph=True), lambda *t: function(*t)[0]):
            leaves = leaves_of(arguments)
            output = run(*leaves.values())
            output.backward(torch.ones_like(output))
            found.append([leaf.grad for leaf in leaves.values() if leaf.requires_grad])
        torch.testing.assert_close(*found)

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


@each_forward
def test_autocast_compiles(device, operator):
    def run(*tensors):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return results_of(operator)(*tensors)

    arguments = make(operator, device)
    assert run(*arguments.values())[0].dtype == torch.bfloat16
    assert_same(torch.compile(run, backend="aot_eager", fullgraph=True), run, arguments)


def is_in_place(node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


@each_forward
def test_a_traced_differentiable_backward_is_functional(device, operator):
    """torch.scan and the export of a training step trace gradients with autograd on, where in-place operations fail."""
    leaves = leaves_of(make(operator, device))

    def gradients(*tensors):
        total = sum(result.sin().sum() for result in results_of(operator)(*tensors))
        return torch.autograd.grad(total, [t for t in tensors if t.requires_grad], create_graph=True)

    graph = make_fx(gradients)(*leaves.values())
    in_place = [str(node.target) for node in graph.graph.nodes if node.op == "call_function" and is_in_place(node)]
    assert in_place == []
    expected = gradients_of(results_of(operator)(*leaves.values()), leaves)
    torch.testing.assert_close(graph(*leaves.values()), expected)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 refuses to differentiate every scan")
@each_cell
def test_training_through_scan(device, cls):
    cell = cls(5, 7, device=device)
    inputs = torch.randn(4, 6, 5, device=device)

    def copied(state):
        return tree_map(lambda part: part * 1, state)

    def step(state, input):
        state = cell(input, state)
        return copied(state), copied(tree_leaves(state)[0])

    def loss(inputs):
        state = tree_map(torch.zeros_like, cell(inputs[0]))
        return scan(step, state, inputs)[1].sum()

    parameters = list(cell.parameters())
    found = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(inputs), parameters)
    torch.testing.assert_close(found, torch.autograd.grad(loss(inputs), parameters))


@pytest.mark.release
@each_cell
def test_training_through_inductor(device, cls):
    """The compiled module learns exactly like the eager one."""
    eager, compiled = cls(5, 7, device=device), cls(5, 7, device=device)
    compiled.load_state_dict(eager.state_dict())
    step = torch.compile(compiled, fullgraph=True, dynamic=True)
    inputs = [torch.randn(batch, 5, device=device) for batch in (6, 11)]

    def losses(cell, parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for x in inputs * 2:
            state = tree_leaves(cell(x * 2))  # of a GRU, h alone
            loss = (state[0].sigmoid() + state[-1] ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.detach()

    found = torch.stack(list(losses(step, compiled.parameters())))
    expected = torch.stack(list(losses(eager, eager.parameters())))
    torch.testing.assert_close(found, expected)
    assert found[2] < found[0] and found[3] < found[1]


class Tagger(torch.nn.Module):
    """Both directions of a sequence of padded rows, as a user might export them."""

    def __init__(self, cell):
        super().__init__()
        self.operator = cell.operator
        rows = 7 * cell.gates
        shapes = [(rows, 12)] if cell.bounds.matrices == 1 else [(rows, 5), (rows, 7)]
        self.ahead, self.back = (torch.nn.ParameterList(torch.randn(shape) / 3 for shape in shapes) for _ in range(2))
        self.head = torch.nn.Linear(14, 3)

    def forward(self, x, lengths):
        operator = getattr(torch.ops.lltm, self.operator)
        matrices = range(len(self.ahead))  # PyTorch 2.11 cannot trace *self.ahead
        ahead = operator(x, *[self.ahead[k] for k in matrices], lengths=lengths)
        back = operator(x, *[self.back[k] for k in matrices], lengths=lengths, reverse=True)
        return self.head(torch.cat([ahead[0], back[0]], dim=-1)), ahead[1]


class Gradients(torch.nn.Module):
    """The backward operators with partial masks, as in a training step without autograd."""

    def forward(self, x, weights, lstm_weights, gru_weights, h, c):
        output, h_n, c_n, cells, gates = torch.ops.lltm.sequence(x, weights, None, h, c, keep=True)
        of_sequence = torch.ops.lltm.sequence_backward(
            output, None, c_n, None, output, cells, gates, x, weights, None, h, c, None, None, False,
            [False, True, False, True, False],
        )  # fmt: skip
        output, h_n, c_n, cells, gates = torch.ops.lltm.lstm(x, *lstm_weights, None, h, c, keep=True)
        of_lstm = torch.ops.lltm.lstm_backward(
            output, None, c_n, None, output, cells, gates, x, *lstm_weights, None, h, c, None, None, False,
            [False, True, True, False, True, False],
        )  # fmt: skip
        output, h_n, gates = torch.ops.lltm.gru(x, *gru_weights, None, None, h, keep=True)
        of_gru = torch.ops.lltm.gru_backward(
            None, h_n, output, gates, x, *gru_weights, None, None, h, None, None, False,
            [True, False, True, False, False, True],
        )  # fmt: skip
        new_h, new_cell, gates = torch.ops.lltm.forward(x[0], weights, None, h, c)
        of_cell = torch.ops.lltm.backward(
            new_h, None, new_cell, gates, x[0], weights, None, h, [True, False, True, False, False]
        )
        return [t for t in (*of_sequence, *of_lstm, *of_gru, *of_cell) if t is not None]


def export(model, inputs, shapes, strict=False):
    return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=strict)


def inputs_of_cell(batch, device):
    return torch.randn(batch, 5, device=device), tuple(torch.randn(2, batch, 7, device=device).unbind())


def inputs_of_tagger(steps, batch, device):
    return torch.randn(steps, batch, 5, device=device), torch.randint(steps + 1, (batch,), device=device)


SHAPES_OF_CELL = {"input": {0: Dim("batch")}, "state": ({0: Dim("batch")}, {0: Dim("batch")})}
SHAPES_OF_TAGGER = {"x": {0: Dim("steps", min=2), 1: Dim("batch", min=2)}, "lengths": {0: Dim("batch", min=2)}}
STEPS_AND_ROWS = [(5, 4), (9, 6), (2, 3)]
# A model, its inputs, the operator, the number of its calls, dynamic shapes, and sizes.
CELL = lambda: lltm.LLTMCell(5, 7), inputs_of_cell, "forward", 1, SHAPES_OF_CELL, [(6,), (11,), (1,)]
EXPORTED = {"cell": CELL} | {
    f"{cell.operator}_tagger": (
        partial(Tagger, cell),
        inputs_of_tagger,
        cell.operator,
        2,
        SHAPES_OF_TAGGER,
        STEPS_AND_ROWS,
    )
    for cell in CELLS
}


@pytest.mark.parametrize("strict", [False, True], ids=["non_strict", "strict"])
@pytest.mark.parametrize("exported", EXPORTED.values(), ids=EXPORTED)
def test_export(device, tmp_path, strict, exported):
    make_model, inputs_of, operator, calls, shapes, sizes = exported
    model, operator = make_model().to(device).eval(), getattr(ops, operator).default
    program = export(model, inputs_of(*sizes[0], device), shapes, strict)
    assert calls_of([program.graph_module], operator) == calls
    assert calls_of([program.run_decompositions().graph_module], operator) == calls
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for given in sizes:
        inputs = inputs_of(*given, device)
        assert_identical(loaded(*inputs), model(*inputs))


class Selected(torch.nn.Module):
    """As many rows as are chosen, which is unknown when the model is exported."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x, weights, given, rows, states):
        call = getattr(torch.ops.lltm, self.operator)
        biases = [None] * len(named_arguments.CELLS[self.operator].bias_names())
        return call(x[..., rows, :], *weights, *biases, *[state[states] for state in given])[0]


@pytest.mark.parametrize("operator", WITH_CELLS)
def test_export_with_sizes_that_depend_on_data(device, operator):
    """That the numbers of rows agree is checked when the program runs."""
    arguments, cell = named_arguments.make(operator, device), named_arguments.CELLS[operator]
    x, weights = arguments["input"], [arguments[name] for name in cell.weight_names()]
    given = [arguments[name] for name in ("old_h", "old_cell", "h0", "c0") if name in arguments]
    masks = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 1]], dtype=torch.bool, device=device)
    model = Selected(operator)
    program = torch.export.export(model, (x, weights, given, masks[0], masks[1])).module()
    for mask in masks:
        assert torch.equal(program(x, weights, given, mask, mask.flip(0)), model(x, weights, given, mask, mask.flip(0)))
    with pytest.raises(RuntimeError):
        program(x, weights, given, masks[0], masks[2])


@ABSENT
@each_forward
def test_compiled_autograd(device, operator, absent):
    """The whole backward pass is in a separate graph that contains the operator."""
    leaves = leaves_of(make(operator, device, absent))
    wanted = [leaf for leaf in leaves.values() if leaf is not None and leaf.requires_grad]
    graphs = []
    backend = aot_autograd(fw_compiler=keep_in(graphs))
    losses = [sum(r.sin().sum() for r in results_of(operator)(*leaves.values())) for _ in range(2)]
    expected = torch.autograd.grad(losses[0], wanted)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: losses[1].backward(), backend=backend)()
    backward = getattr(ops, backward_of(operator)).default
    assert calls_of(graphs, backward) == 1
    torch.testing.assert_close([leaf.grad for leaf in wanted], list(expected))


@pytest.mark.usefixtures("aot_inductor")
def test_aot_inductor_package(device, tmp_path):
    """A single package with the operators of all cells, because building one takes half a minute."""
    steps, batch = Dim("steps", min=2), Dim("batch", min=2)

    class All(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.taggers, self.gradients = torch.nn.ModuleList(map(Tagger, CELLS)), Gradients()

        def forward(self, x, lengths, h, c):
            of_lltm, of_lstm, of_gru = self.taggers
            found = self.gradients(x, of_lltm.ahead[0], list(of_lstm.ahead), list(of_gru.ahead), h, c)
            return *(result for of in self.taggers for result in of(x, lengths)), *found

    def inputs(steps, batch):
        tensors = torch.randn(steps, batch, 5), torch.randint(steps + 1, (batch,)), *torch.randn(2, batch, 7)
        return tuple(t.to(device) for t in tensors)

    model = All().to(device).eval()
    shapes = {"x": {0: steps, 1: batch}, "lengths": {0: batch}, "h": {0: batch}, "c": {0: batch}}
    with torch.no_grad():
        program = export(model, inputs(5, 4), shapes)
        names = [name for operator in WITH_CELLS for name in (operator, backward_of(operator))]
        assert {n.target for n in program.graph.nodes} >= {getattr(ops, name).default for name in names}
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "all.pt2"))
        package = torch._inductor.aoti_load_package(path)
        for sizes in ((5, 4), (9, 6), (2, 3)):
            given = inputs(*sizes)
            torch.testing.assert_close(list(package(*given)), list(model(*given)))
