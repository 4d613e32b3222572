"""The modules under torch.fx: one node a call, whose hooks and values are those of the eager model."""

import copy
import pickle

import pytest
import torch
from lltm_testing.module_reference import CELLS, random_state
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_flatten

import lltm

pytestmark = pytest.mark.pytorch

STEPS, BATCH = 5, 2


class Layers(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, input, hx=None, lengths=None, reset=None):
        output, state = self.rnn(input, hx, lengths=lengths, reset=reset)
        return output + 1, state


class Steps(nn.Module):
    """Calls a cell twice, first with a constant beside the state that is given."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        if isinstance(self.rnn, lltm.GRUCell):
            return self.rnn(torch.ones(BATCH, 3), self.rnn(x))
        h, c = self.rnn(x)
        return self.rnn(torch.ones(BATCH, 3), (h, c))


def layers(cls=lltm.LLTM, **options):
    return Layers(cls(3, 4, **options))


def steps(cls=lltm.LLTMCell):
    return Steps(cls(3, 4))


both_models = pytest.mark.parametrize("make_model", [layers, steps])


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


@pytest.mark.parametrize("options", [{"num_layers": 2, "bidirectional": True}, {"batch_first": True}], ids=str)
def test_layers(cls, options):
    model = layers(cls, **options)
    sizes = (BATCH, STEPS) if model.rnn.batch_first else (STEPS, BATCH)
    arguments = torch.randn(*sizes, 3), random_state(model.rnn, BATCH), torch.tensor([5, 2]), torch.rand(sizes) < 0.3
    traced = assert_traced(model, *arguments)
    (call,) = calls_of(traced)
    assert len(call.args) == 2 and set(call.kwargs) == {"lengths", "reset"}  # as given
    for count in (1, 2, 3):
        assert_equal(traced(*arguments[:count]), model(*arguments[:count]))


@pytest.mark.parametrize("cls", CELLS.values())
def test_cells(cls):
    assert_traced(steps(cls))


# A hook may change the arguments or the results, and is called once in each call.
def double(module, inputs, output):
    return 2 * output[0], *output[1:]


def double_input(module, inputs, kwargs):
    return (2 * inputs[0], *inputs[1:]), kwargs


@both_models
@pytest.mark.parametrize(
    "register",
    [
        lambda rnn: rnn.register_forward_hook(double, always_call=True),
        lambda rnn: rnn.register_forward_pre_hook(double_input, with_kwargs=True),
    ],
    ids=["forward", "pre-hook"],
)
def test_hooks_run_once(make_model, register):
    model = make_model()
    arguments = arguments_of(model)
    without = model(*arguments)
    register(model.rnn)
    traced = assert_traced(model)
    with pytest.raises(AssertionError):
        assert_equal(traced(*arguments), without)


@both_models
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


class Subclass(lltm.LLTM):
    def forward(self, input, hx=None, lengths=None, reset=None):
        output, state = super().forward(input, hx, lengths, reset)
        return output + 1, state


def test_a_subclass():
    assert_traced(layers(Subclass))


@pytest.mark.parametrize("cls", [*CELLS, *CELLS.values(), Subclass, nn.LSTM])
def test_what_is_no_call_of_a_module_raises(cls):
    """The module itself, and its forward, past the call that the tracer records."""

    class CallsForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = cls(3, 4)

        def forward(self, input):
            return self.rnn.forward(input)

    for model in (cls(3, 4), CallsForward()):
        with pytest.raises(torch.fx.proxy.TraceError):
            torch.fx.symbolic_trace(model)


@both_models
@pytest.mark.parametrize(
    "change",
    [lambda rnn, name: prune.l1_unstructured(rnn, name, amount=0.5), spectral_norm, parametrizations.orthogonal],
    ids=["pruned", "a hook", "a parametrization"],
)
def test_computed_weights(make_model, change):
    model = make_model()
    change(model.rnn, "weights" if make_model is steps else "weights_l0")
    model.eval()  # spectral_norm takes a step in each call during training
    # Neither can PyTorch copy all of these eager modules.
    copies = [copy.deepcopy] if parametrize.is_parametrized(model.rnn) else [lambda m: pickle.loads(pickle.dumps(m))]
    with torch.no_grad():
        assert_traced(model, copies=copies)


class OfConstants(nn.Module):
    """Arguments that are no proxies while the model is traced."""

    def __init__(self):
        super().__init__()
        self.rnn = lltm.LLTM(3, 4)
        self.register_buffer("steps", torch.randn(5, 2, 3))
        self.plain = torch.randn(5, 2, 3)

    def forward(self, x):
        return self.rnn(self.steps), self.rnn(self.plain), self.rnn(torch.ones(5, 2, 3), hx=(x[None], x[None]))


@pytest.mark.parametrize("proxy_buffers", [False, True])
def test_constants_and_buffers(proxy_buffers):
    class Tracer(torch.fx.Tracer):
        proxy_buffer_attributes = proxy_buffers

    model, x = OfConstants(), torch.randn(2, 4)
    traced = torch.fx.GraphModule(model, Tracer().trace(model))
    for twin in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        assert_equal(twin(x), model(x))
    model.steps.add_(1)
    assert_equal(traced(x), model(x))


@pytest.mark.parametrize("cls", [nn.LSTM, *CELLS])
def test_a_packed_sequence_raises(cls):
    """In the constructor of PackedSequence, as for nn.LSTM."""

    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = cls(3, 4)

        def forward(self, input, lengths):
            return self.rnn(pack_padded_sequence(input, lengths))

    with pytest.raises(Exception) as raised:
        torch.fx.symbolic_trace(Packs())
    assert not issubclass(raised.type, AssertionError)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, *CELLS, *CELLS.values()])
def test_a_tracer_without_leaves_raises(cls):
    """What torch.fx says of control flow, as of torch.nn's: no check takes a proxy for a wrong argument."""

    class TracesEverything(torch.fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return False

    class OfTorch(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = cls(3, 4)

        def forward(self, input, hx):
            return self.rnn(input, hx)

    model = steps(cls) if cls in CELLS.values() else layers(cls) if cls in CELLS else OfTorch()
    with pytest.raises(torch.fx.proxy.TraceError):
        TracesEverything().trace(model)


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning", "ignore::UserWarning")
@both_models
def test_quantized_around_it(make_model):
    """prepare_fx and convert_fx leave the module in float, with its hooks."""
    model = make_model().eval()
    model.rnn.register_forward_hook(double)
    arguments = arguments_of(model)
    prepared = prepare_fx(model, get_default_qconfig_mapping(), arguments)
    assert_equal(prepared(*arguments), model(*arguments))
    converted = convert_fx(copy.deepcopy(prepared))
    assert type(converted.rnn) is type(model.rnn) and len(calls_of(converted)) == len(calls_of(prepared))
    for result, value in zip(*(tree_flatten(twin(*arguments))[0] for twin in (converted, model)), strict=True):
        torch.testing.assert_close(result, value, atol=0.05, rtol=0.05)


@both_models
def test_a_pickle_keeps_its_class_and_may_be_older(make_model):
    """Modules of older versions did not have the mark of a leaf."""
    model = make_model()
    cls = type(model.rnn)
    assert cls.__module__.startswith("lltm.") and cls.__name__ in repr(cls)
    del model.rnn.__dict__["__module__"]
    copied = pickle.loads(pickle.dumps(model))
    assert type(copied.rnn) is cls
    assert_traced(copied)
