"""Nodes, queues and jobs as plain values, and `build`, which makes a Snapshot of them.

The allocator makes views from its caches, the simulator from its state. `build` sorts them into canonical order and
compiles predicates, pod limits and host ports into arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen, ints
from diflow.allocator.model.conditions import Conditions
from diflow.allocator.model.eligible import Eligible
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.rules import NO_RULES, Kind, Rule, Rules
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot, namespace_of, owners_of
from diflow.allocator.model.topology import Level, domains, level_of, unknown_level
from diflow.common import quantities
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_COUNT, MOST_MOVES, MOST_PORT_COLUMNS, MOST_RESOURCES
from diflow.common.predicates import Taint, Where
from diflow.common.words import DEFAULT_QUEUE

_EMPTY: Mapping[str, int] = MappingProxyType({})
_NO_SPEEDS: Mapping[str, float] = MappingProxyType({})
_NO_AGES: Mapping[float, float] = MappingProxyType({})
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})

PODS = quantities.PODS
NOT_OFFERED = "not offered"
"""Stands for all resources that no node offers: each node has 0 of it, and a role that asks for one asks for 1."""
_PORT = "hostport/"
MOST_REQUEST = 10**9
"""Limit of a replica's request for one resource, unless a node has more than half of that: the sum over a million jobs
of two thousand replicas each stays below 2**63."""
_NAMES_TOLD = 3
_LAST: ContextVar[Eligible | None] = ContextVar("eligible", default=None)
"""The nodes of a thread's last snapshot as `Eligible`: most snapshots have the same ones."""
POOL_LABEL = "nvidia.com/gpu.product"
"""Default of the node label that names the pool."""


def host_ports(numbers: Iterable[int]) -> dict[str, int]:
    """These ports as resources, of which each node has one."""
    return {f"{_PORT}{number}": 1 for number in numbers}


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. Amounts are integers in base units (millicores, MiB, devices)."""

    name: str
    allocatable: Mapping[str, int]
    foreign: Mapping[str, int] = field(default_factory=dict)
    releasing: Mapping[str, int] = field(default_factory=dict)
    is_open: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue: a share of the cluster. `parent` nests it (users of a team)."""

    name: str
    weight: float = 1.0
    guarantee: Mapping[str, int] = field(default_factory=dict)
    cap: Mapping[str, int] = field(default_factory=dict)
    parent: str | None = None
    lends: bool = False
    """Whether it lends what it is guaranteed to jobs that are not preemptible too, which it could not claim back."""
    demand: str = "minimum"
    """For how much of its preemptible jobs nodes are asked for of an autoscaler: their "minimum", or what is
    "desired"."""


