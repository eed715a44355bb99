"""Reads a long list page by page, and fetches the next page while one is parsed.

The API server takes as long to write a page of Workflows as Python to parse it: in parallel, the list takes half.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

_TAIL_BYTES: Final = 4096


def read(fetch: Callable[[str], bytes], parse: Callable[[bytes], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pages of a list. `fetch` takes a continue token ("" for the first page) and returns the unparsed page."""
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
    """The token for the next page, without parsing the whole page; "" if there is none or it is not found.

    Lists of custom objects end with their metadata. Lists of built-in kinds begin with it: they are parsed first, which
    is fast, as their objects are small.
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
    """A page that is being fetched, in a daemon thread."""

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
        """Wait for the page. Raises the errors of `fetch`."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._raw
