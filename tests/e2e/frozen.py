"""A leader with many writes under way, for a test that stops it: `python -m tests.e2e.frozen NAMESPACE < PLAN`.

It leads by the Lease diflow-allocator of the namespace, and sends the writes of the plan by the allocator's executor.
Each of them is held back after the check of the Lease, where `transport.request` would send it. "held" on stdout means
that all are. After a line on stdin they are sent, and the statuses of the responses are written to stdout as JSON:
{what: {status: count}}.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import urllib3

from diflow.allocator.watch.records import planning_record_of
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Write
from diflow.common import keys
from diflow.common.clock import SYSTEM
from diflow.common.errors import DiflowError
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.leader_election import Elector, Times
from diflow.record.identity import Identity

LEASE_SECONDS = 4.0


class Holding:
    """A transport that holds back what it is asked to send by this thread's writes."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._mine = threading.local()
        self.held = threading.Semaphore(0)
        self.go = threading.Event()
        self._few = threading.Semaphore(16)
        self.statuses: dict[str, Counter[int]] = {}
        self._lock = threading.Lock()

    def what(self, what: str) -> None:
        """Name the writes of this thread."""
        self._mine.what = what

    def request(self, method: str, url: str, **options: Any) -> Any:
        what = getattr(self._mine, "what", "")
        if not what:
            return self._transport.request(method, url, **options)
        self.held.release()
        self.go.wait()
        with self._few:
            answer = self._transport.request(method, url, **{**options, "timeout": urllib3.Timeout(60)})
        with self._lock:
            self.statuses.setdefault(what, Counter())[answer.status] += 1
        return answer


class _Unknown:
    """Nothing is known of the cluster's objects."""

    read = staticmethod(planning_record_of)

    def apply_write_response(self, *_: object) -> None: ...

    def may_read(self, _: str) -> bool:
        return True

    def paid_by(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()


def writer(cluster: Cluster, *, namespace: str, identity: str) -> tuple[Elector, Executor]:
    """A candidate for the allocator's Lease, and what sends writes under it, one at a time."""
    elector = Elector(
        cluster,
        name=keys.ALLOCATOR,
        namespace=namespace,
        identity=identity,
        times=Times(LEASE_SECONDS, 0.5),
    )
    executor = Executor(
        cluster,
        elector,
        objects=_Unknown(),
        progress=lambda: None,
        sign=lambda *_: "",
        mark=lambda _: {},
        workers=1,
        clock=SYSTEM,
    )
    return elector, executor


def main() -> None:
    namespace = sys.argv[1]
    plan = json.loads(sys.stdin.readline())
    cluster = Cluster.connect()
    elector, executor = writer(cluster, namespace=namespace, identity="frozen")
    line = executor._cluster._transport = Holding(cluster._transport)
    elector.acquire(threading.Event())
    with ThreadPoolExecutor(len(plan)) as pool:
        for one in plan:
            pool.submit(_send, executor, line, one)
        for _ in plan:
            line.held.acquire()
        say("held")
        sys.stdin.readline()
        line.go.set()
    say(json.dumps({what: dict(found) for what, found in line.statuses.items()}))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _send(executor: Executor, line: Holding, one: dict[str, Any]) -> None:
    """Check the Lease, then send one write as the executor does."""
    what = one["what"]
    line.what(what)
    epoch = str(executor._elector.check())
    target = Identity(one["namespace"], one["name"], one["uid"], one["version"])
    cluster = executor._cluster
    named: Any = {"namespace": target.namespace, "manager": executor._elector.writes_as(epoch)}
    try:
        if what == "part":
            cluster.create(WORKFLOW, one["body"], **named)
        elif what == "proof":  # it names no version
            cluster.patch(
                WORKFLOW, target.name, {"metadata": {"uid": target.uid, "annotations": {"late": "1"}}}, **named
            )
        else:
            executor._send(_write(what, target), epoch)
    except DiflowError:
        return


def _write(what: str, target: Identity) -> Write:
    if what == "status":
        return Write(POD, target, "job", {"status": {"message": "late"}}, subresource="status")
    if what == "gate":
        return Write(POD, target, "job", {"spec": {"schedulingGates": None, "nodeSelector": {"late": "yes"}}})
    if what == "minimal":
        return Write(WORKFLOW, target, "job", {"spec": {"shutdown": "Stop"}}, is_minimal=True)
    return Write(WORKFLOW, target, "job", {"spec": {"shutdown": "Stop"}})


if __name__ == "__main__":
    main()
