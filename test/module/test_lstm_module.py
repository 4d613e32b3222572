"""lltm.LSTM, lltm.LSTMCell and lltm.convert_lstm beside nn.LSTM and nn.LSTMCell, in float64."""

import abc
import copy
import pickle
import re
import warnings
from unittest import mock

import pytest
import torch
from lltm_testing.module_reference import assert_same, packed, random_state
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lltm

pytestmark = pytest.mark.pytorch

OPTIONS = [
    {},
    {"num_layers": 3, "bias": False},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "dropout": 0.5},
]
each_options = pytest.mark.parametrize("options", OPTIONS, ids=str)


def twins(*sizes, **options) -> tuple[nn.LSTM, lltm.LSTM]:
    """With the same parameters."""
    theirs, ours = nn.LSTM(*sizes, **options), lltm.LSTM(*sizes, **options)
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    return theirs, ours


def gradients(results, leaves) -> tuple[torch.Tensor, ...]:
    output, (h_n, c_n) = results
    data = getattr(output, "data", output) if isinstance(output, nn.utils.rnn.PackedSequence) else output
    return torch.autograd.grad((data.sin().sum() + h_n.square().sum() + c_n.cos().sum()), leaves)


@each_options
@pytest.mark.parametrize("kind", ["padded", "packed", "single"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "state"])
def test_results_and_gradients(device, options, kind, with_state):
    # In training mode, because cuDNN has no backward in evaluation mode; so without dropout.
    theirs, ours = (m.to(device) for m in twins(5, 7, **(options | {"dropout": 0.0}), dtype=torch.float64))
    batch_first = options.get("batch_first", False)
    input = torch.randn(6, 4, 5, dtype=torch.float64, device=device)
    hx = random_state(ours, 4, dtype=torch.float64, device=device) if with_state else None
    if kind == "single":
        input, hx = input[:, 0], None if hx is None else tuple(state[:, 0].contiguous() for state in hx)
    elif batch_first:
        input = input.transpose(0, 1)
    found, expected = [], []
    for module, results in ((ours, found), (theirs, expected)):
        leaf = input.detach().clone().requires_grad_()
        options = {"batch_first": batch_first, "enforce_sorted": False}
        given = packed(leaf, [6, 2, 5, 1], **options) if kind == "packed" else leaf
        results.append(module(given, hx))
        results.append(gradients(results[0], [leaf, *module.parameters()]))
    assert_same(found[0], expected[0], rtol=1e-12, atol=1e-12)
    assert_same(found[1], expected[1], rtol=1e-11, atol=1e-11)


@each_options
def test_parameters_and_repr(options):
    torch.manual_seed(3)
    theirs = nn.LSTM(5, 7, **options)
    torch.manual_seed(3)
    ours = lltm.LSTM(5, 7, **options)
    assert repr(ours) == repr(theirs)
    for (name, expected), (our_name, found) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
        assert name == our_name and torch.equal(found, expected)
    assert [[p.shape for p in layer] for layer in ours.all_weights] == [
        [p.shape for p in layer] for layer in theirs.all_weights
    ]
    theirs.load_state_dict(ours.state_dict())
    assert ours.flatten_parameters() is None


def test_dropout_after_the_same_seed():
    theirs, ours = twins(5, 7, 3, dropout=0.5, dtype=torch.float64)
    input = torch.randn(6, 4, 5, dtype=torch.float64)
    results = []
    for module in (theirs, ours):
        torch.manual_seed(5)
        results.append(module(input))
    assert_same(*results, rtol=1e-12, atol=1e-12)


