"""The modules in C++, lltm::LLTM, lltm::LSTM and lltm::GRU, compute what those in Python do, and share checkpoints."""

from itertools import product

import pytest
import torch
from lltm_testing.building import run
from torch.utils._pytree import tree_leaves

import lltm

pytestmark = pytest.mark.pytorch

STEPS, BATCH, FEATURES, HIDDEN = 5, 4, 3, 6  # those of test_module.cpp


def write_archive(path, tensors: list[torch.Tensor] | dict[str, torch.Tensor]) -> None:
    """Write what torch::load reads: an archive of TorchScript whose parameters have these names."""
    archive = torch.nn.Module()
    for name, tensor in (tensors if isinstance(tensors, dict) else dict(enumerate(tensors))).items():
        parameter = torch.nn.Parameter(tensor.detach(), requires_grad=tensor.is_floating_point())
        archive.register_parameter(str(name), parameter)
    torch.jit.script(archive).save(path)


def read_archive(path) -> dict[str, torch.Tensor]:
    return torch.jit.load(path).state_dict()


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_results_gradients_and_checkpoints_are_those_of_python(tmp_path, float64):
    program = lltm.library_path.parent / "lltm_ops_test"
    if not program.exists():
        pytest.skip("the C++ tests were not built")
    torch.manual_seed(1)
    expected = {}
    cases = product((lltm.LLTM, lltm.LSTM, lltm.GRU), (1, 3), *4 * [(False, True)])
    for number, (module, layers, bidirectional, bias, batch_first, given) in enumerate(cases):
        folder = tmp_path / module.__name__ / str(number)
        folder.mkdir(parents=True)
        options = {"bidirectional": bidirectional, "bias": bias, "batch_first": batch_first}
        rnn = module(FEATURES, HIDDEN, layers, **options)
        input, reset = torch.randn(STEPS, BATCH, FEATURES), torch.rand(STEPS, BATCH) < 0.3
        if batch_first:
            input, reset = (t.transpose(0, 1).contiguous() for t in (input, reset))
        lengths = torch.tensor([5, 0, 2, 4])
        hx = torch.randn(1 if module is lltm.GRU else 2, layers * (1 + bidirectional), BATCH, HIDDEN).unbind()
        leaves = [*rnn.parameters(), input, *(hx if given else ())]
        for leaf in leaves:
            leaf.requires_grad_()
        arguments = (input, hx[0] if module is lltm.GRU else hx, lengths, reset) if given else (input,)
        results = tree_leaves(rnn.states(*arguments))
        grad_outputs = [torch.randn_like(result) for result in results]
        gradients = torch.autograd.grad(results, leaves, grad_outputs)
        expected[folder] = rnn, [*results, *gradients]
        write_archive(folder / "python.pt", rnn.state_dict())
        write_archive(folder / "options.pt", [torch.tensor(value) for value in (layers, *options.values())])
        write_archive(folder / "arguments.pt", [input, *hx, lengths, reset] if given else [input])
        write_archive(folder / "grad_outputs.pt", grad_outputs)

    run(program, "--gtest_filter=Modules/*.ExchangeCheckpointsWithPython", LLTM_CHECKPOINTS=tmp_path)

    for folder, (rnn, tensors) in expected.items():
        for actual, tensor in zip(read_archive(folder / "results.pt").values(), tensors, strict=True):
            torch.testing.assert_close(actual, tensor.detach())
        checkpoint = read_archive(folder / "cpp.pt")
        assert list(checkpoint) == list(rnn.state_dict())
        for name, parameter in rnn.named_parameters():
            assert torch.equal(checkpoint[name], parameter), name
