"""Reads the state of a job from its Workflow, with one rule for all readers.

Invalid text has one of three consequences:

- Text that only diflow writes (`rounds`, `current`, `granted`, `released`, `incarnations`, the DIJob): the state of the
  job is unknown, so the whole job is unreadable. `problem` is one sentence for its owner; the allocator takes no
  decision for the job, and its pods keep running.
- Text that users and programs write (`replicas`, `diflow/bounds`, `profilings`): it is ignored, and `complaints` has a
  sentence for each.
- Annotations that diflow writes for its own use (`diflow/allocation`, `diflow/decision`, counts of earlier Workflows):
  they count as missing, as they can be derived again or are history.

A replica that is granted and released at the same time does not run: `running` is the number granted less the released
tail, and every reader shows that number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from diflow.common import keys
from diflow.common.deadlines import Deadlines
from diflow.common.errors import InvalidError
from diflow.common.limits import (
    MOST_BACKOFF_LIMIT,
    MOST_HEALTH_SECONDS,
    MOST_MANIFEST_BYTES,
    MOST_REPLICAS,
    MOST_TASKS,
    MOST_WORKFLOW_BYTES,
)
from diflow.dijob.failurepolicy import GivenRule, PolicyError
from diflow.dijob.failurepolicy import parse as parse_policy
from diflow.record import chain, untrusted
from diflow.record.allocation import Allocation, point_in_time
from diflow.record.argo.failures import ALWAYS, Rules, rules_of
from diflow.record.exclusions import Exclusions
from diflow.record.health import HealthState
from diflow.record.live import Live
from diflow.record.memo import MIB, remembered
from diflow.record.memory import MOST_MIB
from diflow.record.patches import NOT_ADMITTED, STOP, TERMINATE, live, merged

Object = Mapping[str, Any]
Pairs = tuple[tuple[str, str], ...]
_Fields = dict[str, Any]

STOPS: Final = (STOP, TERMINATE)
ADMITTED: Final = '{"until":0}'
"""The parameter `places` when it holds for no pod any more."""
ENDED: Final = frozenset({"Succeeded", "Failed", "Error"})
DEFAULT_BACKOFF: Final = 3
LONGEST_PROFILINGS: Final = 65_536
"""Characters of a job's reports: twice what the server writes."""
MOST_ROUNDS: Final = 10_000
"""In one Workflow. A job continues in another one long before that (docs/decisions/0006)."""
_MOST_RELEASED: Final = 100_000
# Of opening brackets: `granted` has a mapping for each round; reports have one for each rank, and a list for each row;
# a manifest has what fits into its characters, with those in scripts.
_MOST_OF_LIVE: Final = MOST_ROUNDS + untrusted.FEW
_MOST_OF_REPORTS: Final = 8_000
_MOST_OF_MANIFEST: Final = MOST_MANIFEST_BYTES // 3
_LIVE: Final = (keys.PARAM_ROUNDS, keys.PARAM_CURRENT, keys.PARAM_GRANTED, keys.PARAM_RELEASED)
_BEFORE_METADATA: Final = f'{{"apiVersion":"{keys.API_VERSION}","kind":"{keys.KIND}","metadata":'
_LONGEST_WHY: Final = 2000
_INCARNATION: Final = re.compile(r"(\.[1-9][0-9]{0,8})?", re.ASCII)
_TASK: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_REPLICA: Final = re.compile(r"([1-9][0-9]{0,8})/([a-z0-9-]{1,63})/([0-9]{1,6})", re.ASCII)
_RELEASED: Final = re.compile(r"[1-9][0-9]{0,8}/([0-9]{1,9}|[a-z0-9-]{1,63}/[0-9]{1,6}(\.[1-9][0-9]{0,8})?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Decision:
    """The allocator's last decision on a job: an action (such as `wait` or `stop`), why, and when (RFC 3339)."""

    action: str
    why: str
    time: str


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task as submitted: `low` and `high` are its minReplicas and maxReplicas, if set. `main`: the name of its main
    container, if the job has a failure policy."""

    name: str
    replicas: int
    low: int | None = None
    high: int | None = None
    main: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A DIJob as it was submitted, without its templates.

    `failures`: the rules of its failure policy, None without one; `checks_nodes`: its node check has a command of the
    user's; `has_allocator`: it was submitted to be placed by the allocator. `deadlines`: how long its replicas may be
    quiet, None if it does not ask for that.
    """

    tasks: tuple[TaskState, ...] = ()
    backoff_limit: int = DEFAULT_BACKOFF
    is_preemptible: bool = False
    priority: str = "normal"
    queue: str = ""
    failures: tuple[GivenRule, ...] | None = None
    has_allocator: bool = False
    checks_nodes: bool = False
    deadlines: Deadlines | None = None

    @property
    def has_rules(self) -> bool:
        """Failures have consequences: it has a failure policy, or a node check of its own."""
        return self.failures is not None or (self.checks_nodes and self.has_allocator)

    def rules(self, task: str, *, has_memory: bool) -> Rules:
        """What follows when a replica of a task fails. `has_memory`: it may get more memory."""
        if not self.has_rules:
            return ALWAYS
        return rules_of(
            self.failures,
            has_allocator=self.has_allocator,
            has_memory=has_memory,
            main=next((found.main for found in self.tasks if found.name == task), ""),
            checks_nodes=self.checks_nodes,
        )


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job as its Workflow has it. `name` is the job's, `workflow` this Workflow's.

    `desired` and `bounds` have what the user requested since the submission. `awaits_admission`: it has no pods, as the
    allocator has not admitted it yet; `is_suspended`: by a user. `is_hidden`: Argo does not see it until the
    allocator's first decision (`keys.INSTANCE`). `places_until`: how long pods are created without a gate (seconds
    since 1970; 0: they are not).

    `is_preemptible`, `priority` and `queue` are those of `submitted`, but for a queue that was changed since; of a job
    whose DIJob cannot be read, those of its labels. `excluded`: the nodes that are left out for it.

    `dijob` is the text of the annotation, which `diflow.dijob.model.read_annotation` parses with its templates.
    `parameters` has all parameters in order, to be written back. `is_job`: diflow made the Workflow. Times are RFC
    3339, or "" if missing or invalid.
    """

    namespace: str
    name: str
    workflow: str
    uid: str
    version: str
    is_job: bool
    is_gang: bool
    is_preemptible: bool
    priority: str
    queue: str
    created: str
    phase: str
    shutdown: str
    is_being_deleted: bool
    is_suspended: bool
    awaits_admission: bool
    is_hidden: bool
    places_until: float
    parameters: Pairs
    dijob: str
    part: int = 1
    continues: str = ""
    continues_uid: str = ""
    continued_in: str = ""
    submitted: Submitted = field(default_factory=Submitted)
    live: Live = field(default_factory=Live)
    desired: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    profilings: str = ""
    allocation: Allocation | None = None
    decision: Decision | None = None
    health: HealthState | None = None
    """What the allocator found of its replicas."""
    excluded: Exclusions = field(default_factory=Exclusions)
    restarts_before: int = 0
    rounds_before: int = 0
    history_before: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    complaints: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """The Workflow has ended."""
        return self.phase in ENDED

    @property
    def is_stopping(self) -> bool:
        """Argo was asked to end it."""
        return self.shutdown in STOPS

    def rules(self, task: str) -> Rules:
        """What follows when a replica of a task fails. The Workflow's expressions are made of the same rules."""
        return self.submitted.rules(task, has_memory=task in self.live.memory)

    @classmethod
    def parse(cls, workflow: Object) -> JobState:
        """Read a Workflow. It never raises: errors are in `problem` and `complaints`."""
        # As a dictionary: `dataclasses.replace` of so many fields takes longer than all else of most Workflows.
        fields = _frame(workflow)
        try:
            _check_bytes(fields["parameters"])
            fields |= _submitted(fields)
            fields["live"] = _live(fields)
        except TooLargeParametersError as error:
            return cls(**fields | {"problem": str(error), "parameters": ()})  # too large to keep
        except InvalidError as error:
            return cls(**fields, problem=str(error))
        return cls(**fields, **_asked(fields, workflow))


