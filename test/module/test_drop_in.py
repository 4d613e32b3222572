"""The layers and cells that take the place of torch.nn's, and the conversions between both, in float64."""

import abc
import copy
import pickle
import re
import warnings
from unittest import mock

import pytest
import torch
from lltm_testing.module_reference import assert_same, packed, random_state
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves, tree_map

import lltm

pytestmark = pytest.mark.pytorch

LAYERS = {"LSTM": (nn.LSTM, lltm.LSTM), "GRU": (nn.GRU, lltm.GRU)}
CELLS = {"LSTMCell": (nn.LSTMCell, lltm.LSTMCell), "GRUCell": (nn.GRUCell, lltm.GRUCell)}
each_layer = pytest.mark.parametrize("classes", LAYERS.values(), ids=LAYERS)
each_cell = pytest.mark.parametrize("classes", CELLS.values(), ids=CELLS)
each_kind = pytest.mark.parametrize(
    ("layers", "cells"), list(zip(LAYERS.values(), CELLS.values(), strict=True)), ids=LAYERS
)

OPTIONS = [
    {},
    {"num_layers": 3, "bias": False},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "dropout": 0.5},
]
each_options = pytest.mark.parametrize("options", OPTIONS, ids=str)


def twins(classes, *sizes, device="cpu", **options) -> list[nn.Module]:
    """torch.nn's module and this package's, made after the same seed."""
    modules = []
    for cls in classes:
        torch.manual_seed(3)
        modules.append(cls(*sizes, **options).to(device))
    return modules


