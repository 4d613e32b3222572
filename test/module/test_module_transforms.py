"""The modules under PyTorch's module transforms: scripting, tracing, compiling, exporting, AMP, flops."""

import copy
import io
import warnings
from functools import partial

import numpy
import pytest
import torch
from lltm_testing.graphs import Operators, calls_of
from lltm_testing.module_reference import CELLS, Model, assert_same, maker, packed, random_state, states_model
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import lltm

pytestmark = pytest.mark.pytorch

# TorchScript is deprecated, but deployed models use it.
script_warnings = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning"
)


class Padded(Model):
    def forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ):
        return self.rnn(input, hx, lengths, reset)


class PaddedOfH(Model):
    def forward(
        self, input: Tensor, hx: Tensor | None = None, lengths: Tensor | None = None, reset: Tensor | None = None
    ):
        return self.rnn(input, hx, lengths, reset)


class Packed(Model):
    def forward(self, input: PackedSequence, hx: tuple[Tensor, Tensor] | None = None):
        return self.rnn(input, hx)


class PackedOfH(Model):
    def forward(self, input: PackedSequence, hx: Tensor | None = None):
        return self.rnn(input, hx)


class PackedStates(Model):
    def forward(self, input: PackedSequence, hx: tuple[Tensor, Tensor] | None = None):
        return self.rnn.states(input, hx)


class PackedStatesOfH(Model):
    def forward(self, input: PackedSequence, hx: Tensor | None = None):
        return self.rnn.states(input, hx)


padded_model = maker(Padded, PaddedOfH)
each_model = pytest.mark.parametrize("make_model", [padded_model, states_model], ids=["Padded", "States"])


OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True, "bias": False},
    {"num_layers": 3, "batch_first": True, "dropout": 0.1},
]
CASES = [
    *((lltm.LLTM, options) for options in OPTIONS),
    *((lltm.LSTM, options) for options in OPTIONS[:2]),
    (lltm.GRU, OPTIONS[1]),
]
each_case = pytest.mark.parametrize(("cls", "options"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
OPERATORS = {
    lltm.LLTM: torch.ops.lltm.sequence.default,
    lltm.LSTM: torch.ops.lltm.lstm.default,
    lltm.GRU: torch.ops.lltm.gru.default,
}


def first_weights(rnn: nn.Module) -> str:
    """The name of a parameter."""
    return "weights_l0" if isinstance(rnn, lltm.LLTM) else "weight_ih_l0"


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    return torch.jit.load(file)


def arguments_of(model, steps=5, batch=2, dtype=torch.float32, device="cpu"):
    sizes = (batch, steps) if model.rnn.batch_first else (steps, batch)
    return (
        torch.randn(*sizes, 3, dtype=dtype, device=device),
        random_state(model.rnn, batch, dtype=dtype, device=device),
        torch.arange(batch, device=device) + steps - batch + 1,
        torch.rand(sizes, device=device) < 0.2,
    )


@script_warnings
@each_model
@each_case
def test_scripted_as_a_submodule(cls, options, device, make_model):
    model = make_model(cls, **options).to(device).eval()
    loaded = saved_and_loaded(model)
    for steps in (1, 3, 4):
        arguments = arguments_of(model, steps, device=device)
        for count in (1, 2, 3, 4):
            assert_same(loaded(*arguments[:count]), model(*arguments[:count]), rtol=0, atol=0)
    single = torch.randn(5, 3, device=device)
    assert_same(loaded(single), model(single), rtol=0, atol=0)
    assert set(loaded.state_dict()) == set(model.state_dict())
    with pytest.raises(torch.jit.Error, match="Expected input to be 2D or 3D, got 4D"):
        loaded(torch.zeros(5, 2, 1, 3, device=device))


@script_warnings
@pytest.mark.parametrize("options", [{"bidirectional": 1}, {"num_layers": 2, "dropout": 1}], ids=str)
def test_scripted_with_integers_as_options(cls, options):
    """TorchScript does not convert them to bool and float."""
    model, input = padded_model(cls, **options), torch.randn(5, 2, 3)
    assert_same(saved_and_loaded(model)(input), model(input), rtol=0, atol=0)


@script_warnings
@each_case
@pytest.mark.parametrize("lengths", [[5, 2], [2, 5]], ids=["sorted", "unsorted"])
@pytest.mark.parametrize(
    "make_model", [maker(Packed, PackedOfH), maker(PackedStates, PackedStatesOfH)], ids=["Packed", "PackedStates"]
)
def test_scripted_with_a_packed_sequence(cls, options, lengths, make_model):
    model = make_model(cls, **options).eval()
    loaded = saved_and_loaded(model)
    sequence = packed(torch.randn(5, 2, 3), lengths, enforce_sorted=lengths == [5, 2])
    for state in (None, random_state(model.rnn, 2)):
        assert_same(loaded(sequence, state), model(sequence, state), rtol=0, atol=0)


@script_warnings
def test_a_scripted_module_keeps_its_parameters(cls):
    """After training, moving and loading, it uses its current parameters."""
    model = padded_model(cls, num_layers=2)
    loaded = saved_and_loaded(model)
    input = torch.randn(5, 2, 3)
    loss = loaded(input)[0].sum()
    grads = torch.autograd.grad(loss, list(loaded.parameters()))
    expected = torch.autograd.grad(model(input)[0].sum(), list(model.parameters()))
    torch.testing.assert_close(grads, expected)
    other = padded_model(cls, num_layers=2)
    loaded.load_state_dict(other.state_dict())
    assert_same(loaded(input), other(input), rtol=0, atol=0)
    assert loaded.double()(input.double())[0].dtype == torch.float64


@script_warnings
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "compile", [torch.jit.script, lambda model: torch.jit.trace(model, torch.randn(5, 2, 3))], ids=["script", "trace"]
)
def test_a_scripted_module_takes_assigned_parameters(cls, bias, compile):
    """Its list of parameters has the new ones."""
    model = padded_model(cls, num_layers=2, bidirectional=True, bias=bias)
    compiled, input = compile(model), torch.randn(5, 2, 3)
    expected = model(input)
    for assign in (True, False, True):
        other = padded_model(cls, num_layers=2, bidirectional=True, bias=bias)
        compiled.load_state_dict(other.state_dict(), assign=assign)
        assert_same(compiled(input), other(input), rtol=0, atol=0)
    some = dict(list(model.state_dict().items())[2:])  # but the first layer's
    compiled.load_state_dict(some, strict=False, assign=True)
    other.load_state_dict(some, strict=False)
    assert_same(compiled(input), other(input), rtol=0, atol=0)
    assert_same(saved_and_loaded(compiled)(input), other(input), rtol=0, atol=0)
    results = [torch.autograd.grad(m(input)[0].sum(), list(m.parameters())) for m in (compiled, other)]
    torch.testing.assert_close(*results)
    assert_same(torch.jit.freeze(compiled.eval())(input), other(input), rtol=0, atol=0)
    assert_same(model(input), expected, rtol=0, atol=0)


@script_warnings
def test_a_scripted_module_refuses_the_other_cell():
    for cls, other in ((lltm.LLTM, lltm.LSTM), (lltm.LSTM, lltm.LLTM), (lltm.GRU, lltm.LLTM)):
        with pytest.raises(
            RuntimeError, match=rf"rnn\.weight.* is a parameter of .*, whose cell .*{cls.__name__} cannot"
        ):
            torch.jit.script(padded_model(cls)).load_state_dict(padded_model(other).state_dict(), strict=False)


def traced_without_warning(model, arguments):
    """The traced model. A warning would say that a decision about a size has become a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        return torch.jit.trace(model, arguments)


@script_warnings
@each_model
def test_traced(cls, make_model):
    model = make_model(cls, num_layers=2, bidirectional=True)
    traced = traced_without_warning(model, arguments_of(model))
    arguments = arguments_of(model, steps=7, batch=3)
    assert_same(traced(*arguments), model(*arguments), rtol=0, atol=0)


class PacksInside(Model):
    def __init__(self, rnn: nn.Module, enforce_sorted: bool):
        super().__init__(rnn)
        self.enforce_sorted = enforce_sorted

    def forward(self, input, lengths):
        packed = pack_padded_sequence(input, lengths, enforce_sorted=self.enforce_sorted)
        output, state = self.rnn(packed)
        return pad_packed_sequence(output)[0], state


@script_warnings
@pytest.mark.parametrize("enforce_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("cls", [nn.LSTM, lltm.LLTM, lltm.LSTM, lltm.GRU])
def test_traced_where_the_model_packs(cls, enforce_sorted):
    """With any number of rows and steps, like nn.LSTM."""
    model = PacksInside(cls(3, 4, 2, bidirectional=True), enforce_sorted)
    traced = torch.jit.trace(model, (torch.randn(5, 2, 3), torch.tensor([5, 3])))
    for lengths in ([6, 2, 1], [4], [5, 5, 4, 1]):
        arguments = torch.randn(max(lengths), len(lengths), 3), torch.tensor(lengths)
        assert_same(traced(*arguments), model(*arguments))


@script_warnings
def test_traced_with_a_pack_of_very_different_lengths(cls):
    """This one runs in segments, which are no constants of the traced graph."""
    model = PacksInside(cls(800, 4, bidirectional=True), enforce_sorted=True)
    traced = torch.jit.trace(model, (torch.randn(40, 10, 800), torch.tensor([40] + [1] * 9)))
    for arguments in (
        (torch.randn(6, 3, 800), torch.tensor([6, 2, 1])),
        (torch.randn(50, 10, 800), torch.tensor([50] + [1] * 9)),
    ):
        assert_same(traced(*arguments), model(*arguments))


@each_model
@pytest.mark.parametrize(("cls", "options"), [*CASES[:3], *CASES[4:]], ids=lambda v: getattr(v, "__name__", str(v)))
def test_compiled_without_a_graph_break(cls, options, device, fresh_compiler, make_model):
    """And, for T and N of at least two, without a recompilation."""
    model = make_model(cls, **options).to(device).train("dropout" not in options)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for steps, batch in ((5, 2), (7, 3), (2, 4)):
        with torch._dynamo.config.patch(error_on_recompile=steps != 5):
            for mode in (torch.no_grad(), torch.enable_grad()) if steps == 5 else (torch.enable_grad(),):
                with mode:
                    arguments = arguments_of(model, steps, batch, device=device)
                    results = compiled(*arguments)
        assert_same(results, model(*arguments))
    assert counter.frame_count == 2  # without gradients and with gradients
    grads, expected = (
        torch.autograd.grad(sum(t.sum() for t in tree_leaves(module(*arguments))), list(model.parameters()))
        for module in (compiled, model)
    )
    torch.testing.assert_close(grads, expected)


@each_model
def test_exported_with_dynamic_steps_and_batch(cls, device, make_model):
    model = make_model(cls, num_layers=2, bidirectional=True).to(device).eval()
    steps, batch = Dim("steps", min=2), Dim("batch", min=2)
    dynamic = {0: steps, 1: batch}
    arguments = arguments_of(model, device=device)
    shapes = dynamic, tree_map(lambda _: {1: batch}, arguments[1]), {0: batch}, dynamic
    program = torch.export.export(model, arguments, dynamic_shapes=shapes)
    assert calls_of([program.graph_module], OPERATORS[cls]) == 4
    for sizes in ((5, 2), (9, 4)):
        arguments = arguments_of(model, *sizes, device=device)
        assert_same(program.module()(*arguments), model(*arguments))


def test_functional_call_and_grad(cls):
    rnn = cls(3, 4, 2)
    input = torch.randn(5, 2, 3)
    zeros = {key: torch.zeros_like(value) for key, value in rnn.named_parameters()}
    assert not torch.func.functional_call(rnn, zeros, (input,))[0].any()
    assert rnn(input)[0].any()

    def loss(parameters):
        return torch.func.functional_call(rnn, parameters, (input,))[0].sum()

    parameters = dict(rnn.named_parameters())
    expected = torch.autograd.grad(rnn(input)[0].sum(), list(parameters.values()))
    torch.testing.assert_close(tuple(torch.func.grad(loss)(parameters).values()), expected)


def plain_run(rnn: nn.Module, parameters: dict[str, Tensor], input: Tensor) -> list[Tensor]:
    """The state after a single layer by PyTorch's operators, each part (N, H)."""
    if not isinstance(rnn, lltm.LLTM):
        return run_once(rnn.to_torch(), parameters, input)
    h = c = input.new_zeros(input.size(1), rnn.hidden_size)
    for x in input:
        i, o, g = (torch.cat([h, x], 1) @ parameters["weights_l0"].t() + parameters["bias_l0"]).chunk(3, 1)
        c = c + nn.functional.elu(g) * i.sigmoid()
        h = c.tanh() * o.sigmoid()
    return [h, c]


def run_once(rnn: nn.Module, parameters: dict[str, Tensor], input: Tensor) -> list[Tensor]:
    """The same by the module itself."""
    return [part[0] for part in tree_leaves(torch.func.functional_call(rnn, parameters, (input,))[1])]


@pytest.mark.parametrize("zeros", [False, True], ids=["random", "zeros"])
def test_three_derivatives(cls, zeros):
    """By torch.func, over the parameters, also where every z is exactly 0: there, ELU's second derivative
    jumps from 0 to 1."""
    rnn = cls(2, 2, dtype=torch.float64)
    input = torch.randn(2, 2, 2, dtype=torch.float64)
    tensors = {
        name: torch.zeros_like(parameter) if zeros else parameter.detach() for name, parameter in rnn.named_parameters()
    }

    def derivatives(run):
        def loss(tensors):
            return sum((part + k).pow(k + 1).sum() for k, part in enumerate(run(rnn, tensors, input), 1))

        for _ in range(3):
            gradients = torch.func.grad(loss)
            yield gradients(tensors)

            def loss(tensors, gradients=gradients):
                return sum((gradient + 1).square().sum() for gradient in gradients(tensors).values())

    for found, expected in zip(derivatives(run_once), derivatives(plain_run), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_parametrizations(cls):
    rnn = cls(3, 4)
    weights, bias = first_weights(rnn), list(rnn.state_dict())[-1]
    plain = rnn(torch.ones(5, 2, 3))[0]
    parametrizations.weight_norm(rnn, weights)
    torch.testing.assert_close(rnn(torch.ones(5, 2, 3))[0], plain)
    rnn(torch.ones(5, 2, 3))[0].sum().backward()
    assert rnn.parametrizations[weights].original0.grad.any()
    prune.l1_unstructured(rnn, bias, amount=1.0)
    assert not getattr(rnn, bias).any() and not torch.equal(rnn(torch.ones(5, 2, 3))[0], plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True}], ids=str)
