"""How long a text of JSON may be, and how deep: what is checked before anything decodes it. Without msgspec, which the
programs in the pods of jobs do without."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

MOST_CHARACTERS: Final = 1_048_576
"""Of one text. etcd limits a whole object to 1.5 MiB, so no valid text is longer."""
MOST_LEVELS: Final = 64
"""Of nested lists and mappings: code that reads or serialises a value recurses as deep, and a thread's stack in C may
be too small for what Python allows."""
_LEVEL_OF: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - _LEVEL_OF.keys())


def is_deep(text: str | bytes) -> bool:
    """Whether a JSON text has more than MOST_LEVELS levels of lists and mappings; known before it is decoded."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") <= MOST_LEVELS:
        return False
    # Without escapes each second part between quotes is outside of the strings. No text has a backslash elsewhere.
    outside = b"".join(data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    steps = map(_LEVEL_OF.__getitem__, outside.translate(None, _NO_BRACKETS))
    return max(accumulate(steps), default=0) > MOST_LEVELS