class TooLargeParametersError(InvalidError):
    """The parameters are larger than those of any Workflow that diflow makes."""


def _check_bytes(given: Pairs) -> None:
    size = sum(len(name) + len(value) for name, value in given)
    if size > MOST_WORKFLOW_BYTES:
        raise TooLargeParametersError(
            f"its parameters have {size:,} characters, and those of a job at most {MOST_WORKFLOW_BYTES:,}; "
            "remove what diflow did not write, or delete the job"
        )


def _frame(workflow: Object) -> _Fields:
    """The fields of JobState that need no validation: names, labels and Argo's phase."""
    metadata, spec, status = (untrusted.sub(workflow, name) for name in ("metadata", "spec", "status"))
    labels, annotations = untrusted.sub(metadata, "labels"), untrusted.sub(metadata, "annotations")
    before, before_uid = chain.continues(workflow)
    phase, shutdown = status.get("phase"), spec.get("shutdown")
    is_suspended = spec.get("suspend") is True
    given = parameters(workflow)
    places = next((value for name, value in given if name == keys.PARAM_PLACES), "")
    awaits = is_suspended and _was_never_admitted(status, given) and annotations.get(keys.HELD) != "true"
    return _Fields(
        namespace=untrusted.string(metadata.get("namespace")),
        name=chain.job_name(workflow),
        workflow=untrusted.string(metadata.get("name")),
        uid=untrusted.string(metadata.get("uid")),
        version=untrusted.string(metadata.get("resourceVersion")),
        is_job=labels.get(keys.MANAGED_BY) == keys.MANAGED_BY_VALUE,
        is_gang=labels.get(keys.SCHEDULING) == "gang",
        is_preemptible=labels.get(keys.PREEMPTIBLE) == "true",
        priority=untrusted.string(labels.get(keys.PRIORITY), most=keys.LABEL_LIMIT) or "normal",
        queue=untrusted.string(labels.get(keys.QUEUE), most=keys.LABEL_LIMIT),
        created=untrusted.time(metadata.get("creationTimestamp")),
        phase=phase if isinstance(phase, str) else "",
        shutdown=shutdown if isinstance(shutdown, str) else "",
        is_being_deleted=untrusted.is_deleted_in_foreground(metadata),
        is_suspended=is_suspended and not awaits,
        awaits_admission=awaits,
        is_hidden=labels.get(keys.INSTANCE) == keys.INSTANCE_VALUE,
        places_until=_until(places, untrusted.string(metadata.get("uid"))),
        parameters=given,
        dijob=untrusted.string(annotations.get(keys.DIJOB)),
        part=chain.part(workflow),
        continues=before,
        continues_uid=before_uid,
        continued_in=chain.continued_in(workflow),
        allocation=Allocation.parse(annotations.get(keys.ALLOCATION)),
        decision=decision_of(annotations.get(keys.DECISION)),
        health=HealthState.parse(annotations.get(keys.HEALTH)),
        excluded=Exclusions.parse(annotations.get(keys.EXCLUDED)),
        restarts_before=untrusted.whole(annotations.get(keys.RESTARTS_BEFORE)) or 0,
        rounds_before=untrusted.whole(annotations.get(keys.ROUNDS_BEFORE)) or 0,
        history_before=untrusted.mapping(annotations.get(keys.HISTORY_BEFORE), most_brackets=untrusted.FEW),
    )


