"""Reads a long list page by page, and fetches the next page while one is parsed.

The API server takes as long to write a page of Workflows as Python to parse it: in parallel, the list takes half.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from diflow.kube.ahead import Ahead

_TAIL_BYTES: Final = 4096


def read(fetch: Callable[[str], bytes], parse: Callable[[bytes], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pages of a list. `fetch` takes a continue token ("" for the first page) and returns the unparsed page."""
    raw = fetch("")
    while True:
        token = continuation(raw)
        ahead = Ahead(fetch, token) if token else None
        page = parse(raw)
        if ahead is None and (token := (page.get("metadata") or {}).get("continue") or ""):
            ahead = Ahead(fetch, token)
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
