"""Shared by the tests of the modules."""

import math

import pytest

import lltm


@pytest.fixture(scope="session", params=[lltm.LLTM, lltm.LSTM], ids=["LLTM", "LSTM"])
def cls(request) -> type:
    return request.param


@pytest.fixture
def segments(monkeypatch):
    """Packs run in segments, however little padding that saves. Returns a function that goes back to padding."""
    monkeypatch.setattr(lltm._packed, "_PADDING_BYTES", 0)
    return lambda: monkeypatch.setattr(lltm._packed, "_PADDED_ROWS", math.inf)