def floats(values) -> list[Tensor]:
    """The tensors that have gradients; a pack has others, too."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor) and value.is_floating_point()]


def assert_same_calls(modules, *arguments) -> None:
    """The same results, and the same gradients of the arguments and the parameters."""
    found = []
    for module in modules:
        given = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, arguments)
        leaves = [value.requires_grad_() for value in floats(given)] + list(module.parameters())
        results = module(*given)
        loss = sum((k * result).sin().sum() for k, result in enumerate(floats(results), 1))
        found.append((results, torch.autograd.grad(loss, leaves)))
    (results, gradients), (expected, expected_gradients) = reversed(found)
    assert_same(results, expected, rtol=1e-12, atol=1e-12)
    assert_same(gradients, expected_gradients, rtol=1e-11, atol=1e-11)


@each_layer
@each_options
@pytest.mark.parametrize("kind", ["padded", "sorted", "unsorted", "single"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "state"])
def test_results_and_gradients(device, classes, options, kind, with_state):
    # In training mode, because cuDNN has no backward in evaluation mode; so without dropout.
    modules = twins(classes, 5, 7, **(options | {"dropout": 0.0}), device=device, dtype=torch.float64)
    batch_first = options.get("batch_first", False)
    input = torch.randn(6, 4, 5, dtype=torch.float64, device=device)
    state = (random_state(modules[1], 4, dtype=torch.float64, device=device),) if with_state else ()
    if kind == "single":
        input, state = input[:, 0], tree_map(lambda part: part[:, 0].contiguous(), state)
    elif batch_first:
        input = input.transpose(0, 1)
    if kind == "sorted":
        input = packed(input, [6, 5, 2, 1], batch_first=batch_first)
    elif kind == "unsorted":
        input = packed(input, [6, 2, 5, 1], batch_first=batch_first, enforce_sorted=False)
    assert_same_calls(modules, input, *state)


@each_layer
@each_options
def test_parameters_and_repr(classes, options):
    theirs, ours = twins(classes, 5, 7, **options)
    assert repr(ours) == repr(theirs)
    for (name, expected), (our_name, found) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
        assert name == our_name and torch.equal(found, expected)
    assert [[p.shape for p in layer] for layer in ours.all_weights] == [
        [p.shape for p in layer] for layer in theirs.all_weights
    ]
    for source, target in ((ours, theirs), (theirs, ours)):
        target.load_state_dict(source.state_dict())
    assert ours.flatten_parameters() is None


@each_layer
def test_dropout_after_the_same_seed(classes):
    input = torch.randn(6, 4, 5, dtype=torch.float64)
    results = []
    for module in twins(classes, 5, 7, 3, dropout=0.5, dtype=torch.float64):
        torch.manual_seed(5)
        results.append(module(input))
    assert_same(*results, rtol=1e-12, atol=1e-12)


@each_layer
@each_options
def test_lengths_are_those_of_a_pack(device, classes, options):
    options = options | {"batch_first": False, "dropout": 0.0}
    theirs, ours = twins(classes, 5, 7, **options, device=device, dtype=torch.float64)
    input, lengths = torch.randn(6, 4, 5, dtype=torch.float64, device=device), [6, 2, 5, 1]
    output, state = theirs(packed(input, lengths, enforce_sorted=False))
    expected = pad_packed_sequence(output)[0], state
    assert_same(ours(input, lengths=torch.tensor(lengths, device=device)), expected, rtol=1e-12, atol=1e-12)


@each_cell
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=["single", "batch"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "state"])
def test_cell(device, classes, bias, shape, with_state):
    modules = twins(classes, 3, 4, bias, device=device, dtype=torch.float64)
    input = torch.randn(shape, device=device, dtype=torch.float64)
    state = tree_map(torch.randn_like, modules[0](input))
    assert_same_calls(modules, input, *((state,) if with_state else ()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
def test_a_cell_of_a_gru_is_scripted_and_compiled():
    cell, input, state = lltm.GRUCell(3, 4), torch.randn(2, 3), torch.randn(2, 4)
    for form in (torch.jit.script(cell), torch.compile(cell, fullgraph=True, backend="aot_eager")):
        assert_same(form(input, state), cell(input, state), rtol=0, atol=0)


def test_a_cell_of_a_gru_returns_h_in_the_dtype_of_hx():
    cell, input = lltm.GRUCell(3, 4, dtype=torch.bfloat16), torch.randn(2, 3, dtype=torch.bfloat16)
    assert cell(input).dtype == torch.bfloat16 and cell(input, torch.zeros(2, 4)).dtype == torch.float32


def cases_of_pytorch(theirs, kind):
    """PyTorch's own arguments of constructors and calls, or those that must raise, but those with projections."""
    pytest.importorskip("expecttest", reason="PyTorch's own tests need expecttest")
    # The import would forbid the process's later tests to assign flags like torch.backends.cudnn.allow_tf32.
    with mock.patch("torch.backends.disable_global_flags"):
        from torch.testing._internal import common_modules

    for info in common_modules.module_db:
        if info.module_cls is theirs:
            for training in (False, True):
                for case in getattr(info, kind)(info, "cpu", torch.float64, True, training=training):
                    arguments = getattr(case, "module_error_input", case).constructor_input.kwargs
                    if not arguments.get("proj_size"):
                        yield training, case


@pytest.mark.parametrize("classes", (LAYERS | CELLS).values(), ids=LAYERS | CELLS)
def test_inputs_of_pytorchs_own_tests(classes):
    count = 0
    for training, case in cases_of_pytorch(classes[0], "module_inputs_func"):
        args, kwargs = case.constructor_input.args, case.constructor_input.kwargs
        if kwargs.get("dropout") and training:
            continue
        modules = twins(classes, *args, **kwargs, dtype=torch.float64)
        call = case.forward_input
        results = [m.train(training)(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs)) for m in modules]
        assert_same(results[1], results[0], rtol=1e-11, atol=1e-11)
        count += 1
    assert count >= 4


@pytest.mark.skipif(torch.__version__ < "2.15", reason="earlier versions have other cases")
@pytest.mark.parametrize("classes", (LAYERS | CELLS).values(), ids=LAYERS | CELLS)
def test_errors_of_pytorchs_own_tests(classes):
    """Of the same types, when a module is made or called."""
    count = 0
    for _, case in cases_of_pytorch(classes[0], "module_error_inputs_func"):
        made, call = case.module_error_input.constructor_input, case.module_error_input.forward_input
        for cls in classes:
            with pytest.raises(case.error_type):
                cls(*made.args, **({"dtype": torch.float64} | made.kwargs))(*call.args, **call.kwargs)
        count += 1
    assert count >= 4


def state(*sizes) -> tuple[Tensor, Tensor]:
    return torch.zeros(sizes), torch.zeros(sizes)


