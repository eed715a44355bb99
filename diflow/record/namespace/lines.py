"""Records of a namespace as the text of a ConfigMap: a line of JSON for each, the newest at the bottom.

Users can edit the text, so a line that is too long is not read, and no more lines than the allocator would write. A
line that is no record is ignored, and of one that is, so is a field with an invalid value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from diflow.common.jsontext import NotOfTypeError
from diflow.record import untrusted

T = TypeVar("T")


def text_of(config_map: Mapping[str, Any] | None, key: str) -> str:
    """The text under this key of a ConfigMap, "" if it has none."""
    return untrusted.string(untrusted.sub(config_map or {}, "data").get(key))


def records(text: str, read: Callable[[Any], T], *, most: int, most_bytes: int) -> Iterator[T]:
    """The last records of a text, at most so many, by a reader of one."""
    for line in text[-most_bytes:].rstrip("\n").split("\n")[-most:]:
        try:
            yield read(line)
        except NotOfTypeError:
            continue


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