@each_options
def test_lengths_are_those_of_a_pack(device, options):
    theirs, ours = (m.to(device).eval() for m in twins(5, 7, **(options | {"batch_first": False}), dtype=torch.float64))
    input, lengths = torch.randn(6, 4, 5, dtype=torch.float64, device=device), [6, 2, 5, 1]
    output, state = theirs(packed(input, lengths, enforce_sorted=False))
    expected = nn.utils.rnn.pad_packed_sequence(output)[0], state
    assert_same(ours(input, lengths=torch.tensor(lengths, device=device)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=["single", "batch"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "state"])
def test_cell(device, bias, shape, with_state):
    theirs = nn.LSTMCell(3, 4, bias, device=device, dtype=torch.float64)
    ours = lltm.LSTMCell(3, 4, bias, device=device, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    input = torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)
    hx = torch.randn(2, *shape[:-1], 4, device=device, dtype=torch.float64).unbind() if with_state else None
    results = [cell(input, hx) for cell in (ours, theirs)]
    assert_same(*results, rtol=1e-12, atol=1e-12)
    found, expected = (
        torch.autograd.grad(h.sin().sum() + c.square().sum(), [input, *cell.parameters()])
        for (h, c), cell in zip(results, (ours, theirs), strict=True)
    )
    assert_same(found, expected, rtol=1e-11, atol=1e-11)


def module_inputs(theirs, ours):
    """PyTorch's own arguments of constructors and calls, but those with projections."""
    # The import would forbid the process's later tests to assign flags like torch.backends.cudnn.allow_tf32.
    with mock.patch("torch.backends.disable_global_flags"):
        from torch.testing._internal import common_modules

    for info in common_modules.module_db:
        if info.module_cls is theirs:
            for training in (False, True):
                for case in info.module_inputs_func(info, "cpu", torch.float64, True, training=training):
                    if not case.constructor_input.kwargs.get("proj_size"):
                        yield training, case


@pytest.mark.parametrize(("theirs", "ours"), [(nn.LSTM, lltm.LSTM), (nn.LSTMCell, lltm.LSTMCell)], ids=["LSTM", "Cell"])
def test_inputs_of_pytorchs_own_tests(theirs, ours):
    pytest.importorskip("expecttest", reason="PyTorch's own tests need expecttest")
    count = 0
    for training, case in module_inputs(theirs, ours):
        args, kwargs = case.constructor_input.args, case.constructor_input.kwargs
        if kwargs.get("dropout") and training:
            continue
        modules = [cls(*args, **kwargs, dtype=torch.float64).train(training) for cls in (theirs, ours)]
        modules[1].load_state_dict(modules[0].state_dict())
        call = case.forward_input
        results = [m(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs)) for m in modules]
        assert_same(results[1], results[0], rtol=1e-11, atol=1e-11)
        count += 1
    assert count >= 4


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda c: c(torch.zeros(1, 2, 3)), ValueError, "Expected input to be 1D or 2D, got 3D"),
        (lambda c: c(torch.zeros(2, 4)), RuntimeError, "must be equal to input_size. Expected 3, got 4"),
        (lambda c: c(torch.zeros(2, 3), (torch.zeros(1, 2, 4),) * 2), ValueError, r"Expected hx\[0\] to be 1D or 2D"),
        (
            lambda c: c(torch.zeros(2, 3), (torch.zeros(2, 4), torch.zeros(2, 5))),
            RuntimeError,
            r"Expected hx\[1\] size",
        ),
        (lambda c: c(torch.zeros(2, 3), torch.zeros(2, 4)), TypeError, r"the pair \(h_0, c_0\), got one tensor"),
        (lambda c: c(torch.zeros(2, 3), torch.zeros(2, 2, 4)), TypeError, r"the pair \(h_0, c_0\), got one tensor"),
        (lambda c: c(torch.zeros(2, 3), 7), TypeError, r"the pair \(h_0, c_0\), got an object of type int"),
        (lambda c: c(torch.zeros(2, 3), ()), RuntimeError, r"the pair \(h_0, c_0\), got \(\)"),
        (
            lambda c: c(torch.zeros(2, 3), [torch.zeros(2, 4)] * 3),
            RuntimeError,
            r"the pair \(h_0, c_0\), got \(Tensor, Tensor, Tensor\)",
        ),
    ],
)
def test_errors_of_the_cell(call, kind, message):
    with pytest.raises(kind, match=message):
        call(lltm.LSTMCell(3, 4))
    with pytest.raises(kind):
        call(nn.LSTMCell(3, 4))


def make_model() -> nn.Module:
    model = nn.ModuleDict({"encoder": nn.LSTM(3, 4, 2, bidirectional=True), "cell": nn.LSTMCell(8, 5)})
    model["again"] = model["encoder"]
    return model


def run(model: nn.Module, input: torch.Tensor) -> torch.Tensor:
    output, _ = model["encoder"](input)
    h, c = model["cell"](output[-1])
    return h.sin().sum() + c.sum()