def test_changed_in_place(cls, options, dtype):
    """The states may be changed before backward, and so may an output that is a concatenation; another output is saved,
    and changing it raises."""
    rnn = cls(3, 4, **options, dtype=dtype)
    weights = getattr(rnn, first_weights(rnn))
    input = torch.randn(5, 2, 3, dtype=dtype)
    for which in range(len(tree_leaves(random_state(rnn, 2)))):
        rnn.zero_grad()
        tree_leaves(rnn(input)[1])[which].mul_(2).sum().backward()
        changed = weights.grad.clone()
        rnn.zero_grad()
        (tree_leaves(rnn(input)[1])[which] * 2).sum().backward()
        assert torch.equal(changed, weights.grad) and changed.any()
    output = rnn(input)[0].mul_(2)
    if rnn.bidirectional:
        output.sum().backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


@pytest.mark.parametrize("make", [*CELLS, *CELLS.values()])
def test_per_sample_gradients(make):
    """ExpandedWeights, which support only PyTorch's own functions, raise; functorch gives the gradients."""
    of_steps = make in CELLS
    module, input = make(3, 4, **({"batch_first": True} if of_steps else {})), torch.randn(2, 5, 3)
    input = input if of_steps else input[:, 0]
    with pytest.raises(RuntimeError, match="Expanded Weights encountered but cannot handle"):
        call_for_per_sample_grads(module)(input)

    def loss(parameters, one):
        return tree_leaves(torch.func.functional_call(module, parameters, (one,)))[0].square().sum()

    gradients = torch.vmap(torch.func.grad(loss), (None, 0))(dict(module.named_parameters()), input)
    for name, parameter in module.named_parameters():
        for one, gradient in zip(input, gradients[name], strict=True):
            (expected,) = torch.autograd.grad(tree_leaves(module(one))[0].square().sum(), parameter)
            torch.testing.assert_close(gradient, expected)