def was_never_admitted(workflow: Object) -> bool:
    """Whether this is a job that the allocator never admitted, and of which Argo has made nothing. With `argo resume`
    it makes pods without an admission, which have gates; later this job is suspended as any other."""
    return _was_never_admitted(untrusted.sub(workflow, "status"), parameters(workflow))


def _was_never_admitted(status: Object, given: Pairs) -> bool:
    made = any(status.get(name) for name in ("nodes", "compressedNodes", "offloadNodeStatusVersion"))
    return not made and dict(given).get(keys.PARAM_PLACES) == NOT_ADMITTED


def _until(places: str, uid: str) -> float:
    """Until when the parameter `places` holds, in seconds since 1970; 0 if it does not hold at all, as in a copy of the
    Workflow for which it was written (`argo resubmit`). Up to version 0.2 it has no uid, and holds in copies too."""
    if len(places) > MOST_WORKFLOW_BYTES or places in ("", NOT_ADMITTED, ADMITTED):
        return 0.0
    found = untrusted.mapping(places)
    return point_in_time(found.get("until")) or 0.0 if found.get("uid", uid) == uid else 0.0


def without_places(workflow: Object) -> list[dict[str, str]] | None:
    """All parameters of a Workflow, with the places of its admission invalid, so that new pods have gates: others may
    have the places by now. None if they are invalid already."""
    given = parameters(workflow)
    holds = dict(given).get(keys.PARAM_PLACES, ADMITTED) not in (NOT_ADMITTED, ADMITTED)
    return merged(given, live(places=ADMITTED)) if holds else None


