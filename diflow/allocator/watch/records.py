"""The records of jobs for planning: with what their placing needs of their templates (`Needs`).

The caches hold records instead of whole objects, so that thousands of pods take a few megabytes. Nothing here raises on
an edited object: a job that cannot be parsed has the reason in `problem`, and is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import lru_cache, wraps
from hashlib import blake2b
from typing import Any, Final

from diflow.common import keys, limits, quantities
from diflow.common.jsontext import canonical_json
from diflow.common.memo import MIB, remembered
from diflow.common.predicates import PodRules, Where
from diflow.dijob import memory, stored
from diflow.dijob.conditions import host_ports, read_where, rules_of_template
from diflow.dijob.pods import MONITOR_RESOURCES, read_template, work_container
from diflow.dijob.rules import hosts
from diflow.dijob.settings import RenderSettings
from diflow.dijob.stored import NOTHING, StoredSpec, StoredTask
from diflow.record import parameters, untrusted
from diflow.record.argo.nodes import nodes
from diflow.record.job import (
    FORGOTTEN,
    Argo,
    JobRecord,
    Needs,
    Role,
    Terms,
    Texts,
    argo_with_tree,
    record_of,
    unreadable,
)
from diflow.record.live import Live
from diflow.record.namespace import applications
from diflow.record.node import node_record_of
from diflow.record.nodecheck import Record
from diflow.record.pod import PodRecord, pod_record_of, shared
from diflow.record.requests.ranges import is_elastic
from diflow.record.status import messages

Json = dict[str, Any]
_MANY_CONTAINERS: Final = 200
"""A pod of fewer containers, with their states, is read in 4 ms. A replica has three times 16 at most."""


def _held_if_hostile(read: Callable[[Mapping[str, Any]], JobRecord]) -> Callable[[Mapping[str, Any]], JobRecord]:
    """Turn any error in reading a Workflow into the `problem` of that job, as well as a size beyond
    `diflow.common.limits`, of which nothing is kept."""

    @wraps(read)
    def careful(obj: Mapping[str, Any]) -> JobRecord:
        try:
            found = read(obj)
            problem = found.problem or too_large(found)
        except Exception as error:  # the Workflow's text is the user's
            return replace(unreadable(obj, _why(error)), terms=Terms(is_gang=True))  # others are not read here
        if problem == found.problem:
            return found
        live = replace(found.live, granted={}, incarnations={})
        return replace(found, problem=problem, needs=replace(found.needs, roles=()), live=live)

    return careful


def _why(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"[:200]
    return f"its Workflow cannot be read ({text}): undo what was edited in it, or delete the job"


def too_large(read: JobRecord) -> str:
    """Why a job is too large to be planned by what is asked of it and granted now, in one sentence; "" if it is not.
    What its spec alone says is checked by `StoredSpec`."""
    granted = sum(read.live.counts.values())
    replicas = max(sum(max(role.high, role.desired) for role in read.needs.roles), granted)
    return stored.too_many("replicas in all", replicas, limits.MOST_REPLICAS)


def with_promises(read: JobRecord, former: JobRecord) -> JobRecord:
    """A job that cannot be read any more, with what it was promised: its pods that are not bound yet are on their way.
    `former`: its record while it could be read."""
    if former.identity.uid != read.identity.uid or read.has_ended:
        return read
    notes = replace(read.notes, allocation=former.notes.allocation)
    return replace(read, notes=notes, needs=former.needs, live=_of_round(former.live))


def _of_round(live: Live) -> Live:
    """What is known of the current round alone."""
    current = live.current
    replicas = {f"{current}/{task}/{index}" for task, count in live.counts.items() for index in range(count)}
    suffixes = {name: live.incarnations[name] for name in replicas & live.incarnations.keys()}
    members = frozenset(f"{name}{suffixes.get(name, '')}" for name in replicas)
    return Live((current,), current, {current: live.counts}, live.released & members, suffixes, live.memory)


def without_room(read: JobRecord, most_mib: int) -> JobRecord:
    """What is kept of a job if its namespace has no room for more: who it is, and what it was promised."""
    why = (
        f"the jobs of namespace {read.identity.namespace} fill the {most_mib} MiB of memory that the allocator keeps "
        "for one namespace: this one is held until others of them are deleted or smaller"
    )
    found = JobRecord(
        read.identity,
        chain=read.chain,
        terms=read.terms,
        argo=Argo(created_seconds=read.argo.created_seconds, phase=read.argo.phase, shutdown=read.argo.shutdown),
        problem="" if read.has_ended else read.problem or why,
    )
    return with_promises(found, read)


def trim_pod(obj: Json) -> Json | None:
    """A pod as the cache keeps it; None if it has ended."""
    pod = pod_record_of(obj)
    return {"read": pod} if pod.is_live else None


def may_wait(former: Json, obj: Json) -> bool:
    """Whether a change of a pod may be read later, if its namespace has used its share: the pod is so large that it
    takes long, and goes on to use the node that it has used before, or none. `former`: as the cache keeps it."""
    spec, status = untrusted.sub(obj, "spec"), untrusted.sub(obj, "status")
    lists = [spec.get("containers"), spec.get("initContainers"), status.get("containerStatuses")]
    if sum(len(one) for one in lists if isinstance(one, list)) <= _MANY_CONTAINERS:
        return False
    pod: PodRecord = former["read"]
    return (
        pod.host == (spec.get("nodeName") or "")
        and pod.is_terminating == bool(obj["metadata"].get("deletionTimestamp"))
        and len(pod.gates) == len(spec.get("schedulingGates") or ())
        and status.get("phase") not in ("Succeeded", "Failed")
    )


def trim_node(obj: Json, *, ending: Set[str] = frozenset()) -> Json | None:
    """A node as the cache keeps it. A heartbeat is no change: with hundreds of nodes, some come each second. `ending`:
    the conditions by which nodes announce their end."""
    return {"read": node_record_of(obj, ending=ending)}


@_held_if_hostile
def planning_record_of(obj: Mapping[str, Any]) -> JobRecord:
    """The record of a Workflow with what placing the job needs, and without the texts that were read for it; with
    `problem` if it cannot be parsed. Of a job that has ended or continues elsewhere nothing is planned."""
    found = record_of(obj)
    texts = replace(found.texts, check_text=None, report=None)
    if found.chain.continued_in or found.has_ended:
        live = Live((), "") if found.chain.continued_in else Live()
        given = parameters.wishes(texts.parameters) if found.has_ended else texts.parameters
        kept = Texts(given, description=texts.description)
        return replace(found, submitted=NOTHING, live=live, course=FORGOTTEN, texts=kept, problem="", complaints=())
    known, is_offloaded = ((), False) if found.problem else nodes(obj)
    if found.is_stopping or found.argo.is_being_deleted:
        texts = replace(texts, ending=messages.ending(found, known))
    if found.problem:
        return replace(found, submitted=NOTHING, live=Live(), course=FORGOTTEN, texts=texts)
    spec = found.spec
    return replace(
        found,
        argo=argo_with_tree(found, known, is_offloaded=is_offloaded),
        # What the roles are made of is not kept.
        submitted=found.submitted.trimmed,
        course=FORGOTTEN,
        notes=found.notes
        if spec.node_check is None
        else replace(found.notes, checks=Record.parse(found.texts.check_text)),
        needs=Needs(
            roles=_roles(found),
            has_short_hosts=hosts.are_short(sum(task.most for task in spec.tasks), (task.pod for task in spec.tasks)),
            application=application_of(found) if spec.is_preemptible else "",
        ),
        texts=texts,
    )


def application_of(record: JobRecord) -> str:
    """The application of a job: by its annotation, or by the image and the command of its elastic task."""
    tasks = record.spec.tasks
    containers = next((task for task in tasks if is_elastic(task, {})), tasks[0]).pod["containers"]
    main = containers[work_container(containers)]
    return record.texts.application or applications.name_of(
        namespace=record.identity.namespace, image=main.get("image") or "", command=main.get("command") or ()
    )


def _roles(record: JobRecord) -> tuple[Role, ...]:
    """The tasks that the user asks for."""
    spec, out = record.spec, []
    shared_claims = tuple(
        (volume.get("name") or "", claim)
        for volume in spec.volumes
        if (claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"))
    )
    for i, task in enumerate(spec.tasks):
        found = record.range_of(i)
        mib = record.live.memory.get(task.name)
        out.append(
            Role(
                task.name,
                *_pod_needs((bytes(task.template), mib, spec.monitor is not None)),
                submitted=task.replicas,
                low=found.low,
                high=found.high,
                desired=found.desired,
                unit=task.node_unit or 1,
                asked_memory=_asked_memory(task) if mib is not None else 0,
                max_memory=quantities.amount("memory", task.max_memory, "maxMemory") if task.max_memory else None,
                rules=_rules_of(record, task, shared_claims),
                kind=_kind((bytes(task.template), _of_job(spec, record.terms.priority))),
            )
        )
    return tuple(out)


def _rules_of(record: JobRecord, task: StoredTask, shared_claims: tuple[tuple[str, str], ...]) -> PodRules:
    """What the pods of a task ask for of others. Few rules depend on a label of one job, so that most are read once."""
    template = bytes(task.template)
    own = tuple(labels_of(record.name, task.name, task.type).items()) if b"LabelKeys" in template else ()
    return _rules((template, record.identity.namespace, own, shared_claims))


def _of_job(spec: StoredSpec, priority: str) -> bytes:
    """What the pods of all tasks have of their job that admission may look at."""
    return f"{priority} {spec.monitor is not None} {spec.node_check} {spec.volumes}".encode(errors="replace")


@remembered(most_bytes=4 * MIB, size=lambda key: 200 + len(key[0]) + len(key[1]))
def _kind(key: tuple[bytes, bytes]) -> bytes:
    """The digest of (a pod template, what its job adds), without programs and their variables: a thousand trials of
    other arguments are of one kind."""
    template, of_job = key
    try:
        found = untrusted.load(template.decode())
        for name in ("containers", "initContainers"):
            for container in untrusted.mappings(found["spec"].get(name)):
                for part in ("command", "args", "env"):
                    container.pop(part, None)  # type: ignore[attr-defined]
        text = canonical_json(found).encode(errors="replace")
    except (ValueError, KeyError, AttributeError):  # no dry run can be made of it either
        text = template
    return blake2b(text + b"\0" + of_job, digest_size=16).digest()


def labels_of(job: str, task: str, type_: str) -> dict[str, str]:
    """The labels by which users select the pods of a task, beside those of its template."""
    return {keys.JOB: job, keys.OPERATOR: keys.OPERATOR_VALUE, keys.TASK_NAME: task, keys.TASK_TYPE: type_}


_PodNeeds = tuple[Mapping[str, int], Where, tuple[int, ...]]
"""What each replica of a task requests, where it may be, and its host ports."""


@remembered(most_bytes=8 * MIB, size=lambda key: 400 + 2 * len(key[0]))
def _rules(key: tuple[bytes, str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]) -> PodRules:
    """Of (a pod template, its namespace, labels that its pods have beside its own, the claims of the job's volumes by
    their names)."""
    template, namespace, more, shared = key
    return rules_of_template(read_template(template), namespace=namespace, more=dict(more), shared=shared)


@remembered(most_bytes=8 * MIB, size=lambda key: 200 + len(key[0]))  # a result takes up to 16 times that
def _pod_needs(key: tuple[bytes, int | None, bool]) -> _PodNeeds:
    """Of (a pod template, the MiB of its main container if they are not its own, whether there is a monitor)."""
    template, mib, is_monitored = key
    spec = read_template(template)["spec"]
    given: list[Mapping[str, Any]] = [*spec["containers"]]
    main = work_container(given)
    resources = _resources(given[main])
    given[main] = {**given[main], "resources": resources if mib is None else memory.with_memory(resources, mib)}
    if is_monitored:
        given.append({"name": keys.MONITOR_CONTAINER, "resources": MONITOR_RESOURCES})
    return shared(quantities.of_pod({**spec, "containers": given})), read_where(spec), host_ports(spec, given)


def _resources(main: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a main container, the default ones if it has none."""
    return main.get("resources") or _defaults().default_resources


def _asked_memory(task: StoredTask) -> int:
    """The MiB of its main container as submitted."""
    containers = task.pod["containers"]
    return memory.of_container(_resources(containers[work_container(containers)]))[0]


@lru_cache(maxsize=1)
def _defaults() -> RenderSettings:
    return RenderSettings()
