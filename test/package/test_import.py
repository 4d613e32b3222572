"""What `import lltm` costs, and what is registered with modules of PyTorch that it does not import.

Each test uses a separate process, in which torch is imported and lltm is not.
"""

import importlib.util
from pathlib import Path

import pytest
import torch.distributed
from lltm_testing import isolated

import lltm

pytestmark = pytest.mark.pytorch


def python(program: str) -> str:
    return isolated.run(program, package=Path(lltm.__file__).parents[1], library=lltm.library_path)


def test_import_leaves_out_what_most_programs_do_not_use():
    program = """
import sys
before = set(sys.modules)
import lltm
print(*set(sys.modules) - before)
"""
    imported = python(program).split()
    assert "lltm" in imported
    unused = {"triton", "torch.utils.flop_counter", "torch.distributed.tensor", "torch.onnx", "onnxscript"}
    assert not unused & set(imported)


def test_import_needs_no_private_module_of_pytorch():
    """A version that has moved them is not yet known, but only what uses them fails."""
    program = """
import sys
for name in ("torch._higher_order_ops.scan",):
    sys.modules[name] = None
import lltm, torch
print(len(lltm.decompositions()))
try:
    lltm.decompositions()[torch.ops.lltm.lstm.default](torch.zeros(5, 2, 3), torch.zeros(16, 3), torch.zeros(16, 4))
except ImportError as error:
    print(error.name)
"""
    assert python(program).split() == ["8", "torch._higher_order_ops.scan"]


COUNT = """
import torch
from torch.utils.flop_counter import FlopCounterMode
input, weights, state = torch.ones(2, 3), torch.ones(12, 7), torch.zeros(2, 4)
with FlopCounterMode(display=False) as counter:
    torch.ops.lltm.forward(input, weights, None, state, state)
    torch.ops.lltm.sequence(input[None], weights)
assert counter.get_total_flops() == 2 * (2 * 2 * 12 * 7), counter.get_total_flops()
"""

SHARD = """
import torch, torch.distributed
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
if not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
input = DTensor.from_local(torch.zeros(5, 2, 3), mesh, [Shard(1)])
weights = DTensor.from_local(torch.zeros(12, 7), mesh, [Replicate()])
assert torch.ops.lltm.sequence(input, weights)[0].placements == (Shard(1),)
"""

EXPORT = """
import io, torch
for name in ("LSTM", "GRU"):
    file = io.BytesIO()
    torch.onnx.export(getattr(lltm, name)(3, 4), (torch.zeros(5, 2, 3),), file, dynamo=False)
    assert name.encode() in file.getvalue()
"""

REGISTRY = """
import torch
from torch.onnx._internal.exporter import _registration
registry = _registration.ONNXRegistry.from_torchlib()
for operator in (torch.ops.lltm.lstm, torch.ops.lltm.gru):
    (entry,) = registry.get_decomps(operator.default)
    assert entry.onnx_function.__module__ == "lltm._onnx"
"""

needs_onnxscript = pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="no onnxscript")

USES = [
    pytest.param("torch.onnx", EXPORT, id="onnx by TorchScript"),
    pytest.param("torch.onnx", REGISTRY, id="onnx", marks=needs_onnxscript),
    pytest.param("torch.utils.flop_counter", COUNT, id="flops"),
    pytest.param(
        "torch.distributed.tensor",
        SHARD,
        id="dtensor",
        marks=pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed"),
    ),
]
ORDERS = {
    "lltm first": "import lltm, sys; assert '{module}' not in sys.modules; import {module}",
    "lltm last": "import {module}; import lltm",
}
# They do not depend on the module, and the counter of FLOPs is the one that is imported in the least time.
OTHER_WAYS = {
    "lltm again": "import lltm, sys; del sys.modules['lltm'], sys.modules['lltm._on_import']; import lltm, {module}",
    "found but not imported": "import lltm, importlib.util; importlib.util.find_spec('{module}'); import {module}",
    "another way": "import lltm, importlib; importlib.import_module('{module}')",
}


@pytest.mark.parametrize(("module", "use"), USES)
@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_rules_are_registered_whichever_is_imported_first(module, use, imports):
    python(imports.format(module=module) + use)


@pytest.mark.parametrize("imports", OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_rules_are_registered_in_other_ways_to_import(imports):
    python(imports.format(module="torch.utils.flop_counter") + COUNT)


def test_a_reloaded_flop_counter_gets_the_formulas_again():
    python(f"import lltm, importlib, torch.utils.flop_counter as f; importlib.reload(f){COUNT}")


@needs_onnxscript
def test_another_registry_of_the_exporter_is_left_alone():
    """It is private. The page on troubleshooting says what to do then."""
    program = """
import torch.onnx._internal.exporter._registration as registration
del registration.OnnxDecompMeta
import lltm, torch
from torch.onnx._internal.exporter._torchlib._torchlib_registry import _registry
print(torch.ops.lltm.lstm.default in {entry.fx_target for entry in _registry})
"""
    assert python(program) == "False"


@pytest.mark.parametrize("module", ["torch.utils.flop_counter", "torch.distributed.tensor"])
def test_a_module_that_was_waited_for_keeps_its_loader(module):
    """Tools ask the loader for the source."""
    program = f"""
import importlib.machinery, inspect, lltm, {module} as module
assert type(module.__loader__) is importlib.machinery.SourceFileLoader
assert module.__spec__.loader is module.__loader__
print(inspect.getsource(module) == open(module.__file__).read())
"""
    assert python(program) == "True"
