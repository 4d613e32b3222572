"""The modules under torch.fx: one node a call, whose hooks and values are those of the eager model."""

import copy
import pickle

import pytest
import torch
from lltm_testing.module_reference import random_state
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_flatten

import lltm

pytestmark = pytest.mark.pytorch

STEPS, BATCH = 5, 2


class Layers(nn.Module):
    """Calls LLTM, or a module in its place."""

    def __init__(self, rnn=None, **options):
        super().__init__()
        self.rnn = lltm.LLTM(3, 4, **options) if rnn is None else rnn
        self.head = nn.Linear(4 * (2 if self.rnn.bidirectional else 1), 2)

    def forward(self, input, hx=None, lengths=None, reset=None):
        output, state = self.rnn(input, hx, lengths=lengths, reset=reset)
        return self.head(output), state


class Steps(nn.Module):
    """Calls LLTMCell, or a module in its place, twice."""

    def __init__(self, rnn=None):
        super().__init__()
        self.rnn = lltm.LLTMCell(3, 4) if rnn is None else rnn

    def forward(self, x):
        state = self.rnn(x)
        return self.rnn(x, state)


MODELS = [Layers, Steps]
both_modules = pytest.mark.parametrize("make_model", MODELS, ids=["LLTM", "LLTMCell"])


def arguments_of(model):
    return (torch.randn(BATCH, 3),) if isinstance(model, Steps) else (torch.randn(STEPS, BATCH, 3),)


def calls_of(traced):
    return [node for node in traced.graph.nodes if node.op == "call_module" and node.target == "rnn"]


def assert_equal(results, expected):
    results, expected = tree_flatten(results)[0], tree_flatten(expected)[0]
    assert len(results) == len(expected) and all(map(torch.equal, results, expected))


def assert_traced(model, *arguments, copies=(copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)))):
    """Checks the traced model, its copies, and that tracing left the model as it was. Returns the traced model."""
    arguments = arguments or arguments_of(model)
    traced = torch.fx.symbolic_trace(model)
    twins = [traced, *(twin for copied in copies for twin in (copied(traced), copied(model)))]
    expected = model(*arguments)
    for twin in twins:
        assert_equal(twin(*arguments), expected)
    assert len(calls_of(traced)) == (2 if isinstance(model, Steps) else 1)
    return traced


@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True, "bias": False}, {"num_layers": 3, "batch_first": True}],
    ids=str,
)
def test_layers(options):
    model = Layers(**options)
    sizes = (BATCH, STEPS) if model.rnn.batch_first else (STEPS, BATCH)
    arguments = torch.randn(*sizes, 3), random_state(model.rnn, BATCH), torch.tensor([5, 2]), torch.rand(sizes) < 0.3
    traced = assert_traced(model, *arguments)
    for count in (1, 2, 3):
        assert_equal(traced(*arguments[:count]), model(*arguments[:count]))


def test_arguments_are_recorded_as_given():
    (call,) = calls_of(torch.fx.symbolic_trace(Layers()))
    assert len(call.args) == 2 and set(call.kwargs) == {"lengths", "reset"}


# A hook may change the arguments or the results, and is called once in each call.
def double(module, inputs, output):
    return 2 * output[0], *output[1:]


def double_with_kwargs(module, inputs, kwargs, output):
    return double(module, inputs, output)


def double_input(module, inputs):
    return 2 * inputs[0], *inputs[1:]


def double_input_with_kwargs(module, inputs, kwargs):
    return double_input(module, inputs), kwargs


HOOKS = {
    "forward": lambda rnn: rnn.register_forward_hook(double),
    "forward with kwargs": lambda rnn: rnn.register_forward_hook(double_with_kwargs, with_kwargs=True),
    "always called": lambda rnn: rnn.register_forward_hook(double, always_call=True),
    "prepended": lambda rnn: rnn.register_forward_hook(double, prepend=True),
    "pre-hook": lambda rnn: rnn.register_forward_pre_hook(double_input),
    "pre-hook with kwargs": lambda rnn: rnn.register_forward_pre_hook(double_input_with_kwargs, with_kwargs=True),
}


@both_modules
@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS.keys())
def test_hooks_run_once(make_model, register):
    model = make_model()
    register(model.rnn)
    without = make_model(copy.deepcopy(model.rnn))
    without.rnn._forward_hooks.clear()
    without.rnn._forward_pre_hooks.clear()
    traced = assert_traced(model)
    arguments = arguments_of(model)
    with pytest.raises(AssertionError):
        assert_equal(traced(*arguments), without(*arguments))


