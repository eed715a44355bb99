"""Changes of the replicas of a v1alpha1 job. A change is stored in the job's Workflow before the answer.

What is to be changed is computed from the Workflow as it is read for each try, so that of two requests both count.
"""

from __future__ import annotations

import secrets
import string
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any, Final

from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, InvalidError
from diflow.common.limits import MOST_REPLICAS
from diflow.common.quantities import exact
from diflow.contrib.di_orchestrator import modules
from diflow.contrib.di_orchestrator.modules import (
    AGGREGATOR,
    COLLECTOR,
    DDP_LEARNER,
    GPU,
    LEARNER,
    MOST_GPUS,
    PORTS,
    Group,
    Modules,
    Replica,
)
from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE, WORKFLOW
from diflow.server.api.cache import Cache
from diflow.server.api.reading import served_record_of
from diflow.server.api.scale_requests import ScaleRequests, check_readable
from diflow.server.http.errors import conflict, not_found, unprocessable

Json = dict[str, Any]
Round = Mapping[str, Group]

_ALPHABET: Final = string.ascii_lowercase + string.digits
_HIGHEST_PORT: Final = 65_535
_NODES_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many replicas of a module are asked for, and the resources of each: names of Kubernetes, amounts as text."""

    replicas: int = 0
    resources: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """The GPUs of each."""
        value = exact(self.resources.get(GPU, "0")) or 0
        return ceil(value)


@dataclass(frozen=True, slots=True)
class Change:
    """What a request changes, and the replicas that its answer names: those that stay, and those of `add`."""

    add: tuple[Round, ...] = ()
    release: tuple[Replica, ...] = ()
    named: tuple[Replica, ...] = ()


Plan = Callable[[Modules], Change]


def majority(counts: Iterable[int]) -> int:
    """The most frequent number of GPUs among the nodes that have some, of several the largest; 0 if none has any."""
    found = Counter(count for count in counts if count > 0)
    return max(((often, count) for count, often in found.items()), default=(0, 0))[1]


def split(gpus: int, most: int) -> list[int]:
    """GPUs for the pods of one learner: as many as `most` in each (0: in a single one), the rest in the last."""
    if not 0 < most < gpus:
        return [gpus]
    return [most] * (gpus // most) + ([gpus % most] if gpus % most else [])


class ModuleChanges:
    """Carries out the requests of coordinators. `write` blocks: call it in a thread."""

    def __init__(self, cluster: Cluster, cache: Cache, scaling: ScaleRequests, *, clock: Clock = SYSTEM) -> None:
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._scaling = scaling
        self._clock = clock
        self._nodes = threading.Lock()
        self._gpus: tuple[float, int] = (-inf, 0)

    def write(self, namespace: str, job: str, plan: Plan) -> tuple[Modules, tuple[Replica, ...]]:
        """Carry out a request. Returns the state before it, and the replicas that the answer names. Raises ApiError."""
        return self._scaling.retried(lambda: self._try(namespace, job, plan), job=f"{namespace}.{job}")

    def _try(self, namespace: str, job: str, plan: Plan) -> tuple[Modules, tuple[Replica, ...]]:
        workflow = self._cluster.get(WORKFLOW, job, namespace=namespace)
        check_readable(served_record_of(workflow))
        known = modules.read(workflow)
        if known is None:
            raise not_found(f"module {job}-{modules.COORDINATOR} is not owned by any DIJob")
        if known.problem:
            raise conflict(f"job {namespace}.{job} cannot be read: {known.problem}")
        if known.has_ended:
            raise not_found(f"coordinator {job}-{modules.COORDINATOR} is owned by stale DIJob")
        change = plan(known)
        if not change.add and not change.release:
            return known, change.named
        _check_size(known, change, workflow)
        patch, names = modules.changed(workflow, add=change.add, release=change.release)
        if change.add and not modules.fits(patch):
            raise conflict(
                "the Workflow of the job has no space for this request: ask for fewer replicas, or delete the job and "
                "create it again"
            )
        try:
            answer = self._cluster.patch(WORKFLOW, job, patch, namespace=namespace, manager=keys.SERVER)
        except InvalidError as error:  # the uid does not match: another object has this name now
            raise ConflictError(str(error)) from None
        self._cache.observed(answer)
        return known, (*change.named, *modules.added(names, change.add))

    def creating(self, collectors: Wanted, learners: Wanted) -> Plan:
        """The plan of a request for more replicas. It may read the nodes, so it blocks."""
        _check_gpus(learners)
        most = self._gpus_of_a_pod() if learners.gpus > 1 and learners.replicas else 0

        def plan(known: Modules) -> Change:
            _check_templates(known, collectors, learners)
            _check_pods(known, learners, most)
            taken = _Ids(known)
            first: dict[str, Group] = {}
            if collectors.replicas:
                first[COLLECTOR] = Group(taken.fresh(COLLECTOR, collectors.replicas), collectors.resources)
            units: list[Round] = []
            if learners.gpus > 1:
                units = [_unit(known, taken, learners, split(learners.gpus, most)) for _ in range(learners.replicas)]
            elif learners.replicas:
                first[LEARNER] = Group(taken.fresh(LEARNER, learners.replicas), learners.resources)
            return Change(add=(*((first,) if first else ()), *units))

        return plan

    def _gpus_of_a_pod(self) -> int:
        """The most GPUs of a pod. One list of the nodes, which is long, serves the requests of some seconds: a job may
        send many."""
        with self._nodes:
            until, most = self._gpus
            if until <= self._clock.monotonic():
                most = majority(modules.gpus_of(node) for node in self._cluster.list_all(NODE))
                self._gpus = self._clock.monotonic() + _NODES_SECONDS, most
            return most


def deleting(collectors: int, learners: int) -> Plan:
    """The plan of a request for fewer replicas: those go first that do not run yet, and then the newest."""

    def plan(known: Modules) -> Change:
        chosen = [*_last(known.of(COLLECTOR), collectors), *_last(known.of(LEARNER, AGGREGATOR), learners)]
        return Change(release=known.units(chosen), named=tuple(chosen))

    return plan


def replacing(namespace: str, hostnames: Sequence[str]) -> Plan:
    """The plan of a request for others in the place of these, which have failed."""

    def plan(known: Modules) -> Change:
        found = known.find(hostnames)
        failed: list[Replica] = []
        stay: dict[str, Replica] = {}
        for name in hostnames:
            one = found.get(name)
            if one is None:
                raise not_found(f"pod: {namespace}/{name} not exists in cache")
            if one.is_released:
                continue  # another request has replaced it
            if one.is_listed and name != one.hostname(known.job):
                stay[one.key] = one  # it was made again, with a new name
            else:
                failed.append(one)
        gone = known.units(failed)
        for one in gone:
            stay.pop(one.key, None)
        return Change(_again(known, gone, _Ids(known)), gone, tuple(stay.values()))

    return plan


class _Ids:
    """New ids for replicas: no two of one module have the same."""

    def __init__(self, known: Modules) -> None:
        self._taken = {(one.module, one.id) for one in known.replicas}

    def fresh(self, module: str, count: int) -> tuple[str, ...]:
        out: list[str] = []
        while len(out) < count:
            one = "".join(secrets.choice(_ALPHABET) for _ in range(modules.ID_LENGTH))
            if (module, one) not in self._taken:
                self._taken.add((module, one))
                out.append(one)
        return tuple(out)


def _unit(known: Modules, ids: _Ids, wanted: Wanted, parts: Sequence[int]) -> Round:
    """A learner of several GPUs: an aggregator and its ddp learners."""
    port = known.ports.get(DDP_LEARNER, PORTS[DDP_LEARNER])
    each: list[Json] = []
    for i, gpus in enumerate(parts):
        ports = [_port(f"gpu-port-{j}", port + j) for j in range(1, gpus)]
        if i == 0:
            ports.append(_port("master-port", modules.MASTER_PORT))
        one = {
            "resources": {**wanted.resources, GPU: str(gpus)},
            "ports": ports,
            "world": str(sum(parts)),
            "local": str(gpus),
            "start": str(sum(parts[:i])),
        }
        each.append(one)
    return {
        AGGREGATOR: Group(ids.fresh(AGGREGATOR, 1)),
        DDP_LEARNER: Group(ids.fresh(DDP_LEARNER, len(parts)), {}, tuple(each)),
    }


def _port(name: str, number: int) -> Json:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _again(known: Modules, failed: Sequence[Replica], ids: _Ids) -> tuple[Round, ...]:
    """Rounds with new replicas like these: one for each unit, and as few as possible for the others."""
    units = {one.round for one in failed if one.module in (AGGREGATOR, DDP_LEARNER)}
    out: list[dict[str, Group]] = [
        {module: replace(group, ids=ids.fresh(module, len(group.ids))) for module, group in known.groups[name].items()}
        for name in sorted(units, key=int)
    ]
    alike: dict[str, list[tuple[Mapping[str, str], int]]] = {}
    for one in failed:
        if one.round in units:
            continue
        resources, same = known.groups[one.round][one.module].resources, alike.setdefault(one.module, [])
        at = next((i for i, (given, _) in enumerate(same) if given == resources), None)
        if at is None:
            same.append((resources, 1))
        else:
            same[at] = (resources, same[at][1] + 1)
    for i in range(max(map(len, alike.values()), default=0)):
        out.append(
            {
                module: Group(ids.fresh(module, same[i][1]), same[i][0])
                for module, same in alike.items()
                if i < len(same)
            }
        )
    return tuple(out)


def _last(some: Sequence[Replica], count: int) -> list[Replica]:
    order = sorted(range(len(some)), key=lambda i: (some[i].phase == "Running", -i))
    return [some[i] for i in order[: max(0, count)]]


def _check_templates(known: Modules, collectors: Wanted, learners: Wanted) -> None:
    for wanted, module in ((collectors, COLLECTOR), (learners, LEARNER)):
        if wanted.replicas and module not in known.ports:
            raise unprocessable(f"DIJob: {known.job} has no template of a {module}")
    if learners.replicas and learners.gpus > 1 and AGGREGATOR not in known.ports:
        raise not_found(f"AGConfig: {keys.AGGREGATOR_CONFIG} not exists in cache")


def _check_gpus(learners: Wanted) -> None:
    """Raises ApiError for an amount that Kubernetes gives to no pod, or that no job may have."""
    amount = exact(learners.resources.get(GPU, "0")) or 0
    if amount != learners.gpus:
        raise unprocessable(f"learners.gpus must be a whole number, not {learners.resources[GPU]}")
    most = MOST_REPLICAS * MOST_GPUS
    if learners.gpus > most:
        raise unprocessable(f"learners.gpus: {learners.gpus:,}, and at most {most:,} are allowed")


def _check_pods(known: Modules, learners: Wanted, most: int) -> None:
    """Raises ApiError if the pods of learners of several GPUs, with `most` GPUs in each, are more than a job may have,
    or one of them is larger than a pod may be. Nothing of that number is made before."""
    if learners.gpus <= 1 or not learners.replicas:
        return
    each = min(most or learners.gpus, learners.gpus)
    pods = learners.replicas * (1 + ceil(learners.gpus / each))
    if pods > MOST_REPLICAS:
        raise unprocessable(f"learners: {pods:,} pods of {each} GPUs, and at most {MOST_REPLICAS:,} pods are allowed")
    highest = min(MOST_GPUS, _HIGHEST_PORT + 1 - known.ports.get(DDP_LEARNER, PORTS[DDP_LEARNER]))
    if each > highest:
        raise unprocessable(f"learners.gpus: {each:,} in one pod, and at most {highest} have a port of their own")


def _check_size(known: Modules, change: Change, workflow: Mapping[str, Any]) -> None:
    more = sum(len(group.ids) for groups in change.add for group in groups.values())
    now = sum(not one.is_released for one in known.replicas) - len(change.release)
    if now + more > MOST_REPLICAS:
        raise unprocessable(f"the job has {now:,} replicas, and at most {MOST_REPLICAS:,} are allowed")
    if change.add and modules.is_full(workflow, known, rounds=len(change.add), replicas=more):
        raise conflict("the Workflow of the job has no space for more requests: delete the job and create it again")