def test_convert_goes_on_with_the_optimizer(device):
    theirs = make_model().to(device=device, dtype=torch.float64)
    ours = copy.deepcopy(theirs)
    input = torch.randn(5, 2, 3, device=device, dtype=torch.float64)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (theirs, ours)]

    def step(model, optimizer):
        optimizer.zero_grad()
        loss = run(model, input)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for pair in zip((theirs, ours), optimizers, strict=True):
        step(*pair)
    calls = []
    ours["encoder"].register_forward_hook(lambda *_: calls.append(1))
    parameters, state = list(ours.parameters()), torch.get_rng_state()
    assert lltm.convert_lstm(ours) is ours
    assert type(ours["encoder"]) is lltm.LSTM is type(ours["again"]) and type(ours["cell"]) is lltm.LSTMCell
    assert all(a is b for a, b in zip(ours.parameters(), parameters, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert not {"_flat_weights", "_all_weights", "mode"} & set(ours["encoder"].__dict__)
    for _ in range(2):
        losses = [step(*pair) for pair in zip((theirs, ours), optimizers, strict=True)]
        torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-12)
    assert len(calls) == 2
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(lltm.convert_lstm(make_model())))):
        assert type(twin["encoder"]) is lltm.LSTM
    lltm.convert_lstm(ours)  # again


def test_convert_a_model_that_is_an_lstm():
    rnn = nn.LSTM(3, 4)
    assert lltm.convert_lstm(rnn) is rnn and type(rnn) is lltm.LSTM


class Subclass(nn.LSTM):
    pass


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
def test_what_convert_leaves_alone():
    replaced = nn.LSTM(3, 4)
    replaced.forward = lambda input: input
    model = nn.ModuleDict(
        {
            "projections": nn.LSTM(3, 4, proj_size=2),
            "subclass": Subclass(3, 4),
            "parametrized": parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0"),
            "replaced": replaced,
            "scripted": torch.jit.script(nn.LSTMCell(3, 4)),
            "plain": nn.LSTM(3, 4),
            "ours": lltm.LSTMCell(3, 4),
            "our scripted layer": torch.jit.script(lltm.LSTM(3, 4)),
            "our scripted cell": torch.jit.script(lltm.LSTMCell(3, 4)),
        }
    )
    types = {name: type(module) for name, module in model.items()}
    reasons = (
        "projections (it has projections, proj_size=2), subclass (of a subclass, Subclass), parametrized "
        "(parametrized), replaced (its forward was replaced), scripted (scripted)"
    )
    with pytest.warns(UserWarning, match=f"^convert_lstm: left as they are: {re.escape(reasons)}$") as raised:
        lltm.convert_lstm(model)
    assert raised[0].filename == __file__
    assert {n: type(m) for n, m in model.items()} == types | {"plain": lltm.LSTM}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lltm.convert_lstm(nn.Sequential(nn.LSTM(3, 4), nn.GRU(3, 4), nn.Linear(3, 4)))


def test_convert_says_what_it_did(capsys):
    model = nn.ModuleDict({"rnn": nn.LSTM(3, 4, bias=False), "cell": nn.LSTMCell(3, 4)})
    lltm.convert_lstm(model, verbose=True)
    said = "convert_lstm: rnn is an lltm.LSTM(3, 4, bias=False)\nconvert_lstm: cell is an lltm.LSTMCell(3, 4)\n"
    assert capsys.readouterr().out == said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lltm.convert_lstm(model, verbose=True)  # again
    lltm.convert(nn.LSTM(3, 4), verbose=True)
    assert capsys.readouterr().out == "convert: the model itself is an lltm.LSTM(3, 4)\n"


@pytest.mark.parametrize(
    ("convert", "classes"),
    [
        (lltm.convert_lstm, "nn.LSTM or nn.LSTMCell"),
        (lltm.convert, "nn.LSTM, nn.GRU, nn.LSTMCell or nn.GRUCell"),
    ],
)
def test_convert_says_that_there_is_nothing_to_convert(convert, classes):
    with pytest.warns(UserWarning, match=f"^{convert.__name__}: Sequential has no {classes}$") as raised:
        convert(nn.Sequential(nn.RNN(3, 4), lltm.LLTM(3, 4)))
    assert raised[0].filename == __file__