def test_the_recipe_for_a_forget_gate():
    """docs/sequences.md says which biases it fills."""
    rnn = lltm.LLTM(3, 8)
    for name, bias in rnn.named_parameters():
        if "bias" in name:
            n = bias.size(0)
            bias.data.zero_()[n // 4 : n // 2].fill_(1)
    input_gate, output_gate, candidate = rnn.bias_l0.detach().chunk(3)
    assert input_gate.tolist() == [0] * 6 + [1] * 2 and output_gate.tolist() == [1] * 4 + [0] * 4
    assert not candidate.any()


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, weights):
        self.calls += 1
        return nn.functional.dropout(weights, 0.5)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_a_parametrization_is_evaluated_once(cls, packed):
    rnn, input = cls(3, 4), torch.randn(5, 1, 3)
    name, plain = first_weights(rnn), copy.deepcopy(rnn)
    parametrize.register_parametrization(rnn, name, Counted(), unsafe=True)
    torch.manual_seed(1)
    weights = nn.functional.dropout(getattr(plain, name), 0.5)
    expected = torch.func.functional_call(plain, {name: weights}, (input,))[0]
    before = rnn.parametrizations[name][0].calls
    torch.manual_seed(1)
    output = rnn(pack_sequence([input[:, 0]]) if packed else input)[0]
    assert rnn.parametrizations[name][0].calls == before + 1
    torch.testing.assert_close(output.data, expected[:, 0] if packed else expected)


