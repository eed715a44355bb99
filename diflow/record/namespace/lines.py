"""Records of a namespace as the text of a ConfigMap: a line of JSON for each, the newest at the bottom.

Users can edit the text, so a line that is too long is not read, and no more lines than the allocator would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diflow.record import untrusted


def text_of(config_map: Mapping[str, Any] | None, key: str) -> str:
    """The text under this key of a ConfigMap, "" if it has none."""
    return untrusted.string(untrusted.sub(config_map or {}, "data").get(key))


def split(text: str, *, most: int, most_bytes: int, longest: int) -> Iterator[Mapping[str, Any]]:
    """The last records of a text, at most so many."""
    lines = text[-most_bytes:].rstrip("\n").split("\n")[-most:]
    return (untrusted.mapping(line) for line in lines if len(line) <= longest)


def joined(newest_first: Iterable[Mapping[str, Any]], *, most_bytes: int) -> str:
    """The text of as many records as fit, in ASCII and without their empty values."""
    kept: list[str] = []
    size = 0
    for record in newest_first:
        known = {name: value for name, value in record.items() if value not in ("", None)}
        line = json.dumps(known, separators=(",", ":"))
        size += len(line) + 1
        if size > most_bytes:
            break
        kept.append(line)
    return "".join(f"{line}\n" for line in reversed(kept))


def plain(value: Any, most: int) -> str:
    """A text in a record. JSON can escape half a surrogate pair, which cannot be encoded again."""
    return untrusted.string(value, most=most).encode(errors="replace").decode()
