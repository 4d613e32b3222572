"""TorchScript: scripted and traced, saved, frozen, loaded, with gradients."""

import itertools
import sys

import pytest
import torch
from lltm_testing import sequence_reference
from lltm_testing.building import run
from lltm_testing.reference import (
    assert_forward_close,
    assert_gradients_close,
    assert_identical,
    gradients,
    make_arguments,
    make_gradients,
)

import lltm

# TorchScript is deprecated, but deployed models use it.
pytestmark = [
    pytest.mark.pytorch,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
]


class Sequence(torch.nn.Module):
    """A cell over all steps of a (steps, batch, features) tensor: a loop, which only scripting preserves."""

    def __init__(self, bias: bool = True):
        super().__init__()
        self.cell = lltm.LLTMCell(5, 7, bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        new_h, new_cell = self.cell(inputs[0])
        for step in range(1, inputs.size(0)):
            new_h, new_cell = self.cell(inputs[step], (new_h, new_cell))
        return new_h


def traced(arguments):
    if arguments.bias is None:
        step = torch.jit.trace(
            lambda x, w, h, c: torch.ops.lltm.forward(x, w, None, h, c), (*arguments[:2], *arguments[3:])
        )
        return lambda x, w, b, h, c: step(x, w, h, c)
    return torch.jit.trace(torch.ops.lltm.forward, tuple(arguments))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_traced_operator(device, dtype, bias):
    step = traced(make_arguments((3, 5, 7), dtype, device, bias))
    for batch in (3, 6, 6, 6):  # TorchScript specializes after some calls
        arguments = make_arguments((batch, 5, 7), dtype, device, bias)
        grads = make_gradients(arguments)
        assert_forward_close(step(*arguments), arguments)
        assert_gradients_close(gradients(arguments, *grads, lambda a: step(*a)), *grads, arguments)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_module_saved_and_loaded(device, tmp_path, bias):
    model = Sequence(bias).to(device)
    torch.jit.script(model).save(tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt", map_location=device)
    for steps in (1, 3, 4):
        inputs = torch.randn(steps, 6, 5, device=device)
        expected = model(inputs)
        found = loaded(inputs)
        assert torch.equal(found, expected)
        grads = torch.autograd.grad(expected.sum(), list(model.parameters()))
        for a, b in zip(torch.autograd.grad(found.sum(), list(loaded.parameters())), grads, strict=True):
            torch.testing.assert_close(a, b)


def test_module_traced(device, tmp_path):
    cell = lltm.LLTMCell(5, 7, device=device)
    x, h, c = (torch.randn(6, size, device=device) for size in (5, 7, 7))
    torch.jit.trace(cell, (x, (h, c))).save(tmp_path / "cell.pt")
    loaded = torch.jit.load(tmp_path / "cell.pt")
    x, h, c = (torch.randn(9, size, device=device) for size in (5, 7, 7))
    assert_identical(loaded(x, (h, c)), cell(x, (h, c)))


def test_module_traced_without_a_state_keeps_the_batch_free(device):
    cell = lltm.LLTMCell(5, 7, device=device)
    traced_cell = torch.jit.trace(cell, torch.randn(6, 5, device=device))
    x = torch.randn(9, 5, device=device)
    assert torch.equal(traced_cell(x)[0], cell(x)[0])


def test_module_frozen(device, tmp_path):
    model = Sequence().to(device).eval()
    frozen = torch.jit.freeze(torch.jit.script(model))
    assert not list(frozen.parameters())
    frozen.save(tmp_path / "frozen.pt")
    loaded = torch.jit.load(tmp_path / "frozen.pt")
    inputs = torch.randn(3, 6, 5, device=device)
    for _ in range(3):
        assert torch.equal(frozen(inputs), model(inputs))
        assert torch.equal(loaded(inputs), model(inputs))


def test_constant_arguments_are_not_folded_away(device):
    """A frozen graph with constant arguments may evaluate the operator once, and must be correct."""
    arguments = make_arguments((3, 5, 7), device=device)

    class Constant(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.arguments = torch.nn.ParameterList(arguments)

        def forward(self) -> torch.Tensor:
            x, w, b, h, c = self.arguments
            return torch.ops.lltm.forward(x, w, b, h, c)[0]

    model = Constant().eval()
    frozen = torch.jit.freeze(torch.jit.trace(model, ()))
    assert torch.equal(frozen(), model())


def test_a_process_that_only_has_the_library(device, tmp_path):
    """A saved model needs the operators, not the Python package."""
    model = Sequence().to(device)
    torch.jit.script(model).save(tmp_path / "model.pt")
    inputs = torch.randn(3, 6, 5, device=device)
    torch.save(inputs, tmp_path / "inputs.pt")
    program = (
        "import sys, torch\n"
        "torch.ops.load_library(sys.argv[1])\n"
        "model, inputs = torch.jit.load(sys.argv[2]), torch.load(sys.argv[3])\n"
        "torch.save(model(inputs).detach(), sys.argv[4])\n"
        "assert 'lltm' not in sys.modules\n"
    )
    files = [str(tmp_path / name) for name in ("model.pt", "inputs.pt", "outputs.pt")]
    run(sys.executable, "-c", program, lltm.library_path, *files)
    assert torch.equal(torch.load(files[-1]), model(inputs).detach())


def test_sequence(device, tmp_path):
    torch.jit.script(lltm.sequence).save(str(tmp_path / "sequence.pt"))
    loaded = torch.jit.load(tmp_path / "sequence.pt")
    for given, reverse in itertools.product([False, True], repeat=2):
        arguments = sequence_reference.make(
            (5, 4, 3, 7), device=device, bias=given, state=given, lengths=given, reset=given, reverse=reverse
        )
        for _ in range(3):  # TorchScript specializes after some calls
            leaves = arguments.require_grad()
            results = loaded(*leaves, keep=True)
            sequence_reference.assert_results_close(results, arguments, keep=True)
            results[0].sum().backward()
            assert leaves.weights.grad.isfinite().all()
