"""The checkpoints of lltm::LLTM, the module of torch::nn, are those of lltm.LLTM."""

import pytest
import torch
from building import run

import lltm

pytestmark = pytest.mark.pytorch


def write_archive(path, tensors: dict[str, torch.Tensor]) -> None:
    """Write what torch::load reads: an archive of TorchScript whose parameters have these names."""
    archive = torch.nn.Module()
    for name, tensor in tensors.items():
        archive.register_parameter(name, torch.nn.Parameter(tensor.detach(), requires_grad=tensor.is_floating_point()))
    torch.jit.script(archive).save(path)


def read_archive(path) -> dict[str, torch.Tensor]:
    return torch.jit.load(path).state_dict()


def test_a_checkpoint_goes_to_cpp_and_back(tmp_path):
    program = lltm.library_path.parent / "lltm_ops_test"
    if not program.exists():
        pytest.skip("the C++ tests were not built")
    rnn = lltm.LLTM(3, 4, 2, bidirectional=True)
    input, h_0, c_0 = torch.randn(5, 2, 3), torch.randn(4, 2, 4), torch.randn(4, 2, 4)
    lengths, reset = torch.tensor([5, 3]), torch.rand(5, 2) < 0.4
    arguments = (input, h_0, c_0, lengths, reset)
    write_archive(tmp_path / "python.pt", rnn.state_dict())
    write_archive(tmp_path / "arguments.pt", {str(index): tensor for index, tensor in enumerate(arguments)})

    run(program, "--gtest_filter=ModuleCheckpoint.IsExchangedWithPython", LLTM_CHECKPOINTS=tmp_path)

    output, (h_n, c_n) = rnn(input, (h_0, c_0), lengths, reset)
    results = read_archive(tmp_path / "results.pt").values()
    for actual, expected in zip(results, (output, h_n, c_n), strict=True):
        torch.testing.assert_close(actual, expected.detach())
    returned = lltm.LLTM(3, 4, 2, bidirectional=True)
    returned.load_state_dict(read_archive(tmp_path / "cpp.pt"))
    for name, parameter in rnn.named_parameters():
        assert torch.equal(returned.get_parameter(name), parameter), name