@dataclass(frozen=True, slots=True)
class RoleView:
    """One task of a job, with identical pods. The gang is `minimum`..`maximum` replicas; the user asked for `desired`.

    `unit`: only multiples of it run. `asks`: the request, with host ports as resources. `least`, `most` and `wanted`
    are the three counts made consistent, multiples of the unit. They are computed with the view, because most views are
    reused in the next snapshot.
    """

    name: str
    request: Mapping[str, int]
    minimum: int = 1
    maximum: int | None = None
    desired: int | None = None
    where: Where = field(default_factory=Where)
    host_ports: tuple[int, ...] = ()
    unit: int = 1
    asks: Mapping[str, int] = field(init=False, repr=False, compare=False)
    least: int = field(init=False, repr=False, compare=False)
    most: int = field(init=False, repr=False, compare=False)
    wanted: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ports = host_ports(self.host_ports)
        unit, maximum, desired = self.unit, self.maximum, self.desired
        least = -(-max(1, self.minimum) // unit) * unit
        most = max(least, next((n for n in (maximum, desired) if n is not None), 1) // unit * unit)
        wanted = next((n for n in (desired, maximum) if n is not None), 1) // unit * unit
        object.__setattr__(self, "asks", {**self.request, **ports} if ports else self.request)
        object.__setattr__(self, "least", least)
        object.__setattr__(self, "most", most)
        object.__setattr__(self, "wanted", min(max(wanted, least), most))


@dataclass(frozen=True, slots=True)
class JobView:
    """A job under the allocator. `placed`: its current replicas, role → node → count. `required`: the name or label of
    the level of the topology of which one domain must hold all of its replicas; "": none.

    `modest`: it takes nothing from other jobs. `spared_by`: the namespaces whose jobs take nothing more
    from it, and how often they did lately.

    `service_seconds`: replica-seconds held so far; None: the seconds since it started.
    """

    name: str
    roles: tuple[RoleView, ...]
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    preemptible: bool = True
    pinned: bool = False
    created_seconds: float = 0.0
    started_seconds: float | None = None
    changed_seconds: float | None = None
    restarts: int = 0
    service_seconds: float | None = None
    placed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    profile: Profile | None = None
    required: str = ""
    modest: bool = False
    spared_by: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DomainRule:
    """A rule of roles, as (job, role), about the nodes with one value of the label `key` ("": all nodes) and the pods
    there (`rules.py`). `base`, `repels`: node → pods that count, and that have the rule, and are no replicas of the
    views. `where`: of a spread constraint, the nodes whose domains count."""

    kind: Kind
    key: str
    text: str
    owners: frozenset[tuple[str, str]]
    counted: frozenset[tuple[str, str]]
    base: Mapping[str, int] = field(default_factory=dict)
    repels: Mapping[str, int] = field(default_factory=dict)
    most: int = 1
    least_domains: int = 1
    where: Where | None = None


_Named = TypeVar("_Named", NodeView, QueueView, JobView)


def build(  # noqa: PLR0913 (a snapshot has these parts: one line here for each, so that it is long)
    nodes: Iterable[NodeView],
    jobs: Iterable[JobView],
    queues: Iterable[QueueView] = (),
    *,
    now_seconds: float = 0.0,
    ages: Mapping[float, float] = _NO_AGES,
    pool_label: str = POOL_LABEL,
    pool_speed: Mapping[str, float] = _NO_SPEEDS,
    refused: Mapping[str, str] = _NO_TEXTS,
    levels: Sequence[Level] = (),
    rules: Sequence[DomainRule] = (),
) -> Snapshot:
    """The snapshot of these objects.

    Without queues, all jobs are in one named `default`. A job whose queue does not exist has queue -1.
    Pods on a node that no longer exists are left out: they are lost. `pool_speed`: the assumed relative speed of each
    pool. `ages`: time → seconds since it, for times that lie in the future (clock skew).
    `refused`: job name → why it may not use its queue; its queue is -1. `levels`: of the topology, the widest first;
    a job that requires another level is refused in the same way.
    The arrays have a column for each resource of the nodes, one for all others that jobs ask for, and at most
    MOST_PORT_COLUMNS for host ports. Raises InvalidError for duplicate names and for negative amounts.
    """
    ordered_nodes = _by_name(nodes, "node")
    ordered_jobs = _by_name(jobs, "job")
    said = _by_name(queues, "queue")
    required = [level_of(job.required, levels) if job.required else -1 for job in ordered_jobs]
    strange = {
        job.name: unknown_level(job.required, levels)
        for job, level in zip(ordered_jobs, required, strict=True)
        if job.required and level < 0
    }
    refused = {**strange, **refused} if strange else refused
    node_domain, domain_names = domains(levels, [node.labels for node in ordered_nodes])
    ordered_queues = said or [QueueView(DEFAULT_QUEUE)]
    roles = [(j, role) for j, job in enumerate(ordered_jobs) for role in job.roles]
    limited = any(PODS in node.allocatable for node in ordered_nodes)
    requests, resources, refusals = _requests(ordered_nodes, ordered_jobs, refused)
    ports = {name for name in resources if name.startswith(_PORT)}
    pools = sorted({node.labels.get(pool_label, "") for node in ordered_nodes}) or [""]
    queue_index = {queue.name: i for i, queue in enumerate(ordered_queues)}
    node_index = {node.name: i for i, node in enumerate(ordered_nodes)}
    classes, preference, class_of = _classes(ordered_nodes, [role.where for _, role in roles])
    held = _held(ordered_jobs, node_index)
    return Snapshot(
        now_seconds=now_seconds,
        resources=resources,
        node_names=tuple(node.name for node in ordered_nodes),
        node_allocatable=_table([{**dict.fromkeys(ports, 1), **n.allocatable} for n in ordered_nodes], resources, 0),
        node_foreign=_table([n.foreign for n in ordered_nodes], resources, 0),
        node_releasing=_table([n.releasing for n in ordered_nodes], resources, 0),
        node_open=_bools([n.is_open for n in ordered_nodes]),
        node_pool=_ints([pools.index(n.labels.get(pool_label, "")) for n in ordered_nodes]),
        pool_names=tuple(pools),
        pool_speed=_floats([_positive(pool_speed.get(pool, 1.0)) for pool in pools]),
        queue_names=tuple(queue.name for queue in ordered_queues),
        queue_parent=_ints([queue_index.get(q.parent or "", -1) for q in ordered_queues]),
        queue_weight=_floats([max(0.0, float(q.weight)) for q in ordered_queues]),
        queue_guarantee=_table([q.guarantee for q in ordered_queues], resources, 0),
        queue_cap=_table([q.cap for q in ordered_queues], resources, UNLIMITED),
        queue_lends=frozen(np.array([q.lends for q in ordered_queues], dtype=np.bool_)),
        job_names=tuple(job.name for job in ordered_jobs),
        job_queue=_ints(
            [-1 if job.name in refused else (queue_index.get(job.queue, -1) if said else 0) for job in ordered_jobs]
        ),
        job_queue_name=tuple(job.queue for job in ordered_jobs),
        job_priority=_ints([job.priority for job in ordered_jobs]),
        job_preemptible=_bools([job.preemptible for job in ordered_jobs]),
        job_pinned=_bools([job.pinned for job in ordered_jobs]),
        job_created_seconds=_floats([job.created_seconds for job in ordered_jobs]),
        job_started_seconds=_floats([_past(job.started_seconds, now_seconds, ages) for job in ordered_jobs]),
        job_changed_seconds=_floats([_past(job.changed_seconds, now_seconds, ages) for job in ordered_jobs]),
        job_restarts=_ints([min(max(0, job.restarts), MOST_MOVES) for job in ordered_jobs]),
        job_service_seconds=_floats([_service(job, now_seconds) for job in ordered_jobs]),
        job_profile=tuple(job.profile for job in ordered_jobs),
        role_names=tuple(role.name for _, role in roles),
        role_job=_ints([j for j, _ in roles]),
        role_request=_table(requests, resources, 0, **({PODS: 1} if limited else {})),
        role_min=_ints([min(role.least, MOST_COUNT) for _, role in roles]),
        role_max=_ints([min(role.most, MOST_COUNT) for _, role in roles]),
        role_desired=_ints([min(role.wanted, MOST_COUNT) for _, role in roles]),
        role_class=class_of,
        class_nodes=classes,
        class_preference=preference,
        held_role=frozen(held[0]),
        held_node=frozen(held[1]),
        held_count=frozen(held[2]),
        job_refusal=refusals,
        level_names=tuple(level.name for level in levels),
        domain_names=domain_names,
        node_domain=node_domain,
        job_required=_ints(required),
        role_unit=_ints([role.unit for _, role in roles]),
        job_modest=_bools([job.modest for job in ordered_jobs]),
        spared=_spared(ordered_jobs),
        rules=_rules(rules, roles, ordered_jobs, ordered_nodes) if rules else NO_RULES,
        conditions=Conditions(
            [(node.name, node.labels, node.taints) for node in ordered_nodes],
            [role.where for _, role in roles],
            [role.asks for _, role in roles],
        ),
    )


def _rules(
    given: Sequence[DomainRule],
    roles: Sequence[tuple[int, RoleView]],
    jobs: Sequence[JobView],
    nodes: Sequence[NodeView],
) -> Rules:
    number = {(jobs[j].name, role.name): g for g, (j, role) in enumerate(roles)}
    index = {node.name: n for n, node in enumerate(nodes)}
    by_key: dict[str, tuple[IntArray, int]] = {}
    opened: dict[tuple[str, Where | None], BoolArray] = {}
    out = []
    for rule in given:
        if rule.key not in by_key:
            values = [node.labels.get(rule.key) if rule.key else "" for node in nodes]
            known = {value: d for d, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
            by_key[rule.key] = _ints([-1 if value is None else known[value] for value in values]), len(known)
        domain, count = by_key[rule.key]
        is_open = opened.get((rule.key, rule.where))
        if is_open is None:
            is_open = np.zeros(count, dtype=np.bool_)
            suits = domain >= 0 if rule.where is None else (domain >= 0) & _classes(nodes, [rule.where])[0][0]
            is_open[domain[suits]] = True
            opened[rule.key, rule.where] = frozen(is_open)
        out.append(
            Rule(
                rule.kind,
                rule.text,
                domain,
                owners=frozenset(number[one] for one in rule.owners if one in number),
                counted=frozenset(number[one] for one in rule.counted if one in number),
                base=_in_domains(rule.base, index, domain, count),
                repels=_in_domains(rule.repels, index, domain, count),
                is_open=is_open,
                most=rule.most,
                least_domains=rule.least_domains,
            )
        )
    return Rules.of([rule for rule in out if rule.owners or rule.counted])


@lru_cache(maxsize=64)
def _no_pods(domains: int) -> IntArray:
    """One array for all rules that no other pods concern."""
    return frozen(np.zeros(domains, dtype=np.int64))


def _in_domains(pods: Mapping[str, int], index: Mapping[str, int], domain: IntArray, count: int) -> IntArray:
    if not pods:
        return _no_pods(count)
    out = np.zeros(count, dtype=np.int64)
    for node, number in pods.items():
        at = int(domain[index[node]]) if node in index else -1
        if at >= 0:
            out[at] += number
    return frozen(out)


def _spared(jobs: Sequence[JobView]) -> IntArray:
    pairs: list[tuple[int, int, int]] = []
    if any(job.spared_by for job in jobs):
        names = [namespace_of(job.name) for job in jobs]
        number = dict(zip(names, owners_of(job.name for job in jobs).tolist(), strict=True))
        pairs = [
            (number[name], j, job.spared_by[name])
            for j, job in enumerate(jobs)
            for name in sorted(job.spared_by & number.keys())
        ]
    return frozen(ints(pairs, (len(pairs), 3)))


def _by_name(items: Iterable[_Named], what: str) -> list[_Named]:
    ordered = sorted(items, key=lambda item: item.name)
    for first, second in itertools.pairwise(ordered):
        if first.name == second.name:
            raise InvalidError(f"two {what}s are named {first.name!r}: a snapshot needs one of each name")
    return ordered


def _service(job: JobView, now_seconds: float) -> float:
    if job.service_seconds is not None:
        return job.service_seconds
    return max(0.0, now_seconds - job.started_seconds) if job.started_seconds is not None else 0.0


def _requests(
    nodes: Sequence[NodeView], jobs: Sequence[JobView], refused: Mapping[str, str]
) -> tuple[list[Mapping[str, int]], tuple[str, ...], tuple[str, ...]]:
    """The request of a replica of each role, the names of the resources, and why each job may not be placed, or () if
    all may.

    All resources that no node offers share one column, so jobs cannot grow the arrays with invented names.
    """
    offered = set[str]().union(*(node.allocatable for node in nodes))
    asked = set[str]().union(*(role.asks for job in jobs for role in job.roles))
    ports = sorted(name for name in asked if name.startswith(_PORT))
    column = {port: port for port in ports}
    if len(ports) > MOST_PORT_COLUMNS:
        column = {port: f"{_PORT}group {_number(port) % MOST_PORT_COLUMNS}" for port in ports}
    known = offered | set(column.values())
    strange = asked - offered - set(ports)
    if strange and not nodes:  # nothing can be placed: any names will do
        known |= set(sorted(strange)[:MOST_RESOURCES])
        strange -= known
    largest = {name: max((node.allocatable.get(name, 0) for node in nodes), default=0) for name in known}
    most = {name: max(MOST_REQUEST, 2 * amount) for name, amount in largest.items()}
    out: list[Mapping[str, int]] = []
    refusals = [refused.get(job.name, "") for job in jobs]
    is_plain = not strange and len(ports) <= MOST_PORT_COLUMNS
    for j, job in enumerate(jobs):
        missing = set[str]()
        for role in job.roles:
            asks = role.asks
            if is_plain and all(amount <= most[name] for name, amount in asks.items()):
                out.append(asks)
                continue
            missing |= {name for name, amount in asks.items() if name in strange and amount}
            kept = {column.get(name, name): min(amount, most[column.get(name, name)])
                    for name, amount in asks.items() if name not in strange}  # fmt: skip
            out.append({**kept, NOT_OFFERED: 1} if any(asks[name] for name in strange & asks.keys()) else kept)
        if missing and nodes:
            refusals[j] = refusals[j] or _not_offered(missing)
    if any(NOT_OFFERED in asks for asks in out):
        known.add(NOT_OFFERED)
    return out, tuple(sorted(known)) or (PODS,), tuple(refusals)


def _not_offered(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _NAMES_TOLD} more resources" if len(found) > _NAMES_TOLD else ""
    return f"no node offers {', '.join(name[:64] for name in found[:_NAMES_TOLD])}{more}"


def _number(port: str) -> int:
    return int(port.removeprefix(_PORT))


def _table(rows: Sequence[Mapping[str, int]], resources: tuple[str, ...], missing: int, **everywhere: int) -> IntArray:
    """Rows × resources. `everywhere`: amounts that override those of every row."""
    shape = len(rows), len(resources)
    values = [[row.get(name, missing) for name in resources] for row in rows]
    try:
        out = ints(values, shape)
    except OverflowError:
        out = ints([[min(value, UNLIMITED) for value in row] for row in values], shape)
    out = np.minimum(out, UNLIMITED)
    for name, amount in everywhere.items():
        out[:, resources.index(name)] = amount
    if (out < 0).any():
        name, amount = next((name, amount) for row in rows for name, amount in row.items() if amount < 0)
        raise InvalidError(f"an amount of {name} is negative: {amount}")
    return frozen(out)


def _ints(values: Sequence[int]) -> IntArray:
    return frozen(ints(values, (len(values),)))


def _floats(values: Sequence[float]) -> FloatArray:
    return frozen(np.array(values, dtype=np.float64))


def _bools(values: Sequence[bool]) -> BoolArray:
    return frozen(np.array(values, dtype=np.bool_))


def _past(time: float | None, now_seconds: float, ages: Mapping[float, float]) -> float:
    """The time, or -1 without one."""
    if time is None:
        return -1.0
    return now_seconds - ages[time] if time in ages else time


def _positive(value: float) -> float:
    return float(value) if np.isfinite(value) and value > 0 else 1.0


def _classes(nodes: Sequence[NodeView], wheres: Sequence[Where]) -> tuple[BoolArray, IntArray, IntArray]:
    """A node mask and node preferences (K×N) for each distinct set of conditions, and the class of each role (G)."""
    labelled = [(node.name, node.labels, node.taints) for node in nodes]
    known = _LAST.get()
    if known is None or not known.is_of(labelled):
        known = Eligible(labelled)
        _LAST.set(known)
    return known.classes(wheres)


def _held(jobs: Sequence[JobView], node_index: Mapping[str, int]) -> tuple[IntArray, IntArray, IntArray]:
    """The current allocation as (role, node, count), sorted by role and node."""
    roles, nodes, counts = list[int](), list[int](), list[int]()
    first = 0
    for job in jobs:
        for g, role in enumerate(job.roles if job.placed else (), first):
            for node, count in job.placed.get(role.name, _EMPTY).items():
                at = node_index.get(node, -1)
                if count > 0 and at >= 0:
                    roles.append(g)
                    nodes.append(at)
                    counts.append(count)
        first += len(job.roles)
    table = ints((roles, nodes, counts), (3, -1))
    out = table[:, np.lexsort((table[1], table[0]))]
    return out[0], out[1], out[2]
