"""An allocator over a fake cluster, in simulated time, for tests of scenarios, crashes and faults.

The allocator is real: its caches and their threads, leader election, its writes. Only the clock is simulated, and the
tests run the daemon's loop turn by turn, each time after the caches have caught up with the server.
"""

from __future__ import annotations

import io
import json
import threading
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3

from diflow import DIJob, Task
from diflow.allocator import signature
from diflow.allocator.policies.base import Policy, load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.run.daemon import Allocator, Cycle
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.selectors import MANAGED
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError
from diflow.kube.api import Cluster
from diflow.kube.kinds import (
    CONFIG_MAP,
    CSI_NODE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_QUOTA,
    SECRET,
    STORAGE_CLASS,
    WORKFLOW,
    Kind,
)
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import Pace, Reflector
from diflow.kube.refusals import Target
from tests.allocator.fakeargo import FOR_EVER, FakeCluster, Runs, is_gated
from tests.allocator.faults import Time, eventually
from tests.kube.fakeapi import Answer, FakeApi, Request, chosen, is_inside, serving

Json = dict[str, Any]
LIVE = "status.phase!=Succeeded,status.phase!=Failed"


class Killed(BaseException):
    """The process was killed."""


class Line:
    """A transport: to the server's socket, or by a direct call of the server (`direct`), which is faster.

    `before` and `after` are called for each request: before it is sent, and after the response. If one raises, the
    process counts as killed: none of its later requests arrives.
    """

    def __init__(self, api: FakeApi, *, direct: bool) -> None:
        self._api = api
        self._pool: Any = None if direct else urllib3.PoolManager(maxsize=16)
        self.before: Callable[[str, str], None] = lambda *_: None
        self.after: Callable[[str, str], None] = lambda *_: None
        self.is_cut = False
        self.is_dead = False
        self.sent: list[tuple[str, str, int]] = []
        """(method, path, status) of each request with a response."""
        self.tries = 0

    def request(self, method: str, url: str, *, body: bytes | None = None, **options: Any) -> Any:
        path = urlsplit(url).path
        self.tries += 1
        self._check()
        self._tell(self.before, method, path)
        self._check()
        if self._pool is not None:
            answer = self._pool.request(method, url, body=body, **options)
        else:
            answer = _ask(self._api, method, url, body, options.get("headers") or {})
        self.sent.append((method, path, answer.status))
        self._tell(self.after, method, path)
        return answer

    def writes(self) -> list[tuple[str, str, int]]:
        """The patches of jobs and pods with a response."""
        return [one for one in self.sent if one[0] == "PATCH" and "/secrets/" not in one[1]]

    def _check(self) -> None:
        # Nobody catches what a cache's thread raises before it is stopped: pytest would report it.
        is_cache = threading.current_thread().name.startswith("reflector-")
        if self.is_dead and not is_cache:
            raise Killed
        if self.is_cut or self.is_dead:
            raise ConnectionRefusedError(111, "Connection refused")

    def _tell(self, told: Callable[[str, str], None], method: str, path: str) -> None:
        try:
            told(method, path)
        except Killed:
            self.is_dead = True
            raise


class _Response:
    """A response of urllib3, as far as the client uses it."""

    chunked = False
    length_remaining = 0
    _fp = None

    def __init__(self, api: FakeApi, answer: Answer | None, lines: Iterator[str] | None) -> None:
        self._api, self._lines, self._is_shut = api, lines, False
        self.status = answer.status if answer else 200
        self.headers: dict[str, str] = answer.headers if answer else {}
        body = answer.body if answer else None
        self._body = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        self.closed = False

    def read(self, **_: Any) -> bytes:
        return self._body.read()

    def read1(self, _: int, **__: Any) -> bytes:
        assert self._lines is not None
        for line in self._lines:
            if self._is_shut:
                raise ConnectionResetError("hung up")
            if line:
                return f"{line}\n".encode()
        return b""

    def shutdown(self) -> None:
        self._is_shut = True
        with self._api.changed:
            self._api.changed.notify_all()

    def close(self) -> None:
        self.closed = True

    release_conn = close