ERRORS_OF_CELLS = {
    "input of 3 dimensions": (torch.zeros(1, 2, 3), None, ValueError, "Expected input to be 1D or 2D, got 3D"),
    "features": (torch.zeros(2, 4), None, RuntimeError, "must be equal to input_size. Expected 3, got 4"),
    "hx of 3 dimensions": (
        torch.zeros(2, 3),
        state(1, 2, 4),
        ValueError,
        r"Expected (hx\[0\]|hidden) to be 1D or 2D, got 3D",
    ),
    "batch of hx": (torch.zeros(2, 3), state(3, 4), RuntimeError, r"(hx\[0\]|hidden) size \[2, 4\], got \[3, 4\]"),
    "width of hx": (torch.zeros(2, 3), state(2, 5), RuntimeError, r"(hx\[0\]|hidden) size \[2, 4\], got \[2, 5\]"),
}


@each_cell
@pytest.mark.parametrize(("input", "hx", "kind", "message"), ERRORS_OF_CELLS.values(), ids=ERRORS_OF_CELLS)
def test_errors_of_the_cells(classes, input, hx, kind, message):
    theirs, ours = (cls(3, 4) for cls in classes)
    hx = tree_leaves(hx)[0] if isinstance(ours, lltm.GRUCell) else hx
    with pytest.raises(kind, match=f"^{type(ours).__name__}: .*{message}"):
        ours(input, hx)
    with pytest.raises(kind):
        theirs(input, hx)


@pytest.mark.parametrize(
    ("hx", "kind", "message"),
    [
        ((torch.zeros(2, 4), torch.zeros(2, 5)), RuntimeError, r"Expected hx\[1\] size"),
        (torch.zeros(2, 4), TypeError, r"the pair \(h_0, c_0\), got one tensor"),
        (torch.zeros(2, 2, 4), TypeError, r"the pair \(h_0, c_0\), got one tensor"),
        (7, TypeError, r"the pair \(h_0, c_0\), got an object of type int"),
        ((), RuntimeError, r"the pair \(h_0, c_0\), got \(\)"),
        ([torch.zeros(2, 4)] * 3, RuntimeError, r"the pair \(h_0, c_0\), got \(Tensor, Tensor, Tensor\)"),
    ],
    ids=["width of cx", "one tensor", "stacked", "int", "nothing", "three"],
)
def test_errors_of_the_pair_of_an_lstm_cell(hx, kind, message):
    with pytest.raises(kind, match=message):
        lltm.LSTMCell(3, 4)(torch.zeros(2, 3), hx)
    with pytest.raises(kind):
        nn.LSTMCell(3, 4)(torch.zeros(2, 3), hx)


@pytest.mark.parametrize("proj_size", [0, 2])
def test_a_gru_takes_no_proj_size(monkeypatch, proj_size):
    """Not even 0, and no less when patched."""
    message = "proj_size argument is only supported for LSTM, not RNN or GRU"
    for cls in (nn.GRU, lltm.GRU, type("Subclass", (lltm.GRU,), {})):
        with pytest.raises(ValueError, match=f"{message}$"):
            cls(3, 4, proj_size=proj_size)
    monkeypatch.setattr(nn, "GRU", lltm.GRU)
    with pytest.raises(ValueError, match=f"^GRU: {message}$"):
        nn.GRU(3, 4, proj_size=proj_size)


@pytest.mark.parametrize("hx", [state(2, 4), 7], ids=["pair", "int"])
def test_errors_of_the_state_of_a_gru_cell(hx):
    message = f"^GRUCell: expected hx to be a tensor, got an object of type {type(hx).__name__}$"
    with pytest.raises(TypeError, match=message):
        lltm.GRUCell(3, 4)(torch.zeros(2, 3), hx)


def make_model(layer, cell) -> nn.Module:
    model = nn.ModuleDict({"encoder": layer(3, 4, 2, bidirectional=True), "cell": cell(8, 5)})
    model["again"] = model["encoder"]
    return model


