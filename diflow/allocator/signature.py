"""Signs the allocations that the allocator writes, and verifies them.

A user who may patch a Workflow may write `diflow/allocation` into it, and could so take places that were not allocated.
`managedFields` are no proof, as a writer chooses the name of its field manager. So `diflow/allocation-proof` holds the
number of the allocation, which increases, and an HMAC-SHA256 of the Workflow's uid, the number and the text, with a key
in a Secret that only the allocator may read. An older allocation that is written again has a lower number. An
allocation that fails verification is ignored: the job then has the places of its pods.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Iterable
from typing import Any, Final

import structlog

from diflow.common.errors import ConflictError, NotFoundError, UnauthorizedError
from diflow.kube.api import Cluster
from diflow.kube.kinds import SECRET

NAME: Final = "diflow-allocator-key"
KEY: Final = "key"
"""In the Secret: the signing key, in base64. The allocator creates it if it is missing."""
PREVIOUS: Final = "previous"
"""In the Secret: the previous key, with which signatures are still accepted."""
_KEY_BYTES: Final = 32
_PROOF: Final = re.compile(r"([1-9][0-9]{0,14}):([0-9a-f]{64})")

log = structlog.get_logger("diflow.allocator")


class Seal:
    """Signs and verifies allocations. Without a key (see `load`) nothing is signed and everything is accepted."""

    def __init__(self, cluster: Cluster, *, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._keys: tuple[bytes, ...] = ()
        self._latest: dict[str, int] = {}
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the key, or create it. Without the Secret, or the right to read it, allocations are not verified."""
        try:
            self._keys = self._read() or self._make()
        except (NotFoundError, UnauthorizedError) as error:
            self._keys = ()
            log.warning(
                "allocations are not verified: users who may patch a job can take places for it; apply "
                "manifests/allocator, which has the Secret and the right to read it",
                secret=f"{self._namespace}/{NAME}",
                why=str(error),
            )

    def sign(self, uid: str, text: str) -> str:
        """The proof of an allocation in the Workflow with this uid; "" without a key."""
        if not self._keys:
            return ""
        with self._lock:
            number = self._latest.get(uid, 0) + 1
        return f"{number}:{_code(self._keys[0], uid, number, text)}"

    def is_ours(self, uid: str, text: str, proof: str) -> bool:
        """Whether the allocator wrote this allocation into this Workflow, and no later one is known."""
        if not self._keys:
            return True
        found = _PROOF.fullmatch(proof)
        if found is None:
            return False
        number = int(found[1])
        if not any(hmac.compare_digest(_code(key, uid, number, text), found[2]) for key in self._keys):
            return False
        with self._lock:
            if number < self._latest.get(uid, 0):
                return False
            self._latest[uid] = number
        return True

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all other Workflows."""
        with self._lock:
            self._latest = {uid: self._latest[uid] for uid in uids if uid in self._latest}

    def __len__(self) -> int:
        """How many Workflows are remembered."""
        return len(self._latest)

    def _read(self) -> tuple[bytes, ...]:
        return _keys(self._cluster.get(SECRET, NAME, namespace=self._namespace))

    def _make(self) -> tuple[bytes, ...]:
        """Put a new key into the empty Secret, unless another process was faster."""
        found = self._cluster.get(SECRET, NAME, namespace=self._namespace)
        made = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
        version = found["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "data": {**(found.get("data") or {}), KEY: made}}
        try:
            return _keys(self._cluster.patch(SECRET, NAME, body, namespace=self._namespace))
        except ConflictError:
            return self._read()


def _keys(secret: dict[str, Any]) -> tuple[bytes, ...]:
    """The signing key and the previous one; none without the first."""
    data = secret.get("data") or {}
    first, former = (_decoded(data.get(name)) for name in (KEY, PREVIOUS))
    return tuple(key for key in (first, former) if key) if first else ()


def _decoded(text: Any) -> bytes:
    try:
        key = base64.b64decode(str(text or ""), validate=True)
    except (binascii.Error, ValueError):
        return b""
    return key if len(key) >= _KEY_BYTES else b""


def _code(key: bytes, uid: str, number: int, text: str) -> str:
    return hmac.new(key, f"{uid}\n{number}\n{text}".encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
