"""Checkpoints of one kind of cell in a module of the other: load_state_dict raises, also with strict=False."""

import pytest
import torch
from lltm_testing.reference import assert_identical
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import lltm

pytestmark = [pytest.mark.pytorch, pytest.mark.filterwarnings("ignore:.*(weight|spectral)_norm.* is deprecated")]


class Twice(nn.Module):
    def forward(self, weights):
        return 2 * weights


CONSTRAINTS = {
    "plain": lambda module, name: None,
    "old_weight_norm": nn.utils.weight_norm,
    "old_spectral_norm": nn.utils.spectral_norm,
    "prune": lambda module, name: prune.l1_unstructured(module, name, 0.5),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "parametrization": lambda module, name: parametrize.register_parametrization(module, name, Twice()),
}
each_constraint = pytest.mark.parametrize("constrain", CONSTRAINTS.values(), ids=CONSTRAINTS)

LSTMS = [nn.LSTM, lltm.LSTM, nn.LSTMCell, lltm.LSTMCell]
OTHERS = [nn.GRU, nn.GRUCell, nn.RNN]
LLTMS = [lltm.LLTM, lltm.LLTMCell]
OF_TORCH = [lltm.LSTM, lltm.LSTMCell, lltm.GRU, lltm.GRUCell]
OF_LSTM = r"rnn\..*weight_[ih]h.* is a parameter of nn\.LSTM or another layer of torch\.nn, whose cell {} cannot "
OF_LSTM += r"compute; lltm\.LSTM and lltm\.GRU load those of nn\.LSTM and nn\.GRU, and their cells those of the cells"
OF_LLTM = r"rnn\..*weights.* is a parameter of LLTM or LLTMCell, whose cell has three gates: {} cannot compute it"


def constrain_all(module: nn.Module, constrain) -> nn.Module:
    """Let all weights of a module be computed."""
    for name, parameter in list(module.named_parameters()):
        if parameter.dim() == 2:
            constrain(module, name)
    return module


def load(module: nn.Module, source: nn.Module, strict: bool) -> None:
    nn.ModuleDict({"rnn": module}).load_state_dict(nn.ModuleDict({"rnn": source}).state_dict(), strict=strict)


def refuses(cls, other, message, constrain) -> None:
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=message.format(cls.__name__)):
            load(cls(3, 4), constrain_all(other(3, 4), constrain), strict)


@pytest.mark.parametrize(
    ("cls", "other", "message"),
    [(cls, other, OF_LSTM) for cls in LLTMS for other in LSTMS + OTHERS]
    + [(cls, other, OF_LLTM) for cls in OF_TORCH for other in LLTMS],
)
def test_of_the_other_kind(cls, other, message):
    refuses(cls, other, message, CONSTRAINTS["plain"])


@each_constraint
def test_of_the_other_kind_with_computed_weights(constrain):
    refuses(lltm.LLTM, nn.LSTM, OF_LSTM, constrain)
    refuses(lltm.LSTM, lltm.LLTM, OF_LLTM, constrain)


def test_of_one_weight_of_a_later_layer():
    source = nn.LSTM(3, 4, 2, bidirectional=True)
    state = {"weight_hh_l1_reverse_g": source.weight_hh_l1_reverse}
    with pytest.raises(RuntimeError, match="weight_hh_l1_reverse_g is a parameter of nn.LSTM"):
        lltm.LLTM(3, 4, 2, bidirectional=True).load_state_dict(state, strict=False)


@each_constraint
@pytest.mark.parametrize("cls", LLTMS + OF_TORCH)
def test_of_the_same_kind(cls, constrain):
    modules = [constrain_all(cls(3, 4), constrain) for _ in range(2)]
    load(*modules, strict=True)
    assert_identical(modules[0].parameters(), modules[1].parameters())


class WithTables(lltm.LSTM):
    """Has weights whose names an LLTM could have, too."""

    def __init__(self):
        super().__init__(3, 4)
        self.weights = nn.Parameter(torch.randn(3))
        self.register_buffer("weights_l0_g", torch.randn(3))
        self.weights_of_words = nn.Linear(3, 4)


@pytest.mark.parametrize("strict", [True, False])
def test_weights_of_a_subclass(strict):
    source, module = WithTables(), WithTables()
    load(module, source, strict)
    assert torch.equal(module.weights, source.weights) and torch.equal(module.weights_l0_g, source.weights_l0_g)


def test_other_keys_are_left_to_strict(cls):
    state = cls(3, 4).state_dict() | {"weights_of_words": torch.zeros(1), "my_weight_ih_l0": torch.zeros(1)}
    assert len(cls(3, 4).load_state_dict(state, strict=False).unexpected_keys) == 2


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("make", LLTMS + OF_TORCH)
def test_a_stale_key_of_a_subclass_is_left_to_strict(make, strict):
    """It has the name of a weight of the other cell, but stands beside those of this one."""
    stale = "weights" if make in OF_TORCH else "weight_ih"
    state, module = make(3, 4).state_dict() | {stale: torch.zeros(12, 7)}, make(3, 4)
    if strict:
        with pytest.raises(RuntimeError, match=f'Unexpected key\\(s\\) in state_dict: "{stale}"') as raised:
            module.load_state_dict(state)
        assert "is a parameter of" not in str(raised.value)
    else:
        assert module.load_state_dict(state, strict=False).unexpected_keys == [stale]
        assert_identical(module.parameters(), [state[name] for name, _ in module.named_parameters()])