def test_checkpointed(cls):
    rnn = cls(3, 4, 2)
    input = torch.randn(5, 2, 3, requires_grad=True)
    output, _ = torch.utils.checkpoint.checkpoint(rnn, input, use_reentrant=False)
    torch.testing.assert_close(
        torch.autograd.grad(output.sum(), input), torch.autograd.grad(rnn(input)[0].sum(), input)
    )


@pytest.mark.parametrize(("saved", "calls"), [(True, 2), (False, 4)], ids=["saved", "recomputed"])
def test_selectively_checkpointed(cls, saved, calls):
    """Each layer runs once if the policy saves the operator's results, and a second time in backward otherwise."""
    rnn, input = cls(3, 4, 2), torch.randn(5, 2, 3, requires_grad=True)
    expected = torch.autograd.grad(rnn(input)[0].sum(), input)
    operator = OPERATORS[cls]
    contexts = partial(create_selective_checkpoint_contexts, [operator] if saved else [torch.ops.aten.mm.default])
    with Operators() as operators:
        output, _ = torch.utils.checkpoint.checkpoint(rnn, input, use_reentrant=False, context_fn=contexts)
        found = torch.autograd.grad(output.sum(), input)
    assert operators.fused().count(operator.overloadpacket.__name__) == calls
    torch.testing.assert_close(found, expected)


def test_autocast(cls, device):
    rnn = cls(3, 4, 2, device=device)
    input = torch.randn(5, 2, 3, device=device)
    state = random_state(rnn, 2, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        output, state_n = rnn(input, state)
        mixed, _ = rnn(input.bfloat16())
    assert output.dtype == mixed.dtype == torch.bfloat16
    *others, carried = [part.dtype for part in tree_leaves(state_n)]
    assert set(others) <= {torch.bfloat16} and carried == torch.float32
    output.float().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in rnn.parameters())
    torch.testing.assert_close(output.float(), rnn(input, state)[0], atol=0.05, rtol=0.05)


