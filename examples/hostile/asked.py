"""What a tenant can ask of the server: many small jobs instead of one, and many valid tokens."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests

from diflow.kube.api import Cluster
from diflow.kube.kinds import SERVICE_ACCOUNT, Kind
from diflow.workflows import render
from hostile.tenant import Attack, Tenant

Json = dict[str, Any]
ACCOUNT = "asker"
_JOBS = 30
_CALLERS = 48
_TOKENS = 1_500
_TIMEOUT_SECONDS = 30.0
_ROLE_BINDING = Kind("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
_ROLE = Kind("Role", "rbac.authorization.k8s.io", "v1", "roles")


@dataclass
class Caller:
    """A user of the server with a token of the cluster."""

    server: str
    token: str

    @classmethod
    def in_namespace(cls, cluster: Cluster, namespace: str, server: str) -> Caller:
        """Somebody who may read and change the Workflows of a namespace. Makes the account."""
        make_account(cluster, namespace)
        return cls(server, new_token(cluster, namespace))

    def scale(self, job: str, by: int, *, session: requests.Session | None = None) -> float:
        """Ask for so many replicas more (or fewer). Returns the seconds until the server has stored it."""
        began = time.monotonic()
        answer = (session or requests).request(
            "POST" if by > 0 else "DELETE",
            f"{self.server}/v2alpha1/job/{job}/replicas",
            json={"replicas": abs(by)},
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=_TIMEOUT_SECONDS,
        )
        answer.raise_for_status()
        return time.monotonic() - began


def make_account(cluster: Cluster, namespace: str) -> None:
    """An account that may read and change the Workflows of a namespace, unless it is there."""
    named = {"metadata": {"name": ACCOUNT}}
    if cluster.find(SERVICE_ACCOUNT, ACCOUNT, namespace=namespace) is not None:
        return
    cluster.create(SERVICE_ACCOUNT, named, namespace=namespace)
    rule = {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "list", "patch"]}
    cluster.create(_ROLE, {**named, "rules": [rule]}, namespace=namespace)
    bound = {
        **named,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
    }
    cluster.create(_ROLE_BINDING, bound, namespace=namespace)


def new_token(cluster: Cluster, namespace: str) -> str:
    kind = Kind("TokenRequest", "", "v1", f"serviceaccounts/{ACCOUNT}/token")
    made = cluster.create(kind, {"spec": {"expirationSeconds": 7200}}, namespace=namespace)
    return str(made["status"]["token"])


def calls(tenant: Tenant) -> list[str]:
    """Each of many small jobs may be asked about often: together they would fill the server and the API server."""
    names = [f"call-{number}" for number in range(_JOBS)]
    small = tenant.task(template=tenant.asks({"cpu": "10m"}), replicas=1)
    for name in names:
        tenant.send(render(tenant.job(name, tasks=(small,))))
    caller = Caller.in_namespace(tenant.cluster, tenant.namespace, tenant.server)

    def ask(number: int) -> None:
        with requests.Session() as session:
            turn = number
            while not tenant.stop.is_set():
                turn += 1
                with suppress(requests.RequestException):
                    job = f"{tenant.namespace}.{names[turn % _JOBS]}"
                    caller.scale(job, 1 if turn // _JOBS % 2 else -1, session=session)

    _in_the_background(ask)
    return names[:1]


def tokens(tenant: Tenant) -> list[str]:
    """Each valid token costs the server two reviews, and a place among those that it remembers."""
    make_account(tenant.cluster, tenant.namespace)

    def ask(number: int) -> None:
        caller = Caller(tenant.server, "")
        with requests.Session() as session:
            for _ in range(_TOKENS // _CALLERS):
                if tenant.stop.is_set():
                    return
                caller.token = new_token(tenant.cluster, tenant.namespace)
                with suppress(requests.RequestException):
                    caller.scale(f"{tenant.namespace}.none-{number}", 1, session=session)

    _in_the_background(ask)
    return []


def _in_the_background(ask: Any) -> None:
    pool = ThreadPoolExecutor(_CALLERS)
    for number in range(_CALLERS):
        pool.submit(ask, number)
    pool.shutdown(wait=False)


ASKED = (
    Attack("x", f"{_CALLERS} callers ask for replicas of {_JOBS} jobs", calls, goes_on=True),
    Attack("y", f"{_TOKENS:,} valid tokens of one account", tokens, goes_on=True),
)
