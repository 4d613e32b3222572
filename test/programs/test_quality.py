"""benchmark/quality: the variants are what their names say, every task trains, and the page has the tables."""

import json
import sys
from functools import partial

import pytest
import torch
from lltm_testing.building import ROOT

sys.path += [str(ROOT / "examples" / name) for name in ("stream", "digits", "rl")]
sys.path.append(str(ROOT / "benchmark" / "quality"))

import models
import ppo
import scores
import tasks

RESULTS = ROOT / "benchmark" / "results" / "quality.json"


@pytest.mark.parametrize("layer", models.LAYERS)
def test_as_many_parameters(layer):
    ours = ppo.parameter_count(models.make_layer(models.VARIANTS["lltm.LLTM"], 8, 48))
    theirs = ppo.parameter_count(models.make_layer(models.Variant("", layer), 8, 48))
    assert 0.95 * ours < theirs <= ours


def test_variants_change_one_thing():
    def parameters(name: str):
        torch.manual_seed(0)
        layer = models.make_layer(models.VARIANTS[name], 3, 4)
        return layer.weights_l0.detach(), layer.bias_l0.detach()

    weights, bias = parameters("no leak")
    leaking = weights.clone()
    leaking[8:, :4] -= 2 * torch.eye(4)
    torch.testing.assert_close(parameters("lltm.LLTM"), (leaking, bias))
    closed = bias.clone()
    closed[:4] -= 2
    torch.testing.assert_close(parameters("no leak, input-gate bias -2"), (weights, closed))
    torch.testing.assert_close(parameters("no leak, no clipping"), (weights, bias))


@pytest.mark.parametrize(
    "make", [lambda: tasks.adding(6), lambda: tasks.copying(2), tasks.sine], ids=["adding", "copying", "sine"]
)
@pytest.mark.parametrize("variant", models.VARIANTS.values(), ids=models.VARIANTS)
def test_sequences(make, variant):
    task = make()._replace(updates=20, hidden_size=6, batch=8, rate=5e-2)
    score, cell_mean, cell_max = task.run(variant, seed=0)
    assert 0 < score < task._replace(rate=0.0).run(variant, seed=0).score
    assert (cell_mean is None) == ("GRU" in variant.layer)
    assert cell_mean is None or 0 < cell_mean < cell_max
    assert task.run(variant, seed=0) == (score, cell_mean, cell_max)


def test_what_is_drawn():
    input, target = tasks.draw_sums(5, 9)
    assert input[..., 1].sum(0).tolist() == [2.0] * 5
    torch.testing.assert_close(target, (input[..., 0] * input[..., 1]).sum(0))
    input, target = tasks.draw_copies(5, 4)
    assert input.shape == (14, 5, 10)
    assert torch.equal(input[:5].argmax(-1), target)
    assert input[5:9, :, 8].all() and input[9, :, 9].all() and input[10:, :, 8].all()
    input, target = tasks.draw_sines(5, 7)
    assert torch.equal(input[1:], target[:-1])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    "train",
    [
        tasks.sine()._replace(updates=10, hidden_size=6, batch=8).run,
        partial(tasks.run_bytes, resets=True, updates=4, hidden_size=8),  # torch.nn's run in pieces
    ],
    ids=["sine", "bytes"],
)
def test_our_layers_learn_as_those_of_torch(kind, train):
    ours, theirs = (train(models.VARIANTS[f"{package}.{kind}"], seed=0) for package in ("lltm", "nn"))
    assert [number or 0 for number in ours] == pytest.approx([number or 0 for number in theirs], rel=1e-3)  # no c


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("name", scores.BASELINES)
def test_bytes(name, resets):
    before, after = (
        tasks.run_bytes(models.VARIANTS[name], 0, resets=resets, updates=updates, hidden_size=8).score
        for updates in (1, 12)
    )
    assert 0 < after < min(before, 8)  # guessing gives 8


def test_the_published_results_have_every_baseline():
    """test_benchmark.py compares the page with them."""
    results = json.loads(RESULTS.read_text())
    measured = {(row["task"], row["variant"], row["seed"]) for row in results["rows"]}
    assert {(task, name, seed) for task, _, _ in measured for name in scores.BASELINES for seed in range(3)} <= measured


def test_tables():
    def row(variant, seed, score, cell):
        return scores.Row("toy", variant, seed, score, cell, cell and 2 * cell, 1.0)._asdict()

    rows = [row("lltm.LSTM", 0, 0.25, 1.0), row("lltm.LSTM", 1, 0.75, 3.0), row("lltm.GRU", 0, 2.0, None)]
    rows += [row("lltm.GRU", 1, 2.0, None), row("lltm.LLTM", 0, 1.0, 0.5), row("lltm.LLTM", 1, 3.0, 0.5)]
    rows += [row("no leak", 0, 1.0, 0.1), row("no leak", 1, 1.0, 0.1)]
    metrics = {"toy": {"name": "errors", "lower_is_better": True}}
    text = scores.tables({"part": 1, "metrics": metrics, "rows": rows})
    assert "| toy: errors | **0.5 (0.25 to 0.75)** | 2 (2 to 2) | 2 (1 to 3) |\n" in text
    assert "| toy | 2 | **1** |\n" in text
    assert "- lltm.LSTM is better than lltm.LLTM in 1 of 1 tasks: toy\n" in text
    assert "- lltm.LLTM is better than lltm.GRU in 0 of 1 tasks\n" in text  # their ranges overlap
    assert "| toy | 2, 6 | 0.5, 1 | 0.1, 0.2 |\n" in text
    grus = [row("lltm.GRU", 0, 2.0, None), row("nn.GRU", 0, 2.0, None)]
    of_grus = scores.tables({"part": 1, "metrics": metrics, "rows": grus})
    assert "| toy: errors | **2** | **2** |\n" in of_grus and "one thing changed" not in of_grus
    metrics["toy"]["lower_is_better"] = False
    assert "| toy: errors (more is better) | 0.5 (0.25 to 0.75) | **2 (2 to 2)** | **2 (1 to 3)** |\n" in scores.tables(
        {"part": 1, "metrics": metrics, "rows": rows}
    )
