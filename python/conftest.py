"""For `pytest --doctest-modules python/lltm`, which runs the examples in the docstrings (test_documentation.py)."""

import pytest
import torch

import lltm


@pytest.fixture(autouse=True)
def names_and_folder(doctest_namespace, tmp_path, monkeypatch):
    doctest_namespace |= {"lltm": lltm, "torch": torch}
    monkeypatch.chdir(tmp_path)  # for the files that examples write
