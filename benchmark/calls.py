"""The time of a call from Python and TorchScript; and the tutorial's table."""

from collections.abc import Callable

import timing
import torch
from cases import TUTORIAL_SHAPES, Case, Work
from peers import Peer
from torch import Tensor
from workload import Inputs, environment

import lltm


def python_calls(device: str, budget: timing.Budget) -> dict[str, timing.Timing]:
    """Microseconds per call without gradients, at the tutorial's small shape, for every way to call from Python."""
    case = Case(device, 1, Work.FORWARD, "float32", TUTORIAL_SHAPES[0])
    cell = lltm.LLTMCell(case.shape.input_features, case.shape.state_size, device=device)
    scripted = torch.jit.optimize_for_inference(torch.jit.script(cell.eval()))
    operator = torch.ops.lltm.forward.default
    with environment(case), torch.no_grad():
        input, old_h, old_cell = Inputs(case, seed=0).states
        weights, bias = cell.weights.detach(), cell.bias.detach()
        callers = {
            "Python, torch.ops.lltm.forward": lambda: operator(input, weights, bias, old_h, old_cell),
            "Python, lltm.LLTMCell": lambda: cell(input, (old_h, old_cell)),
            "Python, scripted and frozen LLTMCell": lambda: scripted(input, (old_h, old_cell)),
        }
        return timing.wall(callers, budget, _synchronizer(device))


def tutorial_table(device: str, peers: list[Peer], budget: timing.Budget) -> dict[str, tuple[float, float]]:
    """Microseconds of forward and backward of new_h.sum() + new_cell.sum(), each synchronized, as in the tutorial:
    batch 16, 32 input features, state 128."""
    case = Case(device, torch.get_num_threads(), Work.TRAINING, "float32", TUTORIAL_SHAPES[0])
    synchronize = _synchronizer(device)
    with environment(case):
        cells = {peer.name: peer.make(case) for peer in peers}
        inputs = Inputs(case, seed=0)
        results: dict[str, tuple[Tensor, Tensor]] = {}  # as a caller keeps them for backward

        def forward(name: str) -> Callable[[], object]:
            def call() -> None:
                results[name] = cells[name](*inputs.states)
                synchronize()

            return call

        forward_times = timing.wall({name: forward(name) for name in cells}, budget, synchronize)

        def both(name: str) -> Callable[[], object]:
            def call() -> None:
                new_h, new_cell = cells[name](*inputs.states)
                synchronize()
                (new_h.sum() + new_cell.sum()).backward()
                synchronize()

            return call

        both_times = timing.wall({name: both(name) for name in cells}, budget, synchronize)
    return {name: (forward_times[name].median, both_times[name].median - forward_times[name].median) for name in cells}


def _synchronizer(device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device == "cuda" else lambda: None
