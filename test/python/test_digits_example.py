"""The parts of examples/digits that need no C++ build. The demo itself is `make demo`."""

import sys
from pathlib import Path

import pytest
import torch
from building import run_demo

pytest.importorskip("sklearn", reason="scikit-learn brings the digits")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "digits"
sys.path.insert(0, str(FOLDER))

import digits  # noqa: E402


@pytest.fixture(scope="module")
def examples():
    return digits.load()


def test_split_is_stratified_and_disjoint(examples):
    training, held_out = examples
    assert (len(training.labels), len(held_out.labels)) == (1437, 360)
    assert torch.bincount(held_out.labels, minlength=10).min() >= 34
    assert held_out.images.min() == 0 and held_out.images.max() == 16
    again = digits.load()[1]
    assert torch.equal(again.images, held_out.images) and torch.equal(again.labels, held_out.labels)


def test_learns_something_in_two_epochs(device, examples):
    training, held_out = (part.to(device) for part in examples)
    model = digits.DigitReader(state_size=32).to(device)
    history = list(digits.train(model, training, held_out, epochs=2))
    assert len(history) == 2
    assert history[1].loss < history[0].loss
    assert history[1].accuracy > 0.3  # guessing gives 0.1


def test_scripted_and_saved_model_is_the_same(device, examples, tmp_path):
    images = examples[1].images.to(device)
    model = digits.DigitReader(state_size=32).to(device).eval()
    torch.jit.script(model).save(tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    with torch.inference_mode():
        assert torch.equal(loaded(images), model(images))
    assert torch.equal(digits.predict(loaded, images), digits.predict(model, images))


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--epochs", 0), "--epochs must be 1 or more"), ((), "--build-dir: the library was not built in ")],
    ids=["epochs", "build-dir"],
)
def test_wrong_options_are_errors_before_the_training(options, message, tmp_path):
    assert message in run_demo(FOLDER, "--build-dir", tmp_path, *options, fails=True)
