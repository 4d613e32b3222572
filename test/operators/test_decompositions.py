"""The operators' decompositions: their values, and programs that run where lltm is not, in PyTorch and ONNX Runtime."""

import itertools

import pytest
import torch
from lltm_testing import isolated, named_arguments
from lltm_testing.building import ROOT
from lltm_testing.documentation import blocks
from lltm_testing.reference import SIZES as CELL_SIZES
from lltm_testing.reference import Arguments, assert_forward_close, make_arguments
from lltm_testing.sequence_reference import (
    CELLS,
    SIZES,
    Sequence,
    assert_carries_the_state_in_float32,
    assert_results_close,
    make,
    ragged,
)

import lltm

pytestmark = [
    pytest.mark.pytorch,
    pytest.mark.usefixtures("fresh_compiler"),
    # Of PyTorch's exporter and ONNX's optimizer.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

DYNAMIC = torch.export.Dim.DYNAMIC
ops = torch.ops.lltm


def decomposed(operator, *arguments):
    with torch.no_grad():
        return lltm.decompositions()[operator](*arguments)


@pytest.fixture
def onnxruntime():
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    return pytest.importorskip("onnxruntime", reason="ONNX Runtime runs the exported models")


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "without bias"])
@pytest.mark.parametrize("sizes", CELL_SIZES, ids=str)
def test_forward_is_the_operator(device, dtype, sizes, bias):
    arguments = make_arguments(sizes, dtype, device, bias)
    results = decomposed(ops.forward.default, *arguments)
    assert_forward_close(results, arguments)


