"""The replicas of a v1alpha1 job: what its coordinator has asked for, by the REST API.

The Workflow of such a job has the parameter `modules`, a JSON object by round, in which a request that adds replicas
appends one round or more, and nothing is ever removed:

    {"2": {"collector": {"ids": ["x7k2p", "ab3de"], "resources": {"cpu": "1"}}},
     "3": {"aggregator": {"ids": ["q9w8e"]},
           "ddp-learner": {"ids": ["aaaaa", "bbbbb"], "each": [{"start": "0", ...}, {"start": "8", ...}]}}}

Round 1 is the coordinator's. A replica that is not wanted any more is in the parameter `released`. Unlike the rounds of
other jobs, all of these run side by side.

A replica has a new name with each of its pods, so that a client which dropped one connects to the next: first
`<job>-<module>-<id>`, then `<job>-<module>-<id>-1` and so on. The pods of `ddp-learner` keep their names: they find
each other by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any, Final

from msgspec import Meta, Raw

from diflow.common import keys
from diflow.common.jsontext import canonical_json, parsed, reader
from diflow.common.limits import MOST_PORTS, MOST_REPLICAS, MOST_WORKFLOW_BYTES
from diflow.common.quantities import exact
from diflow.record import untrusted
from diflow.record.argo import nodes
from diflow.record.parameters import MOST_ROUNDS, parameters
from diflow.record.patches import FIRST_ROUND, live, merged
from diflow.record.types import Round

Json = dict[str, Any]
Object = Mapping[str, Any]

COORDINATOR: Final = "coordinator"
COLLECTOR: Final = "collector"
LEARNER: Final = "learner"
AGGREGATOR: Final = "aggregator"
DDP_LEARNER: Final = "ddp-learner"
ADDED: Final = (COLLECTOR, LEARNER, AGGREGATOR, DDP_LEARNER)
"""The modules whose replicas come and go."""
ALL: Final = (COORDINATOR, *ADDED)
PORTS: Final[Mapping[str, int]] = {
    COORDINATOR: 22273,
    COLLECTOR: 22270,
    LEARNER: 22271,
    AGGREGATOR: 22272,
    DDP_LEARNER: 22271,
}
"""The port of each module, unless its template has another one."""
MASTER_PORT: Final = 10314
GPU: Final = "nvidia.com/gpu"
MOST_GPUS: Final = MOST_PORTS
"""Of one pod: each but the first has a port."""
ID_LENGTH: Final = 5

MOST_EVER: Final = 10_000
"""Replicas that are read of one job, those that were removed included."""
_MOST_NODES: Final = 12_000
"""Of Argo, with which a request is accepted: it ends a Workflow whose nodes do not fit into 1 MiB, about 14,700."""
_NODES_OF_ONE: Final = 5
"""Of Argo, for a replica: its part of a fan-out, its DAG, the retries, a pod, and the leaf that makes it count."""

_Id = Annotated[str, Meta(pattern=rf"^[a-z0-9]{{{ID_LENGTH}}}\Z")]
_TAIL: Final = rf"(?P<id>[a-z0-9]{{{ID_LENGTH}}})(?:-[1-9][0-9]{{0,8}})?"
_REPLICA: Final = re.compile(rf"(?P<module>{'|'.join(ADDED)})-{_TAIL}", re.ASCII)
_CALLER: Final = re.compile(rf"(?P<job>[a-z0-9-]{{1,63}})-(?:{COORDINATOR}|{AGGREGATOR}-{_TAIL})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Group:
    """The replicas of one module that one round adds. `resources` are those of each, as text; `each` has for each of
    the ddp learners its `resources`, `ports`, and the texts `world`, `local` and `start`."""

    ids: Annotated[tuple[_Id, ...], Meta(min_length=1, max_length=MOST_REPLICAS)]
    resources: Mapping[str, str] = field(default_factory=dict)
    each: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_complete(self) -> bool:
        """There is something for each of the replicas, or for none."""
        return len(self.each) in (0, len(self.ids)) and all(isinstance(one.get("ports", []), list) for one in self.each)

    def ports(self, index: int) -> int:
        """How many ports a ddp learner has beside that of its module."""
        found = self.each[index].get("ports", []) if index < len(self.each) else []
        return min(len(found), MOST_PORTS)

    def to_dict(self) -> Json:
        """As it is in the parameter."""
        out: Json = {"ids": list(self.ids)}
        if self.resources:
            out["resources"] = dict(self.resources)
        if self.each:
            out["each"] = [dict(one) for one in self.each]
        return out


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that was asked for. `attempt` is the number of its newest pod, from 0; `phase` Argo's for that, "" if
    Argo has not begun with it."""

    round: str
    module: str
    index: int
    id: str
    is_released: bool = False
    attempt: int = 0
    phase: str = ""

    @property
    def key(self) -> str:
        """Its name in the parameter `released`."""
        return f"{self.round}/{self.module}/{self.index}"

    @property
    def is_listed(self) -> bool:
        """Clients may connect to it: it is wanted, and its newest pod has not ended."""
        return not self.is_released and self.phase not in nodes.FULFILLED

    def hostname(self, job: str) -> str:
        """The host name of its newest pod."""
        suffix = f"-{self.attempt}" if self.attempt and self.module != DDP_LEARNER else ""
        return f"{job}-{self.module}-{self.id}{suffix}"