def test_convert_with_a_filter():
    model = nn.ModuleDict({"encoder": nn.LSTM(3, 4), "decoder": nn.LSTM(3, 4), "linear": nn.Linear(3, 4)})
    model["again"] = Subclass(3, 4)
    asked = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what the filter leaves out is not named
        converted = lltm.convert(model, lambda module, name: asked.append((name, module)) or name == "encoder")
    assert converted is model and asked == [(name, model[name]) for name in ("encoder", "decoder", "again")]
    assert type(model["encoder"]) is lltm.LSTM and type(model["decoder"]) is nn.LSTM
    nothing = "^convert: ModuleDict has no nn.LSTM, nn.GRU, nn.LSTMCell or nn.GRUCell for which filter_fn is true$"
    with pytest.warns(UserWarning, match=nothing):
        lltm.convert(model, lambda module, name: name == "encoder")


def test_revert_goes_on_with_the_optimizer(device):
    theirs = make_model().to(device=device, dtype=torch.float64)
    ours = lltm.convert(copy.deepcopy(theirs))
    input = torch.randn(5, 2, 3, device=device, dtype=torch.float64)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (theirs, ours)]
    calls = []
    ours["encoder"].register_forward_hook(lambda *_: calls.append(1))
    parameters, random_numbers = list(ours.parameters()), torch.get_rng_state()
    for is_reverted in (False, True):
        if is_reverted:
            assert lltm.revert(ours) is ours
            assert torch.equal(torch.get_rng_state(), random_numbers)
            assert all(a is b for a, b in zip(ours.parameters(), parameters, strict=True))
        losses = []
        for model, optimizer in zip((theirs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(run(model, input))
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-12)
    assert len(calls) == 2
    for name, module in theirs.items():
        assert type(ours[name]) is type(module) and repr(ours[name]) == repr(module)
        assert vars(ours[name]).keys() == vars(module).keys()
    encoder = ours["encoder"]
    assert encoder._all_weights == theirs["encoder"]._all_weights and encoder.mode == "LSTM"
    weights = list(encoder.parameters())
    assert all(a is b for a, b in zip(encoder._flat_weights, weights, strict=True))
    assert all(a() is b for a, b in zip(encoder._flat_weight_refs, weights, strict=True))
    twin = pickle.loads(pickle.dumps(make_model()))
    assert type(lltm.revert(lltm.convert(twin))["encoder"].double().float()) is nn.LSTM


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
def test_what_revert_leaves_alone(monkeypatch):
    replaced = lltm.LSTMCell(3, 4)
    replaced.forward = lambda input: input
    model = nn.ModuleDict(
        {
            "subclass": type("Subclass", (lltm.LSTM,), {})(3, 4),
            "parametrized": parametrizations.weight_norm(lltm.LSTM(3, 4), "weight_hh_l0"),
            "replaced": replaced,
            "scripted": torch.jit.script(lltm.LSTMCell(3, 4)),
            "theirs": nn.LSTM(3, 4, proj_size=2),
            "lltm": lltm.LLTM(3, 4),
            "plain": lltm.LSTM(3, 4),
        }
    )
    types, plain = {name: type(module) for name, module in model.items()}, nn.LSTM
    reasons = (
        "subclass (of a subclass, Subclass), parametrized (parametrized), replaced (its forward was replaced), "
        "scripted (scripted)"
    )
    monkeypatch.setattr(nn, "LSTM", lltm.LSTM)
    with pytest.warns(UserWarning, match=f"^revert: left as they are: {re.escape(reasons)}$") as raised:
        lltm.revert(model)
    assert raised[0].filename == __file__
    assert {n: type(m) for n, m in model.items()} == types | {"plain": plain}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("constrain", [nn.utils.weight_norm, lambda m, n: prune.l1_unstructured(m, n, 0.5)])
def test_convert_keeps_hooks_that_compute_parameters(constrain):
    rnn = nn.LSTM(3, 4)
    constrain(rnn, "weight_hh_l0")
    input = torch.randn(5, 2, 3)
    expected = rnn(input)
    lltm.convert_lstm(rnn)
    assert_same(rnn(input), expected)
    assert_same(rnn.states(input)[:2], expected)
    assert_same(lltm.revert(rnn)(input), expected)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("make", [lambda: lltm.LSTM(3, 4, 2, bidirectional=True), lambda: lltm.LSTMCell(3, 4)])
def test_the_gradients_of_two_biases_are_two_tensors(device, make, compiled):
    """Clipping them in place would scale one twice."""
    rnn = make().to(device)
    call = torch.compile(rnn, backend="aot_eager", fullgraph=True) if compiled else rnn
    loss = call(torch.randn(*([5] if isinstance(rnn, lltm.LSTM) else []), 2, 3, device=device))[0].sin().sum()
    biases = [parameter for name, parameter in rnn.named_parameters() if "bias" in name]
    found = torch.autograd.grad(loss, biases)
    assert len({gradient.untyped_storage().data_ptr() for gradient in found}) == len(biases)
    for of_input, of_h in zip(found[::2], found[1::2], strict=True):
        assert of_input.shape == of_h.shape and torch.equal(of_input, of_h)


@each_options
def test_to_torch(options):
    ours = lltm.LSTM(3, 4, **options).eval()
    theirs = ours.to_torch()
    assert type(theirs) is nn.LSTM and repr(theirs) == repr(ours) and not theirs.training
    assert all(a is b for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    input = torch.randn(5, 2, 3)
    assert_same(theirs(input), ours(input))
    with torch.no_grad():
        ours.weight_hh_l0.zero_()
    assert_same(theirs(input), ours(input))
    cell = lltm.LSTMCell(3, 4)
    assert type(cell.to_torch()) is nn.LSTMCell and cell.to_torch().weight_ih is cell.weight_ih


def test_conversions_while_torch_is_patched(monkeypatch):
    """docs/lstm.md advises programs whose source stays as it is to patch torch.nn.LSTM."""
    plain, cell = nn.LSTM, nn.LSTMCell
    model = nn.ModuleDict({"rnn": plain(3, 4), "cell": cell(3, 4), "subclass": Subclass(3, 4)})
    monkeypatch.setattr(nn, "LSTM", lltm.LSTM)
    monkeypatch.setattr(nn, "LSTMCell", lltm.LSTMCell)
    assert type(nn.LSTM(3, 4).to_torch()) is plain and type(nn.LSTMCell(3, 4).to_torch()) is cell
    with pytest.warns(UserWarning, match="left as they are: subclass \\(of a subclass, Subclass\\)$"):
        lltm.convert_lstm(model)
    assert type(model["rnn"]) is lltm.LSTM and type(model["cell"]) is lltm.LSTMCell


def test_is_a_recurrent_layer_of_torch():
    """Initializers ask for nn.RNNBase, which says what mode it has. What it keeps of its weights is not there."""
    rnn = lltm.LSTM(3, 4, 2)
    assert isinstance(rnn, nn.RNNBase) and not isinstance(rnn, nn.LSTM) and rnn.mode == "LSTM"
    assert isinstance(lltm.convert_lstm(nn.LSTM(3, 4)), nn.RNNBase) and not isinstance(lltm.LLTM(3, 4), nn.RNNBase)
    assert not [name for name in vars(rnn) if "flat_weight" in name or "all_weights" in name]
    input = torch.randn(5, 2, 3)
    for twin in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn)), copy.deepcopy(rnn).double().float()):
        assert_same(twin(input), rnn(input), rtol=0, atol=0)


