"""Reads the cluster once, with the user's own rights, and plans as the allocator would: for the command line.

Nothing is written, and no daemon has to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from diflow.allocator.gpu_pools import Pools, parse_pools
from diflow.allocator.inspect.lists import JOBS, Lists, begin
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.views import QueueView
from diflow.allocator.plan.guard import guarded, has_fault
from diflow.allocator.plan.inputs import Picture, left_in_place, picture
from diflow.allocator.plan.isolation import MOST_CULPRITS, culprit, message
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.units import in_units
from diflow.allocator.run.control_channel import AllocatorStatus, home, read_status
from diflow.allocator.settings import AllocatorSettings, allocator_settings
from diflow.allocator.watch.cluster_state import ClusterState, assemble
from diflow.allocator.watch.dry_runs import asked
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.missing_nodes import MissingNodes
from diflow.allocator.watch.queues import QueueFile, read_file
from diflow.allocator.watch.records import planning_record_of
from diflow.allocator.watch.selectors import LIVE
from diflow.allocator.watch.volumes import UNKNOWN, Volumes
from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import InvalidError, NotFoundError, UnauthorizedError
from diflow.jobs import waiting
from diflow.jobs.checks.queues import access
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, CSI_NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS
from diflow.record.job import JobRecord
from diflow.record.node import node_record_of
from diflow.record.pod import pod_record_of
from diflow.record.waiting import from_metadata


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster at one moment, as the policy sees it, and the status of its allocator.

    `limited`: why it is the jobs and pods of one namespace alone, without nodes; None if it is the whole cluster.
    """

    state: ClusterState
    picture: Picture
    allocator: AllocatorStatus
    now: float
    settings: AllocatorSettings
    limited: UnauthorizedError | None = None

    @property
    def not_shown(self) -> str:
        """What cannot be shown, and why; "" for nothing."""
        if self.limited is None:
            return ""
        return (
            "jobs of other namespaces, nodes, what queues hold and deserve, and what would be decided now are not "
            f"shown: {self.limited}"
        )

    def job(self, title: str) -> Job:
        """The job with this "namespace/name". Raises NotFoundError."""
        for job in self.state.jobs.values():
            if job.title == title and not job.is_superseded:
                return job
        raise NotFoundError(f"there is no job {title} under the allocator")

    def index(self, key: str) -> int:
        """The row of a job ("namespace/name") in the snapshot. Raises NotFoundError if it has none."""
        try:
            return self.picture.snapshot.job_names.index(key)
        except ValueError:
            raise NotFoundError(f"there is no job {key} under the allocator") from None


def look(
    cluster: Cluster,
    *,
    namespace: str | None = None,
    read: Sequence[dict[str, Any]] = (),
    lists: Lists | None = None,
    clock: Clock = SYSTEM,
) -> Seen:
    """Read nodes, pods, jobs and queues. `namespace`: the allocator's, if known. `read`: Workflows that were just read,
    as the list has only the metadata of gangs that wait: of these, admission is asked about the pods. `lists`: those
    that were begun before.

    Of a user who may not read the whole cluster: the jobs and pods of the namespace of `cluster`. Raises
    UnauthorizedError that names the missing right.
    """
    lists = lists or begin(cluster)
    place = namespace or home(cluster)[0]
    settings = allocator_settings(namespace=place)
    limited: UnauthorizedError | None = None
    try:
        nodes = [node_record_of(node) for node in lists.nodes.result()]
        found, heads = lists.pods.result(), lists.waiting.result()
        queues, trouble = _queues(cluster, settings)
    except UnauthorizedError as error:
        limited, nodes, heads = error, [], None
        found = cluster.list_all(POD, fields=LIVE)
        queues, trouble = _public_queues(cluster, settings)
    pods = [pod_record_of(pod) for pod in found]
    own = {workflow["metadata"].get("uid") for workflow in read}

    def whole(workflow: dict[str, Any]) -> JobRecord:
        made = planning_record_of(workflow)
        return asked(cluster, workflow, made) if workflow["metadata"].get("uid") in own else made

    jobs = waiting.each(
        cluster,
        of_head=lambda head: planning_record_of(from_metadata(head)),
        of_workflow=whole,
        labels=JOBS,
        everywhere=limited is None,
        heads=heads,
        read=read,
    )
    live = [job for job in jobs if not job.has_ended]
    state = assemble(live, nodes, [pod for pod in pods if pod.is_live], queues.queues, trouble, rules=queues.rules)
    if any(role.rules.claims for job in live for role in job.needs.roles):
        state = replace(state, volumes=_volumes(cluster))
    seen = see(
        state,
        read_status(cluster, namespace=namespace, now=clock.wall()),
        settings,
        now=clock.wall(),
    )
    return replace(seen, limited=limited)


def see(state: ClusterState, allocator: AllocatorStatus, settings: AllocatorSettings, *, now: float) -> Seen:
    """A cluster state as the policy sees it. A missing node with pods of jobs counts as missing since now."""
    state = replace(state, nodes=MissingNodes().among(state.nodes, state.pods, now=now))
    return Seen(state, _picture(state, settings, _pools(allocator, settings), now), allocator, now, settings)


