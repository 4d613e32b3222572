"""TorchScript: scripted and traced, saved, frozen, loaded, with gradients."""

import itertools
import sys

import pytest
import torch
from lltm_testing import named_arguments, sequence_reference
from lltm_testing.building import run
from lltm_testing.named_arguments import NAMES, call, each_forward, leaves_of
from lltm_testing.reference import assert_identical, assert_same_up_to_rounding

import lltm

# TorchScript is deprecated, but deployed models use it.
pytestmark = [
    pytest.mark.pytorch,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
]
each_cell = pytest.mark.parametrize("cls", [lltm.LLTMCell, lltm.LSTMCell])


class Loop(torch.nn.Module):
    """A cell over all steps of a (steps, batch, features) tensor: a loop, which only scripting preserves."""

    def __init__(self, cell: torch.nn.Module):
        super().__init__()
        self.cell = cell

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        new_h, new_cell = self.cell(inputs[0])
        for step in range(1, inputs.size(0)):
            new_h, new_cell = self.cell(inputs[step], (new_h, new_cell))
        return new_h


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@each_forward
def test_traced_operator(device, dtype, operator, bias):
    absent = [name for name in NAMES[operator] if name.startswith("bias") and not bias]
    arguments = {n: t for n, t in named_arguments.make(operator, device, dtype).items() if n not in absent}
    function = torch.jit.trace(
        lambda *tensors: call(operator, dict.fromkeys(NAMES[operator]) | dict(zip(arguments, tensors, strict=True))),
        tuple(arguments.values()),
    )
    for batch in (6, 3, 3, 3):  # TorchScript specializes after some calls
        made = named_arguments.make(operator, device, dtype, sizes=(7, batch, 5, 4))
        leaves = leaves_of(made | dict.fromkeys(absent))
        wanted = [leaf for leaf in leaves.values() if leaf is not None and leaf.requires_grad]
        found, expected = function(*(leaves[name] for name in arguments)), call(operator, leaves)
        assert_same_up_to_rounding(found, expected)
        assert_same_up_to_rounding(
            *(torch.autograd.grad(sum(r.sin().sum() for r in results[:-1]), wanted) for results in (found, expected))
        )


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@each_cell
def test_module_saved_and_loaded(device, tmp_path, cls, bias):
    model = Loop(cls(5, 7, bias)).to(device)
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


@each_cell
def test_module_traced(device, tmp_path, cls):
    cell = cls(5, 7, device=device)
    x, h, c = (torch.randn(6, size, device=device) for size in (5, 7, 7))
    torch.jit.trace(cell, (x, (h, c))).save(tmp_path / "cell.pt")
    loaded = torch.jit.load(tmp_path / "cell.pt")
    x, h, c = (torch.randn(9, size, device=device) for size in (5, 7, 7))
    assert_identical(loaded(x, (h, c)), cell(x, (h, c)))


@each_cell
def test_module_traced_without_a_state_keeps_the_batch_free(device, cls):
    cell = cls(5, 7, device=device)
    traced_cell = torch.jit.trace(cell, torch.randn(6, 5, device=device))
    x = torch.randn(9, 5, device=device)
    assert torch.equal(traced_cell(x)[0], cell(x)[0])


@each_cell
def test_module_frozen(device, tmp_path, cls):
    model = Loop(cls(5, 7)).to(device).eval()
    frozen = torch.jit.freeze(torch.jit.script(model))
    assert not list(frozen.parameters())
    frozen.save(tmp_path / "frozen.pt")
    loaded = torch.jit.load(tmp_path / "frozen.pt")
    inputs = torch.randn(3, 6, 5, device=device)
    for _ in range(3):
        assert torch.equal(frozen(inputs), model(inputs))
        assert torch.equal(loaded(inputs), model(inputs))


@each_forward
def test_constant_arguments_are_not_folded_away(device, operator):
    """A frozen graph with constant arguments may evaluate the operator once, and must be correct."""

    class Constant(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.names = []
            for name, tensor in named_arguments.make(operator, device).items():
                self.register_buffer(name, tensor)
                self.names.append(name)

        def forward(self) -> torch.Tensor:
            return call(operator, {name: getattr(self, name) for name in self.names})[0]

    model = Constant().eval()
    frozen = torch.jit.freeze(torch.jit.trace(model, ()))
    assert torch.equal(frozen(), model())


@each_cell
def test_a_process_that_only_has_the_library(device, tmp_path, cls):
    """A saved model needs the operators, not the Python package."""
    model = Loop(cls(5, 7)).to(device)
    torch.jit.script(model).save(tmp_path / "model.pt")
    inputs = torch.randn(3, 6, 5, device=device)
    torch.save(inputs, tmp_path / "inputs.pt")
    program = (
        "import sys, torch\n"
        "torch.ops.load_library(sys.argv[1])\n"
        "torch.backends.cudnn.allow_tf32 = False\n"  # as in the tests
        "model, inputs = torch.jit.load(sys.argv[2]), torch.load(sys.argv[3])\n"
        "torch.save(model(inputs).detach(), sys.argv[4])\n"
        "assert 'lltm' not in sys.modules\n"
    )
    files = [str(tmp_path / name) for name in ("model.pt", "inputs.pt", "outputs.pt")]
    run(sys.executable, "-c", program, lltm.library_path, *files)
    assert torch.equal(torch.load(files[-1]), model(inputs).detach())


def test_sequence(device, tmp_path, cell):
    torch.jit.script(getattr(lltm.ops, cell.operator)).save(str(tmp_path / "sequence.pt"))
    loaded = torch.jit.load(tmp_path / "sequence.pt")
    for given, reverse in itertools.product([False, True], repeat=2):
        arguments = sequence_reference.make(
            (5, 4, 3, 7), device=device, bias=given, state=given, lengths=given, reset=given, reverse=reverse, cell=cell
        )
        for _ in range(3):  # TorchScript specializes after some calls
            leaves = arguments.require_grad()
            results = loaded(*leaves, keep=True)
            sequence_reference.assert_results_close(results, arguments, keep=True)
            results[0].sum().backward()
            assert all(leaf.grad.isfinite().all() for leaf in leaves.leaves())
