"""The digits, the model that classifies them, and its training.

An image of 8x8 pixels is read as a sequence: one row of 8 pixels per step, from top to bottom. The digit is predicted
from the layer's h after the last row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import lltm

CLASSES = 10
ROW_PIXELS = 8


class Examples(NamedTuple):
    """Images (N, 8, 8) in float32, each pixel from 0 (paper) to 16 (ink), and their labels (N) in int64."""

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Examples:
        return Examples(self.images.to(device), self.labels.to(device))


class Epoch(NamedTuple):
    """The metrics after one pass over the training images."""

    loss: float  # mean cross entropy over the pass
    accuracy: float  # on the held-out images, from 0 to 1


class DigitReader(nn.Module):
    """Classifies images by reading their rows with an LSTM, or with lltm.GRU.

    Takes images (N, rows, 8) with pixels from 0 to 16 and returns logits (N, 10). The model scales the pixels itself,
    so programs that load the saved file do not have to.
    """

    def __init__(self, state_size: int = 128, layer: type[nn.Module] = lltm.LSTM) -> None:
        super().__init__()
        self.rnn = layer(ROW_PIXELS, state_size, batch_first=True)
        self.readout = nn.Linear(state_size, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        # Scale to -1 to 1: with pixels from 0 to 1, the final accuracy is clearly worse.
        rows = images / 8 - 1
        return self.readout(self.rnn(rows)[0][:, -1])


def load(held_out: float = 0.2) -> tuple[Examples, Examples]:
    """The 1,797 images that come with scikit-learn, split into training and held-out images.

    The split is always the same, and stratified by digit.
    """
    data = load_digits()
    train, test = train_test_split(range(len(data.target)), test_size=held_out, stratify=data.target, random_state=0)
    images = torch.tensor(data.images, dtype=torch.float32)
    labels = torch.tensor(data.target, dtype=torch.int64)
    return Examples(images[train], labels[train]), Examples(images[test], labels[test])


@torch.inference_mode()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """The predicted digit (N), int64, of each image."""
    return model(images).argmax(dim=1)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()


def train(
    model: nn.Module,
    training: Examples,
    held_out: Examples,
    epochs: int = 40,
    batch_size: int = 64,
    peak_rate: float = 0.015,
) -> Iterator[Epoch]:
    """Trains the model in place and yields after each epoch.

    The held-out images are used for reporting only, not to select a model: the result is the model after the last
    epoch. The learning rate rises to its peak and falls to almost zero over the whole run (one cycle).
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.05)
    batches = -(-len(training.labels) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=epochs * batches)
    for _ in range(epochs):
        total = torch.zeros((), device=training.labels.device)
        for batch in torch.randperm(len(training.labels)).to(training.labels.device).split(batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(training.images[batch]), training.labels[batch])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(batch)
        yield Epoch(total.item() / len(training.labels), accuracy(predict(model, held_out.images), held_out.labels))