@dataclass(frozen=True, slots=True)
class Modules:
    """The state of a v1alpha1 job. `replicas` are in the order of the requests; `ports` are by module, for those that
    the job has; `coordinator` is Argo's phase of the coordinator. `problem`: why it cannot be read, or "".
    """

    job: str
    groups: Mapping[str, Mapping[str, Group]] = field(default_factory=dict)
    replicas: tuple[Replica, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    coordinator: str = ""
    problem: str = ""

    @property
    def has_ended(self) -> bool:
        """The coordinator has ended, and with it the job."""
        return self.coordinator in nodes.FULFILLED

    def of(self, *modules: str) -> tuple[Replica, ...]:
        """The replicas of these modules that are wanted."""
        return tuple(one for one in self.replicas if one.module in modules and not one.is_released)

    def lives(self, round_: str, task: str, index: int) -> bool | None:
        """Whether a replica is wanted; None if the job has no such one."""
        place = (round_, task, index)
        return next((not one.is_released for one in self.replicas if (one.round, one.module, one.index) == place), None)

    def units(self, some: Iterable[Replica]) -> tuple[Replica, ...]:
        """These, with the replicas that live and end with them: an aggregator and its ddp learners."""
        asked = {one.key: one for one in some}
        rounds = {one.round for one in asked.values() if one.module in (AGGREGATOR, DDP_LEARNER)}
        asked |= {other.key: other for other in self.of(AGGREGATOR, DDP_LEARNER) if other.round in rounds}
        return tuple(asked.values())

    def find(self, hostnames: Iterable[str]) -> dict[str, Replica]:
        """The replicas that these host names of any of their pods name, by host name."""
        forms = {name: _REPLICA.fullmatch(name.removeprefix(f"{self.job}-")) for name in hostnames}
        asked = {name: (form["module"], form["id"]) for name, form in forms.items() if form is not None}
        wanted = set(asked.values())
        found = {(one.module, one.id): one for one in self.replicas if (one.module, one.id) in wanted}
        return {name: found[key] for name, key in asked.items() if key in found}

    def url(self, one: Replica, namespace: str) -> str:
        """`<host>.di.<namespace>:<port>`: clients take what stands before the last dot for the name of the replica."""
        return f"{one.hostname(self.job)}.{keys.SERVICE}.{namespace}:{self.ports.get(one.module, PORTS[one.module])}"


def job_of(hostname: str) -> str:
    """The name of the job whose coordinator or aggregator may have this host name, by its form; "" if none may."""
    found = _CALLER.fullmatch(hostname)
    return found["job"] if found is not None else ""


def read(workflow: Object) -> Modules | None:
    """The state of a v1alpha1 job, None for any other Workflow. It never raises."""
    given = dict(parameters(workflow))
    if keys.PARAM_MODULES not in given:
        return None
    job = untrusted.string(untrusted.sub(workflow, "metadata").get("name"))
    groups = _groups(given[keys.PARAM_MODULES])
    rounds, released = (_texts(given.get(name, "")) for name in (keys.PARAM_ROUNDS, keys.PARAM_RELEASED))
    found = {keys.PARAM_MODULES: groups, keys.PARAM_ROUNDS: rounds, keys.PARAM_RELEASED: released}
    if groups is None or rounds is None or released is None:
        edited = next(name for name, value in found.items() if value is None)
        return Modules(job, problem=f"the parameter {edited} is not what diflow wrote")
    ports = parsed(_read_ports, untrusted.sub(workflow, "metadata", "annotations").get(keys.MODULES), {})
    read = {name: parsed(_read_port, bytes(port), 0) for name, port in ports.items() if name in ALL}
    known = {name: port for name, port in read.items() if port}
    attempts = _attempts(workflow)
    replicas = (
        Replica(name, module, i, one, f"{name}/{module}/{i}" in released, *attempts.get((name, module, i), (0, "")))
        for name, modules in groups.items()
        for module, group in modules.items()
        for i, one in enumerate(group.ids)
    )
    _, phase = attempts.get((FIRST_ROUND, COORDINATOR, 0), (0, ""))
    return Modules(job, groups, tuple(replicas), known, phase)


def changed(
    workflow: Object, *, add: Sequence[Mapping[str, Group]] = (), release: Iterable[Replica] = ()
) -> tuple[Json, list[str]]:
    """(the merge patch that adds a round for each of `add` and releases replicas, the names of these rounds). The patch
    is valid for this version of the Workflow only."""
    metadata, given = untrusted.sub(workflow, "metadata"), parameters(workflow)
    values = dict(given)
    rounds, modules = _read_list(values[keys.PARAM_ROUNDS]), _read_object(values[keys.PARAM_MODULES])
    first = len(rounds) + 1
    names = [str(first + i) for i in range(len(add))]
    for name, groups in zip(names, add, strict=True):
        modules[name] = {module: group.to_dict() for module, group in groups.items()}
    before = _read_list(values[keys.PARAM_RELEASED])
    known = set(before)
    gone = [one.key for one in release if one.key not in known]
    changes = live(rounds=[*rounds, *names], released=[*before, *gone])
    changes[keys.PARAM_MODULES] = canonical_json(modules)
    patch = {
        "metadata": {name: metadata.get(name) for name in ("uid", "resourceVersion")},
        "spec": {"arguments": {"parameters": merged(given, changes)}},
    }
    return patch, names


def added(names: Sequence[str], add: Sequence[Mapping[str, Group]]) -> tuple[Replica, ...]:
    """The replicas of rounds that were just added."""
    return tuple(
        Replica(name, module, i, one)
        for name, groups in zip(names, add, strict=True)
        for module, group in groups.items()
        for i, one in enumerate(group.ids)
    )


def is_full(workflow: Object, known: Modules, *, rounds: int, replicas: int) -> bool:
    """Whether Argo could not store the Workflow with this many more rounds and replicas."""
    given = _read_list(dict(parameters(workflow)).get(keys.PARAM_ROUNDS, "[]"))
    ever = len(known.replicas)
    found, offloaded = nodes.raw(workflow)
    more = 0 if offloaded else max(len(found), _NODES_OF_ONE * ever) + _NODES_OF_ONE * replicas
    return more > _MOST_NODES or ever + replicas > MOST_EVER or len(given) + rounds > MOST_ROUNDS


def fits(patch: Object) -> bool:
    """Whether the parameters that a patch writes leave enough space in the Workflow."""
    given = untrusted.mappings(untrusted.sub(patch, "spec", "arguments").get("parameters"))
    size = sum(len(one["value"].encode(errors="replace")) for one in given)
    return size <= MOST_WORKFLOW_BYTES // 2


_read_groups: Final = reader(dict[Round, dict[str, Group]], most_characters=MOST_WORKFLOW_BYTES)
_read_ports: Final = reader(dict[str, Raw])
_read_port: Final = reader(Annotated[int, Meta(ge=1, le=65_535)])
_read_object: Final = reader(dict[str, Any])
_read_list: Final = reader(list[str])
_read_texts: Final = reader(frozenset[str], most_characters=MOST_WORKFLOW_BYTES)


def gpus_of(node: Object) -> int:
    """The GPUs that a pod can have on a node."""
    for part in ("allocatable", "capacity"):
        given = untrusted.sub(node, "status", part).get(GPU)
        if isinstance(given, str) and (value := exact(given)) is not None:
            return min(max(ceil(value), 0), MOST_GPUS)
    return 0


def _groups(text: str) -> dict[str, dict[str, Group]] | None:
    """None if it is not as diflow writes it."""
    found = parsed(_read_groups, text, None)
    if found is None or len(found) > MOST_ROUNDS or FIRST_ROUND in found:
        return None
    groups = [(module, group) for modules in found.values() for module, group in modules.items()]
    count = sum(len(group.ids) for _, group in groups)
    if count > MOST_EVER or not all(module in ADDED and group.is_complete for module, group in groups):
        return None
    ids = {(module, one) for module, group in groups for one in group.ids}
    return found if len(ids) == count else None  # an id names one replica


def _texts(text: str) -> frozenset[str] | None:
    """The members of a JSON list of text; None for anything else."""
    return parsed(_read_texts, text, None)


def _attempts(workflow: Object) -> dict[tuple[str, str, int], tuple[int, str]]:
    """The number and Argo's phase of the newest pod, by round, module and index."""
    out: dict[tuple[str, str, int], tuple[int, str]] = {}
    for place, phase in _pods(workflow):
        key = (place.round, place.task, place.index)
        if key not in out or place.uncounted >= out[key][0]:
            out[key] = place.uncounted, phase
    return out


def _pods(workflow: Object) -> Iterator[tuple[Any, str]]:
    for node in nodes.nodes(workflow)[0]:
        if node.place is not None and node.place.is_pod and node.type == "Pod":
            yield node.place, node.phase
