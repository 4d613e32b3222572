"""Shared by the tests of the modules."""

import pytest

import lltm


@pytest.fixture(scope="session", params=[lltm.LLTM, lltm.LSTM], ids=["LLTM", "LSTM"])
def cls(request) -> type:
    return request.param