@both_modules
def test_hooks_of_backward(make_model):
    model = make_model()
    seen = []
    model.rnn.register_full_backward_hook(lambda *of_hook: seen.append("backward"))
    model.rnn.register_full_backward_pre_hook(lambda *of_hook: seen.append("pre"))
    traced = torch.fx.symbolic_trace(model)
    (input,) = arguments_of(model)
    counts = []
    for twin in (model, traced):
        seen.clear()
        twin(input.requires_grad_())[0].sum().backward()
        counts.append(list(seen))
    assert counts[0] == counts[1] != []


class SubclassOfLLTM(lltm.LLTM):
    def forward(self, input, hx=None, lengths=None, reset=None):
        output, state = super().forward(input, hx, lengths, reset)
        return output + 1, state


class SubclassOfCell(lltm.LLTMCell):
    def forward(self, input, state=None):
        h, c = super().forward(2 * input, state)
        return h + 1, c


class PlainSubclass(lltm.LLTM):
    """Changes nothing that a tracer sees."""


@pytest.mark.parametrize(
    "model",
    [Layers(SubclassOfLLTM(3, 4)), Layers(PlainSubclass(3, 4)), Steps(SubclassOfCell(3, 4))],
    ids=lambda model: type(model.rnn).__name__,
)
def test_subclasses(model):
    assert_traced(model)
    model.rnn.register_forward_hook(double)
    assert_traced(model)


@pytest.mark.parametrize("make_module", [lltm.LLTM, lltm.LSTM, lltm.LLTMCell, SubclassOfLLTM, SubclassOfCell, nn.LSTM])
def test_a_module_itself_cannot_be_traced(make_module):
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(make_module(3, 4))


class CallsForward(nn.Module):
    def __init__(self, rnn, constant=False):
        super().__init__()
        self.rnn, self.constant = rnn, constant

    def forward(self, input):
        return self.rnn.forward(torch.ones(5, 2, 3) if self.constant else input)


@pytest.mark.parametrize("make_module", [lltm.LLTM, lltm.LSTM, lltm.LLTMCell, nn.LSTM])
def test_calling_forward_itself_raises(make_module):
    """Past the module's call, which the tracer records."""
    model = CallsForward(make_module(3, 4))
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(model)
    model = CallsForward(lltm.LLTM(3, 4), constant=True)
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(model)
    copy.deepcopy(model)(torch.ones(2, 3))


