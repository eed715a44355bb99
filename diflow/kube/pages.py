"""Reads a long list page by page, and has the next page on its way while one is parsed.

An API server needs as long to write a page of Workflows as Python needs to read it: side by side, they take half.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

_TAIL_BYTES: Final = 4096


def read(fetch: Callable[[str], bytes], parse: Callable[[bytes], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pages of a list. `fetch` takes a continue token ("" for the first page) and gives the page as it came."""
    raw = fetch("")
    while True:
        token = continuation(raw)
        ahead = _Ahead(fetch, token) if token else None
        page = parse(raw)
        if ahead is None and (token := (page.get("metadata") or {}).get("continue") or ""):
            ahead = _Ahead(fetch, token)
        yield page
        if ahead is None:
            return
        raw = ahead.result()


def continuation(raw: bytes) -> str:
    """The token for the page after this one, without parsing it all; "" if there is none or it is not found.

    Lists of custom objects end with their metadata. In those of built-in kinds it stands in front: they are parsed
    first, which is quick, as their objects are small.
    """
    tail = raw[-_TAIL_BYTES:].rstrip()
    start = tail.rfind(b'"metadata":{')
    if start < 0:
        return ""
    try:
        metadata = json.loads(b"{" + tail[start:])["metadata"]
    except (ValueError, KeyError):
        return ""
    return str(metadata.get("continue") or "")


class _Ahead:
    """A page on its way. Its thread does not keep the process from ending."""

    def __init__(self, fetch: Callable[[str], bytes], token: str) -> None:
        self._raw = b""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(fetch, token), daemon=True)
        self._thread.start()

    def _run(self, fetch: Callable[[str], bytes], token: str) -> None:
        try:
            self._raw = fetch(token)
        except Exception as error:
            self._error = error

    def result(self) -> bytes:
        """The page, once it is there. Raises what its fetching raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._raw
