"""This server's last write of a text into a Workflow, which the cache may not have yet, and the texts that a JSON patch
can test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from diflow.record import untrusted
from diflow.server.api.reading import ServedWorkflow

_VERSION_DIGITS: Final = 20  # of a resourceVersion, which is 64 bits
# The API server may compare the values of a JSON patch's `test` in their encoded form, which is not unique for other
# characters. This server writes none of them.
_PLAIN: Final = re.compile(r"[ !-%'-;=?-~]*")


@dataclass(frozen=True, slots=True)
class OwnWrite:
    """A text that was written into the Workflow with this uid, and the version after it."""

    uid: str = ""
    text: str = ""
    version: int = 0

    @classmethod
    def of(cls, read: ServedWorkflow, text: str, answer: Mapping[str, Any]) -> Self:
        """The write of `text` to which the API server has answered with this object."""
        version = untrusted.sub(answer, "metadata").get("resourceVersion")
        return cls(read.uid, text, untrusted.whole(version, digits=_VERSION_DIGITS) or 0)

    def is_newer(self, read: ServedWorkflow) -> bool:
        """Whether the Workflow was read before this write."""
        known = untrusted.whole(read.version, digits=_VERSION_DIGITS)
        return self.uid == read.uid and known is not None and known < self.version


def can_be_tested(text: str) -> bool:
    """Whether a JSON patch can test for this text."""
    return _PLAIN.fullmatch(text) is not None