CHANGES = {
    "pruned": lambda rnn, name: prune.l1_unstructured(rnn, name, amount=0.5),
    "weight_norm as a hook": weight_norm,
    "spectral_norm as a hook": spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@both_modules
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_computed_weights(make_model, change):
    model = make_model()
    change(model.rnn, "weights" if make_model is Steps else "weights_l0")
    model.eval()  # spectral_norm takes a step in each call during training
    # Neither can PyTorch copy all of these eager modules.
    copies = [copy.deepcopy] if parametrize.is_parametrized(model.rnn) else [lambda m: pickle.loads(pickle.dumps(m))]
    with torch.no_grad():
        assert_traced(model, copies=copies)
    assert_traced(model, copies=())


class OfConstants(nn.Module):
    """Arguments that are no proxies while the model is traced."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.rnn, self.cell = lltm.LLTM(3, 4), lltm.LLTMCell(3, 4)
        self.register_buffer("steps", torch.randn(5, 2, 3))
        self.parameter = nn.Parameter(torch.randn(5, 2, 3))
        self.plain = torch.randn(5, 2, 3)

    def forward(self, x):
        steps = torch.ones(5, 2, 3) if self.kind == "literal" else getattr(self, self.kind)
        output, state = self.rnn(steps)
        h, c = self.cell(steps[0], (x, x))
        return output, state, h, c, self.rnn(steps, hx=(x[None], x[None]))


@pytest.mark.parametrize("kind", ["steps", "parameter", "plain", "literal"])
@pytest.mark.parametrize("proxy_buffers", [False, True])
def test_constants_and_buffers(kind, proxy_buffers):
    class Tracer(torch.fx.Tracer):
        proxy_buffer_attributes = proxy_buffers

    def trace(model):
        return torch.fx.GraphModule(model, Tracer().trace(model))

    model, x = OfConstants(kind), torch.randn(2, 4)
    traced = trace(model)
    for twin in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        assert_equal(twin(x), model(x))
    model.steps.add_(1)
    assert_equal(traced(x), model(x))


@pytest.mark.parametrize("make_module", [nn.LSTM, lltm.LLTM, lltm.LSTM])
def test_a_packed_sequence_raises(make_module):
    """In the constructor of PackedSequence, as for nn.LSTM."""

    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = make_module(3, 4)

        def forward(self, input, lengths):
            return self.rnn(pack_padded_sequence(input, lengths))

    with pytest.raises(Exception) as raised:
        torch.fx.symbolic_trace(Packs())
    assert not issubclass(raised.type, AssertionError)


class Masked(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.rnn = name, lltm.LLTM(3, 4)

    def forward(self, value):
        return self.rnn(torch.ones(5, 2, 3), **{self.name: value})[0]


@pytest.mark.parametrize("name", ["lengths", "reset"])
def test_only_lengths_or_reset_is_a_proxy(name):
    value = torch.tensor([5, 2]) if name == "lengths" else torch.rand(5, 2) < 0.5
    assert_traced(Masked(name), value)


@pytest.mark.parametrize("kind", [tuple, list])
def test_the_state_of_a_cell(kind):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = lltm.LLTMCell(3, 4)

        def forward(self, x):
            h, c = self.cell(x)
            return self.cell(torch.zeros(2, 3), kind((h, c)))[0]

    model, x = Pair(), torch.randn(2, 3)
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


class KeepsMetadata(torch.fx.Tracer):
    """Like the tracer of transformers: also runs what it records, on the Meta device, for the shapes."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.shapes = shape, {}

    def is_leaf_module(self, m, module_qualified_name):
        return bool(list(m.parameters())) and super().is_leaf_module(m, module_qualified_name)

    def create_proxy(self, kind, target, args, kwargs, *rest, **options):
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        if kind == "placeholder":
            self.shapes[proxy.node] = torch.empty(self.shape, device="meta")
        elif kind == "call_module":
            meta = copy.deepcopy(self.root.get_submodule(target)).to("meta")
            values = [self.shapes[value.node] if isinstance(value, torch.fx.Proxy) else value for value in args]
            self.shapes[proxy.node] = meta.forward(*values)
        return proxy


class OneCall(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return self.rnn(x)[0]


@both_modules
def test_a_tracer_that_runs_modules_on_meta(make_model):
    model = OneCall(make_model().rnn)
    (input,) = arguments_of(make_model())
    tracer = KeepsMetadata(input.shape)
    traced = torch.fx.GraphModule(model, tracer.trace(model))
    assert_equal(traced(input), model(input))
    (call,) = calls_of(traced)
    assert tracer.shapes[call][0].shape == model(input).shape


class TracesEverything(torch.fx.Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return False


@both_modules
def test_a_tracer_without_leaves_raises(make_model):
    with pytest.raises(torch.fx.proxy.TraceError):
        TracesEverything().trace(make_model())


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning", "ignore::UserWarning")
@both_modules
def test_quantized_around_it(make_model):
    """prepare_fx and convert_fx leave the module in float, with its hooks."""
    model = make_model().eval()
    model.rnn.register_forward_hook(double)
    arguments = arguments_of(model)
    prepared = prepare_fx(model, get_default_qconfig_mapping(), arguments)
    assert_equal(prepared(*arguments), model(*arguments))
    converted = convert_fx(copy.deepcopy(prepared))
    assert type(converted.rnn) is type(model.rnn) and len(calls_of(converted)) == len(calls_of(prepared))
    results, expected = tree_flatten(converted(*arguments))[0], tree_flatten(model(*arguments))[0]
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value, atol=0.05, rtol=0.05)


@both_modules
def test_unpickled_from_an_older_version(make_model):
    """Whose modules did not have the mark of a leaf."""
    model = make_model()
    del model.rnn.__dict__["__module__"]
    assert_traced(pickle.loads(pickle.dumps(model)))


@both_modules
def test_the_class_keeps_its_name(make_model):
    cls = type(make_model().rnn)
    assert cls.__module__.startswith("lltm.") and cls.__name__ in repr(cls)
    assert type(pickle.loads(pickle.dumps(make_model().rnn))) is cls