def parameters(workflow: Object) -> Pairs:
    """All parameters of a Workflow in their order, as (name, value)."""
    given = untrusted.sub(workflow, "spec", "arguments").get("parameters")
    return tuple((str(p.get("name", "")), _value(p.get("value", ""))) for p in untrusted.mappings(given))


def replicas_text(given: Pairs) -> str:
    """The replicas that the user requests, as the parameter's text; "" if there is none."""
    return dict(given).get(keys.PARAM_REPLICAS, "")


def manifest(workflow: Object) -> dict[str, Any]:
    """The DIJob as submitted, without its unreadable parts: its owner may have edited it since."""
    found = untrusted.mapping(untrusted.sub(workflow, "metadata", "annotations").get(keys.DIJOB))
    parts = {"metadata": dict, "spec": dict, "apiVersion": str, "kind": str}
    return {key: value for key, value in found.items() if isinstance(value, parts.get(key, object))}


def _value(value: Any) -> str:
    """Argo accepts numbers and booleans as text, too."""
    return value if isinstance(value, str) else "" if value is None else untrusted.string(str(value))


def _submitted(fields: _Fields) -> _Fields:
    """The submitted DIJob takes precedence over the labels that repeat parts of it for `kubectl get -l`, except for the
    queue, which may be changed by its label while the job waits."""
    found = _read_dijob(fields["dijob"])
    return {
        "submitted": found,
        "is_preemptible": found.is_preemptible,
        "priority": found.priority,
        "queue": fields["queue"] or found.queue,
    }


def _read_dijob(dijob: str) -> Submitted:
    """Raises InvalidError."""
    found = split_manifest(dijob)
    # A user's jobs often differ in their names alone: what is read here is read once for equal specs.
    return _read_manifest(dijob if found is None else f'{{"spec":{found[1]}}}')


def split_manifest(text: str) -> tuple[Mapping[str, Any], str] | None:
    """(the metadata, the spec as JSON text) of a manifest as diflow writes it; None for any other text.

    The spec is not parsed. If it is valid JSON, both are what parsing the whole text gives.
    """
    if len(text) > MOST_MANIFEST_BYTES or not text.startswith(_BEFORE_METADATA) or not text.endswith("}"):
        return None
    # A quotation mark in a JSON string is escaped, so this is no part of one.
    metadata, found, spec = text[len(_BEFORE_METADATA) : -1].partition(',"spec":')
    if not found:
        return None
    try:
        parsed = untrusted.load(metadata)
    except ValueError:
        return None
    return (parsed, spec) if isinstance(parsed, dict) else None


