"""docs/reinforcement-learning.md: its recipes, where the packages are installed, against the packages' own handling."""

import re

import pytest
import torch
from lltm_testing.building import ROOT
from lltm_testing.documentation import blocks

import lltm

PAGE = ROOT / "docs" / "reinforcement-learning.md"


def run_recipe(title: str) -> dict:
    """The names that the blocks of Python under this heading define."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    recipe = blocks(section, "python")
    assert len(recipe) == 2
    names = {"__name__": "recipe"}
    for block in recipe:
        exec(compile(block.text, str(PAGE), "exec"), names)
    return names


def loop(layer, features, state, begins):
    """sb3-contrib's own way: step by step, the state multiplied by zero where an episode begins. (N, T, ...)."""
    outputs = []
    for step in range(features.size(1)):
        goes_on = (~begins[:, step]).view(1, -1, 1)
        output, state = layer(features[None, :, step], (state[0] * goes_on, state[1] * goes_on))
        outputs.append(output[0])
    return torch.stack(outputs, dim=1), state


def test_the_call():
    names = {"rnn": lltm.LLTM(4, 8), "observations": torch.randn(6, 3, 4), "begins": torch.rand(6, 3) < 0.3}
    exec(blocks(PAGE, "python")[0].text, names | {"state": None}, names)
    assert names["output"].shape == (6, 3, 8)


def test_sb3_contrib():
    pytest.importorskip("sb3_contrib")
    names = run_recipe("sb3-contrib")
    policy = names["model"].policy
    assert isinstance(policy.lstm_actor, lltm.LSTM) and isinstance(policy.lstm_critic, lltm.LSTM)
    optimized = {id(parameter) for group in policy.optimizer.param_groups for parameter in group["params"]}
    assert id(policy.lstm_actor.weight_hh_l0) in optimized
    assert names["model"].num_timesteps >= 256

    features, begins = torch.randn(3, 20, policy.features_dim), torch.rand(3, 20) < 0.2
    state = torch.randn(1, 3, 32), torch.randn(1, 3, 32)
    output, (h_n, c_n) = policy._process_sequence(
        features.flatten(0, 1), state, begins.float().flatten(), policy.lstm_actor
    )
    expected, (expected_h_n, expected_c_n) = loop(policy.lstm_actor, features, state, begins)
    torch.testing.assert_close(output, expected.flatten(0, 1))
    torch.testing.assert_close((h_n, c_n), (expected_h_n, expected_c_n))


def test_torchrl():
    pytest.importorskip("torchrl")
    names = run_recipe("torchrl")
    module, batch, rnn = names["module"], names["batch"], names["rnn"]
    assert set(module.parameters()) == set(rnn.parameters())

    splitting = names["LSTMModule"](
        4, 32, in_keys=["observation", "h", "c"], out_keys=["features", ("next", "h"), ("next", "c")]
    )
    splitting.lstm = rnn.to_torch()  # torchrl splits a batch into trajectories and packs them
    with names["set_recurrent_mode"](True):
        expected = splitting(batch.clone())
    torch.testing.assert_close(names["features"], expected["features"])
    torch.testing.assert_close(batch["next", "c"][:, -1], expected["next", "c"][:, -1])

    # A rollout: one step at a time, the state carried in the tensordict.
    one_step = module(batch[:, 0].clone())
    torch.testing.assert_close(one_step["features"], names["features"][:, 0])
