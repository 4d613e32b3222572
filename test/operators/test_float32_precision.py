"""Which of PyTorch's settings decides whether float32 products may use TF32 on a GPU: for the LSTM that which nn.LSTM
follows, for the LLTM that of matrix products. The choice is made without a GPU; on one, the results show it."""

from pathlib import Path

import pytest
import torch
from lltm_testing import isolated
from lltm_testing.sequence_reference import Lstm, Sequence, Sizes, call, call_backward, make, make_gradients
from lltm_testing.sequence_reference import run as run_formula

import lltm

PRINT_CHOICES = """
import torch, lltm
rnn, conv, matmul = torch.backends.cudnn.rnn, torch.backends.cudnn.conv, torch.backends.cuda.matmul
{settings}
print(*(torch.ops.lltm._allows_tf32(lstm) for lstm in (True, False)))
"""

CHOICES = {  # settings of a new process: the LSTM's choice, and the LLTM's
    "": (True, False),
    "torch.backends.cudnn.allow_tf32 = False": (False, False),
    "torch.backends.cudnn.allow_tf32 = True": (True, False),
    "rnn.fp32_precision = 'ieee'": (False, False),
    "rnn.fp32_precision = 'tf32'": (True, False),
    "rnn.fp32_precision = 'ieee'; conv.fp32_precision = 'tf32'": (False, False),
    "rnn.fp32_precision = 'tf32'; conv.fp32_precision = 'ieee'": (True, False),
    "matmul.allow_tf32 = True": (True, True),
    "matmul.fp32_precision = 'tf32'; rnn.fp32_precision = 'ieee'": (False, True),
    "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.allow_tf32 = False": (False, True),
}


def choices(settings: str) -> list[str]:
    program = PRINT_CHOICES.format(settings=settings)
    return isolated.run(program, package=Path(lltm.__file__).parent.parent, library=lltm.library_path).split()


@pytest.mark.parametrize(("settings", "expected"), CHOICES.items(), ids=lambda value: str(value) or "default")
def test_the_setting_that_counts(settings, expected):
    assert choices(settings) == [str(choice) for choice in expected]


def test_the_setting_of_all_backends():
    """What it says about cuDNN's RNNs depends on the version of PyTorch."""
    settings = "torch.backends.fp32_precision = 'ieee'; print(rnn.fp32_precision == 'tf32')"
    of_cudnn, *found = choices(settings)
    assert found == [of_cudnn, "False"]


def test_show_config(capsys):
    lltm.show_config()
    text = capsys.readouterr().out
    assert "LSTM in float32 on GPUs: products in float32, by torch.backends.cudnn.rnn.fp32_precision\n" in text
    assert "LLTM in float32 on GPUs: products in float32, by torch.backends.cuda.matmul.fp32_precision\n" in text


@pytest.mark.parametrize("path", ["", "steps", "library"])
@pytest.mark.parametrize("cell", [Sequence, Lstm], ids=["lltm", "lstm"])
@pytest.mark.parametrize("sizes", [Sizes(3, 200, 300, 520), Sizes(40, 64, 256, 128)], ids=str)
def test_one_setting_counts_for_all_products(needs_cuda, monkeypatch, path, cell, sizes):
    """The other one changes no bit of the results and gradients. With TF32, they are less exact."""
    monkeypatch.setenv("LLTM_CUDA_PATH", path)
    ours, other = torch.backends.cudnn, torch.backends.cuda.matmul
    if cell is Sequence:
        ours, other = other, ours
    arguments = make(sizes, device="cuda", cell=cell)
    gradients = make_gradients(arguments)

    def results(own_tf32: bool, other_tf32: bool) -> list[torch.Tensor]:
        monkeypatch.setattr(ours, "allow_tf32", own_tf32)
        monkeypatch.setattr(other, "allow_tf32", other_tf32)
        return [*call(arguments, keep=True), *call_backward(gradients, arguments)]

    exact, rounded = results(False, False), results(True, False)
    for found, expected in ((results(False, True), exact), (results(True, True), rounded)):
        assert all(map(torch.equal, found, expected))
    if path != "library":  # other kernels may be more exact than asked
        return
    gates = run_formula(arguments.map(torch.Tensor.double))[4]
    errors = [(of[4].double() - gates).abs().mean().item() for of in (exact, rounded)]
    assert errors[1] > 20 * errors[0]
