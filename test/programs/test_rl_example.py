"""A short run of examples/rl: its environment, its two ways to run a layer over episodes, and its training."""

import re
import sys
from pathlib import Path

import pytest
import torch
from lltm_testing.building import run, run_demo, with_lltm
from torch import nn

import lltm

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rl"
sys.path.insert(0, str(FOLDER))

import cartpole  # noqa: E402
import ppo  # noqa: E402
import reset_speed  # noqa: E402


def carts(count: int) -> cartpole.CartPoles:
    return cartpole.CartPoles(count, torch.Generator().manual_seed(0))


def test_pushed_to_one_side_a_pole_falls_to_the_other():
    environment = carts(2)
    for _ in range(8):
        step = environment.step(torch.tensor([0, 1]))
    assert step.observation[0, 0] < 0 < step.observation[1, 0]  # the carts
    assert step.observation[1, 1] < 0 < step.observation[0, 1]  # the poles
    assert step.length.tolist() == [8, 8] and not step.begins.any()
    for _ in range(8):
        step = environment.step(torch.tensor([0, 1]))
        if step.begins.all():
            break
    assert step.begins.all() and not step.cut.any()
    assert (step.last[:, 1].abs() > 1).all()
    assert (step.observation.abs() < 0.5).all()  # of the next episode


def test_an_episode_is_cut_off_at_the_limit(monkeypatch):
    monkeypatch.setattr(cartpole, "LIMIT", 5)
    environment = carts(3)
    steps = [environment.step(torch.tensor([0, 1, 1])) for _ in range(10)]
    assert [step.cut.tolist() for step in steps] == [[number % 5 == 0] * 3 for number in range(1, 11)]


def test_layers_forget_at_the_same_steps():
    """An episode gives the same outputs as when it is run alone."""
    input, begins = torch.randn(12, 3, cartpole.FEATURES), torch.zeros(12, 3, dtype=torch.bool)
    begins[0, 1] = begins[4, 0] = begins[4, 2] = begins[9, 0] = True
    state = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    for layer in (lltm.LLTM(2, 8), lltm.LSTM(2, 8), nn.LSTM(2, 8), lltm.GRU(2, 8), nn.GRU(2, 8)):
        output, (h_n, c_n) = ppo.run_with_resets(layer, input, state, begins)
        middle, _ = layer(input[4:9, 0])
        end, (h, c) = ppo.run(layer, input[9:, 0], None)
        torch.testing.assert_close(output[4:9, 0], middle)
        torch.testing.assert_close(output[9:, 0], end)
        torch.testing.assert_close((h_n[:, 0], c_n[:, 0]), (h, c))
        torch.testing.assert_close(output[:, 1], layer(input[:, 1])[0])
        going_on, _ = ppo.run(layer, input[:4, 2], (state[0][:, 2], state[1][:, 2]))
        torch.testing.assert_close(output[:4, 2], going_on)


def test_advantages_stop_at_the_end_of_an_episode():
    options = ppo.Options(discount=0.5, smoothing=1.0)
    rewards, values = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [0.0], [0.0], [8.0]])
    ends = torch.tensor([[False], [True], [False]])
    advantages = ppo.estimate_advantages(rewards, values, ends, options)
    assert advantages.flatten().tolist() == [1 + 0.5 * 2, 2, 4 + 0.5 * 8]


@pytest.mark.parametrize("layer", [lltm.LLTM, lltm.LSTM, nn.LSTM, lltm.GRU])
def test_collected_probabilities_are_those_of_the_update(layer):
    """Before the first update, the whole rollout gives the same policy as its steps one by one."""
    torch.manual_seed(0)
    agent = ppo.Agent(layer(cartpole.FEATURES, 8))
    options = ppo.Options(steps=40, carts=4)
    collector = ppo.Collector(agent, options)
    for _ in range(2):  # the second one begins in the middle of episodes
        rollout = collector.collect()
    assert rollout.begins[1:].any() and not rollout.begins[0].all()
    logits, _, _ = agent(rollout.observations, (rollout.h, rollout.c), rollout.begins)
    taken = logits.log_softmax(-1).gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(taken.detach(), rollout.log_probabilities)


@pytest.mark.parametrize("layer", [lltm.LLTM, lltm.LSTM, nn.LSTM, lltm.GRU])
def test_trains(layer):
    torch.manual_seed(0)
    agent = ppo.Agent(layer(cartpole.FEATURES, 16))
    before = agent.policy.weight.detach().clone()
    reports = list(ppo.train(agent, ppo.Options(updates=3, steps=32, carts=4, batches=2, epochs=2)))
    assert [report.steps for report in reports] == [128, 256, 384]
    assert all(5 < report.length < 100 for report in reports)
    assert not torch.equal(agent.policy.weight, before)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_resets_and_pieces_train_the_same_layer(kind):
    """From the same seed, to rounding, as long as no rounding changes an action."""

    def trained(layer):
        torch.manual_seed(0)
        agent = ppo.Agent(layer(cartpole.FEATURES, 16))
        list(ppo.train(agent, ppo.Options(updates=2, steps=32, carts=4, batches=2, epochs=2)))
        return list(agent.parameters())

    torch.testing.assert_close(trained(getattr(lltm, kind)), trained(getattr(nn, kind)), rtol=1e-4, atol=1e-5)


def test_wrong_options_are_errors_before_the_training():
    message = "--updates, --seeds and --hidden-size must be 1 or more"
    assert message in run_demo(FOLDER, "--updates", 0, fails=True)


def test_what_is_timed_has_the_same_results():
    cases = {case.name: case for case in reset_speed.cases((90, 6, 3, 5), torch.device("cpu"), torch.float32)}
    expected = cases["nn.LSTM in pieces"].run()
    torch.testing.assert_close(cases["lltm.LSTM with reset"].run(), expected)
    if "torchrl, pad" in cases:
        torch.testing.assert_close(cases["torchrl, pad"].run().transpose(0, 1), expected)


def test_times_every_layer():
    printed = run("python3", FOLDER / "reset_speed.py", "--shape", 20, 6, 3, 5, "--rounds", 1, **with_lltm())
    for name in ("nn.LSTM without resets", "nn.LSTM in pieces", "lltm.LSTM with reset", "lltm.LLTM with reset"):
        assert re.search(rf"{name} +[\d.]+ / [\d.]+ +[\d.]+ / [\d.]+\n", printed)


@pytest.mark.release
def test_draws_a_picture(tmp_path):
    printed = run_demo(FOLDER, "--gru", "--updates", 2, "--seeds", 1, "--hidden-size", 8, "--output", tmp_path)
    ratios = " and ".join(rf"[\d.]+ times as long as lltm.{name}" for name in ("LLTM", "LSTM", "GRU"))
    assert re.search(f"updates: nn.LSTM takes {ratios}", printed)
    assert (tmp_path / "rl.png").read_bytes().startswith(b"\x89PNG")
