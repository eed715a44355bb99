"""A server over a fake API server: tests add jobs, pods, tokens and users, and send requests without a socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import functools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette

from diflow import DIJob
from diflow.common import keys, names
from diflow.common.clock import Clock
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record import chain
from diflow.server.api.app import create_app
from diflow.server.api.cache import Beside, Cache
from diflow.server.page.cache import PageCache
from diflow.server.settings import ServerSettings
from diflow.workflows import render
from tests.allocator.faults import Time, client, eventually
from tests.builders import job, task
from tests.kube.fakeapi import Answer, FakeApi, Request, status

Json = dict[str, Any]

NOW = 1_800_000_000.0


class Authority:
    """Reviews tokens and permissions as an API server does, and counts the reviews."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.tokens: dict[str, Json] = {}
        self.rights: set[tuple[str, str, str, str]] = set()
        self.reviews = 0
        self.access_reviews = 0
        self.knows_audiences = True
        api.rule(self._answer)

    def pod_token(
        self,
        name: str,
        *,
        job: str,
        namespace: str = "default",
        pod_uid: str = "",
        expires: float = NOW + 3600,
        **over: Any,
    ) -> str:
        """A token bound to a pod, for the audience of a job."""
        audience = over.pop("audience", names.audience(namespace, job))
        token = _jwt({"aud": [audience], "exp": expires, "sub": f"{namespace}/{name}", **over})
        self.tokens[token] = {
            "audiences": [audience],
            "user": {
                "username": f"system:serviceaccount:{namespace}:diflow-worker",
                "uid": "uid-of-account",
                "groups": ["system:serviceaccounts"],
                "extra": {
                    "authentication.kubernetes.io/pod-name": [name],
                    "authentication.kubernetes.io/pod-uid": [pod_uid or f"uid-{name}"],
                },
            },
        }
        return token

    def person(self, name: str, *rights: tuple[str, str, str]) -> str:
        """The token of a user with (verb, namespace, job) rights; `*` for all jobs of the namespace."""
        token = f"opaque-{name}"
        self.tokens[token] = {"audiences": ["https://kubernetes"], "user": {"username": name, "groups": ["people"]}}
        for verb, namespace, name_of_job in rights:
            self.rights.add((name, verb, namespace, name_of_job))
        return token

    def _answer(self, request: Request) -> Answer | None:
        if request.path.endswith("/tokenreviews"):
            self.reviews += 1
            spec = request.body["spec"]
            found = self.tokens.get(spec["token"])
            wanted = spec.get("audiences") or ["https://kubernetes"]
            if found is None or not set(wanted) & set(found["audiences"]):
                return Answer(201, {"status": {"authenticated": False, "error": "invalid bearer token"}})
            said = [a for a in wanted if a in found["audiences"]] if self.knows_audiences else []
            return Answer(201, {"status": {"authenticated": True, "user": found["user"], "audiences": said}})
        if request.path.endswith("/subjectaccessreviews"):
            self.access_reviews += 1
            spec = request.body["spec"]
            asked = spec["resourceAttributes"]
            assert asked["resource"] == "workflows"
            assert asked["group"] == "argoproj.io"
            where = (spec["user"], asked["verb"], asked.get("namespace", ""))
            allowed = {(*where, asked.get("name", "")), (*where, "*")} & self.rights
            return Answer(201, {"status": {"allowed": bool(allowed)}})
        return None


def json_patches(api: FakeApi) -> None:
    """Teach the server JSON patches (RFC 6902) of Workflows: test, add and replace."""

    def rule(request: Request) -> Answer | None:
        if request.method != "PATCH" or not isinstance(request.body, list):
            return None
        collection, _, name = request.path.rpartition("/")
        with api.changed:
            known = api.objects.get(collection, {}).get(name)
            if known is None:
                return status(404, f'workflows "{name}" not found', reason="NotFound")
            new = copy.deepcopy(known)
            try:
                for operation in request.body:
                    _operate(new, operation)
            except (KeyError, IndexError, AssertionError):
                return status(422, "the server rejected our request due to an error in our request", reason="Invalid")
            return Answer(body=api.add(WORKFLOW, new, namespace=known["metadata"]["namespace"]))

    api.rule(rule)