@remembered(most_bytes=32 * MIB)
def _read_manifest(dijob: str) -> Submitted:
    """Raises InvalidError."""
    if len(dijob.encode(errors="replace")) > 2 * MOST_MANIFEST_BYTES:
        raise InvalidError(f"the annotation {keys.DIJOB} is larger than that of any job that diflow makes")
    try:
        manifest = untrusted.load(dijob, most_brackets=_MOST_OF_MANIFEST)
    except ValueError:
        raise InvalidError(f"the annotation {keys.DIJOB} is no JSON any more") from None
    spec = untrusted.sub(manifest, "spec")
    given = spec.get("tasks")
    if isinstance(given, list):
        if len(given) > MOST_TASKS:
            raise InvalidError(
                f"the annotation {keys.DIJOB} is not what diflow wrote: it says {len(given):,} tasks, and a job may "
                f"have {MOST_TASKS}"
            )
        replicas = (task.get("replicas") for task in given if isinstance(task, dict))
        _check_size(replicas, what=f"the annotation {keys.DIJOB}")
    out: list[TaskState] = []
    for i, item in enumerate(given if isinstance(given, list) else []):
        name = untrusted.sub({"task": item}, "task").get("name") or untrusted.sub({"task": item}, "task").get("type")
        if not isinstance(name, str) or not _TASK.fullmatch(name) or any(task.name == name for task in out):
            raise _no_job(f"spec.tasks[{i}].name")
        counts = [item.get("replicas", 1), item.get("minReplicas"), item.get("maxReplicas")]
        if not _is_count(counts[0]) or not all(n is None or _is_count(n) for n in counts[1:]):
            raise _no_job(f"spec.tasks[{i}].replicas")
        main = _main(item) if spec.get("failurePolicy") is not None else ""
        out.append(TaskState(name, counts[0], counts[1], counts[2], main))
    if not out:
        raise _no_job("spec.tasks")
    backoff = spec.get("backoffLimit", DEFAULT_BACKOFF)
    if not untrusted.is_count(backoff, least=0, most=MOST_BACKOFF_LIMIT):
        raise _no_job("spec.backoffLimit")
    priority = spec.get("priority", "normal")
    if not isinstance(priority, str) or priority not in keys.WORKFLOW_PRIORITIES:
        raise _no_job("spec.priority")
    preemptible = spec.get("preemptible", False)
    if not isinstance(preemptible, bool):
        raise _no_job("spec.preemptible")
    try:
        given = None if spec.get("failurePolicy") is None else parse_policy(spec["failurePolicy"])
    except PolicyError as error:
        raise _no_job(f"spec.failurePolicy{f'.{error.path}' if error.path else ''}") from None
    queue = untrusted.string(spec.get("queue"), most=keys.LABEL_LIMIT)
    return Submitted(
        tuple(out),
        backoff,
        preemptible,
        priority,
        queue,
        failures=given,
        has_allocator=spec.get("scheduling") == "gang",
        checks_nodes=untrusted.sub(spec, "nodeCheck").get("command") is not None,
        deadlines=_deadlines(spec["health"]) if isinstance(spec.get("health"), dict) else None,
    )


def _deadlines(health: Object) -> Deadlines:
    """An invalid deadline is replaced by the default. Here deadlines only affect when the server writes."""
    names = {"heartbeat": "heartbeatSeconds", "progress": "progressSeconds", "first_progress": "firstProgressSeconds"}
    given = {name: health.get(field) for name, field in names.items()}
    valid = {name: n for name, n in given.items() if untrusted.is_count(n, least=0, most=MOST_HEALTH_SECONDS)}
    return Deadlines(**{name: float(n) or math.inf for name, n in valid.items()})


def _main(task: Object) -> str:
    """The name of the main container of a task: `di-container`, or that of the first one."""
    containers = untrusted.mappings(untrusted.sub(task, "template", "spec").get("containers"))
    found = [untrusted.string(container.get("name"), most=keys.LABEL_LIMIT) for container in containers]
    return keys.MAIN_CONTAINER if keys.MAIN_CONTAINER in found else found[0] if found else ""


def _no_job(path: str) -> InvalidError:
    return InvalidError(f"the annotation {keys.DIJOB} is not a valid job any more ({path})")


def _live(fields: _Fields) -> Live:
    """The parameters that only the allocator writes. Raises InvalidError if they were edited."""
    values = dict(fields["parameters"])
    names = (*_LIVE, keys.PARAM_INCARNATIONS, keys.PARAM_MEMORY)
    given = tuple((name, values[name]) for name in names if name in values)
    return _read_live((given, tuple(task.name for task in fields["submitted"].tasks), bool(fields["continued_in"])))


