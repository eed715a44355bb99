"""Authorisation: who may do what with a job.

A pod of the job presents a token whose audience names the job (`names.audience`), and must be of its current round. A
user presents a token for the API server, and may do with a job what RBAC allows with its Workflow (get, patch), by a
SubjectAccessReview. A caller who may not see a job does not learn whether it exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from diflow.common import keys, names
from diflow.kube.kinds import WORKFLOW, Kind
from diflow.record import untrusted
from diflow.record.pod import PodRecord
from diflow.server.api.cache import Cache, ServedJob
from diflow.server.api.identity import Identity, User, claims
from diflow.server.api.reviews import Found, Reviews
from diflow.server.http.errors import forbidden, gone, unauthorized, unavailable

Verb = Literal["get", "list", "patch"]
"""The verb on the Workflow: `get` and `list` to read, `patch` to scale or to report."""

_PREFIX: Final = f"{keys.IDENTITY_AUDIENCE}/"
_STALE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Caller:
    """An authorised caller. `name` is for the log; `pod` is the calling pod of the job, None for a user.

    `is_foreign`: a pod of another job in the namespace, identified by its address. It may read and scale this job, but
    not report about it.
    """

    name: str
    pod: PodRecord | None = None
    is_foreign: bool = False


class Access:
    """Authorises callers. `unproven_pods`: serve pods without a token, by address, for jobs of their namespace."""

    def __init__(
        self, cache: Cache, identity: Identity, reviews: Reviews[tuple[Any, ...], bool], *, unproven_pods: bool = False
    ) -> None:
        self._cache = cache
        self._identity = identity
        self._reviews = reviews
        self._unproven_pods = unproven_pods

    async def caller(
        self, token: str, *, namespace: str, job: str, verb: Verb, address: str = "", late: bool = False
    ) -> Caller:
        """Authorise `verb` on this job. `token` is "" if none was sent; `address` is the caller's. `late`: pods of
        earlier rounds that have not ended are accepted, too.

        Raises ApiError: 401, 403, 429, 410 for a pod of an earlier round of this job, or 503 if it cannot be decided
        now, as for a pod of a later round than the cache has.
        """
        self.check_fresh()
        if not token:
            return self._by_address(namespace, job, address, late=late)
        wanted = names.audience(namespace, job)
        if (user := self._identity.known(token, audience=wanted)) is not None:
            return self._pod(user, namespace, job, late=late)
        said = claims(token)
        if wanted in said.audiences:
            user = await self._identity.user(token, audience=wanted, address=address, said=said)
            self.check_fresh()
            return self._pod(user, namespace, job, late=late)
        if any(audience.startswith(_PREFIX) for audience in said.audiences):
            raise forbidden()  # the token is for another job
        user = await self._identity.user(token, address=address, said=said)
        if not await self.may(user, verb, namespace=namespace, name=job, address=address):
            # The same for a job that does not exist: the review is about the names alone.
            raise forbidden(
                f"{user.name} may not do that with this job, if there is one: it needs the right to {verb} "
                f"workflows.argoproj.io in namespace {namespace}"
            )
        return Caller(user.name)

    async def lister(self, token: str, *, namespace: str, address: str = "") -> str:
        """Authorise to list the jobs of a namespace ("": of all), and return the caller's name for the log. A pod that
        is identified by its address may do so in its own namespace.

        Raises ApiError: 401, 403, 429 or 503.
        """
        self.check_fresh()
        if not token:
            pod = self._cache.pod_at(address) if self._unproven_pods and address else None
            if pod is None:
                raise unauthorized("send a token: Authorization: Bearer ...")
            if pod.namespace != namespace:
                raise forbidden("a pod may list the jobs of its own namespace")
            return f"pod {namespace}/{pod.name}, by its address"
        said = claims(token)
        if any(audience.startswith(_PREFIX) for audience in said.audiences):
            raise forbidden("the token of a pod is for its own job alone: name its coordinator")
        user = await self._identity.user(token, address=address, said=said)
        if not await self.may(user, "list", namespace=namespace, address=address):
            where = f"namespace {namespace}" if namespace else "all namespaces"
            raise forbidden(f"{user.name} may not do that: it needs the right to list workflows.argoproj.io in {where}")
        return user.name

    def check_fresh(self) -> None:
        """Raises ApiError (503) if the cache of jobs and pods is too old."""
        if not self._cache.is_fresh():
            raise unavailable("the current state of the cluster is not known", after_seconds=_STALE_SECONDS)

    async def may(
        self, user: User, verb: Verb, *, namespace: str, name: str = "", address: str = "", kind: Kind = WORKFLOW
    ) -> bool:
        """Whether RBAC allows `verb` on the Workflow `name`, or ("") on all in the namespace ("": all namespaces).

        Most users have the right for a whole namespace: one review of that answers for all of its jobs. `kind` is for
        objects other than Workflows. Raises ApiError: 429, or 503 if the API server cannot be reached.
        """
        key = (user.digest, user.name, verb, kind, namespace, name)
        if self._reviews.known(key):
            return True
        if name and await self.may(user, verb, namespace=namespace, address=address, kind=kind):
            return True
        attributes = {
            "verb": verb, "group": kind.group, "resource": kind.plural, "namespace": namespace, "name": name,
        }  # fmt: skip
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra.items()},
            "resourceAttributes": {name: value for name, value in attributes.items() if value},
        }

        def read(status: Any) -> Found[bool] | None:
            is_allowed = untrusted.sub(status).get("allowed") is True
            return Found(True, self._reviews.keep_seconds, user.tenant) if is_allowed else None

        return await self._reviews.result(key, spec, read, address=address, payer=user.tenant) is True

    def _pod(self, user: User, namespace: str, job: str, *, late: bool) -> Caller:
        """The pod to which the token is bound. Looked up for each request: a deleted pod loses its access."""
        name, uid = user.pod
        pod = self._cache.pod(namespace, name) if name else None
        view = self._cache.job(namespace, job)
        if (
            pod is None
            or view is None
            or not uid
            or pod.uid != uid
            or not user.name.startswith(f"system:serviceaccount:{namespace}:")
        ):
            raise forbidden()
        _check_round(view, pod, late=late)
        return Caller(f"pod {namespace}/{name}", pod)

    def _by_address(self, namespace: str, job: str, address: str, *, late: bool) -> Caller:
        pod = self._cache.pod_at(address) if self._unproven_pods and address else None
        if pod is None:
            raise unauthorized("send a token: Authorization: Bearer ...")
        view = self._cache.job(namespace, pod.endpoint.job)
        if pod.namespace != namespace or view is None:
            raise forbidden()
        _check_round(view, pod, late=late)
        name = f"pod {namespace}/{pod.name}, by its address"
        return Caller(name, pod) if pod.endpoint.job == job else Caller(name, is_foreign=True)


def _check_round(view: ServedJob, pod: PodRecord, *, late: bool) -> None:
    """Raises ApiError: 410 for a pod of an earlier round of its job (if it may not be `late`), 503 for a later round
    than the cache has, 403 for any other pod."""
    if view.has(pod):
        return
    if view.had(pod):
        if late:
            return
        raise gone(f"this pod is of an earlier round: the job is in round {view.workflow.round}")
    if view.will_have(pod):
        raise unavailable(f"round {pod.round} of the job is not known here yet: ask again")
    raise forbidden()
