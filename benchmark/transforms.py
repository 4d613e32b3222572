"""torch.func's transforms of lltm.LLTM, compared with a Python loop over the same calls, and with one plain call that
does not tell the examples apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import timing
import torch
from cases import Shape
from results import Row, Task
from torch import Tensor
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from workload import switches

import lltm

SHAPES = (Shape(32, 64, 128, steps=50), Shape(4, 64, 128, steps=50))
EXAMPLES = 4
"""The number of batches, and of sets of parameters, that a vmap maps over. Per-sample gradients map over the batch."""

VMAP, LOOP, PLAIN = "transform", "loop", "plain"


Calls = dict[str, Callable[[], object]]


def transforms(shape: Shape, layers: int, device: str) -> Iterator[tuple[str, Calls]]:
    """The calls to compare, by the name of their clock. Parameters and inputs are made anew, from a fixed seed."""
    torch.manual_seed(0)
    models = [lltm.LLTM(shape.input_features, shape.state_size, layers, device=device) for _ in range(EXAMPLES)]
    model = models[0]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    inputs = torch.randn(EXAMPLES, shape.steps, shape.batch, shape.input_features, device=device)
    batch = inputs[0]

    def output(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,))[0]

    gradient = grad(lambda p, x: output(p, x).square().sum())
    yield (
        "gradients of each sample",
        {
            VMAP: lambda: vmap(gradient, (None, 1))(parameters, batch),
            LOOP: lambda: [gradient(parameters, x) for x in batch.unbind(1)],
            PLAIN: lambda: gradient(parameters, batch),
        },
    )
    yield (
        f"{EXAMPLES} batches of inputs",
        {
            VMAP: lambda: vmap(output, (None, 0))(parameters, inputs),
            LOOP: lambda: [output(parameters, x) for x in inputs],
            PLAIN: lambda: output(parameters, inputs.transpose(0, 1).flatten(1, 2)),
        },
    )
    together = {name: p.detach() for name, p in stack_module_state(models)[0].items()}
    apart = [{name: p.detach() for name, p in m.named_parameters()} for m in models]
    yield (
        f"{EXAMPLES} sets of parameters",
        {
            VMAP: lambda: vmap(output, (0, None))(together, batch),
            LOOP: lambda: [output(p, batch) for p in apart],
        },
    )
    yield (
        f"gradients of {EXAMPLES} sets of parameters",
        {
            VMAP: lambda: vmap(gradient, (0, None))(together, batch),
            LOOP: lambda: [gradient(p, batch) for p in apart],
        },
    )
    tangents = {name: torch.randn_like(p) for name, p in parameters.items()}
    yield (
        "jvp",
        {
            VMAP: lambda: jvp(lambda p: output(p, batch), (parameters,), (tangents,)),
            PLAIN: lambda: output(parameters, batch),
        },
    )


def tasks(device: str, threads: int, shapes: Sequence[Shape], budget: timing.Budget) -> list[Task]:
    return [
        (
            f"{device}, transforms of {layers} layers, {shape}",
            partial(_measure, device=device, threads=threads, shape=shape, layers=layers, budget=budget),
        )
        for shape in shapes
        for layers in (1, 2)
    ]


def _measure(device: str, threads: int, shape: Shape, layers: int, budget: timing.Budget) -> Iterator[Row]:
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    with switches(threads, tf32=False, gradients=True):
        for name, calls in transforms(shape, layers, device):
            for peer, found in timing.wall(calls, budget, synchronize).items():
                yield Row(
                    "transforms",
                    device=device,
                    threads=threads,
                    shape=str(shape),
                    variant=f"{name}, {layers} layer{'s' if layers > 1 else ''}",
                    peer=peer,
                    us=found.median,
                )