@remembered(most_bytes=4 * MIB, size=lambda key: sum(200 + len(value) for _, value in key[0]) + 100 * len(key[1]))
def _read_live(key: tuple[Pairs, tuple[str, ...], bool]) -> Live:
    """As `_live`, from (these parameters, the names of the tasks, whether the job goes on in another Workflow).

    Most jobs have the same few values: those that wait, and those that run as they were submitted.
    """
    given, names, is_continued = key
    values, tasks = dict(given), set(names)
    rounds = _json(values, keys.PARAM_ROUNDS, list)
    current = values.get(keys.PARAM_CURRENT, "")
    granted = _json(values, keys.PARAM_GRANTED, dict)
    released = _json(values, keys.PARAM_RELEASED, list)
    incarnations = _json(values, keys.PARAM_INCARNATIONS, dict, missing="{}")
    if (
        not rounds
        or len(rounds) > MOST_ROUNDS
        or not all(untrusted.is_round(name) for name in rounds)
        or len(set(rounds)) < len(rounds)
    ):
        raise _edited(keys.PARAM_ROUNDS, 'a list of numbers such as ["1","2"]')
    if not current and is_continued:
        current = rounds[-1]  # the job has left this Workflow
    if current not in rounds:
        raise _edited(keys.PARAM_CURRENT, f"one of {', '.join(rounds[-5:])}")
    for counts in granted.values():
        _check_size(counts.values() if isinstance(counts, dict) else (), what=f"the parameter {keys.PARAM_GRANTED}")
    if not all(untrusted.is_round(name) and _is_grant(counts, tasks) for name, counts in granted.items()):
        raise _edited(keys.PARAM_GRANTED, 'replicas of each task by round, such as {"1":{"learner":1}}')
    if granted.get(current, {}).keys() != tasks:
        raise _edited(keys.PARAM_GRANTED, f"replicas of each task of round {current}")
    if len(released) > _MOST_RELEASED or not all(isinstance(r, str) and _RELEASED.fullmatch(r) for r in released):
        raise _edited(keys.PARAM_RELEASED, 'a list of texts such as ["1/learner/2"]')
    if len(incarnations) > _MOST_RELEASED or not all(
        _is_incarnation(key, suffix, tasks) for key, suffix in incarnations.items()
    ):
        raise _edited(keys.PARAM_INCARNATIONS, 'a mapping from members to their suffixes, such as {"1/learner/2":".1"}')
    memory = _json(values, keys.PARAM_MEMORY, dict, missing="{}")
    if not all(task in tasks and untrusted.is_count(mib, most=MOST_MIB) for task, mib in memory.items()):
        raise _edited(keys.PARAM_MEMORY, 'the MiB of tasks of the job, such as {"learner":2048}')
    return Live(tuple(rounds), current, granted, frozenset(released), incarnations, memory)


def submitted_replicas(head: Object) -> dict[str, int]:
    """The replicas by task as submitted, from a Workflow's metadata; none if its DIJob is unreadable."""
    dijob = untrusted.string(untrusted.sub(head, "metadata", "annotations").get(keys.DIJOB))
    try:
        return {task.name: task.replicas for task in _read_dijob(dijob).tasks}
    except InvalidError:
        return {}


def _check_size(numbers: Iterable[Any], *, what: str) -> None:
    """Raises InvalidError if these are more replicas than a job may have. Other values than numbers are ignored."""
    total = sum(n for n in numbers if isinstance(n, int) and n > 0)
    if total > MOST_REPLICAS:
        shown = f"{total:,}" if total < 10**9 else "more than 1,000,000,000"
        raise InvalidError(
            f"{what} is not what diflow wrote: it says {shown} replicas, and a job may have {MOST_REPLICAS:,}; "
            "put it back, or delete the job"
        )


def _is_grant(counts: Any, tasks: set[str]) -> bool:
    return (
        isinstance(counts, dict)
        and all(task in tasks and _is_count(n) for task, n in counts.items())
        and sum(counts.values()) <= MOST_REPLICAS
    )