def _ask(api: FakeApi, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> _Response:
    parts = urlsplit(url)
    query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    got: list[Any] = []
    api.answer(Request(method, parts.path, query, headers, json.loads(body) if body else None), got.append, got.append)
    made = got[0]
    return _Response(api, made, None) if isinstance(made, Answer) else _Response(api, None, made)


class Daemon:
    """One process of the allocator."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self.line = Line(lab.api, direct=lab.direct)
        clock = Clock(monotonic=lab.time.now, wall=lab.cluster.wall, jitter=lambda low, _: low)
        cluster = Cluster(
            Target(lab.api.url, "/home/me/kubeconfig"),
            transport=self.line,
            clock=Clock(sleep=lambda _: None, jitter=lambda low, _: low),
        )
        self.elector = Elector(
            cluster,
            name=keys.ALLOCATOR,
            namespace=lab.settings.namespace,
            identity=name,
            clock=clock,
        )
        self.cycles: list[Cycle] = []
        self._led = -3.0
        self._caught_up = 0
        self.allocator = Allocator(
            cluster,
            lab.settings,
            lab.policy,
            self.elector,
            on_cycle=self.cycles.append,
            clock=clock,
            pace=Pace(watch_seconds=(3600.0, 3600.0)),
        )

    def start(self) -> None:
        """Start the caches, and wait until they are synced."""
        self.allocator.caches.start()
        eventually(lambda: self.allocator.caches.wait_synced(0.5), "the caches are full")
        self.allocator.ask("start")

    def stop(self) -> None:
        """Kill it and end its threads: what it has not sent yet is never sent."""
        self.line.is_dead = True
        caches = self.allocator.caches
        for reflector in (caches.nodes, caches.queues, caches.workflows, caches.pods, *caches.optional.members):
            reflector.stop()
        self.allocator.executor.close()

    def lead(self) -> None:
        """Try once to acquire or renew the Lease; every third second, as the elector's own thread does."""
        now = self._lab.time.now()
        if now - self._led >= 3.0:
            self._led = now
            if not self.elector.renew():
                with suppress(DiflowError):
                    self.elector.try_acquire()

    def catch_up(self) -> None:
        """Wait until the caches have all that the server has."""
        version = self._lab.api.version
        if version == self._caught_up:
            return
        caches = self.allocator.caches
        optional = (
            (caches.claims, PERSISTENT_VOLUME_CLAIM),
            (caches.volumes, PERSISTENT_VOLUME),
            (caches.quotas, RESOURCE_QUOTA),
            (caches.classes, STORAGE_CLASS),
            (caches.limits, CSI_NODE),
        )
        pairs = (
            (caches.workflows, WORKFLOW, MANAGED, ""),
            (caches.pods, POD, "", LIVE),
            (caches.nodes, NODE, "", ""),
            (caches.queues, CONFIG_MAP, "", f"metadata.name={self._lab.settings.queues_config}"),
            *((reflector, kind, "", "") for reflector, kind in optional if not reflector.trouble),
        )
        for reflector, kind, labels, fields in pairs:
            ends = real_time.monotonic() + 30
            while _versions(reflector) != self._lab.versions(kind, labels, fields):
                assert real_time.monotonic() < ends, f"the cache of {kind.plural} does not follow: {reflector.trouble}"
                real_time.sleep(0.0005)
            with reflector._turn:
                pass  # the handlers of the changes have run too
        self._caught_up = version

    def turn(self) -> Cycle | None:
        """One turn of the daemon's loop, if it has something to do."""
        self.allocator.caches.dry_runs.ask_due()
        return self.allocator.turn() if self.allocator.has_work() else None


class Lab:
    """A fake cluster with its allocators."""

    def __init__(
        self,
        api: FakeApi,
        *,
        direct: bool = True,
        policy: Policy | None = None,
        settings: AllocatorSettings | None = None,
        runs: Runs = lambda _: (FOR_EVER, 0),
        makes: type[FakeCluster] = FakeCluster,
        **options: Any,
    ) -> None:
        self.api, self.direct = api, direct
        self.time = Time()
        self.cluster = makes(api, self.time, runs=runs, **options)
        self.api.add(SECRET, {"metadata": {"name": signature.NAME}}, namespace="diflow-system")
        self.policy = policy or load_policy("fit", PolicySettings(least_seconds_between_resizes=5.0))
        self.settings = settings or AllocatorSettings(writers=1, debounce_seconds=0.0, reading_share=100.0)
        self.daemon: Daemon | None = None
        self._daemons = 0
        self._told = 0.0
        self.dry_runs = False
        """The allocator asks what admission adds."""
        self.is_silent = False
        """The server sends no bookmarks, so that caches without changes become stale."""

    # --- the allocator ------------------------------------------------------------------------------------------------

    def new_daemon(self) -> Daemon:
        """Start a process, which does not lead yet."""
        self._daemons += 1
        made = Daemon(self, f"daemon-{self._daemons}")
        made.allocator.caches.dry_runs.is_on = self.dry_runs
        made.start()
        return made

    def begin(self) -> Daemon:
        """Start the allocator, and wait until it leads."""
        self.daemon = self.new_daemon()
        self.let_lead(self.daemon)
        return self.daemon

    def let_lead(self, daemon: Daemon) -> None:
        """Let time pass until it leads."""
        for _ in range(60):
            if daemon.elector.is_leader():
                return
            self.pass_time(1.0)
            daemon.lead()
        raise AssertionError(f"it does not lead: {daemon.elector.trouble or daemon.elector.holder}")

    def end(self) -> None:
        """Kill the allocator."""
        if self.daemon is not None:
            self.daemon.stop()
            self.daemon = None

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float = 1.0) -> None:
        """Let time pass for all components but the allocator."""
        self.cluster.step(seconds)
        if self.time.now() - self._told >= 30.0 and not self.is_silent:
            self._told = self.time.now()
            self.api.bookmark()
            if self.daemon is not None and not self.daemon.line.is_cut:
                caches = self.daemon.allocator.caches
                for reflector in (caches.nodes, caches.queues, caches.workflows, caches.pods):
                    eventually(lambda r=reflector: r.age_seconds == 0.0, "a bookmark is seen")  # type: ignore[misc]

    def step(self, seconds: float = 1.0) -> None:
        """Let a second pass, and the allocator work until it has nothing to do."""
        self.pass_time(seconds)
        if self.daemon is not None:
            self.daemon.lead()
            for _ in range(8):
                self.daemon.catch_up()
                if self.daemon.turn() is None:
                    break

    def until(self, true: Callable[[], object], what: str, *, seconds: int = 45) -> None:
        """Let time pass until the condition holds: by default less than a period, so that a plan needs a trigger."""
        for _ in range(seconds):
            if true():
                return
            self.step()
        assert true(), f"not in {seconds} s: {what}\n{self.story()}"

    def rest(self, *, seconds: int = 15, limit: int = 600) -> None:
        """Let time pass until nothing has changed for this long."""
        quiet, seen = 0, self._happenings()
        for _ in range(limit):
            self.step()
            now = self._happenings()
            quiet, seen = (quiet + 1, seen) if now == seen else (0, now)
            if quiet >= seconds:
                return
        raise AssertionError(f"no rest in {limit} s\n{self.story()}")

    def _happenings(self) -> int:
        """Counts the changes of objects, without renewals of the Lease and bookmarks."""
        with self.api.changed:
            return sum(1 for _, _, path, _ in self.api.events if path and not path.endswith("leases"))

    # --- what is so ---------------------------------------------------------------------------------------------------

    def versions(self, kind: Kind, labels: str, fields: str) -> dict[tuple[str, str], str]:
        wanted = kind.path(None)
        with self.api.changed:
            return {
                (obj["metadata"]["namespace"], name): obj["metadata"]["resourceVersion"]
                for path, objects in self.api.objects.items()
                if is_inside(path, wanted)
                for name, obj in objects.items()
                if chosen(obj, labels, fields)
            }

    def allocation(self, job: str) -> dict[str, list[str]]:
        """The nodes of each task, by the Workflow's allocation."""
        text = self.cluster.workflow(job)["metadata"]["annotations"].get("diflow/allocation")
        return dict(json.loads(text)["nodes"]) if text else {}

    def decision(self, job: str) -> Json:
        text = self.cluster.workflow(job)["metadata"]["annotations"].get("diflow/decision")
        return dict(json.loads(text)) if text else {}

    def annotation(self, job: str, name: str) -> str:
        """The annotation `diflow/<name>` of the Workflow of a job, "" without one."""
        return str(self.cluster.workflow(job)["metadata"]["annotations"].get(f"diflow/{name}") or "")

    def events(self, job: str) -> list[tuple[str, str]]:
        """(reason, message) of the Events of a job, in order."""
        with self.api.changed:
            found = self.api.objects.get("/api/v1/namespaces/default/events", {}).values()
            return [(e["reason"], e["message"]) for e in found if e["involvedObject"]["name"] == job]

    def story(self) -> str:
        """The state of all objects, for the message of a failed test."""
        out = [f"time {self.time.now():g}"]
        with self.api.changed:
            jobs = dict(self.api.objects.get(WORKFLOW.path("default"), {}))
        for name, obj in jobs.items():
            parameters = self.cluster.parameters(name)
            shown = {
                k: v for k, v in parameters.items() if k in ("rounds", "current", "granted", "released", "incarnations")
            }
            out.append(
                f"{name}: {self.cluster.phase(name)} {shown} {obj['metadata']['annotations'].get('diflow/allocation')}"
            )
            out.append(f"   {self.decision(name)}")
            for replica, pod in sorted(self.cluster.of(name).items()):
                where = "gated" if is_gated(pod) else pod["spec"].get("nodeName") or "unbound"
                path = pod["metadata"]["annotations"]["workflows.argoproj.io/node-name"]
                out.append(f"   {replica}: {pod['status']['phase']} {where} {path}")
            out += [f"   {reason}: {message}" for reason, message in self.events(name)]
        out += self.cluster.problems
        return "\n".join(out)


def task(name: str = "worker", *, replicas: int = 1, cpu: str = "1", **fields: Any) -> Task:
    container = {"name": "di-container", "image": "x", "command": ["x"], "resources": {"requests": {"cpu": cpu}}}
    return Task(name=name, replicas=replicas, template={"spec": {"containers": [container]}}, **fields)


def job(name: str = "job", *tasks: Task, **fields: Any) -> DIJob:
    return DIJob(name=name, tasks=tasks or (task(),), scheduling="gang", **fields)


@contextmanager
def lab(**options: Any) -> Iterator[Lab]:
    """A cluster with an allocator, which leads unless `begin` is False."""
    begin, kind = options.pop("begin", True), options.pop("made", Lab)
    with serving() as api:
        made: Lab = kind(api, **options)
        try:
            if begin:
                made.begin()
            yield made
        finally:
            made.end()


def _versions(reflector: Reflector) -> dict[tuple[str, str], str]:
    with reflector._lock:
        return {key: entry.version for key, entry in reflector._entries.items()}
