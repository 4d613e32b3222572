"""reset_parameters and its leak, also where weights are computed from other parameters."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import lltm

pytestmark = pytest.mark.pytorch


def leak_of(weights: torch.Tensor) -> torch.Tensor:
    """The mean of what was subtracted from each gate's weights of h in the same cell: uniform ones have a mean of 0."""
    state_size = weights.size(0) // 3
    return torch.stack([-gate[:, :state_size].diagonal().mean() for gate in weights.detach().chunk(3)])


def assert_leaks(weights: torch.Tensor, leak: float) -> None:
    bound = 1 / math.sqrt(weights.size(0) // 3)
    torch.testing.assert_close(leak_of(weights), torch.tensor([0, 0, leak]), rtol=0, atol=bound)
    rest = weights.detach().clone()
    rest[2 * len(rest) // 3 :, : len(rest) // 3].diagonal().add_(leak)
    assert rest.abs().max() <= bound * (1 + 1e-5)


MODULES = {
    "LLTM": lambda **options: lltm.LLTM(5, 64, 2, bidirectional=True, **options),
    "LLTMCell": lambda **options: lltm.LLTMCell(5, 64, **options),
}
each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    return [parameter for name, parameter in module.named_parameters() if "weights" in name]


@each_module
def test_default(make):
    default = 2.0 if isinstance(make(), lltm.LLTM) else 0.0
    assert make().leak == default and "leak" not in repr(make())
    for weights in weights_of(make()):
        assert_leaks(weights, default)


@each_module
def test_of_the_constructor(make):
    module = make(leak=1)
    assert module.leak == 1.0 and repr(module).endswith("leak=1.0)")
    for twin in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.leak == 1.0
        for leak in (1.0, 3.0, 0.0):
            twin.reset_parameters(**({} if leak == 1.0 else {"leak": leak}))
            for weights in weights_of(twin):
                assert_leaks(weights, leak)
    torch.jit.script(nn.ModuleList([module]))  # takes the attribute


def test_is_named():
    with pytest.raises(TypeError, match="positional argument"):
        lltm.LLTM(3, 4, 1, True, False, 0.0, False, 0, None, None, 2.0)


@each_module
def test_modules_of_older_versions_have_none(make):
    module = make()
    del module.__dict__["leak"]
    loaded = pickle.loads(pickle.dumps(module))
    loaded.reset_parameters()
    assert_leaks(weights_of(loaded)[0], 0.0)


def test_a_cells_leak_becomes_that_of_the_layer():
    assert lltm.LLTM.from_cell(lltm.LLTMCell(3, 4, leak=0.5)).leak == 0.5


def name_of(module: nn.Module) -> str:
    return "weights_l0" if isinstance(module, lltm.LLTM) else "weights"


@each_module
def test_through_weight_norm(make):
    module = make()
    name = name_of(module)
    parametrizations.weight_norm(module, name)
    module.reset_parameters(leak=2.0)
    torch.testing.assert_close(leak_of(getattr(module, name)), torch.tensor([0.0, 0.0, 2.0]), rtol=0, atol=0.2)


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


@each_module
@pytest.mark.parametrize(
    ("constrain", "message"),
    [
        (lambda m, n: parametrize.register_parametrization(m, n, Twice()), "has no right_inverse for the leak"),
        (parametrizations.spectral_norm, "does not keep the leak"),
        (lambda m, n: nn.utils.weight_norm(m, n), "is no parameter, but computed from others by a hook"),
        (lambda m, n: prune.l1_unstructured(m, n, 0.5), "is no parameter, but computed from others by a hook"),
    ],
    ids=["no_inverse", "spectral_norm", "old_weight_norm", "prune"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_raises_where_it_would_be_lost(make, constrain, message):
    module = make()
    constrain(module, name_of(module))
    before = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    with pytest.raises(
        RuntimeError, match=rf"reset_parameters: .*{name_of(module)} {message}.*reset_parameters\(leak=0"
    ):
        module.reset_parameters(leak=2.0)
    torch.testing.assert_close((module.state_dict(), torch.get_rng_state()), before, rtol=0, atol=0)
    module.reset_parameters(leak=0)


def test_the_random_state_of_the_device_is_kept_where_it_raises(device):
    module = lltm.LLTMCell(3, 4, device=device)
    parametrizations.spectral_norm(module, "weights")
    state = torch.get_device_module(device).get_rng_state(device) if device.type != "cpu" else torch.get_rng_state()
    with pytest.raises(RuntimeError, match="does not keep the leak"):
        module.reset_parameters(leak=2.0)
    now = torch.get_device_module(device).get_rng_state(device) if device.type != "cpu" else torch.get_rng_state()
    assert torch.equal(now, state)


def test_the_parameters_of_an_lstm_are_hinted_at():
    rnn = lltm.LLTM(3, 4, 2, bidirectional=True)
    with pytest.raises(
        AttributeError, match=r"no attribute 'weight_hh_l1_reverse'\. .*split_weights\(rnn\.weights_l1_rev"
    ):
        rnn.weight_hh_l1_reverse  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'weight'$"):
        rnn.weight  # noqa: B018


@pytest.mark.parametrize(
    "input", [[torch.zeros(2, 3)], torch.zeros(5, 2, 3).numpy(), None], ids=lambda i: type(i).__name__
)
def test_an_input_that_is_no_tensor(cls, input):
    message = f"^{cls.__name__}: input should be a tensor or a PackedSequence, got an object of type "
    with pytest.raises(TypeError, match=message + type(input).__name__ + "$"):
        cls(3, 4)(input)
