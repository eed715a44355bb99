"""Calls in the background."""

from __future__ import annotations

import threading

import pytest

from diflow.common.errors import UnavailableError
from diflow.kube.ahead import Ahead


def test_the_call_has_begun_before_anybody_asks_for_its_result() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def call(word: str, *, times: int) -> str:
        begun.set()
        assert goes_on.wait(10)
        return word * times

    ahead = Ahead(call, "a", times=3)
    assert begun.wait(10)
    goes_on.set()
    assert (ahead.result(), ahead.result()) == ("aaa", "aaa")


def test_an_error_is_raised_where_the_result_is_used() -> None:
    def call() -> None:
        raise UnavailableError("no server")

    ahead = Ahead(call)
    with pytest.raises(UnavailableError, match="no server"):
        ahead.result()
