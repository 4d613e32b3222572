"""The modules: initialization, repr, state, and what they compute."""

import copy
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from example_cases import batch_norm

PACKAGE_PARENT = Path(__file__).resolve().parents[1] / "python"


@pytest.fixture(params=["linear", "linear_without_bias", "conv"])
def module_and_input(request, library):
    import example_ops

    if request.param == "conv":
        return example_ops.FusedConvBatchNorm2D(3, 5, 2, eps=0.25), torch.randn(4, 3, 6, 7)
    return example_ops.Linear(7, 3, bias=request.param == "linear"), torch.randn(5, 7)


def test_computes(module_and_input):
    module, input = module_and_input
    if input.dim() == 4:
        expected = batch_norm(torch.nn.functional.conv2d(input, module.weight), 0.25)
    else:
        expected = torch.nn.functional.linear(input, module.weight, module.bias)
    torch.testing.assert_close(module(input), expected)


def test_script_copy_and_compile(module_and_input):
    module, input = module_and_input
    expected = module(input)
    assert torch.equal(torch.jit.script(module)(input), expected)
    assert torch.equal(copy.deepcopy(module)(input), expected)
    assert torch.equal(torch.compile(module, backend="aot_eager", fullgraph=True)(input), expected)
    other = type(module)(*([7, 3, module.bias is not None] if input.dim() == 2 else [3, 5, 2, 0.25]))
    assert not torch.equal(other(input), expected)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(input), expected)


def test_initialisation_and_dtype(library):
    import example_ops

    linear = example_ops.Linear(40, 30, dtype=torch.float64)
    torch.manual_seed(0)
    linear.reset_parameters()
    torch.manual_seed(0)
    standard = torch.nn.Linear(40, 30, dtype=torch.float64)
    for ours, theirs in zip(linear.parameters(), standard.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    linear.load_state_dict(standard.state_dict())

    conv = example_ops.FusedConvBatchNorm2D(8, 64, 5)
    assert conv.weight.shape == (64, 8, 5, 5)
    assert conv.weight.abs().max() <= 1 / math.sqrt(8 * 25)
    assert conv.weight.std().item() == pytest.approx(1 / math.sqrt(3 * 8 * 25), rel=0.1)


def test_repr(library):
    import example_ops

    assert repr(example_ops.Linear(7, 3, bias=False)) == "Linear(in_features=7, out_features=3, bias=False)"
    assert repr(torch.nn.Linear(7, 3)) == repr(example_ops.Linear(7, 3))
    assert repr(example_ops.FusedConvBatchNorm2D(3, 5, 2)) == "FusedConvBatchNorm2D(3, 5, kernel_size=2, eps=0.001)"


def import_in_a_process(library: str, program: str) -> subprocess.CompletedProcess:
    environment = {"PYTHONPATH": str(PACKAGE_PARENT), "EXAMPLE_OPS_LIBRARY": library}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)


def test_missing_library():
    process = import_in_a_process("/nowhere/libexample_ops.so", "import example_ops")
    assert process.stderr.splitlines()[-1] == (
        "ImportError: example_ops: the library is missing, looked for /nowhere/libexample_ops.so. Build it "
        "(examples/operators/README.md says how), or let EXAMPLE_OPS_LIBRARY name it."
    )


def test_loads_nothing_where_the_operators_are(library):
    program = f"import torch; torch.ops.load_library({str(library)!r}); import example_ops; print(example_ops.Linear)"
    process = import_in_a_process("/nowhere/libexample_ops.so", program)
    assert process.returncode == 0, process.stderr
