"""lltm.show_config, for bug reports."""

import platform

import pytest
import torch

import lltm
from lltm import library_path
from lltm._config import what_is_missing

pytestmark = pytest.mark.pytorch


def shown(capsys) -> dict[str, str]:
    lltm.show_config()
    return dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())


def test_names_versions_library_and_devices(capsys):
    config = shown(capsys)
    assert config["lltm"] == lltm.__version__
    assert config["library"] == str(library_path)
    assert config["built with"] == str(lltm.build_info)
    assert config["PyTorch"] == f"{torch.__version__}, CUDA {torch.version.cuda}"
    assert platform.python_version() in config["Python"]
    assert config["CPU"] == f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        assert config["GPU"] == "none that PyTorch can use"
    else:
        assert torch.cuda.get_device_name(0) in config["GPU 0"]


def test_names_the_variables_that_are_set(capsys, monkeypatch):
    monkeypatch.setenv("LLTM_CPU_GEMM", "aten")
    monkeypatch.delenv("LLTM_CUDA_PATH", raising=False)
    config = shown(capsys)
    assert config["LLTM_CPU_GEMM"] == "aten" and "LLTM_CUDA_PATH" not in config


@pytest.mark.parametrize(
    ("architectures", "missing"),
    [
        (("80-real", "90-virtual", "90a-real"), ""),
        (("80",), "; code for 8.0, without clusters, early starts and wgmma: build for 90a, too"),
    ],
)
def test_names_every_gpu(capsys, monkeypatch, architectures, missing):
    class Facts:
        name, major, minor, total_memory = "NVIDIA Test", 9, 0, 80 << 30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Facts)
    monkeypatch.setattr(lltm, "build_info", lltm.build_info._replace(architectures=architectures))
    config = shown(capsys)
    assert config["GPU 0"] == config["GPU 1"] == f"NVIDIA Test, compute capability 9.0, 80 GiB{missing}"


OF_8_0 = "code for 8.0, without clusters and early starts"


@pytest.mark.parametrize(
    ("architectures", "capability", "said"),
    [
        ("80-real 90-virtual 90a-real", (8, 0), ""),
        ("80-real 90-virtual 90a-real", (8, 9), ""),
        ("80-real 90-virtual 90a-real", (9, 0), ""),
        ("80-real 90-virtual 90a-real", (10, 0), ""),
        ("80-real 90-virtual 90a-real", (12, 0), ""),
        ("80 90a-real", (12, 0), OF_8_0),  # the PTX of 80
        ("80-virtual", (10, 3), OF_8_0),
        ("80-virtual", (8, 6), ""),
        ("80", (9, 0), "code for 8.0, without clusters, early starts and wgmma"),
        ("90", (9, 0), "code for 9.0, without wgmma"),
        ("90-virtual", (9, 0), "code for 9.0, without wgmma"),
        ("90-real 90a-real", (9, 0), ""),
        ("80-virtual 86-virtual", (9, 0), "code for 8.6, without clusters, early starts and wgmma"),
        ("90-virtual 100-real", (10, 3), ""),
        ("80 120-real", (12, 1), ""),
        ("80-real", (9, 0), ""),  # nothing runs, which is an error of its own
        ("native", (9, 0), ""),
        ("", (9, 0), ""),
    ],
)
def test_says_what_a_library_does_not_use(architectures, capability, said):
    assert what_is_missing(architectures.split(), capability) == said