@each_kind
def test_convert_and_revert_go_on_with_the_optimizer(device, layers, cells):
    theirs = make_model(layers[0], cells[0]).to(device=device, dtype=torch.float64)
    ours = copy.deepcopy(theirs)
    input = torch.randn(5, 2, 3, device=device, dtype=torch.float64)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (theirs, ours)]
    calls, parameters = [], list(ours.parameters())
    ours["encoder"].register_forward_hook(lambda *_: calls.append(1))
    # Each twice: nothing is left to do.
    for k, change in enumerate((lltm.revert, lltm.convert, lltm.convert, lltm.revert, lltm.revert)):
        random_numbers = torch.get_rng_state()
        assert change(ours) is ours and ours["again"] is ours["encoder"]
        assert (type(ours["encoder"]), type(ours["cell"])) == tuple(c[change is lltm.convert] for c in (layers, cells))
        assert all(a is b for a, b in zip(ours.parameters(), parameters, strict=True))
        assert torch.equal(torch.get_rng_state(), random_numbers)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        losses = []
        for model, optimizer in zip((theirs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(sum(h.sin().sum() for h in tree_leaves(model["cell"](model["encoder"](input)[0][-1]))))
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-12)
        assert len(calls) == k + 1
        made = change(lltm.convert(make_model(layers[0], cells[0])))
        for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(made))):
            assert type(twin["encoder"].float()) is type(ours["encoder"])
        if change is lltm.convert:
            assert not {"_flat_weights", "_all_weights", "mode"} & set(vars(ours["encoder"]))
    for name, module in theirs.items():
        assert repr(ours[name]) == repr(module) and vars(ours[name]).keys() == vars(module).keys()
    encoder = ours["encoder"]
    assert encoder._all_weights == theirs["encoder"]._all_weights and encoder.mode == theirs["encoder"].mode
    weights = list(encoder.parameters())
    assert all(a is b for a, b in zip(encoder._flat_weights, weights, strict=True))
    assert all(a() is b for a, b in zip(encoder._flat_weight_refs, weights, strict=True))


def test_convert_lstm_leaves_a_gru():
    model = nn.ModuleList([nn.GRU(3, 4), nn.LSTM(3, 4), nn.GRUCell(3, 4), nn.LSTMCell(3, 4)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lltm.convert_lstm(model) is model
    assert [type(module) for module in model] == [nn.GRU, lltm.LSTM, nn.GRUCell, lltm.LSTMCell]


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
@each_layer
@pytest.mark.parametrize("constrain", [nn.utils.weight_norm, lambda m, n: prune.l1_unstructured(m, n, 0.5)])
def test_convert_keeps_hooks_that_compute_parameters(classes, constrain):
    rnn = classes[0](3, 4)
    constrain(rnn, "weight_hh_l0")
    input = torch.randn(5, 2, 3)
    expected = rnn(input)
    lltm.convert(rnn)
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


@each_kind
@each_options
def test_to_torch(layers, cells, options):
    ours = layers[1](3, 4, **options).eval()
    theirs = ours.to_torch()
    assert type(theirs) is layers[0] and repr(theirs) == repr(ours) and not theirs.training
    assert all(a is b for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    input = torch.randn(5, 2, 3)
    assert_same(theirs(input), ours(input))
    with torch.no_grad():
        ours.weight_hh_l0.zero_()
    assert_same(theirs(input), ours(input))
    cell = cells[1](3, 4)
    assert type(cell.to_torch()) is cells[0] and cell.to_torch().weight_ih is cell.weight_ih


@each_kind
def test_conversions_while_torch_is_patched(monkeypatch, layers, cells):
    """docs/lstm.md advises programs whose source stays as it is to patch torch.nn.LSTM."""
    subclass = type("Subclass", layers[:1], {})
    model = nn.ModuleDict({"rnn": layers[0](3, 4), "cell": cells[0](3, 4), "subclass": subclass(3, 4)})
    for theirs, ours in (layers, cells):
        monkeypatch.setattr(nn, theirs.__name__, ours)
        assert type(getattr(nn, theirs.__name__)(3, 4).to_torch()) is theirs
    with pytest.warns(UserWarning, match="left as they are: subclass \\(of a subclass, Subclass\\)$"):
        lltm.convert(model)
    assert type(model["rnn"]) is layers[1] and type(model["cell"]) is cells[1]


@each_layer
def test_is_a_recurrent_layer_of_torch(classes):
    """Initializers ask for nn.RNNBase, which says what mode it has. What it keeps of its weights is not there."""
    theirs, ours = classes
    rnn = ours(3, 4, 2)
    assert isinstance(rnn, nn.RNNBase) and not isinstance(rnn, theirs) and rnn.mode == theirs.__name__
    converted = theirs(3, 4)
    assert lltm.convert(converted) is converted and type(converted) is ours
    assert not isinstance(lltm.LLTM(3, 4), nn.RNNBase)
    assert not [name for name in vars(rnn) if "flat_weight" in name or "all_weights" in name]
    input = torch.randn(5, 2, 3)
    for twin in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn)), copy.deepcopy(rnn).double().float()):
        assert_same(twin(input), rnn(input), rtol=0, atol=0)