def _is_incarnation(key: str, suffix: Any, tasks: set[str]) -> bool:
    found = _REPLICA.fullmatch(key)
    return found is not None and found[2] in tasks and isinstance(suffix, str) and bool(_INCARNATION.fullmatch(suffix))


def _json(values: Mapping[str, str], name: str, kind: type, *, missing: str = "") -> Any:
    try:
        value = untrusted.load(values.get(name, missing), most_brackets=_MOST_OF_LIVE)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise _edited(name, "JSON as diflow writes it")
    return value


def _edited(name: str, wanted: str) -> InvalidError:
    return InvalidError(
        f"the parameter {name} is not what diflow wrote: it must be {wanted}; put it back, or delete the job"
    )


def _asked(fields: _Fields, workflow: Object) -> _Fields:
    """The parameters and annotations that users and programs write after the submission."""
    complaints: list[str] = []
    tasks = {task.name for task in fields["submitted"].tasks}
    values = dict(reversed(fields["parameters"]))  # the first of two with one name counts
    wanted = _wanted(values.get(keys.PARAM_REPLICAS, ""), tasks)
    if wanted is None:
        complaints.append(f"the parameter {keys.PARAM_REPLICAS} is not a number of at least 1 for tasks of this job")
    bounds = _bounds(untrusted.sub(workflow, "metadata", "annotations").get(keys.BOUNDS), tasks)
    if bounds is None:
        complaints.append(f"the annotation {keys.BOUNDS} is not a minimum and a maximum for tasks of this job")
    profilings = values.get(keys.PARAM_PROFILINGS, "")
    if not _is_report(profilings):
        complaints.append(f"the parameter {keys.PARAM_PROFILINGS} is not a valid report: it must be a JSON object")
        profilings = ""
    return {"desired": wanted or {}, "bounds": bounds or {}, "profilings": profilings, "complaints": tuple(complaints)}


def _wanted(given: str, tasks: set[str]) -> dict[str, int] | None:
    try:
        value = untrusted.load(given, most_brackets=untrusted.FEW) if given else {}
    except ValueError:
        return None
    return value if isinstance(value, dict) and (not value or _is_grant(value, tasks)) else None


def _bounds(given: Any, tasks: set[str]) -> dict[str, tuple[int, int]] | None:
    if not given:
        return {}
    try:
        value = untrusted.load(given, most_brackets=untrusted.FEW)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    out: dict[str, tuple[int, int]] = {}
    for task, pair in value.items():
        low, high = (untrusted.sub(value, task).get(name) for name in ("min", "max"))
        if task not in tasks or not isinstance(pair, dict) or not _is_count(low) or not _is_count(high) or low > high:
            return None
        out[task] = (low, high)
    return out


def _is_report(given: str) -> bool:
    return not given or (len(given) <= LONGEST_PROFILINGS and _is_object(given))


@remembered(most_bytes=32 * MIB)
def _is_object(given: str) -> bool:
    try:
        return isinstance(untrusted.load(given, most_brackets=_MOST_OF_REPORTS), dict)
    except ValueError:
        return False


def _is_count(value: Any) -> TypeGuard[int]:
    return untrusted.is_count(value, most=MOST_REPLICAS)


def decision_of(given: Any) -> Decision | None:
    """The decision in the annotation; None if there is none, or if it is not valid."""
    said = untrusted.mapping(given, most_brackets=untrusted.FEW)
    why = untrusted.string(said.get("why"), most=_LONGEST_WHY)
    if not why:
        return None
    return Decision(untrusted.string(said.get("action"), most=40), why, untrusted.time(said.get("time")))


def past_phases(state: JobState) -> Iterator[tuple[str, str, str]]:
    """(phase, when it last began, when it last ended) for the phases of the job in its earlier Workflows."""
    phases = state.history_before.get("phases")
    for item in phases[:20] if isinstance(phases, list) else []:
        if (
            isinstance(item, list)
            and len(item) == 3
            and isinstance(item[0], str)
            and (began := untrusted.time(item[1]))
        ):
            yield item[0], began, untrusted.time(item[2]) or began