@pytest.mark.parametrize("sizes", SIZES[:8], ids=str)
@pytest.mark.parametrize("masks", list(itertools.product([False, True], repeat=2)), ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_sequence_is_the_operator(device, dtype, sizes, masks, reverse, cell):
    if sizes.steps == 0 and torch.__version__ < (2, 15):
        pytest.skip("the scan of earlier versions, such as 2.11, needs a step")
    arguments = make(sizes, dtype, device, lengths=masks[0], reset=masks[1], reverse=reverse, cell=cell)
    assert_results_close(decomposed(getattr(ops, cell.operator).default, *arguments), arguments)


@pytest.mark.parametrize("absent", ["bias", "h0", "c0"])
def test_absent_is_zero(device, dtype, absent):
    arguments = make((7, 6, 5, 4), dtype, device, lengths=True)._replace(**{absent: None})
    assert_results_close(decomposed(ops.sequence.default, *arguments), arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_c0_may_be_float32_beside_16_bits(device, dtype):
    arguments = make((7, 6, 5, 4), dtype, device, lengths=True, reset=True, cell_dtype=torch.float32)
    assert_results_close(decomposed(ops.sequence.default, *arguments), arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_the_cell_state_is_carried_in_float32(device, dtype):
    def run(*tensors):
        return decomposed(ops.sequence.default, *tensors)[2]

    assert_carries_the_state_in_float32(run, dtype, device, steps=1000)


def test_what_is_beyond_the_length_is_never_used(device):
    arguments, poisoned, _ = ragged(make((6, 5, 3, 4), torch.float64, device, reset=True))
    assert_results_close(decomposed(ops.sequence.default, *poisoned), arguments)


@pytest.mark.parametrize("masks", list(itertools.product([False, True], repeat=2)), ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_cells_and_gates_are_kept(device, dtype, masks, reverse, cell):
    options = {"lengths": masks[0], "reset": masks[1], "reverse": reverse, "cell": cell}
    for sizes in ((7, 6, 5, 4), (1, 2, 3, 4)):
        arguments = make(sizes, dtype, device, **options)
        results = decomposed(getattr(ops, cell.operator).default, *arguments, True)
        assert_results_close(results, arguments, keep=True)
    arguments = make((5, 4, 3, 4), dtype, device, **options)._replace(**dict.fromkeys(cell.states))
    assert_results_close(decomposed(getattr(ops, cell.operator).default, *arguments, True), arguments, keep=True)


def test_what_has_no_decomposition_is_refused():
    for operator in ("backward", "sequence_backward", "lstm_backward"):
        arguments = (*named_arguments.make(operator).values(), *named_arguments.after_tensors(operator))
        with pytest.raises(RuntimeError, match=f"^lltm::{operator}: .* for inference and has no gradients"):
            decomposed(getattr(ops, operator).default, *arguments)


class Model(torch.nn.Module):
    """What users export: layers in both directions, and two steps of a cell over some of their output."""

    def __init__(self):
        super().__init__()
        self.rnn = lltm.LLTM(5, 7, 2, bidirectional=True, batch_first=True)
        self.cell = lltm.LLTMCell(14, 6)

    def forward(self, x, lengths, reset, h0, c0):
        output, (h_n, c_n) = self.rnn(x, (h0, c0), lengths, reset)
        state = self.cell(output[:, -1])
        return output, h_n, c_n, *self.cell(output[:, 0], state)


SHAPES = {
    "x": {0: DYNAMIC, 1: DYNAMIC},
    "lengths": {0: DYNAMIC},
    "reset": {0: DYNAMIC, 1: DYNAMIC},
    "h0": {1: DYNAMIC},
    "c0": {1: DYNAMIC},
}


def inputs_of(steps: int, batch: int, layers: int = 2) -> tuple[torch.Tensor, ...]:
    state = torch.randn(2, 2 * layers, batch, 7)  # one tensor for both: PyTorch's scan would refuse them as they are
    return torch.randn(batch, steps, 5), torch.randint(steps + 1, (batch,)), torch.rand(batch, steps) < 0.3, *state


def export(model, inputs, shapes, table):
    with torch.no_grad():
        return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes).run_decompositions(table)


def test_exported_program_runs_without_lltm(tmp_path):
    model = Model()
    table = torch.export.default_decompositions()
    table.update(lltm.decompositions())
    program = export(model, inputs_of(5, 4), SHAPES, table)
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.higher_order.scan) == 4
    operators = {target for target in targets if isinstance(target, torch._ops.OpOverload)}
    assert {operator for operator in operators if torch.Tag.core not in operator.tags} == set()

    torch.export.save(program, tmp_path / "program.pt2")
    cases = [(inputs, model(*inputs)) for inputs in (inputs_of(5, 4), inputs_of(9, 2), inputs_of(1, 3))]
    torch.save(cases, tmp_path / "cases.pt")
    run = """
import sys, torch
folder = sys.argv[1]
program = torch.export.load(f"{folder}/program.pt2").module()
for inputs, expected in torch.load(f"{folder}/cases.pt"):
    with torch.no_grad():
        torch.testing.assert_close(program(*inputs), expected)
print("lltm" in sys.modules or hasattr(torch.ops.lltm, "sequence"))
"""
    assert isolated.run(run, tmp_path, package=tmp_path) == "False"


class Autocast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = lltm.LLTM(5, 7)
        self.cell = lltm.LLTMCell(7, 6)

    def forward(self, x, h0, c0):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, (h_n, c_n) = self.rnn(x, (h0, c0))
            return output, h_n, c_n, *self.cell(output[0])


def test_autocast():
    """Casts the arguments once. The decomposition computes in float32, like the operator."""
    model, inputs = Autocast(), (torch.randn(4, 3, 5), *torch.randn(2, 1, 3, 7))
    program = export(model, inputs, None, lltm.decompositions())
    with torch.no_grad():
        found, expected = program.module()(*inputs), model(*inputs)
    assert [result.dtype for result in found] == [result.dtype for result in expected]
    assert {result.dtype for result in found} == {torch.bfloat16, torch.float32}
    torch.testing.assert_close(found, expected, rtol=0, atol=torch.finfo(torch.bfloat16).eps)


def run_onnx(onnxruntime, path, *inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})


def export_onnx(model, inputs, shapes, path):
    program = export(model, inputs, shapes, lltm.decompositions())
    with torch.no_grad():
        torch.onnx.export(program, (), path, dynamo=True, verbose=False)


def test_onnx_of_modules(onnxruntime, tmp_path):
    import onnx

    model, path = Model(), tmp_path / "model.onnx"
    export_onnx(model, inputs_of(5, 4), SHAPES, path)
    graph = onnx.load(path).graph
    assert [node.op_type for node in graph.node].count("Scan") == 4  # two layers in two directions
    dims = [dim.dim_param or dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    assert isinstance(dims[0], str) and isinstance(dims[1], str) and dims[2] == 5
    for inputs in (inputs_of(5, 4), inputs_of(12, 3), inputs_of(1, 1)):
        with torch.no_grad():
            expected = model(*inputs)
        found = run_onnx(onnxruntime, path, *inputs)
        torch.testing.assert_close([torch.from_numpy(values) for values in found], list(expected))


class EveryState(torch.nn.Module):
    def __init__(self, cls):
        super().__init__()
        self.rnn = cls(5, 7, bidirectional=True, batch_first=True)

    def forward(self, x, lengths, reset, h0, c0):
        if isinstance(self.rnn, lltm.GRU):
            return self.rnn.states(x, h0 + c0, lengths, reset)
        output, (h_n, c_n), (h, c) = self.rnn.states(x, (h0, c0), lengths, reset)
        return output, h_n, c_n, h, c


@pytest.mark.parametrize("cls", [lltm.LLTM, lltm.LSTM, lltm.GRU])
def test_states_run_without_lltm(onnxruntime, tmp_path, cls):
    """As a program of PyTorch's operators, and as a Scan for each direction. test_onnx_of_modules has two layers."""
    import onnx

    model, path = EveryState(cls), tmp_path / "states.onnx"
    program = export(model, inputs_of(5, 4, 1), SHAPES, lltm.decompositions())
    with torch.no_grad():
        torch.onnx.export(program, (), path, dynamo=True, verbose=False)
    nodes = onnx.load(path).graph.node
    # The states, the outputs and the cells of each, and no gates. A GRU's states are h, as the product reads it, and h.
    assert [len(node.output) for node in nodes if node.op_type == "Scan"] == [3 if cls is lltm.GRU else 4] * 2
    for inputs in (inputs_of(5, 4, 1), inputs_of(12, 3, 1), inputs_of(1, 3, 1)):
        with torch.no_grad():
            expected = list(model(*inputs))
            torch.testing.assert_close(list(program.module()(*inputs)), expected)
        found = run_onnx(onnxruntime, path, *inputs)
        torch.testing.assert_close([torch.from_numpy(values) for values in found], expected)


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def in_dtype(dtype: torch.dtype, arguments: Sequence) -> tuple[Sequence, Arguments]:
    """The arguments of a sequence in a dtype, with a float32 c0 beside 16 bits, and those of its first step."""
    cast = arguments.map(lambda tensor: tensor.to(dtype))
    step = Arguments(cast.input[0], cast.weights, cast.bias, cast.h0, cast.c0)
    return (cast._replace(c0=cast.c0.float()) if dtype.itemsize == 2 else cast), step


class EveryDtype(torch.nn.Module):
    """Both operators in every dtype."""

    def forward(self, *arguments):
        results = []
        for dtype, reverse in zip(DTYPES, (False, True, True, False), strict=True):
            sequence, step = in_dtype(dtype, Sequence(*arguments, reverse))
            results += ops.sequence(*sequence)[:3] + ops.forward(*step)
        # NumPy has no bfloat16.
        return [result.float() if result.dtype == torch.bfloat16 else result for result in results]


def test_onnx_of_every_dtype(onnxruntime, tmp_path):
    path = tmp_path / "operators.onnx"
    shapes = ({0: DYNAMIC, 1: DYNAMIC}, None, None, {0: DYNAMIC}, {0: DYNAMIC}, {0: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC})

    def make_arguments(steps, batch):
        return make((steps, batch, 5, 7), torch.float64, lengths=True, reset=True)

    export_onnx(EveryDtype(), make_arguments(5, 4)[:7], (shapes,), path)
    for arguments in (make_arguments(5, 4), make_arguments(12, 3)):
        found = iter(map(torch.from_numpy, run_onnx(onnxruntime, path, *arguments[:7])))
        for dtype, reverse in zip(DTYPES, (False, True, True, False), strict=True):
            sequence, step = in_dtype(dtype, arguments._replace(reverse=reverse))
            of_sequence, of_step = itertools.islice(found, 3), itertools.islice(found, 3)
            results = [next(of_sequence) for _ in range(3)]
            if dtype == torch.bfloat16:
                results[:2] = [result.to(dtype) for result in results[:2]]
            nothing = torch.empty(0, arguments.input.size(1), 7, dtype=dtype)
            assert_results_close([*results, nothing, nothing.repeat(1, 1, 3)], sequence)
            assert_forward_close([result.to(dtype) if dtype == torch.bfloat16 else result for result in of_step], step)


def test_the_page(onnxruntime, tmp_path, monkeypatch):
    """The blocks of docs/export.md run, and their files have the values of the module."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(ROOT / "docs" / "export.md", "python"):
        exec(block.text, names)
    expected, states = names["model"](names["input"], lengths=names["lengths"])
    run_by_the_page = [torch.from_numpy(names[name]) for name in ("output", "h_n", "c_n")]
    torch.testing.assert_close(run_by_the_page, [expected, *states])
    input, lengths = torch.randn(9, 4, 32), torch.tensor([9, 0, 4, 1])
    for module, file in (("model", "model.onnx"), ("scanned", "scan.onnx")):
        output, state = names[module](input, lengths=lengths)
        found = [torch.from_numpy(values) for values in run_onnx(onnxruntime, file, input, lengths)]
        torch.testing.assert_close(found, [output, *state])
    found = torch.export.load("model.pt2").module()(input, lengths=lengths)
    torch.testing.assert_close(found, names["model"](input, lengths=lengths))


each_layer = pytest.mark.parametrize("kind", ["LSTM", "GRU"])


class Layers(torch.nn.Module):
    """Layers of lltm's, with everything that ONNX's operator has, or with what it lacks."""

    def __init__(self, kind, num_layers=2, **options):
        super().__init__()
        self.rnn = getattr(lltm, kind)(3, 4, num_layers, **options)

    def forward(self, x, lengths=None, state=None, reset=None):
        given = None if state is None else state[0] if self.rnn.mode == "GRU" else (state[0], state[1])
        output, last = self.rnn(x, given, lengths, reset)
        return output, *([last] if self.rnn.mode == "GRU" else last)

    def arguments(self, steps, batch, with_lengths=True):
        """With lengths, also of 0 and beyond the steps, which keep the initial state and are clamped."""
        dtype, directions = self.rnn.weight_hh_l0.dtype, 2 if self.rnn.bidirectional else 1
        sizes = (batch, steps) if self.rnn.batch_first else (steps, batch)
        lengths = torch.randint(0, steps + 3, (batch,))
        lengths[0] = 0
        state = torch.randn(1 if self.rnn.mode == "GRU" else 2, self.rnn.num_layers * directions, batch, 4)
        given = torch.randn(*sizes, 3).to(dtype), lengths, state.to(dtype)
        return given if with_lengths else given[:1]


def export_layers(model, arguments, **options):
    with torch.no_grad():
        return torch.onnx.export(
            model.eval(), arguments, dynamo=True, custom_translation_table=lltm.onnx_translation_table(), **options
        )


def assert_runs_as(onnxruntime, path, model, *given):
    tolerance = 5e-3 if given[0].dtype == torch.float16 else 1e-5
    for result, expected in zip(run_onnx(onnxruntime, path, *given), model(*given), strict=True):
        torch.testing.assert_close(torch.from_numpy(result), expected, rtol=0, atol=tolerance)


PLAIN, BOTH, WITHOUT_BIAS = OPTIONS_OF_LAYERS = [{}, {"bidirectional": True, "batch_first": True}, {"bias": False}]
EVERY_OPTION_OF_LAYERS = [
    (PLAIN, False, torch.float32),
    (BOTH, True, torch.float32),
    (BOTH, True, torch.float16),
    (WITHOUT_BIAS, True, torch.float32),
]


@each_layer
@pytest.mark.parametrize(
    ("options", "with_lengths", "dtype"),
    [
        # Each option, with lengths and without, and another dtype of the same graph. Only a release combines all.
        pytest.param(*case, marks=() if case in EVERY_OPTION_OF_LAYERS else pytest.mark.release)
        for case in itertools.product(OPTIONS_OF_LAYERS, (False, True), (torch.float32, torch.float16))
    ],
    ids=str,
)
def test_layers_are_those_of_onnx(onnxruntime, tmp_path, kind, options, with_lengths, dtype):
    model = Layers(kind, **options).to(dtype)
    shapes = ({0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC}, {2: DYNAMIC})[: 3 if with_lengths else 1]
    program = export_layers(model, model.arguments(5, 3, with_lengths), dynamic_shapes=shapes)
    kinds = [node.op_type for node in program.model.graph]
    assert kinds.count(kind) == (4 if options.get("bidirectional") else 2) and "Scan" not in kinds
    program.save(tmp_path / "model.onnx")
    for sizes in ((5, 3), (9, 6), (1, 2)):
        assert_runs_as(onnxruntime, tmp_path / "model.onnx", model, *model.arguments(*sizes, with_lengths))


@pytest.mark.parametrize("absent", ["bias_ih", "bias_hh"])
def test_a_gru_with_one_bias_is_that_of_onnx(onnxruntime, tmp_path, absent):
    class OneBias(torch.nn.Module):
        def forward(self, input, weight_ih, weight_hh, bias):
            return ops.gru(input, weight_ih, weight_hh, **{"bias_hh" if absent == "bias_ih" else "bias_ih": bias})[:2]

    given = torch.randn(5, 2, 3), torch.randn(12, 3), torch.randn(12, 4), torch.randn(12)
    export_layers(OneBias(), given).save(tmp_path / "model.onnx")
    assert_runs_as(onnxruntime, tmp_path / "model.onnx", OneBias(), *given)


@each_layer
@pytest.mark.parametrize(
    ("num_layers", "bidirectional"),
    [(1, True), *(pytest.param(2, both, marks=pytest.mark.release) for both in (False, True))],
)
def test_layers_with_resets_are_scans(onnxruntime, tmp_path, kind, num_layers, bidirectional):
    model = Layers(kind, num_layers, bidirectional=bidirectional, batch_first=True)
    path = tmp_path / "model.onnx"
    shapes = ({0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC}, {2: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC})

    def make_arguments(*sizes):
        arguments = model.arguments(*sizes)
        return *arguments, torch.rand(arguments[0].shape[:2]) < 0.3

    export_onnx(model, make_arguments(5, 3), shapes, path)
    for sizes in ((5, 3), (9, 6), (1, 2)):
        assert_runs_as(onnxruntime, path, model, *make_arguments(*sizes))


@each_layer
@pytest.mark.parametrize(
    ("dtype", "reset", "message"),
    [(torch.float64, None, "runs in float32 and float16"), (torch.float32, torch.zeros(5, 2).bool(), "has no resets")],
)
def test_what_onnx_does_not_have_is_refused(onnxruntime, kind, dtype, reset, message):
    with pytest.raises(torch.onnx.OnnxExporterError, match=f"ONNX's {kind} {message}.*lltm.decompositions"):
        export_layers(Layers(kind).to(dtype), (torch.randn(5, 2, 3).to(dtype), None, None, reset))


class Program(torch.nn.Module):
    """A model of torch.nn's, which its program exports in its own way."""

    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = getattr(torch.nn, kind)(3, 4, 2, **options)
        self.cell = getattr(torch.nn, f"{kind}Cell")(4 * (2 if self.rnn.bidirectional else 1), 5)

    def forward(self, x):
        output, state = self.rnn(x)
        of_cell = self.cell(output[0])
        return (output, state, of_cell) if self.rnn.mode == "GRU" else (output, *state, *of_cell)


def export_by_torchscript(model, inputs, path, **options):
    names = [f"input{index}" for index in range(len(inputs))]
    axes = {name: {max(given.dim() - 2, 0): "batch"} for name, given in zip(names, inputs, strict=True)}
    axes["input0"] = {0: "steps", 1: "batch"}
    torch.onnx.export(model, inputs, path, dynamo=False, input_names=names, dynamic_axes=axes, **options)


@pytest.mark.filterwarnings("ignore:.*TracerWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning")
@each_layer
@pytest.mark.parametrize(
    ("opset", "options"),
    [
        # Every opset with both directions, and one with every option. test_layers_are_those_of_onnx has them by dynamo.
        pytest.param(*case, marks=() if case[1] == BOTH or case[0] == 17 else pytest.mark.release)
        for case in itertools.product((9, 14, 17, "dynamo"), OPTIONS_OF_LAYERS)
    ],
    ids=str,
)
def test_a_program_exports_its_converted_model(onnxruntime, tmp_path, kind, options, opset):
    """By itself, and so without a table."""
    import onnx

    model, path, x = lltm.convert(Program(kind, **options)).eval(), str(tmp_path / "model.onnx"), torch.randn(5, 4, 3)
    with torch.no_grad():
        if opset == "dynamo":
            shapes = ({0: DYNAMIC, 1: DYNAMIC},)
            torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, dynamic_shapes=shapes)
        else:
            export_by_torchscript(model, (x,), path, opset_version=opset)
        kinds = [node.op_type for node in onnx.load(path).graph.node]
        assert kinds.count(kind) == (5 if options.get("bidirectional") else 3) and "Scan" not in kinds
        for sizes in ((5, 4), (7, 3), (1, 1)):
            assert_runs_as(onnxruntime, path, model, torch.randn(*sizes, 3))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::UserWarning")
@each_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_layers_of_onnx_by_torchscript(onnxruntime, tmp_path, kind, dtype):
    model, path = Layers(kind, bidirectional=True).to(dtype).eval(), str(tmp_path / "model.onnx")
    with torch.no_grad():
        export_by_torchscript(model, model.arguments(5, 3), path, opset_version=14)
    for sizes in ((5, 3), (9, 6), (1, 2)):
        assert_runs_as(onnxruntime, path, model, *model.arguments(*sizes))


class Packs(torch.nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, lengths):
        output, _ = self.rnn(torch.nn.utils.rnn.pack_padded_sequence(x, lengths))
        return torch.nn.utils.rnn.pad_packed_sequence(output)[0]


class Calls(torch.nn.Module):
    def __init__(self, rnn, function):
        super().__init__()
        self.rnn, self.function = rnn, function

    def forward(self, x):
        return self.function(self.rnn, x)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::UserWarning")
def test_what_torchscript_does_not_export_is_named(tmp_path):
    x, lengths, path = torch.randn(5, 2, 3), torch.tensor([5, 3]), str(tmp_path / "model.onnx")
    ours, gru = lltm.LSTM(3, 4), lltm.GRU(3, 4)
    no_resets = "lltm::lstm: ONNX's LSTM has no resets; export with lltm.decompositions\\(\\)$"
    cases = [
        (Calls(ours, lambda rnn, x: rnn(x, reset=x[..., 0] > 0)[0]), (x,), NotImplementedError, no_resets),
        (
            Calls(lltm.GRU(3, 4), lambda rnn, x: rnn(x, reset=x[..., 0] > 0)[0]),
            (x,),
            NotImplementedError,
            no_resets.replace("lstm", "gru").replace("LSTM", "GRU"),
        ),
        (
            Calls(lltm.GRU(3, 4).half(), lambda rnn, x: rnn(x, x.new_zeros(1, 2, 4).float())[0]),
            (x.half(),),
            NotImplementedError,
            "ONNX's GRU needs h_0 of input's dtype torch.float16, got torch.float32; export with",
        ),
        (
            Calls(lltm.GRU(3, 4), lambda rnn, x: lltm.ops.gru(x, rnn.weight_ih_l0, rnn.weight_hh_l0, keep=True)[0]),
            (x,),
            NotImplementedError,
            "ONNX's GRU does not return the gates of every step",
        ),
        (
            lltm.LSTM(3, 4, dtype=torch.float64),
            (x.double(),),
            NotImplementedError,
            "float16, not in torch.float64; export with lltm.decompositions\\(\\), or export lltm.revert\\(model\\)$",
        ),
        (
            Calls(ours, lambda rnn, x: rnn.states(x)[2][0]),
            (x,),
            NotImplementedError,
            "does not return the cell state of every",
        ),
        (
            lltm.LLTM(3, 4),
            (x,),
            NotImplementedError,
            "^lltm::sequence has no translation in torch.onnx.export",
        ),
        (lltm.LLTMCell(3, 4), (x[0],), NotImplementedError, "^lltm::forward has no translation in torch.onnx.export"),
        (Packs(ours), (x, lengths), RuntimeError, "^LSTM: a PackedSequence cannot .* lengths, or export lltm.revert"),
        (Packs(gru), (x, lengths), RuntimeError, "^GRU: a PackedSequence cannot .* lengths, or export lltm.revert"),
        (Packs(lltm.LLTM(3, 4)), (x, lengths), RuntimeError, "^LLTM: a PackedSequence cannot be .* and lengths$"),
    ]
    for model, inputs, kind, message in cases:
        with pytest.raises(kind, match=message):
            torch.onnx.export(model.eval(), inputs, path, dynamo=False)
    for layer in (lltm.LSTM, lltm.GRU):
        message = f"^lltm::{layer.__name__.lower()}_layers: there is dropout between layers: export in eval$"
        with pytest.raises(NotImplementedError, match=message):
            in_training = torch.onnx.TrainingMode.TRAINING
            torch.onnx.export(layer(3, 4, 2, dropout=0.5), (x,), path, dynamo=False, training=in_training)
    for layer in (ours, gru):
        torch.onnx.export(Packs(lltm.revert(layer)), (x, lengths), path, dynamo=False)
