"""The records of jobs for planning: with what their placing needs of their templates (`Needs`).

The caches hold records instead of whole objects, so that thousands of pods take a few megabytes. Nothing here raises on
an edited object: a job that cannot be parsed has the reason in `problem`, and is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any

from diflow.common import keys, limits, quantities
from diflow.common.memo import MIB, remembered
from diflow.common.predicates import Where
from diflow.dijob import memory, stored
from diflow.dijob.conditions import read_where
from diflow.dijob.pods import MONITOR_RESOURCES, read_template, work_container
from diflow.dijob.rules import hosts
from diflow.dijob.settings import RenderSettings
from diflow.dijob.stored import NOTHING, StoredTask
from diflow.record import untrusted
from diflow.record.argo.nodes import nodes
from diflow.record.identity import Identity
from diflow.record.job import ENDED, Argo, JobRecord, Needs, Role, Texts, record_of, with_tree
from diflow.record.live import Live
from diflow.record.namespace import applications
from diflow.record.node import node_record_of
from diflow.record.nodecheck import Record
from diflow.record.pod import pod_record_of, shared
from diflow.record.ranges import is_elastic
from diflow.record.status import messages

Json = dict[str, Any]


def _held_if_hostile(read: Callable[[Mapping[str, Any]], JobRecord]) -> Callable[[Mapping[str, Any]], JobRecord]:
    """Turn any error in reading a Workflow into the `problem` of that job, as well as a size beyond
    `diflow.common.limits`, of which nothing is kept."""

    @wraps(read)
    def careful(obj: Mapping[str, Any]) -> JobRecord:
        try:
            found = read(obj)
            problem = found.problem or too_large(found)
        except Exception as error:  # the Workflow's text is the user's
            return _unreadable(obj, error)
        if problem == found.problem:
            return found
        live = replace(found.live, granted={}, incarnations={})
        return replace(found, problem=problem, needs=replace(found.needs, roles=()), live=live)

    return careful


def _unreadable(obj: Mapping[str, Any], error: Exception) -> JobRecord:
    """A job of which only the Workflow's identity is known. Its pods still use capacity."""
    problem = f"its Workflow cannot be read ({_error_text(error)}): undo what was edited in it, or delete the job"
    phase = untrusted.string(untrusted.sub(obj, "status").get("phase"))
    return JobRecord(Identity.of(obj), argo=Argo(phase=phase), problem="" if phase in ENDED else problem)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def too_large(read: JobRecord) -> str:
    """Why a job is too large to be planned by what is asked of it and granted now, in one sentence; "" if it is not.
    What its spec alone says is checked by `StoredSpec`."""
    granted = sum(read.live.counts.values())
    replicas = max(sum(max(role.high, role.desired) for role in read.needs.roles), granted)
    return stored.too_many("replicas in all", replicas, limits.MOST_REPLICAS)


def trim_pod(obj: Json) -> Json | None:
    """A pod as the cache keeps it; None if it has ended."""
    pod = pod_record_of(obj)
    return {"metadata": _thin(obj), "read": pod} if pod.is_live else None


def trim_workflow(obj: Json) -> Json | None:
    """A Workflow as the cache keeps it."""
    return {"metadata": _thin(obj), "read": planning_record_of(obj)}


def trim_node(obj: Json) -> Json | None:
    """A node as the cache keeps it."""
    return {"metadata": _thin(obj), "read": node_record_of(obj)}


@_held_if_hostile
def planning_record_of(obj: Mapping[str, Any]) -> JobRecord:
    """The record of a Workflow with what placing the job needs, and without the texts that were read for it; with
    `problem` if it cannot be parsed. Of a job that has ended or continues elsewhere nothing is planned."""
    found = record_of(obj)
    texts = replace(found.texts, check_text="", report=None)
    if found.chain.continued_in or found.has_ended:
        live = Live((), "") if found.chain.continued_in else Live()
        kept = Texts(texts.parameters, description=texts.description)
        return replace(found, submitted=NOTHING, live=live, texts=kept, problem="", complaints=())
    known, is_offloaded = ((), False) if found.problem else nodes(obj)
    if found.is_stopping or found.argo.is_being_deleted:
        texts = replace(texts, ending=messages.ending(obj, found, known))
    if found.problem:
        return replace(found, submitted=NOTHING, live=Live(), texts=texts)
    spec = found.spec
    return replace(
        with_tree(found, known, is_offloaded=is_offloaded),
        # What the roles are made of is not kept.
        submitted=found.submitted.trimmed,
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
            )
        )
    return tuple(out)


_PodNeeds = tuple[Mapping[str, int], Where, tuple[int, ...]]
"""What each replica of a task requests, where it may be, and its host ports."""


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
    ports = tuple(port["hostPort"] for one in given for port in one.get("ports") or () if port.get("hostPort"))
    return shared(quantities.of_pod({**spec, "containers": given})), read_where(spec), ports


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


def _thin(obj: Json) -> Json:
    metadata = obj["metadata"]
    return {name: metadata.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
