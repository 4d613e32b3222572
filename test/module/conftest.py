"""Shared by the tests of the modules."""

import pytest

import lltm


@pytest.fixture(scope="session", params=[lltm.LLTM, lltm.LSTM, lltm.GRU], ids=["LLTM", "LSTM", "GRU"])
def cls(request) -> type:
    return request.param
