"""What the cache keeps of a Workflow and of a pod, instead of the whole object.

Users can edit these objects, so no content raises here. Thousands of pods need a few megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.common import keys
from diflow.common.deadlines import Deadlines
from diflow.common.names import UNKNOWN_POOL, pool_number
from diflow.dijob.stored import StoredTask
from diflow.record import chain, modules, nodecheck, untrusted
from diflow.record.argo.nodes import owner_of
from diflow.record.job import record_of
from diflow.record.modules import Modules
from diflow.record.parameters import LONGEST_PROFILINGS
from diflow.record.ranges import elastic

_HIGHEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class ServedWorkflow:
    """One Workflow of a job. `counts` has the replicas of each task in the current round, in the tasks' order.

    `profilings` is None if this server cannot have written it; `profilings_at` is the index of that parameter, None if
    there is none. `more` is kept for others (`cache.More`). `problem` is why the job cannot be read, or ""; with a
    problem, `tasks` is empty.
    """

    namespace: str
    name: str
    uid: str
    job: str
    version: str = field(compare=False)
    link: Mapping[str, Any]
    tasks: tuple[StoredTask, ...]
    bounds: Mapping[str, tuple[int, int]]
    is_gang: bool
    has_ended: bool
    current: str
    granted: Mapping[str, int]
    counts: Mapping[str, int]
    profilings: str | None
    profilings_at: int | None
    more: Any = None
    problem: str = ""
    check_text: str = ""
    """The results of the node check of a job that has one (`diflow.record.nodecheck`)."""
    check_seconds: float = 0.0
    """The time of that check; 0 of a job without one."""
    may_move: bool = False
    """The gang is placed again if its check finds a node faulty: its allocator has not done so as often as it may."""
    modules: Modules | None = None
    """Of a v1alpha1 job."""
    deadlines: Deadlines | None = None
    """How long its replicas may be quiet; None if the job does not ask for it."""
    pool: int = UNKNOWN_POOL
    """The number of the pool of its nodes; UNKNOWN_POOL on a cluster with one pool."""

    @property
    def is_over(self) -> bool:
        """The job has ended: this Workflow has, and no other continues it."""
        return self.has_ended and not chain.continued_in(self.link)

    @property
    def elastic(self) -> str:
        """The task that a request without a task is about."""
        return elastic(self.tasks, bounds=self.bounds)


@dataclass(frozen=True, slots=True)
class ServedPod:
    """A pod that has not ended. `owner` is the uid of its Workflow, `address` "" while it has none, `index` -1 if it is
    not known. `more` is kept for others (`cache.More`).
    """

    namespace: str
    name: str
    uid: str
    job: str
    workflow: str
    owner: str
    round: str
    task: str
    index: int
    address: str
    port: int
    node: str
    created: str
    is_ending: bool
    on_host_network: bool
    more: Any = None


def read_workflow(obj: Mapping[str, Any], *, more: Any = None) -> ServedWorkflow:
    """What to keep of a job's Workflow."""
    state = record_of(obj)
    check = state.spec.node_check
    tasks = state.spec.tasks if not state.problem else ()
    at = next((i for i, (name, _) in enumerate(state.texts.parameters) if name == keys.PARAM_PROFILINGS), None)
    return ServedWorkflow(
        namespace=state.identity.namespace,
        name=state.identity.name,
        uid=state.identity.uid,
        job=state.name,
        version=state.identity.version,
        link=chain.link(obj),
        tasks=tasks,
        bounds=state.wishes.bounds,
        is_gang=state.terms.is_gang,
        has_ended=state.has_ended,
        current=state.live.current if tasks else "",
        granted=state.live.counts if tasks else {},
        counts={task.name: state.live.running(task.name) for task in tasks},
        profilings=_profilings(obj),
        profilings_at=at,
        problem=state.problem,
        check_text="" if check is None else untrusted.string(_annotation(obj), most=nodecheck.LONGEST),
        check_seconds=0.0 if check is None else float(check.timeout_seconds),
        may_move=check is not None and state.terms.is_gang and nodecheck.moves(state.notes.excluded) < check.max_moves,
        more=more,
        modules=modules.read(obj),
        deadlines=state.spec.deadlines,
        pool=_pool(obj),
    )


def _pool(obj: Mapping[str, Any]) -> int:
    name = untrusted.sub(obj, "metadata", "annotations").get(keys.POOL)
    return pool_number(name) if isinstance(name, str) and len(name) <= keys.LABEL_LIMIT else UNKNOWN_POOL


def _annotation(obj: Mapping[str, Any]) -> Any:
    return untrusted.sub(obj, "metadata", "annotations").get(keys.NODE_CHECK)


def _profilings(obj: Mapping[str, Any]) -> str | None:
    """The parameter's value, which a patch will test; None if this server cannot have written it."""
    given = untrusted.mappings(untrusted.sub(obj, "spec", "arguments").get("parameters"))
    value = next((p.get("value") for p in given if p.get("name") == keys.PARAM_PROFILINGS), None)
    return value if isinstance(value, str) and len(value) <= LONGEST_PROFILINGS else None


def read_pod(obj: Mapping[str, Any], *, more: Any = None) -> ServedPod:
    """What to keep of a job's pod."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return ServedPod(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        job=labels.get(keys.JOB) or "",
        workflow=labels.get(keys.ARGO_WORKFLOW) or "",
        owner=owner_of(obj),
        round=labels.get(keys.ROUND) or "",
        task=labels.get(keys.TASK_NAME) or "",
        index=index if (index := untrusted.whole(annotations.get(keys.TASK_RANK))) is not None else -1,
        address=str(status.get("podIP") or ""),
        port=_port(spec),
        node=str(spec.get("nodeName") or ""),
        created=str(metadata.get("creationTimestamp") or ""),
        is_ending=bool(metadata.get("deletionTimestamp")),
        on_host_network=bool(spec.get("hostNetwork")),
        more=more,
    )


def address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port(spec: Mapping[str, Any]) -> int:
    for container in spec.get("containers") or []:
        for port in container.get("ports") or []:
            number = port.get("containerPort")
            if port.get("name") == keys.PORT_NAME and type(number) is int and 1 <= number <= _HIGHEST_PORT:
                return number
    return keys.PORT