def decide(seen: Seen, policy: str = "") -> tuple[Picture, Plan]:
    """What a policy (by default that of the cluster's allocator) would decide now, by the daemon's procedure.

    Raises InvalidError if it returns no usable plan, UnauthorizedError if the whole cluster is not seen.
    """
    if seen.limited is not None:
        raise seen.limited
    name = policy or seen.allocator.policy or seen.settings.policy
    asked = load_policy(name)
    shown = seen.picture
    out: dict[str, str] = {}
    plan, trouble = _ask(asked, shown, seen)
    while has_fault(trouble, asked.name) and len(out) < MOST_CULPRITS:
        worst = culprit(
            [standing.job for standing in shown.standings],
            lambda some: has_fault(_ask(asked, _shown({j.key: j for j in some}, seen), seen)[1], asked.name),
        )
        if worst is None:
            break
        out[worst.key] = message(trouble, worst)
        shown = _shown({key: job for key, job in seen.state.jobs.items() if key not in out}, seen)
        plan, trouble = _ask(asked, shown, seen)
    if trouble:
        raise InvalidError(trouble)
    if left_in_place(shown, plan):
        shown = _shown({key: job for key, job in seen.state.jobs.items() if key not in out}, seen, keep_cordoned=True)
        plan, trouble = _ask(asked, shown, seen)
        if trouble:
            raise InvalidError(trouble)
    return (replace(shown, left_out={**shown.left_out, **out}) if out else shown), plan


def held(seen: Seen, shown: Picture) -> dict[str, str]:
    """Why nothing is planned for a job that has not been read or that fails the policy, by "namespace/name"."""
    found = {job.title: job.read.problem or shown.left_out.get(key, "") for key, job in seen.state.jobs.items()}
    return {title: found[title] for title in sorted(found) if found[title]}


def with_job(seen: Seen, workflow: Mapping[str, Any]) -> Seen:
    """The same moment with one more job: a Workflow as it would be submitted."""
    read = planning_record_of(workflow)
    if read.problem:
        raise InvalidError(read.problem)
    read = replace(read, argo=replace(read.argo, created_seconds=seen.now))
    state = replace(seen.state, jobs={**seen.state.jobs, read.key: Job(read, ())})
    return see(state, seen.allocator, seen.settings, now=seen.now)


def used(seen: ClusterState) -> dict[str, dict[str, int]]:
    """The requests of all pods on each node, diflow's and others', terminating ones included."""
    out: dict[str, dict[str, int]] = {name: {} for name in seen.nodes}
    for pod in seen.pods:
        at = out.get(pod.where)
        if at is not None:
            for name, amount in pod.request.items():
                at[name] = at.get(name, 0) + amount
    return out


def _ask(policy: Any, shown: Picture, seen: Seen) -> tuple[Plan, str]:
    optimize = partial(in_units, policy.optimize)
    return guarded(optimize, shown.snapshot, name=policy.name, limit_seconds=seen.settings.policy_seconds)


def _shown(jobs: Mapping[str, Job], seen: Seen, *, keep_cordoned: bool = False) -> Picture:
    """The picture with these jobs alone; the pods of all others count as foreign."""
    pools = _pools(seen.allocator, seen.settings)
    state = replace(seen.state, jobs=jobs)
    return _picture(state, seen.settings, pools, seen.now, keep_cordoned=keep_cordoned)


def _pools(allocator: AllocatorStatus, settings: AllocatorSettings) -> Pools:
    """The leader's pools; if it has published none, those of the settings here."""
    return parse_pools(allocator.pools) or settings.pools


def _picture(
    state: ClusterState, settings: AllocatorSettings, pools: Pools, now: float, *, keep_cordoned: bool = False
) -> Picture:
    capacity = FreeCapacity.of(state.nodes, state.pods, now_seconds=now, lost_after_seconds=settings.lost_after_seconds)
    return picture(state, capacity, now=now, pools=pools, keep_cordoned=keep_cordoned)


def _volumes(cluster: Cluster) -> Volumes:
    """What decides where claims can be mounted; nothing to those who may not read it."""
    try:
        claims = cluster.list_all(PERSISTENT_VOLUME_CLAIM, everywhere=True)
        others = [cluster.list_all(kind) for kind in (PERSISTENT_VOLUME, STORAGE_CLASS, CSI_NODE)]
    except UnauthorizedError:
        return UNKNOWN
    return Volumes.of(claims, *others)


def _public_queues(cluster: Cluster, settings: AllocatorSettings) -> tuple[QueueFile, str]:
    """As much of the queues as every user may know: their names, and the rules."""
    try:
        known = access(cluster, home=settings.namespace, config=settings.queues_config)
    except InvalidError:
        known = None
    if known is None:
        return QueueFile(), "the queues are not known: the allocator has not published their names"
    return QueueFile(tuple(QueueView(name) for name in known.queues), known.rules), ""


def _queues(cluster: Cluster, settings: AllocatorSettings) -> tuple[QueueFile, str]:
    try:
        found = cluster.find(CONFIG_MAP, settings.queues_config, namespace=settings.namespace)
    except UnauthorizedError as error:
        return QueueFile(), f"the queues cannot be read, so none are shown: {error}"
    try:
        return read_file(str(((found or {}).get("data") or {}).get(keys.QUEUES_FILE) or "queues: []")), ""
    except InvalidError as error:
        return QueueFile(), f"the queues cannot be understood, so none are shown: {error}"
