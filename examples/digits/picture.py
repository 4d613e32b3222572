"""The demo's picture: the training curves, example predictions, and the confusion matrix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from digits import CLASSES, Epoch, Examples
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))

import pictures
from pictures import GRID, MUTED, TEXT

RIGHT, WRONG, WRONG_TINT, EMPTY = "#1f6feb", "#d1242f", "#fbdfe1", "#f4f6f8"
INK = LinearSegmentedColormap.from_list("ink", ["#ffffff", TEXT])

DIGITS_SHOWN = 14
MISTAKES_SHOWN = 4


def chosen(predicted: Tensor, labels: Tensor) -> list[int]:
    """The images to show: first the same number of each digit, then a few mistakes, without manual selection."""
    wrong = torch.nonzero(predicted != labels).flatten().tolist()[:MISTAKES_SHOWN]
    right_by_digit = [
        torch.nonzero((labels == digit) & (predicted == labels)).flatten().tolist() for digit in range(CLASSES)
    ]
    right = [index for rank in zip(*right_by_digit, strict=False) for index in rank][: DIGITS_SHOWN - len(wrong)]
    return right + wrong


def draw_digits(axes: Sequence[Axes], held_out: Examples, predicted: Tensor) -> None:
    for axis, index in zip(axes, chosen(predicted, held_out.labels), strict=True):
        seen, truth = int(predicted[index]), int(held_out.labels[index])
        color = RIGHT if seen == truth else WRONG
        axis.imshow(held_out.images[index], cmap=INK, vmin=0, vmax=16)
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set(visible=True, color=color if seen != truth else GRID, linewidth=1.5 if seen != truth else 1)
        axis.set_xlabel(str(seen), color=color, fontsize=15, fontweight="bold", labelpad=4)
        if seen != truth:
            place = {"xy": (0.5, -0.64), "xycoords": "axes fraction", "ha": "center"}
            axis.annotate(f"label {truth}", color=MUTED, fontsize=9, **place)


def draw_learning(axis: Axes, history: Sequence[Epoch]) -> None:
    epochs = range(1, len(history) + 1)
    errors = [1 - epoch.accuracy for epoch in history]
    axis.plot(epochs, [epoch.loss for epoch in history], color=MUTED, linewidth=1.8)
    axis.plot(epochs, errors, color=RIGHT, linewidth=2.4)
    axis.set_yscale("log")
    axis.set(title="Training loss and test error (log scale)", xlabel="epoch", xlim=(1, len(history)))
    axis.tick_params(which="minor", length=0)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)
    over_lines = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    at_the_end = {"xytext": (-4, 8), "textcoords": "offset points", "ha": "right", "bbox": over_lines}
    axis.annotate("training loss (cross entropy)", (epochs[-1], history[-1].loss), color=MUTED, **at_the_end)
    error = f"test error {errors[-1]:.1%}"
    axis.annotate(error, (epochs[-1], errors[-1]), color=RIGHT, fontweight="bold", **at_the_end)


def draw_confusion(axis: Axes, predicted: Tensor, labels: Tensor) -> None:
    counts = torch.bincount(labels * CLASSES + predicted, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    colors = [[EMPTY] * CLASSES for _ in range(CLASSES)]
    for truth, seen in torch.nonzero(counts).tolist():
        right = truth == seen
        colors[truth][seen] = RIGHT if right else WRONG_TINT
        axis.text(
            seen,
            truth,
            str(int(counts[truth, seen])),
            ha="center",
            va="center",
            color="white" if right else WRONG,
            fontsize=9,
            fontweight="bold",
        )
    axis.imshow([[to_rgb(color) for color in row] for row in colors])
    axis.set(title="Confusion matrix", xlabel="predicted label", ylabel="true label")
    axis.set(xticks=range(CLASSES), yticks=range(CLASSES))
    axis.spines[:].set_visible(False)
    axis.set_xticks([edge - 0.5 for edge in range(1, CLASSES)], minor=True)
    axis.set_yticks([edge - 0.5 for edge in range(1, CLASSES)], minor=True)
    axis.grid(which="minor", color="white", linewidth=1.5)
    axis.tick_params(which="minor", length=0)


def draw(path: Path, history: Sequence[Epoch], held_out: Examples, predicted: Tensor, caption: str) -> None:
    """Writes the picture as a PNG. predicted holds the predicted digit (N) of each held-out image."""
    with pictures.figure(path, "An LSTM reads handwritten digits", caption, height=7.6) as figure:
        top = figure.add_gridspec(1, DIGITS_SHOWN, left=0.06, right=0.97, top=0.845, bottom=0.72, wspace=0.25)
        bottom = figure.add_gridspec(1, 2, left=0.06, right=0.97, top=0.575, bottom=0.085, width_ratios=(3, 2))
        draw_digits([figure.add_subplot(cell) for cell in top], held_out, predicted)
        draw_learning(figure.add_subplot(bottom[0]), history)
        draw_confusion(figure.add_subplot(bottom[1]), predicted, held_out.labels)
