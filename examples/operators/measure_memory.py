"""Measure the peak memory of a training step with conv2d_batch_norm, and with conv2d and batch_norm2d.

The network has four such layers and ReLUs, and the images have MNIST's size. Prints one line.

    python3 examples/operators/measure_memory.py
"""

import torch
from train import PlainConvBatchNorm2D, example_ops

BATCH = 256
CHANNELS = (1, 32, 32, 32, 32)


def make_network(layer) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = []
    for before, after in zip(CHANNELS, CHANNELS[1:], strict=False):
        layers += [layer(before, after, 3), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.LazyLinear(10))


def step(network: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    network.zero_grad()
    torch.nn.functional.cross_entropy(network(images), labels).backward()


def peak_of_step(layer, device: str) -> int:
    """The peak number of bytes that PyTorch's allocator allocated during a step, beyond those allocated before it."""
    images = torch.rand(BATCH, 1, 28, 28, device=device)
    labels = torch.randint(10, (BATCH,), device=device)
    network = make_network(layer).to(device)
    step(network, images, labels)
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(network, images, labels)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    # The CPU allocator reports every allocation and release to the profiler.
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        step(network, images, labels)
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    assert events, "the profiler reported no allocation"
    allocated = peak = 0
    for _, size in events:
        allocated += size
        peak = max(peak, allocated)
    return peak


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    fused = peak_of_step(example_ops.FusedConvBatchNorm2D, device)
    plain = peak_of_step(PlainConvBatchNorm2D, device)
    print(
        f"{name}, PyTorch {torch.__version__}: peak of a training step of {BATCH} images 28x28, "
        f"{fused / 2**20:.0f} MiB with conv2d_batch_norm, {plain / 2**20:.0f} MiB with conv2d and batch_norm2d "
        f"({1 - fused / plain:.0%} less)"
    )


if __name__ == "__main__":
    main()
