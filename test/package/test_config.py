"""lltm.show_config, for bug reports."""

import platform

import pytest
import torch

import lltm
from lltm import library_path

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


def test_names_every_gpu(capsys, monkeypatch):
    class Facts:
        name, major, minor, total_memory = "NVIDIA Test", 9, 0, 80 << 30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Facts)
    config = shown(capsys)
    assert config["GPU 0"] == config["GPU 1"] == "NVIDIA Test, compute capability 9.0, 80 GiB"