@pytest.mark.parametrize("assign", [False, True])
def test_checkpoints_where_conversions_swap_parameters(assign):
    """Under which nn.LSTM itself loads none: its weak references forbid it."""
    theirs, ours = nn.LSTM(3, 4, 2), lltm.LSTM(3, 4, 2)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        ours.load_state_dict(theirs.state_dict(), assign=assign)
        ours.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    input = torch.randn(5, 2, 3)
    assert_same(ours(input), theirs(input))


def test_projections_while_torch_is_patched(monkeypatch):
    plain = nn.LSTM
    monkeypatch.setattr(nn, "LSTM", lltm.LSTM)
    with pytest.warns(UserWarning, match="^LSTM: there are no projections, so proj_size=2 gives PyTorch's") as raised:
        rnn = nn.LSTM(3, 4, 2, batch_first=True, proj_size=2, dtype=torch.float64)
    assert len(raised) == 1 and raised[0].filename == __file__ and type(rnn) is plain
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="proj_size=2"):
        rnn = nn.LSTM(3, 4, proj_size=2)
    torch.manual_seed(0)
    expected = plain(3, 4, proj_size=2)
    assert_same(rnn(torch.ones(5, 3)), expected(torch.ones(5, 3)), rtol=0, atol=0)
    assert pickle.loads(pickle.dumps(rnn)).proj_size == 2 and vars(rnn).keys() == vars(expected).keys()
    with pytest.raises(NotImplementedError, match="proj_size=2 keep nn.LSTM"):
        type("Subclass", (nn.LSTM,), {})(3, 4, proj_size=2)


