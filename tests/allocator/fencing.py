"""The policy of manifests/allocator/fence.yaml on the fake API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diflow.jobs.checks import fence
from diflow.kube.kinds import LEASE
from tests.kube.fakeapi import Answer, FakeApi, Request, status

Json = dict[str, Any]
SYSTEM = "diflow-system"


def lease(api: FakeApi) -> Json | None:
    """The allocator's Lease as it is."""
    return api.objects.get(LEASE.path(SYSTEM), {}).get("diflow-allocator")


def install(api: FakeApi, seen: Callable[[], Json | None] | None = None) -> None:
    """Refuse the writes that the policy refuses. `seen`: the Lease as the API server sees it, by default as it is."""
    look = seen or (lambda: lease(api))

    def rule(request: Request) -> Answer | None:
        manager = request.query.get("fieldManager", "")
        if not manager.startswith(f"diflow-allocator/{SYSTEM}/"):
            return None
        found = look()
        if found is None or "leaseTransitions" not in found["spec"]:
            return None
        _, _, uid, epoch = manager.split("/")
        if uid != found["metadata"]["uid"] or int(epoch) >= found["spec"]["leaseTransitions"]:
            return None
        return status(422, f"ValidatingAdmissionPolicy 'x' denied request: {fence.MESSAGE}", reason="Invalid")

    api.rule(rule)
