"""What tests may expect of the GPU, and of the code that the library runs on it."""

import re

import pytest
import torch

from lltm._config import missing_on
from lltm_testing.sequence_reference import call, make


def has_wgmma() -> bool:
    capability = torch.cuda.get_device_capability()
    return capability == (9, 0) and "wgmma" not in missing_on(capability)


def skip_without_wgmma() -> None:
    if not has_wgmma():
        pytest.skip("needs wgmma: Hopper, and a library built for 90a")


def skip_without_clusters() -> None:
    """Clusters run sequences where a block has as much shared memory as on Hopper."""
    capability = torch.cuda.get_device_capability()
    if capability < (9, 0) or "clusters" in missing_on(capability):
        pytest.skip("needs clusters: a GPU from 9.0 on, and a library built for 90 or newer")
    if capability[0] >= 12:
        pytest.skip("needs 227 KiB of shared memory a block, which GPUs of 12.x do not have")


def with_what_is_missing(plan: str) -> str:
    """A plan of the operators, as the typed functions return it."""
    missing = missing_on(torch.cuda.get_device_capability())
    return f"{plan} ({missing})" if missing else plan


def kernels_of(function) -> list[str]:
    """The names of the kernels that a call of the function runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return [event.name for event in profile.events()]


def wgmma_kernels(monkeypatch, cell) -> list[str]:
    """Those with tiles of a cell's step, from the error that lists them."""
    monkeypatch.setenv("LLTM_CUDA_PATH", "?")
    with pytest.raises(RuntimeError) as error:
        call(make((1, 1, 1, 1), device="cuda", cell=cell))
    return re.findall(rf"\b{cell.operator}_wgmma_\w+", str(error.value))
