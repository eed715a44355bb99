"""Writes of texts into Workflows that several servers write: what is new is merged into what is there, by a JSON patch
that tests for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record import untrusted
from diflow.record.identity import Identity
from diflow.record.job import JobRecord
from diflow.server.api.reading import served_record_of

Json = dict[str, Any]
Change = Callable[[JobRecord], tuple[str, list[Json]] | None]

_TRIES: Final = 4
_VERSION_DIGITS: Final = 20  # of a resourceVersion, which is 64 bits
# The API server may compare the values of a JSON patch's `test` in their encoded form, which is not unique for other
# characters. This server writes none of them.
_PLAIN: Final = re.compile(r"[ !-%'-;=?-~]*")


@dataclass(frozen=True, slots=True)
class OwnWrite:
    """A text that was written into the Workflow with this uid, and its version then. The cache may not have it yet."""

    uid: str
    text: str
    version: int

    @classmethod
    def of(cls, read: JobRecord, text: str, answer: Mapping[str, Any]) -> Self:
        """The write of `text` to which the API server has answered with this object."""
        return cls(read.identity.uid, text, _number(Identity.of(answer)) or 0)

    def is_newer(self, read: JobRecord) -> bool:
        """Whether the Workflow was read before this write."""
        known = _number(read.identity)
        return self.uid == read.identity.uid and known is not None and known < self.version


def _number(read: Identity) -> int | None:
    """The version as a number."""
    return untrusted.whole(read.version, digits=_VERSION_DIGITS)


def can_be_tested(text: str) -> bool:
    """Whether a JSON patch can test for this text."""
    return _PLAIN.fullmatch(text) is not None


def patch(read: JobRecord, path: str, value: Any, *tests: tuple[str, Any]) -> list[Json]:
    """The JSON patch that writes a value to a path of the Workflow that was read, if it is still that one, and if each
    of the paths in `tests` has its value."""
    tested = [{"op": "test", "path": at, "value": then} for at, then in (("/metadata/uid", read.identity.uid), *tests)]
    return [*tested, {"op": "add", "path": path, "value": value}]


def merged(cluster: Cluster, read: JobRecord, change: Change) -> OwnWrite | None:
    """Write a text. If the patch is refused, as another server has changed the text meanwhile, it is made again.

    `change` takes the Workflow as it was read, and returns the text and the patch, None if nothing has to be written.
    Raises DiflowError.
    """
    for attempt in range(_TRIES):
        made = change(read)
        if made is None:
            return None
        text, body = made
        try:
            answer = cluster.patch(
                WORKFLOW,
                read.identity.name,
                body,
                namespace=read.identity.namespace,
                manager=keys.SERVER,
                metadata_only=True,
            )
            return OwnWrite.of(read, text, answer)
        except InvalidError:
            if attempt + 1 == _TRIES:
                raise
        read = served_record_of(cluster.get(WORKFLOW, read.identity.name, namespace=read.identity.namespace))
    raise AssertionError("unreachable")
