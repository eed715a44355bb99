"""The control channel of the allocator: its Lease and one ConfigMap, with which other processes read its status, pause
it and request plans.

    Lease diflow-allocator   annotation diflow/paused      who paused it, when, why: no new decisions while it is set
                             annotation diflow/policy      the policy of the leader
                             annotation diflow/pools       the node pools of the leader, and their speeds (gpu_pools.py)
                             annotation diflow/writes-as   the field manager of the leader's writes (leader_election.py)
                             annotation diflow/replan      a new id requests a plan of the whole cluster
    ConfigMap diflow-plan    id, text                      the response to the last id

It does not import the packages that policies need.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from diflow.common import keys
from diflow.common.durations import timestamp
from diflow.common.errors import ConflictError, DiflowError, NotFoundError, UnauthorizedError
from diflow.kube import kinds
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, LEASE, Kind
from diflow.kube.leader_election import annotations_of, seconds_since_renewal

ANSWER: Final = "diflow-plan"
"""The ConfigMap with the response to a plan request."""
NAMESPACE: Final = "diflow-system"
MOST_TEXT_BYTES: Final = 200 * 1024
"""Limit of a plan as text, which must fit into a ConfigMap and into an output parameter of a Workflow."""

Json = dict[str, Any]

_SELF: Final = Kind("SelfSubjectReview", "authentication.k8s.io", "v1", "selfsubjectreviews", namespaced=False)


@dataclass(frozen=True, slots=True)
class AllocatorStatus:
    """The allocator's status, as its Lease and its ConfigMap show it.

    `unknown`: why its Lease cannot be read, or "". `holder`: "" when there is no leader. `silent_seconds`: since the
    last renewal, if the Lease has expired; else 0. `pools`: the holder's annotation. `is_only_here`: the user may not
    list Leases of other namespaces.
    """

    namespace: str
    policy: str = ""
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
        """The namespace searched, if it was not all of them: for the end of a sentence."""
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
    """(the allocator's namespace, the data of its public ConfigMap).

    The namespace is DIFLOW_ALLOCATOR_NAMESPACE if set, else that of the leader (with `elsewhere`, in any namespace),
    else the one in which the allocator was installed.
    """
    seen, said = _look(cluster, now=time.time(), elsewhere=elsewhere)
    return seen.namespace, said


def read_status(cluster: Cluster, *, namespace: str | None = None, now: float) -> AllocatorStatus:
    """Read the allocator's status. `now`: seconds since 1970. Without the right to read the Lease it is `unknown`.

    Without a `namespace`, a leader in another namespace than that of the installation is found too, if the user may
    list Leases.
    """
    return _look(cluster, namespace=namespace, now=now)[0]


def _look(
    cluster: Cluster, *, namespace: str | None = None, now: float, elsewhere: bool = True
) -> tuple[AllocatorStatus, Mapping[str, str]]:
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
        seen = AllocatorStatus(place, policy, unknown=str(error))
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
) -> AllocatorStatus:
    policy = said.get("policy") or ""
    if lease is None:
        return AllocatorStatus(place, policy)
    spec = lease.get("spec") or {}
    late = seconds_since_renewal(cluster, lease, now=now)
    over = late > float(spec.get("leaseDurationSeconds") or 15) + _CLOCKS_SECONDS
    annotations = annotations_of(lease)
    holder = spec.get("holderIdentity") or ""
    return AllocatorStatus(
        place,
        # The public ConfigMap has the policy of the installation, which may differ from the leader's.
        (annotations.get(keys.POLICY) if holder else "") or policy,
        holder=holder,
        silent_seconds=late if over else 0.0,
        paused=annotations.get(keys.PAUSED) or "",
        pools=(annotations.get(keys.POOLS) if holder else "") or "",
    )


_CLOCKS_SECONDS: Final = 5.0


def pause(cluster: Cluster, *, namespace: str, reason: str, now: float) -> tuple[str, str]:
    """Pause the allocator. Returns (the annotation: who, when, why; the annotation before)."""
    before = _pause_of(cluster.find(LEASE, keys.ALLOCATOR, namespace=namespace))
    text = f"{whoami(cluster)} at {timestamp(now)}" + (f": {' '.join(reason.split())}" if reason.strip() else "")
    annotate(cluster, keys.PAUSED, text, namespace=namespace)
    return text, before


RENEWAL_SECONDS: Final = 10.0
"""The longest time between two renewals of a leader."""
_LOOK_SECONDS: Final = 0.25


def await_renewal(cluster: Cluster, *, namespace: str) -> bool:
    """Wait until the leader has read its Lease as it is now: it renews only the version that it has read.

    False if that takes longer than `RENEWAL_SECONDS`, if there is no leader, or if the user may not read the Lease.
    """
    until, renewed = time.monotonic() + RENEWAL_SECONDS, ""
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
    """Resume the allocator. Returns who paused it, "" if it was not paused.

    Raises NotFoundError if there is no such namespace.
    """
    lease = cluster.find(LEASE, keys.ALLOCATOR, namespace=namespace)
    if lease is None and cluster.lacks(kinds.NAMESPACE, namespace):
        raise _no_namespace(namespace)
    paused = _pause_of(lease)
    if paused:
        annotate(cluster, keys.PAUSED, None, namespace=namespace)
    return paused


def _pause_of(lease: Mapping[str, Any] | None) -> str:
    return annotations_of(lease).get(keys.PAUSED) or ""


def annotate(cluster: Cluster, key: str, value: str | None, *, namespace: str) -> None:
    """Set an annotation of the Lease, or remove it (None). A missing Lease is created without a holder."""
    change = {"metadata": {"annotations": {key: value}}}
    try:
        if value is None:
            with suppress(NotFoundError):
                cluster.patch(LEASE, keys.ALLOCATOR, change, namespace=namespace)
        else:
            _patch_or_create(cluster, LEASE, keys.ALLOCATOR, change, namespace=namespace)
    except NotFoundError as error:
        raise _no_namespace(namespace) from error


def _patch_or_create(cluster: Cluster, kind: Kind, name: str, change: Json, *, namespace: str) -> None:
    """Change an object; one that is missing is created, unless another process does so meanwhile."""
    try:
        cluster.patch(kind, name, change, namespace=namespace)
    except NotFoundError:
        body = {**change, "metadata": {**change.get("metadata", {}), "name": name, "namespace": namespace}}
        try:
            cluster.create(kind, {"apiVersion": kind.api_version, "kind": kind.name, **body}, namespace=namespace)
        except ConflictError:
            cluster.patch(kind, name, change, namespace=namespace)


def _no_namespace(namespace: str) -> NotFoundError:
    return NotFoundError(f"there is no namespace {namespace!r}: the allocator is not installed in this cluster")


def answer(cluster: Cluster, *, namespace: str, asked: str, text: str) -> None:
    """Write the response to a plan request with the id `asked`."""
    change = {"data": {"id": asked, "text": clipped(text)}}
    _patch_or_create(cluster, CONFIG_MAP, ANSWER, change, namespace=namespace)


def answer_to(cluster: Cluster, asked: str, *, namespace: str) -> str | None:
    """The response to the request with the id `asked`, None while there is none."""
    found = cluster.find(CONFIG_MAP, ANSWER, namespace=namespace)
    data = (found or {}).get("data") or {}
    return str(data.get("text") or "") if data.get("id") == asked else None


def clipped(text: str) -> str:
    """As many whole lines as fit into `MOST_TEXT_BYTES`, and the number of omitted lines."""
    data = text.encode()
    if len(data) <= MOST_TEXT_BYTES:
        return text
    kept = data[: MOST_TEXT_BYTES - 100].decode(errors="ignore").rpartition("\n")[0]
    return f"{kept}\n... and {len(text.splitlines()) - len(kept.splitlines())} lines more\n"


def whoami(cluster: Cluster) -> str:
    """The user's name as the API server knows it, else that of the operating system."""
    try:
        made = cluster.create(_SELF, {"apiVersion": _SELF.api_version, "kind": _SELF.name})
        name = ((made.get("status") or {}).get("userInfo") or {}).get("username")
    except DiflowError:
        name = None
    return str(name or os.environ.get("USER") or "somebody")


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