def _operate(target: Any, operation: Json) -> None:
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    for part in way:
        target = target[int(part)] if isinstance(target, list) else target[part]
    if operation["op"] == "test":
        if operation["value"] is None and isinstance(target, dict):  # of what is not there, as API servers have it
            found = target.get(last)
        else:
            found = target[int(last)] if isinstance(target, list) else target[last]
        assert found == operation["value"]
    elif isinstance(target, list) and last == "-":
        target.append(operation["value"])
    elif isinstance(target, list):
        target[int(last)] = operation["value"]
    else:
        target[last] = operation["value"]


@dataclass
class Place:
    """A fake cluster with a server over it."""

    api: FakeApi
    settings: ServerSettings = field(default_factory=lambda: ServerSettings(job_rate=1e6, job_burst=1e6))
    beside: Beside | None = None
    has_page: bool = False
    time: Time = field(default_factory=Time)
    jitter: Callable[[float, float], float] = random.uniform

    def __post_init__(self) -> None:
        json_patches(self.api)
        self.authority = Authority(self.api)
        self.cluster = client(self.api)
        clock = Clock(
            monotonic=self.time.now,
            wait=lambda stopping, _: stopping.wait(0.01),
            jitter=lambda low, _: low,  # not `random`: Hypothesis controls it while it generates examples
        )
        self.page = PageCache(self.cluster, clock=clock)
        given: Beside = self.page.beside if self.has_page else lambda *_: None
        self.cache: Cache = Cache(
            self.cluster,
            stale_seconds=self.settings.stale_seconds,
            beside=self.beside or given,
            clock=clock,
        )
        self.pauses: list[float] = []
        self.addresses = 0

    # --- what is in the cluster ---------------------------------------------------------------------------------------

    def submit(self, dijob: DIJob, **over: Any) -> Json:
        """Add a job's Workflow with its first round, with an allocation unless it says otherwise."""
        placed = dijob.model_copy(
            update={"namespace": dijob.namespace or "default", "scheduling": dijob.scheduling or "gang"}
        )
        body = render(placed)
        body["metadata"] |= {"uid": f"uid-wf-{dijob.name}", **over}
        return self.api.add(WORKFLOW, body, namespace=placed.namespace or "default")

    def pod(
        self,
        job: str,
        task: str,
        index: int,
        *,
        ip: str = "10.0.0.1",
        round_: str = "1",
        namespace: str = "default",
        **over: Any,
    ) -> Json:
        """Add a pod of a job."""
        workflow = over.pop("workflow", job)
        name = over.pop("name", f"{workflow}-{task}-{round_}-{index}")
        at = int(round_) - 1 if round_.isdecimal() else 0
        node = f"{workflow}.round({at}:{round_})(0).{task}({index}:{index})(0).{task}(0)"
        body = {
            "metadata": {
                "name": name,
                "labels": {
                    keys.OPERATOR: keys.OPERATOR_VALUE,
                    keys.JOB: job,
                    keys.TASK_NAME: task,
                    keys.ROUND: round_,
                    "workflows.argoproj.io/workflow": workflow,
                },
                "annotations": {keys.ARGO_NODE_NAME: node},
                "ownerReferences": [
                    {"kind": "Workflow", "name": workflow, "uid": over.pop("owner", f"uid-wf-{workflow}")}
                ],
                "creationTimestamp": "2026-11-21T10:00:00Z",
                **over.pop("metadata", {}),
            },
            "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], **over.pop("spec", {})},
            "status": {"phase": "Running", "podIP": ip, **over.pop("status", {})},
        }
        return self.api.add(POD, body, namespace=namespace)

    def running(self, dijob: DIJob) -> DIJob:
        """A job with all its pods, whose addresses are 10.0.0.1 and so on."""
        self.submit(dijob)
        for one in dijob.tasks:
            for index in range(one.replicas):
                self.addresses += 1
                ip = f"10.0.0.{self.addresses}"
                self.pod(dijob.name, one.name, index, ip=ip, namespace=dijob.namespace or "default")
        return dijob

    def workflow(self, name: str, *, namespace: str = "default") -> Json:
        """The current Workflow in the cluster."""
        return self.api.objects[WORKFLOW.path(namespace)][name]

    def parameter(self, name: str, parameter: str, *, namespace: str = "default") -> str:
        """One of its parameters."""
        given = self.workflow(name, namespace=namespace)["spec"]["arguments"]["parameters"]
        return next(str(p["value"]) for p in given if p["name"] == parameter)

    def set(self, name: str, *, namespace: str = "default", **parameters: Any) -> None:
        """Change parameters of a Workflow, as the allocator does."""
        found = copy.deepcopy(self.workflow(name, namespace=namespace))
        for item in found["spec"]["arguments"]["parameters"]:
            if item["name"] in parameters:
                value = parameters[item["name"]]
                item["value"] = value if isinstance(value, str) else json.dumps(value)
        self.api.add(WORKFLOW, found, namespace=namespace)

    def settle(self) -> None:
        """Wait until the cache has listed everything and watches it: from here on only tests make it stale."""
        assert self.cache.wait_synced(60)
        self.api.bookmark()
        now = self.api.version
        both = (self.cache.workflows, self.cache.pods)
        eventually(lambda: all(int(reflector._version or 0) >= now for reflector in both), "the watches")

    # --- the server ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def asked(self, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the app, once the cache has listed the cluster."""
        self.cache.start()
        if self.has_page:
            self.page.start(self.cache)
            assert self.page.wait_synced(60)
        try:
            self.settle()
            self.app = self.make_app(**options)
            async with self.app.router.lifespan_context(self.app), self.client() as asking:
                yield asking
        finally:
            self.page.stop()
            self.cache.stop()

    def make_app(self, **options: Any) -> Starlette:
        """The app over this place."""

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)
            self.time.move(seconds)

        def draw(low: float, high: float) -> float:
            return self.jitter(low, high)

        clock = Clock(
            monotonic=self.time.now,
            wall=lambda: NOW + self.time.now(),
            pause=options.pop("pause", pause),
            jitter=draw,
        )
        return create_app(cluster=self.cluster, cache=self.cache, settings=self.settings, clock=clock, **options)

    def client(self, *, host: str = "10.9.9.9", **options: Any) -> httpx.AsyncClient:
        """A client that calls from this address."""
        transport = httpx.ASGITransport(self.app, client=(host, 4711), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://server", **options)


def bearer(token: str) -> dict[str, str]:
    """The Authorization header for a token."""
    return {"Authorization": f"Bearer {token}"}


def mixed(name: str = "mixed", **fields: Any) -> DIJob:
    """A job of a learner and two collectors."""
    return job(task("learner"), task("collector", replicas=2), name=name, **fields)


def elastic(name: str = "elastic", *, replicas: int = 4, low: int = 2, high: int = 8, **fields: Any) -> DIJob:
    """A preemptible job of one task that may be resized."""
    worker = task("none", name="worker", replicas=replicas).model_copy(
        update={"min_replicas": low, "max_replicas": high}
    )
    return job(worker, name=name, preemptible=True, **fields)


def part_of(place: Place, first: Json, name: str, **parameters: Any) -> Json:
    """Add the Workflow in which a job continues, and switch to it."""
    second = copy.deepcopy(first)
    labels, annotations = second["metadata"]["labels"], second["metadata"]["annotations"]
    second["metadata"] |= {
        "name": name,
        "uid": f"uid-wf-{name}",
        "labels": {**labels, keys.CHAIN: chain.job_name(first), keys.PART: "2"},
        "annotations": {
            **annotations,
            keys.CONTINUES: first["metadata"]["name"],
            keys.CONTINUES_UID: first["metadata"]["uid"],
        },
    }
    for item in second["spec"]["arguments"]["parameters"]:
        if item["name"] in parameters:
            item["value"] = json.dumps(parameters[item["name"]])
    made = place.api.add(WORKFLOW, second)
    before = copy.deepcopy(first)
    before["metadata"]["annotations"][keys.CONTINUED_IN] = name
    before["metadata"]["labels"][keys.CHAIN] = chain.job_name(first)
    place.api.add(WORKFLOW, before)
    return made


def _jwt(payload: Json) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'RS256'})}.{part(payload)}.c2lnbmF0dXJl"


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(_patient(test(*args, **kwargs)))

    return run


async def _patient(body: Awaitable[None]) -> None:
    async with asyncio.timeout(120):
        await body


async def soon(true: Callable[[], object], what: str = "") -> None:
    """Wait until it is true while the loop runs; fail after a long time."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + 60
    while not true():
        assert loop.time() < ends, f"this never came about: {what or true}"
        await asyncio.sleep(0.005)
