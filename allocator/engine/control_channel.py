"""Whether an allocator runs, whether it is paused, and how others speak to it: through its Lease and one ConfigMap.

    Lease diflow-allocator   annotation diflow/paused   who paused it, when, why: no new decisions while it is there
                             annotation diflow/policy   by which policy the one who leads decides
                             annotation diflow/pools    which pools of nodes it knows, and their speeds (pools.py)
                             annotation diflow/replan   another id asks for a plan of the whole cluster
    ConfigMap diflow-plan    id, text                   the answer to the last id

It needs none of the packages of the policies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from diflow import keys
from diflow.errors import ConflictError, DiflowError, NotFoundError, UnauthorizedError
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, LEASE, Kind

PAUSED: Final = "diflow/paused"
"""Annotation of the Lease: no new decisions are made while it is there."""
REPLAN: Final = "diflow/replan"
"""Annotation of the Lease: another value asks for a plan."""
POLICY: Final = "diflow/policy"
"""Annotation of the Lease: the policy of the one who holds it."""
POOLS: Final = "diflow/pools"
"""Annotation of the Lease: the pools of nodes of the one who holds it."""
ANSWER: Final = "diflow-plan"
"""The ConfigMap with the answer."""
NAMESPACE: Final = "diflow-system"
MOST_TEXT_BYTES: Final = 200 * 1024
"""Of a plan as text: it must fit into a ConfigMap, and into a Workflow as an output parameter."""

_SELF: Final = Kind("SelfSubjectReview", "authentication.k8s.io", "v1", "selfsubjectreviews", namespaced=False)


@dataclass(frozen=True, slots=True)
class Presence:
    """The allocator as its Lease and its ConfigMap show it.

    `unknown`: why its Lease cannot be read (""). `holder` is "" when nobody leads. `silent_seconds`: since the last
    sign of life of a holder that has let its Lease run out. `pools`: as the holder says them. `is_only_here`: no other
    namespace could be looked into.
    """

    namespace: str
    policy: str = ""
    is_installed: bool = False
    holder: str = ""
    silent_seconds: float = 0.0
    paused: str = ""
    unknown: str = ""
    pools: str = ""
    is_only_here: bool = False

    @property
    def is_running(self) -> bool:
        return bool(self.holder) and not self.silent_seconds

    @property
    def where(self) -> str:
        """Where was looked for one, if that is not everywhere: for the end of a sentence."""
        return (
            f" in the namespace {self.namespace} (DIFLOW_ALLOCATOR_NAMESPACE names another)"
            if self.is_only_here
            else ""
        )

    def text(self) -> str:
        """One line for people."""
        if self.unknown:
            return f"whether an allocator runs is not known: {self.unknown}"
        if self.is_running:
            said = f"the allocator runs ({self.holder}{f', policy {self.policy}' if self.policy else ''})"
        elif self.holder:
            ago = _ago(self.silent_seconds)
            said = f"no allocator runs ({self.holder} was last heard of {ago} ago): nothing is decided"
        else:
            said = f"no allocator runs{self.where}: nothing is decided"
        return f"PAUSED by {self.paused} ({said})" if self.paused else said

    def to_dict(self) -> dict[str, Any]:
        return {
            "running": None if self.unknown else self.is_running,
            "holder": self.holder,
            "paused": self.paused,
            "policy": self.policy,
            "namespace": self.namespace,
            "message": self.text(),
        }


def home(cluster: Cluster, *, elsewhere: bool = True) -> tuple[str, Mapping[str, str]]:
    """(the allocator's namespace, what it says of itself where everybody may read it).

    That is where DIFLOW_ALLOCATOR_NAMESPACE says, else where one leads (if it may be `elsewhere`); where none does,
    where it was installed.
    """
    seen, said = _look(cluster, now=time.time(), elsewhere=elsewhere)
    return seen.namespace, said


def presence(cluster: Cluster, *, namespace: str | None = None, now: float) -> Presence:
    """Look once. `now`: seconds since 1970. Raises what the cluster refuses, but for the right to read the Lease.

    Without a `namespace`, an allocator that leads in another one than it was installed in is found, too, by a user who
    may list Leases.
    """
    return _look(cluster, namespace=namespace, now=now)[0]


def _look(
    cluster: Cluster, *, namespace: str | None = None, now: float, elsewhere: bool = True
) -> tuple[Presence, Mapping[str, str]]:
    try:
        found = cluster.find(CONFIG_MAP, keys.ALLOCATOR, namespace=keys.PUBLIC_NAMESPACE)
    except UnauthorizedError:
        found = None
    said: Mapping[str, str] = (found or {}).get("data") or {}
    named = namespace or os.environ.get("DIFLOW_ALLOCATOR_NAMESPACE")
    place = named or said.get("namespace") or NAMESPACE
    policy = said.get("policy") or ""
    try:
        lease = cluster.find(LEASE, keys.ALLOCATOR, namespace=place)
    except UnauthorizedError as error:
        seen = Presence(place, policy, bool(said), unknown=str(error))
    else:
        seen = _of_lease(cluster, lease, place, said, now=now)
    if named or seen.is_running or seen.unknown or not elsewhere:
        return seen, said
    try:
        leases = cluster.list_all(LEASE, everywhere=True, fields=f"metadata.name={keys.ALLOCATOR}")
    except UnauthorizedError:
        return replace(seen, is_only_here=True), said
    others = (_of_lease(cluster, one, one["metadata"].get("namespace") or "", said, now=now) for one in leases)
    return next((other for other in others if other.is_running), seen), said


def _of_lease(
    cluster: Cluster, lease: Mapping[str, Any] | None, place: str, said: Mapping[str, str], *, now: float
) -> Presence:
    policy = said.get("policy") or ""
    if lease is None:
        return Presence(place, policy, bool(said))
    spec = lease.get("spec") or {}
    # The holder wrote its own clock's time: what the server's clock says is nearer to that than ours.
    late = now + (cluster.clock_skew_seconds() or 0.0) - _seconds(spec.get("renewTime") or "")
    over = late > float(spec.get("leaseDurationSeconds") or 15) + _CLOCKS_SECONDS
    annotations = lease["metadata"].get("annotations") or {}
    holder = spec.get("holderIdentity") or ""
    return Presence(
        place,
        # What stands where everybody may read it is what an administrator wrote there, and may be another one.
        (annotations.get(POLICY) if holder else "") or policy,
        is_installed=True,
        holder=holder,
        silent_seconds=late if over else 0.0,
        paused=annotations.get(PAUSED) or "",
        pools=(annotations.get(POOLS) if holder else "") or "",
    )


_CLOCKS_SECONDS: Final = 5.0


def pause(cluster: Cluster, *, namespace: str, reason: str, now: float) -> tuple[str, str]:
    """Let the allocator decide nothing new. Returns what stands in the Lease (who, when, why), and what stood there."""
    before = _paused(cluster, namespace=namespace)
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = f"{whoami(cluster)} at {moment}" + (f": {' '.join(reason.split())}" if reason.strip() else "")
    annotate(cluster, PAUSED, text, namespace=namespace)
    return text, before


HEEDED_SECONDS: Final = 10.0
"""How long a leader may go without a renewal and be one."""
_LOOK_SECONDS: Final = 0.25


def await_heeded(cluster: Cluster, *, namespace: str) -> bool:
    """Wait until the leader has read what stands in its Lease now: a renewal overwrites nothing that it has not read.

    False if that takes longer than `HEEDED_SECONDS`, if nobody leads, or if the Lease may be changed but not read.
    """
    until, renewed = time.monotonic() + HEEDED_SECONDS, ""
    while True:
        try:
            spec = (cluster.find(LEASE, keys.ALLOCATOR, namespace=namespace) or {}).get("spec") or {}
        except UnauthorizedError:
            return False
        now = spec.get("renewTime") or ""
        if not spec.get("holderIdentity") or not now:
            return False
        renewed = renewed or now
        if now != renewed:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_SECONDS)


def resume(cluster: Cluster, *, namespace: str) -> str:
    """Let it decide again. Returns who had paused it, "" if nobody had."""
    paused = _paused(cluster, namespace=namespace)
    if paused:
        annotate(cluster, PAUSED, None, namespace=namespace)
    return paused


def _paused(cluster: Cluster, *, namespace: str) -> str:
    lease = cluster.find(LEASE, keys.ALLOCATOR, namespace=namespace)
    return str((((lease or {}).get("metadata") or {}).get("annotations") or {}).get(PAUSED) or "")


def annotate(cluster: Cluster, key: str, value: str | None, *, namespace: str) -> None:
    """Put an annotation into the Lease, or take it away. A Lease that is not there yet is made, held by nobody."""
    change = {"metadata": {"annotations": {key: value}}}
    try:
        cluster.patch(LEASE, keys.ALLOCATOR, change, namespace=namespace)
    except NotFoundError as error:
        if value is None:
            return
        body = {
            "apiVersion": f"{LEASE.group}/{LEASE.version}",
            "kind": LEASE.name,
            "metadata": {"name": keys.ALLOCATOR, "namespace": namespace, "annotations": {key: value}},
            "spec": {},
        }
        try:
            cluster.create(LEASE, body, namespace=namespace)
        except ConflictError:  # made in this moment
            cluster.patch(LEASE, keys.ALLOCATOR, change, namespace=namespace)
        except NotFoundError:
            raise NotFoundError(
                f"there is no namespace {namespace!r}: the allocator is not installed in this cluster"
            ) from error


def answer(cluster: Cluster, *, namespace: str, asked: str, text: str) -> None:
    """Answer the one who asked for a plan."""
    data = {"id": asked, "text": clipped(text)}
    try:
        cluster.patch(CONFIG_MAP, ANSWER, {"data": data}, namespace=namespace)
    except NotFoundError:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": ANSWER, "namespace": namespace},
            "data": data,
        }
        cluster.create(CONFIG_MAP, body, namespace=namespace)


def answer_to(cluster: Cluster, asked: str, *, namespace: str) -> str | None:
    """The answer to this question, None while there is none."""
    found = cluster.find(CONFIG_MAP, ANSWER, namespace=namespace)
    data = (found or {}).get("data") or {}
    return str(data.get("text") or "") if data.get("id") == asked else None


def clipped(text: str) -> str:
    """Whole lines, as many as fit, and how many were left out."""
    data = text.encode()
    if len(data) <= MOST_TEXT_BYTES:
        return text
    kept = data[: MOST_TEXT_BYTES - 100].decode(errors="ignore").rpartition("\n")[0]
    return f"{kept}\n... and {len(text.splitlines()) - len(kept.splitlines())} lines more\n"


def whoami(cluster: Cluster) -> str:
    """Who the API server takes this user for; else who the machine does."""
    try:
        made = cluster.create(_SELF, {"apiVersion": "authentication.k8s.io/v1", "kind": _SELF.name})
        name = ((made.get("status") or {}).get("userInfo") or {}).get("username")
    except DiflowError:
        name = None
    return str(name or os.environ.get("USER") or "somebody")


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
