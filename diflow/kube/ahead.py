"""A call that is made in the background, for requests whose answers are needed a little later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Ahead(Generic[_Result]):
    """The result of a call that a daemon thread makes: the process may end before it has."""

    def __init__(self, call: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> None:
        self._made: list[_Result] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(partial(call, *args, **kwargs),), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], _Result]) -> None:
        try:
            self._made.append(call())
        except Exception as error:
            self._error = error

    def result(self) -> _Result:
        """Wait for the call. Raises its errors."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made[0]