@each_layer
@pytest.mark.parametrize("assign", [False, True])
def test_checkpoints_where_conversions_swap_parameters(classes, assign):
    """Under which torch.nn's layer itself loads none: its weak references forbid it."""
    theirs, ours = (cls(3, 4, 2) for cls in classes)
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
@pytest.mark.parametrize("cls", [lltm.LSTM, lltm.LSTMCell, lltm.GRU, lltm.GRUCell])
@pytest.mark.parametrize(
    "constrain",
    [nn.utils.weight_norm, parametrizations.weight_norm, lambda m, n: prune.l1_unstructured(m, n, 0.5)],
    ids=["old_weight_norm", "parametrization", "prune"],
)
def test_to_torch_needs_parameters(cls, constrain):
    module = cls(3, 4)
    name = "weight_hh" if "Cell" in cls.__name__ else "weight_hh_l0"
    constrain(module, name)
    expected = (
        rf"{cls.__name__}\.to_torch: {name} is no parameter, but computed .*remove_parametrizations, .*prune.remove"
    )
    with pytest.raises(RuntimeError, match=expected):
        module.to_torch()


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("bias", [3.0, *(pytest.param(b, marks=pytest.mark.release) for b in (-3.0, 0.0, 8.0))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_errors_of_long_sequences_are_no_larger_than_those_of_torch_nn(device, layers, cells, dtype, bias):
    """Of its layer and of a loop of its cells. Over 1,024 steps, with forget or update gates that are closed, half open
    and open, against float64."""
    check_errors_of_long_sequences(device, layers, cells, dtype, bias, (8, 16))


@pytest.mark.slow
@each_kind
def test_errors_of_long_sequences_in_tf32(needs_cuda, set_tf32, layers, cells):
    set_tf32(True)
    check_errors_of_long_sequences("cuda", layers, cells, torch.float32, 3.0, (64, 128))


def check_errors_of_long_sequences(device, layers, cells, dtype, bias, sizes):
    """The second bias is zero: the sum of both would be rounded."""
    features, state_size = sizes
    exact = layers[0](*sizes, device=device, dtype=torch.float64)
    with torch.no_grad():
        exact.bias_ih_l0[state_size : 2 * state_size] += bias
        exact.bias_hh_l0.zero_()
    ours = lltm.convert(copy.deepcopy(exact)).to(dtype)
    exact.load_state_dict(ours.state_dict())
    cell = cells[0](*sizes, device=device, dtype=dtype)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in ours.state_dict().items()})
    input = torch.randn(1024, 32, features, device=device).to(dtype)
    with torch.no_grad():
        expected, found, of_layer = exact(input.double()), ours(input), ours.to_torch()(input)
        state, outputs = None, []
        for x in input:
            state = cell(x, state)
            outputs.append(tree_leaves(state)[0])
    loop = torch.stack(outputs), tree_map(lambda part: part[None], state)
    for want, result, *others in zip(*map(tree_leaves, (expected, found, of_layer, loop)), strict=True):
        error, *errors = ((t.double() - want).abs().mean() for t in (result, *others))
        # In float16, the GPU's approximate tanh has an error like that of rounding, twice in an LSTM's step.
        is_gpu = torch.device(device).type == "cuda"
        most = 1.5 if is_gpu and dtype == torch.float16 and layers[0] is nn.LSTM else 1.2
        assert error <= most * min(errors) + 1e-7
