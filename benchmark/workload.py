"""For a case and a peer: the call to time, the error against float64, and the bytes that autograd keeps."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import torch
from cases import AMP, Case, Work
from peers import Peer
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

# Like the steps of a recurrent network, successive calls use the same parameters, but different inputs and states. Only
# the parameters may be in a cache.
INPUT_SETS = 4
SEQUENCE_INPUT_SETS = 2


class Inputs:
    """Input, old_h, old_cell and the two incoming gradients of one call of a cell."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator(case.device).manual_seed(seed)
        shape, wants_gradient = case.shape, case.work is Work.TRAINING

        def draw(columns: int) -> Tensor:
            values = torch.randn(shape.batch, columns, generator=generator, device=case.device)
            return values.to(case.torch_dtype)

        self.states = tuple(
            draw(columns).requires_grad_(wants_gradient)
            for columns in (shape.input_features, shape.state_size, shape.state_size)
        )
        self.gradients = (draw(shape.state_size), draw(shape.state_size))


class SequenceInputs:
    """The input of one call of a module: padded (steps, batch, input features), or `packed`, which has the same rows in
    another order, without those beyond the lengths."""

    def __init__(self, case: Case, seed: int) -> None:
        shape, wants_gradient = case.shape, case.work is Work.TRAINING
        generator = torch.Generator(case.device).manual_seed(seed)
        sizes = shape.steps, shape.batch, shape.input_features
        padded = torch.randn(sizes, generator=generator, device=case.device).to(case.torch_dtype)
        self.padded = padded.requires_grad_(wants_gradient)
        self.lengths: Tensor | None = None
        self.packed: PackedSequence | None = None
        if case.layers.packed:
            packed = pack_padded_sequence(padded.detach(), case.lengths)
            data = packed.data.detach().requires_grad_(wants_gradient)
            self.packed = PackedSequence(data, packed.batch_sizes)
            self.lengths = case.lengths.to(case.device)


@contextmanager
def switches(threads: int, tf32: bool, gradients: bool) -> Iterator[None]:
    """PyTorch's settings: threads, TF32 products, gradients."""
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    with torch.set_grad_enabled(gradients):
        yield


@contextmanager
def environment(case: Case) -> Iterator[None]:
    """The settings that the case runs with, and autocast."""
    with (
        switches(case.threads, case.dtype == "tf32", case.work is Work.TRAINING),
        torch.autocast(
            case.device,
            AMP.get(case.dtype, torch.bfloat16),
            enabled=case.work is Work.AUTOCAST or case.dtype in AMP,
            # Without the cache, each call casts the parameters, as each update of a training does.
            cache_enabled=case.dtype not in AMP,
        ),
    ):
        yield


def _step(cell: Callable, inputs: Inputs, work: Work) -> tuple[Tensor, ...]:
    outputs = cell(*inputs.states)
    if work is not Work.TRAINING:
        return outputs
    wanted = (*inputs.states, *cell.parameters())
    return outputs + torch.autograd.grad(outputs, wanted, inputs.gradients)


def make_call(case: Case, module: Callable) -> Callable[[], object]:
    """A call that computes the outputs and, in training, the gradients of all inputs and parameters."""
    if case.variant:
        return _make_sequence_call(case, module)
    sets = cycle([Inputs(case, seed) for seed in range(INPUT_SETS)])
    if case.work is not Work.TRAINING:
        return lambda: module(*next(sets).states)
    parameters = tuple(module.parameters())

    def call() -> tuple[Tensor, ...]:
        inputs = next(sets)
        return torch.autograd.grad(module(*inputs.states), (*inputs.states, *parameters), inputs.gradients)

    return call


def _make_sequence_call(case: Case, module: Callable) -> Callable[[], object]:
    sets = cycle([SequenceInputs(case, seed) for seed in range(SEQUENCE_INPUT_SETS)])
    if case.work is not Work.TRAINING:
        return lambda: module(next(sets))
    parameters = tuple(module.parameters())
    output = module(next(sets))  # under autocast, of its dtype
    gradient = torch.randn_like(output)
    # The peers that read the padded input of packed sequences have its gradient.
    is_packed = case.layers.packed and output.dim() == 2

    def call() -> tuple[Tensor, ...]:
        inputs = next(sets)
        input = inputs.packed.data if is_packed else inputs.padded
        return torch.autograd.grad(module(inputs), (input, *parameters), gradient)

    return call


def errors(case: Case, cells: dict[Peer, Callable]) -> dict[str, tuple[float, float]]:
    """The (mean, largest) error of every peer's worst result against float64, relative to that result's mean magnitude.
    If gradients are measured, they are among the results."""
    inputs = Inputs(case, seed=INPUT_SETS)
    double = copy.deepcopy(inputs)
    double.states = tuple(state.detach().double().requires_grad_(state.requires_grad) for state in inputs.states)
    double.gradients = tuple(gradient.double() for gradient in inputs.gradients)
    found = {}
    for peer, cell in cells.items():
        reference = peer.reference(case.shape, case.device, torch.float64)
        with torch.no_grad():
            for reference_parameter, cell_parameter in zip(reference.parameters(), cell.parameters(), strict=True):
                reference_parameter.copy_(cell_parameter)
        with torch.autocast(case.device, enabled=False):
            expected = _step(reference, double, case.work)
        actual = _step(cell, inputs, case.work)
        worst_mean = worst_largest = 0.0
        for want, got in zip(expected, actual, strict=True):
            difference = (got.double() - want).abs() / want.abs().mean()
            worst_mean = max(worst_mean, difference.mean().item())
            worst_largest = max(worst_largest, difference.max().item())
        found[peer.name] = (worst_mean, worst_largest)
    return found


def kept_bytes(case: Case, cell: Callable) -> tuple[int, int]:
    """The bytes that autograd keeps between forward and backward, excluding parameters and arguments: in total, and
    without the results of forward."""
    inputs = Inputs(case, seed=0)
    given = {tensor.untyped_storage().data_ptr() for tensor in (*inputs.states, *cell.parameters())}
    kept: dict[int, int] = {}
    alive = []  # a freed storage would leave its address to the next one

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = cell(*inputs.states)
    results = {output.untyped_storage().data_ptr() for output in outputs}
    return sum(kept.values()), sum(size for address, size in kept.items() if address not in results)
