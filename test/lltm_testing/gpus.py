"""What tests may expect of the GPU, and of the code that the library runs on it."""

import pytest
import torch

from lltm._config import missing_on


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
