"""Train a small network of these operators on scikit-learn's handwritten digits, in well under a minute.

The network has two FusedConvBatchNorm2D layers, which save memory, and a classifier whose weights and inputs are
rounded to 4 bits. The gradient of rounding is zero, so the network is trained twice: with round_ste, which passes the
gradient straight through, and with the true gradient. The last lines of the output compare the results.

    python3 examples/operators/train.py
"""

import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent / "python"))

import example_ops

EPOCHS = 6
BATCH = 64
HELD_OUT = 360


class PlainConvBatchNorm2D(example_ops.FusedConvBatchNorm2D):
    """The same layer made of two operators, for comparison."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.ops.example_ops.batch_norm2d(torch.ops.example_ops.conv2d(input, self.weight), self.eps)


class QuantizedLinear(torch.nn.Linear):
    """A linear layer that computes with 4 bits: weights -7 to 7, inputs 0 to 15, both times a step size."""

    def __init__(self, in_features: int, out_features: int, round):
        super().__init__(in_features, out_features)
        self.round = round

    def quantize(self, x: Tensor, levels: int) -> Tensor:
        step = x.detach().abs().max().clamp_min(1e-8) / levels
        return self.round(x / step) * step

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(self.quantize(input, 15), self.quantize(self.weight, 7), self.bias)


def make_network(round, layer=example_ops.FusedConvBatchNorm2D) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        layer(1, 16, 3),
        torch.nn.ReLU(),
        layer(16, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        QuantizedLinear(32 * 4 * 4, 10, round),
    )


def train(network: torch.nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images), device=images.device).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(network: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    return (network(images).argmax(1) == labels).double().mean().item()


def bytes_kept(network: torch.nn.Module, images: Tensor) -> int:
    """The number of bytes that autograd keeps for the backward pass, excluding the parameters and the images."""
    alive = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), images)}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in alive:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = network(images)
    del output
    return sum(kept.values())


def main() -> None:
    started = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1).to(device) / 16
    labels = torch.tensor(digits.target)[order].to(device)
    held_out, training = slice(0, HELD_OUT), slice(HELD_OUT, None)

    results = {}
    for name, round in [("straight-through", torch.ops.example_ops.round_ste), ("true", torch.round)]:
        network = make_network(round).to(device)
        train(network, images[training], labels[training])
        results[name] = accuracy(network, images[held_out], labels[held_out])
        print(
            f"{EPOCHS} epochs with the {name} gradient of rounding: {time.perf_counter() - started:.0f} s", flush=True
        )

    batch = images[:BATCH]
    fused = bytes_kept(make_network(torch.ops.example_ops.round_ste).to(device), batch)
    plain = bytes_kept(make_network(torch.ops.example_ops.round_ste, PlainConvBatchNorm2D).to(device), batch)

    print(f"accuracy on {HELD_OUT} held-out digits, straight-through gradient: {results['straight-through']:.1%}")
    print(f"accuracy on {HELD_OUT} held-out digits, true gradient: {results['true']:.1%}")
    print(
        f"kept for the backward pass of {BATCH} images: {fused / 1024:.0f} KiB with FusedConvBatchNorm2D, "
        f"{plain / 1024:.0f} KiB with conv2d and batch_norm2d ({1 - fused / plain:.0%} saved)"
    )


if __name__ == "__main__":
    main()