def test_subclasses_over_the_base_while_torch_is_patched(monkeypatch):
    """As pytorch-forecasting has them."""
    plain = nn.LSTM
    monkeypatch.setattr(nn, "LSTM", lltm.LSTM)

    class Padded(abc.ABC, nn.RNNBase):
        def forward(self, input, hx=None, lengths=None):
            given = pack_padded_sequence(input, lengths, batch_first=self.batch_first, enforce_sorted=False)
            output, state = super().forward(given, hx)
            return pad_packed_sequence(output, batch_first=self.batch_first)[0], state

        @abc.abstractmethod
        def zero_state(self, input): ...

    class Layer(Padded, nn.LSTM):
        def zero_state(self, input):
            zeros = torch.zeros(self.num_layers, input.size(0), self.hidden_size)
            return zeros, zeros

    ours, theirs = Layer(input_size=3, hidden_size=4, batch_first=True), plain(3, 4, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    input, lengths = torch.randn(2, 5, 3), torch.tensor([3, 5])
    packed_input = pack_padded_sequence(input, lengths, batch_first=True, enforce_sorted=False)
    output, state = theirs(packed_input)
    expected = pad_packed_sequence(output, batch_first=True)[0], state
    assert_same(ours(input, ours.zero_state(input), lengths), expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("cls", [lltm.LSTM, lltm.LSTMCell])
@pytest.mark.parametrize(
    "constrain",
    [nn.utils.weight_norm, parametrizations.weight_norm, lambda m, n: prune.l1_unstructured(m, n, 0.5)],
    ids=["old_weight_norm", "parametrization", "prune"],
)
def test_to_torch_needs_parameters(cls, constrain):
    module = cls(3, 4)
    name = "weight_hh_l0" if cls is lltm.LSTM else "weight_hh"
    constrain(module, name)
    expected = (
        rf"{cls.__name__}\.to_torch: {name} is no parameter, but computed .*remove_parametrizations, .*prune.remove"
    )
    with pytest.raises(RuntimeError, match=expected):
        module.to_torch()


@pytest.mark.parametrize("bias", [-3.0, 0.0, 3.0, 8.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_errors_of_long_sequences_are_no_larger_than_those_of_a_loop_of_cells(device, dtype, bias):
    """Over 1,024 steps, with forget gates that are closed, half open and open, against float64. The second bias is
    zero: the sum of both would be rounded."""
    exact = nn.LSTM(8, 16, device=device, dtype=torch.float64)
    with torch.no_grad():
        exact.bias_ih_l0[16:32] += bias
        exact.bias_hh_l0.zero_()
    ours = lltm.convert_lstm(copy.deepcopy(exact)).to(dtype)
    exact.load_state_dict(ours.state_dict())
    cell = nn.LSTMCell(8, 16, device=device, dtype=dtype)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in ours.state_dict().items()})
    input = torch.randn(1024, 32, 8, device=device).to(dtype)
    with torch.no_grad():
        expected, (_, expected_c) = exact(input.double())
        output, (_, c_n) = ours(input)
        state, outputs = None, []
        for x in input:
            state = cell(x, state)
            outputs.append(state[0])
    for found, loop, want in ((output, torch.stack(outputs), expected), (c_n[0], state[1], expected_c[0])):
        error, of_loop = ((t.double() - want).abs().mean() for t in (found, loop))
        assert error <= 1.2 * of_loop + 1e-7