def count_flops(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def test_flops_of_the_cell():
    cell = lltm.LLTMCell(3, 4)
    x, state = torch.randn(2, 3), [part[0] for part in random_state(lltm.LLTM(3, 4), 2)]
    step = 2 * 2 * 12 * 7
    assert count_flops(lambda: cell(x, state)) == step
    # Only the weights require a gradient; then x and h, too.
    assert count_flops(lambda: cell(x, state)[0].sum().backward()) == 2 * step
    assert (
        count_flops(lambda: cell(x.requires_grad_(), (state[0].requires_grad_(), state[1]))[0].sum().backward())
        == 3 * step
    )
    cell.weights.requires_grad_(False)
    assert count_flops(lambda: cell(x)[0].sum().backward()) == step + 2 * 2 * 12 * 3


def test_flops_of_a_sequence(cls):
    rnn, gates = cls(3, 4), 4 if cls is lltm.LSTM else 3
    input, state = torch.randn(5, 2, 3), random_state(rnn, 2)
    step_of_h, step_of_x = 2 * 2 * 4 * gates * 4, 2 * 2 * 4 * gates * 3
    product = 5 * (step_of_h + step_of_x)
    assert count_flops(lambda: rnn(input)) == product
    assert count_flops(lambda: rnn(input)[0].sum().backward()) == 2 * product + 4 * step_of_h
    input.requires_grad_()
    tree_leaves(state)[0].requires_grad_()
    expected = 2 * product + 5 * step_of_h + 5 * step_of_x
    assert count_flops(lambda: rnn(input, state)[0].sum().backward()) == expected
    bidirectional = cls(3, 4, bidirectional=True)
    assert count_flops(lambda: bidirectional(input)) == 2 * product
    assert count_flops(lambda: rnn(input[:0])[0].sum().backward()) == 0
    for parameter in rnn.parameters():
        parameter.requires_grad_(parameter.dim() == 1)
    expected = product + 4 * step_of_h + 5 * step_of_x
    assert count_flops(lambda: rnn(input)[0].sum().backward()) == expected


TWO, YES = numpy.int64(2), numpy.bool_(True)
WITH_NUMBERS_OF_NUMPY = {
    "LSTM": lambda: lltm.LSTM(3, 4, TWO, bidirectional=YES, proj_size=numpy.int32(0)),
    "LLTM": lambda: lltm.LLTM(3, 4, TWO, bidirectional=YES, dropout=numpy.float32(0.5), leak=numpy.float32(1)),
    "LSTMCell": lambda: lltm.LSTMCell(numpy.int64(3), numpy.int64(4), bias=YES),
    "LLTMCell": lambda: lltm.LLTMCell(numpy.int64(3), numpy.int64(4)),
    "GRU": lambda: lltm.GRU(3, 4, TWO, bidirectional=YES, dropout=numpy.float32(0.5)),
    "GRUCell": lambda: lltm.GRUCell(numpy.int64(3), numpy.int64(4), bias=YES),
    "converted LSTM": lambda: lltm.convert_lstm(nn.LSTM(3, 4, TWO, bidirectional=YES, proj_size=numpy.int32(0))),
    "converted LSTMCell": lambda: lltm.convert_lstm(nn.LSTMCell(numpy.int64(3), numpy.int64(4), bias=YES)),
    "converted GRU": lambda: lltm.convert(nn.GRU(3, 4, TWO, bidirectional=YES)),
    "converted GRUCell": lambda: lltm.convert(nn.GRUCell(numpy.int64(3), numpy.int64(4), bias=YES)),
}


class FirstResult(Model):
    """Because a layer is scripted as a part of a model."""

    def forward(self, input: Tensor):
        return self.rnn(input)[0]


@script_warnings
@pytest.mark.parametrize("make", WITH_NUMBERS_OF_NUMPY.values(), ids=WITH_NUMBERS_OF_NUMPY)
def test_numbers_of_numpy(make):
    """torch.nn takes them. The attributes are of Python's types, so that the module compiles, exports and scripts."""
    rnn = make().eval()
    for name in (*rnn.__constants__, *vars(rnn)):
        assert not isinstance(getattr(rnn, name), numpy.generic), name
    assert rnn.bias is True or isinstance(rnn.bias, torch.Tensor)
    input = torch.randn(2, 3) if "Cell" in type(rnn).__name__ else torch.randn(5, 2, 3)
    model = FirstResult(rnn)
    for form in (
        torch.compile(model, fullgraph=True, backend="eager"),
        torch.export.export(model, (input,), strict=True).module(),
        torch.jit.script(model),
    ):
        assert torch.equal(form(input), model(input))


@pytest.mark.parametrize(
    ("enforce_sorted", "with_state"),
    [
        pytest.param(True, False, id="sorted-zeros"),
        pytest.param(False, True, id="unsorted-state"),
        # Each is in one of those above.
        pytest.param(True, True, id="sorted-state", marks=pytest.mark.release),
        pytest.param(False, False, id="unsorted-zeros", marks=pytest.mark.release),
    ],
)
def test_a_pack_that_is_given_compiles_in_one_graph(cls, enforce_sorted, with_state, fresh_compiler):
    rnn = cls(3, 4, 2, bidirectional=True)
    compiled = torch.compile(rnn, backend="aot_eager", fullgraph=True)
    for lengths in ([5, 3, 1], [6, 6, 2, 1]):
        lengths = torch.tensor(lengths if enforce_sorted else lengths[::-1])
        given = pack_padded_sequence(torch.randn(6, len(lengths), 3), lengths, enforce_sorted=enforce_sorted)
        arguments = (given, random_state(rnn, len(lengths))) if with_state else (given,)
        assert_same(compiled(*arguments), rnn(*arguments))
    with pytest.raises(RuntimeError):
        compiled(given, random_state(rnn, 3))


@pytest.mark.parametrize("states", [False, True], ids=["call", "states"])
def test_a_pack_is_not_exported_but_compiled(cls, states):
    rnn, input, lengths = cls(3, 4), torch.randn(5, 3, 3), torch.tensor([5, 1, 3])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, input, lengths):
            packed = pack_padded_sequence(input, lengths, enforce_sorted=False)
            return pad_packed_sequence((self.rnn.states if states else self.rnn)(packed)[0])[0]

    with pytest.raises(
        RuntimeError, match=f"^{cls.__name__}: a PackedSequence cannot be exported: pass a padded input"
    ):
        torch.export.export(Model(), (input, lengths))
    if torch.__version__ >= (2, 15):  # PyTorch 2.11 itself fails to compile pad_packed_sequence
        assert torch.equal(torch.compile(Model(), backend="eager")(input, lengths), rnn(input, None, lengths)[0])
