"""The one record of a job: what diflow knows of it by its Workflow, made once, where a reflector or a command reads it.

The groups say who wrote what. Everything else of diflow asks the record, and reads no labels, annotations or parameters
(tests/test_rooms.py). Which text has which consequence when it is invalid is in `parameters.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from diflow.common import keys, limits, names
from diflow.common.errors import InvalidError
from diflow.common.predicates import NO_RULES, PodRules, Where
from diflow.dijob import stored
from diflow.dijob.stored import NOTHING, StoredJob, StoredSpec
from diflow.record import chain, parameters, untrusted
from diflow.record.allocation import Allocation
from diflow.record.argo.failures import Rules, rules_of_task
from diflow.record.argo.nodes import Node
from diflow.record.argo.tree import Ending, Tree, read_tree
from diflow.record.chain import Chain, Part
from diflow.record.exclusions import Exclusions
from diflow.record.health import HealthState
from diflow.record.identity import Identity
from diflow.record.live import Live
from diflow.record.nodecheck import LONGEST as LONGEST_CHECKS
from diflow.record.nodecheck import Record, moves
from diflow.record.parameters import Asked, Decision, History, Object, Pairs
from diflow.record.patches import STOP, TERMINATE
from diflow.record.requests.ranges import Range, asked, elastic
from diflow.record.run_time import RunTime
from diflow.record.side_by_side import SideBySide
from diflow.record.stage import Stage, has_places, stage_of

STOPS: Final = (STOP, TERMINATE)
ENDED: Final = frozenset({"Succeeded", "Failed", "Error"})
REQUESTS: Final = (keys.BOUNDS, keys.REQUESTED, keys.REQUESTS, keys.CARRIED_OUT, keys.HELD)
"""Annotations with what users have requested since the submission, and with which requests were carried out."""
LONGEST_DESCRIPTION: Final = 2000
"""Characters of the description in the Argo UI that are kept."""
_LONGEST_REQUESTS: Final = 65_536
_LONGEST_MESSAGE: Final = 4096
_LONGEST_WHY: Final = 1024
_NEVER_RAN: Final = RunTime()


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms the job runs: those of its DIJob; of a job whose DIJob cannot be read, those of its labels.

    `is_job`: diflow made the Workflow. `is_gang`: the allocator places it.
    """

    is_job: bool = True
    is_gang: bool = False
    is_preemptible: bool = False
    priority: str = "normal"

    @property
    def priority_number(self) -> int:
        """The greater, the earlier."""
        return keys.WORKFLOW_PRIORITIES.get(self.priority, 0)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user requests since the submission.

    `desired` replicas and `bounds` (a minimum and a maximum) by task; `queue`: that of the DIJob, but for one that was
    changed since; `is_suspended`: by a user. `requests`: the annotations with requests (`REQUESTS`), by name.
    """

    desired: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    queue: str = ""
    is_suspended: bool = False
    requests: Pairs = ()

    def request(self, name: str) -> str:
        """The text of one of the annotations; "" without it."""
        return next((text for key, text in self.requests if key == name), "")


@dataclass(frozen=True, slots=True)
class Notes:
    """What diflow notes in annotations for its own use: they count as missing if they are invalid.

    `decision`: the allocator's last one; `health`: what it found of the replicas; `excluded`: the nodes that are left
    out for the job; `checks`: the results of its node check, of a record for planning. The counts and the `history`
    before are those of the job's earlier Workflows. `run_time`: how long it has run, if it has a limit. `pool`: the
    number of the pool of its nodes.
    """

    allocation: Allocation | None = None
    decision: Decision = field(default_factory=Decision)
    health: HealthState | None = None
    excluded: Exclusions = field(default_factory=Exclusions)
    checks: Record = field(default_factory=Record)
    restarts_before: int = 0
    rounds_before: int = 0
    history_before: History = field(default_factory=History)
    run_time: RunTime = _NEVER_RAN
    pool: int = names.UNKNOWN_POOL


@dataclass(frozen=True, slots=True)
class Argo:
    """What Argo and the API server say of the Workflow.

    `created_seconds`: when this Workflow was, in seconds since 1970 (0: unknown). `is_being_deleted`: in the
    foreground, so that it waits for the deletion of its pods. `was_never_admitted`: the allocator never admitted the
    job, and Argo has made nothing of it; with `argo resume` it makes pods without an admission, which have gates.
    `awaits_admission`: such a job is not suspended by its user. `is_hidden`: Argo does not see it until the allocator's
    first decision (`keys.INSTANCE`). `places_until`: how long pods are created without a gate (seconds since 1970; 0:
    they are not). `tree`: of Argo's nodes, and `side_by_side`: of a job whose rounds are, if they were asked for.
    """

    created_seconds: float = 0.0
    phase: str = ""
    shutdown: str = ""
    is_being_deleted: bool = False
    awaits_admission: bool = False
    was_never_admitted: bool = False
    is_hidden: bool = False
    places_until: float = 0.0
    tree: Tree = field(default_factory=Tree)
    side_by_side: SideBySide | None = None
    has_begun: bool = False
    """Argo has made nodes of it."""
    deadline_seconds: int = 0
    """After how many seconds Argo ends the Workflow, counted from its start; 0: never."""


@dataclass(frozen=True, slots=True)
class Course:
    """How the Workflow went, for the job's status. Times are RFC 3339 text, "" if there is none.

    `message`: Argo's. `stopped_because`: why the controller stopped the job. `finalizers`: what its deletion waits for.
    """

    created: str = ""
    started: str = ""
    finished: str = ""
    message: str = ""
    stopped_because: str = ""
    finalizers: tuple[str, ...] = ()


FORGOTTEN: Final = Course()
"""Of records that are kept, and of which nobody asks the status."""


@dataclass(frozen=True, slots=True)
class Role:
    """One task as the allocator places it. Replicas: `low` to `high` may run, in multiples of `unit`; `desired` are
    asked for now."""

    name: str
    request: Mapping[str, int]
    where: Where
    host_ports: tuple[int, ...]
    submitted: int
    low: int
    high: int
    desired: int
    unit: int = 1
    asked_memory: int = 0
    """MiB of the main container as submitted, of a task that may get more."""
    max_memory: int | None = None
    rules: PodRules = NO_RULES
    """What its pods ask for of other pods and of volumes; their labels are those of the template."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What placing the job needs, of a record for planning (`diflow.allocator.watch.records`): others do not pay for
    reading templates.

    `application`: what a preemptible job runs (`applications.py`), "" for others, which are not resized.
    `has_short_hosts`: its host names are without the namespace.
    """

    roles: tuple[Role, ...] = ()
    has_short_hosts: bool = False
    application: str = ""

    @property
    def least(self) -> dict[str, int]:
        """The least replicas of each task."""
        return {role.name: role.low for role in self.roles}


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts as they are written: `parameters` has all parameters in order, to be written back. `profilings`: what the
    job reports. `check_text`: the results of its node check, None without them. `application`: the one that its user
    names. `ending`: the job's sentence (`messages.py`) if it is being stopped or deleted, of a record for planning.
    `report`: as `profilings`, valid or not, but None if the server cannot have written it; `report_at`: the place of
    this parameter among all, None without it."""

    parameters: Pairs = ()
    profilings: str = ""
    check_text: str | None = None
    description: str = ""
    application: str = ""
    ending: str = ""
    report: str | None = None
    report_at: int | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job by one of its Workflows. `problem`: why it cannot be read (""), one sentence for its owner; `complaints`:
    what of it was ignored."""

    identity: Identity
    chain: Chain = field(default_factory=Chain)
    terms: Terms = field(default_factory=Terms)
    submitted: StoredJob = NOTHING
    wishes: Wishes = field(default_factory=Wishes)
    live: Live = field(default_factory=Live)
    notes: Notes = field(default_factory=Notes)
    argo: Argo = field(default_factory=Argo)
    course: Course = FORGOTTEN
    needs: Needs = field(default_factory=Needs)
    texts: Texts = field(default_factory=Texts)
    problem: str = ""
    complaints: tuple[str, ...] = ()

    @property
    def spec(self) -> StoredSpec:
        """The spec of the job as it was submitted."""
        return self.submitted.spec

    @property
    def key(self) -> str:
        """The Workflow's "namespace/name"."""
        return self.identity.key

    @property
    def name(self) -> str:
        """The job's name, which is that of its first Workflow."""
        return self.chain.job or self.identity.name

    @property
    def part(self) -> Part:
        """The Workflow as a part of its job."""
        here, chain = self.identity, self.chain
        return Part(here.namespace, here.name, here.uid, chain.continues, chain.continues_uid, chain.continued_in)

    @property
    def before(self) -> str:
        """The key of the previous Workflow of the job; "" of the first one."""
        return f"{self.identity.namespace}/{self.chain.continues}" if self.chain.continues else ""

    @property
    def submitted_seconds(self) -> float:
        """When the job was submitted, in seconds since 1970 (0: unknown)."""
        return self.chain.submitted_seconds or self.argo.created_seconds

    @property
    def has_ended(self) -> bool:
        """The Workflow has ended."""
        return self.argo.phase in ENDED

    @property
    def is_over(self) -> bool:
        """The job has ended: this Workflow has, and no other continues it."""
        return self.has_ended and not self.chain.continued_in

    @property
    def round(self) -> str:
        """The current round; "" of a job that cannot be read."""
        return "" if self.problem else self.live.current

    @property
    def may_be_checked_again(self) -> bool:
        """The gang is placed again if its node check finds a node faulty: it was not so as often as it may."""
        check = self.spec.node_check
        return check is not None and self.terms.is_gang and moves(self.notes.excluded) < check.max_moves

    @property
    def outcome(self) -> str:
        """How the job has ended: Succeeded or Failed; "" before that."""
        is_done = self.argo.phase == "Succeeded" and not self.chain.continued_in
        return ("Succeeded" if is_done else "Failed") if self.has_ended else ""

    @property
    def may_go_on(self) -> bool:
        """The allocator may continue the job in another Workflow at any time: it does so with preemptible jobs."""
        return self.terms.is_gang and self.terms.is_preemptible

    @property
    def is_stopping(self) -> bool:
        """Argo was asked to end it."""
        return self.argo.shutdown in STOPS

    @property
    def is_closing(self) -> bool:
        """Argo starts no more pods of it: the Workflow has ended, or is being stopped."""
        return self.is_stopping or self.has_ended

    @property
    def is_side_by_side(self) -> bool:
        """Its rounds run side by side (`side_by_side.py`)."""
        return any(name == keys.PARAM_MODULES for name, _ in self.texts.parameters)

    @property
    def current_allocation(self) -> Allocation | None:
        """The allocation of the current round; None if the last one is of an earlier round."""
        at = self.notes.allocation
        return at if at is not None and at.round == self.live.current else None

    @property
    def placed(self) -> Allocation | None:
        """The allocation of the current round if the round was placed, else None. Any of its places may have been taken
        back since (`Allocation.has_node`)."""
        at = self.current_allocation
        return at if at is not None and at.is_placed else None

    @property
    def running(self) -> dict[str, int]:
        """How many replicas of each task should run now."""
        return {task.name: self.live.running(task.name) for task in self.spec.tasks}

    @property
    def is_gang(self) -> bool:
        """The allocator gives it its places. One that waits for its admission shows that without its label."""
        return self.terms.is_gang or self.argo.awaits_admission

    def has_places(self, tree: Tree) -> bool:
        """Whether its replicas have places in the current round, or need none. `tree`: of Argo's nodes."""
        return not self.is_gang or has_places(self.notes.allocation, self.live, tree)

    def stage(self, tree: Tree, *, is_left_out: bool = False) -> Stage:
        """Where the job is in its life. `tree`: of Argo's nodes. `is_left_out`: of the plan, as the policy fails for
        it."""
        return stage_of(
            is_gang=self.is_gang,
            has_places=self.has_places(tree),
            is_held=bool(self.problem) or is_left_out,
            is_suspended=self.wishes.is_suspended,
            is_stopping=self.is_stopping,
            is_being_deleted=self.argo.is_being_deleted,
            is_superseded=bool(self.chain.continued_in),
            has_ended=self.has_ended,
        )

    def range_of(self, index: int) -> Range:
        """The replicas that are requested now of one task."""
        return asked(self.spec, index, desired=self.wishes.desired, bounds=self.wishes.bounds)

    @property
    def elastic(self) -> str:
        """The task that a request without a task is about; "" of a job that cannot be read."""
        return elastic(self.spec.tasks, bounds=self.wishes.bounds)

    @property
    def restarts(self) -> int:
        """Failures that count against backoffLimit, over all Workflows of the job so far."""
        at = self.notes.allocation
        return self.notes.restarts_before + max(0, self.argo.tree.restarts - (at.forgiven if at is not None else 0))

    @property
    def counted_failures(self) -> tuple[Ending, ...]:
        """Those of replicas of the current round, in its latest restart, of a job with a failure policy."""
        tree, current = self.argo.tree, self.live.current
        latest = tree.restart_of.get(current, 0)
        return tuple(
            end for end in tree.endings if end.round == current and end.order[0] == latest and end.verdict.is_counted
        )

    @property
    def first_failure_seconds(self) -> float:
        """When the first of them was, in seconds since 1970; 0 without one."""
        return untrusted.seconds(min((end.finished for end in self.counted_failures if end.finished), default=""))

    @property
    def reschedules(self) -> int:
        """Pods created again without counting against backoffLimit, and rounds with a node that were replaced; over all
        Workflows of the job so far."""
        tree = self.argo.tree
        return self.notes.rounds_before + tree.moves + tree.rounds_left(self.live.rounds)

    @property
    def complaint(self) -> str:
        """What of it was ignored, in one text."""
        return "; ".join(self.complaints)

    @property
    def limits(self) -> str:
        """The minimum and maximum replicas of each task that the user asks for, as text."""
        return ",".join(f"{role.name}:{role.low}-{role.high}" for role in self.needs.roles)

    def rules(self, task: str) -> Rules:
        """What follows when a replica of a task fails. The Workflow's expressions are made of the same rules."""
        return rules_of_task(self.spec, task, has_memory=task in self.live.memory)


def record_of(workflow: Object) -> JobRecord:
    """Read a Workflow. It never raises: errors are in `problem` and `complaints`."""
    metadata = untrusted.sub(workflow, "metadata")
    labels, annotations = untrusted.sub(metadata, "labels"), untrusted.sub(metadata, "annotations")
    link, given = chain.read(workflow), parameters.parameters(workflow)
    job, live, asked, problem = NOTHING, Live(), Asked(), ""
    is_gang = labels.get(keys.SCHEDULING) == "gang"
    try:
        parameters.check_bytes(given)
        job = stored.read_job(annotations.get(keys.DIJOB))
        tasks = tuple(task.name for task in job.spec.tasks)
        live = parameters.live_of(given, tasks, is_continued=bool(link.continued_in))
        asked = parameters.asked_of(given, annotations.get(keys.BOUNDS), tasks)
        problem = job.spec.too_large if is_gang else ""
    except parameters.TooLargeParametersError as error:
        given, problem = (), str(error)  # too large to keep
    except InvalidError as error:
        problem = str(error)
    argo, is_suspended = _argo(workflow, given)
    return JobRecord(
        Identity.of(workflow),
        link,
        _terms(labels, job.spec),
        job,
        # The submitted DIJob takes precedence over the labels that repeat parts of it for `kubectl get -l`, except for
        # the queue, which may be changed by its label while the job waits.
        Wishes(
            asked.desired,
            asked.bounds,
            untrusted.string(labels.get(keys.QUEUE), most=keys.LABEL_LIMIT) or job.spec.queue or "",
            is_suspended,
            _requests(annotations),
        ),
        live,
        _notes(annotations, submitted_seconds=link.submitted_seconds or argo.created_seconds),
        argo,
        _course(metadata, untrusted.sub(workflow, "status"), annotations),
        texts=_texts(annotations, given, asked.profilings, parameters.report(workflow)),
        problem=problem,
        complaints=asked.complaints,
    )


def unreadable(workflow: Object, problem: str) -> JobRecord:
    """The record of a Workflow of which only its identity and its phase are known. Its pods still use capacity."""
    phase = _text(untrusted.sub(workflow, "status").get("phase"))
    return JobRecord(Identity.of(workflow), argo=Argo(phase=phase), problem="" if phase in ENDED else problem)


def _terms(labels: Object, spec: StoredSpec) -> Terms:
    is_read = bool(spec.tasks)
    given = untrusted.string(labels.get(keys.PRIORITY), most=keys.LABEL_LIMIT) or "normal"
    return _same_terms(
        labels.get(keys.MANAGED_BY) == keys.MANAGED_BY_VALUE,
        labels.get(keys.SCHEDULING) == "gang",
        spec.is_preemptible if is_read else labels.get(keys.PREEMPTIBLE) == "true",
        spec.priority if is_read else given,
    )


_same_terms: Final = lru_cache(maxsize=256)(Terms)
"""One object for all equal terms."""


def _argo(workflow: Object, given: Pairs) -> tuple[Argo, bool]:
    """(what Argo says, whether the user has suspended the job)."""
    metadata, spec, status = (untrusted.sub(workflow, name) for name in ("metadata", "spec", "status"))
    is_held = untrusted.sub(metadata, "annotations").get(keys.HELD) == "true"
    is_suspended = spec.get("suspend") is True
    is_new = parameters.is_never_admitted(status, given)
    awaits = is_suspended and is_new and not is_held
    found = Argo(
        created_seconds=untrusted.seconds(metadata.get("creationTimestamp")),
        phase=_text(status.get("phase")),
        shutdown=_text(spec.get("shutdown")),
        is_being_deleted=untrusted.is_deleted_in_foreground(metadata),
        awaits_admission=awaits,
        was_never_admitted=is_new,
        is_hidden=untrusted.sub(metadata, "labels").get(keys.INSTANCE) == keys.INSTANCE_VALUE,
        places_until=parameters.places_until(given, untrusted.string(metadata.get("uid"))),
        deadline_seconds=limit
        if untrusted.is_count(limit := spec.get("activeDeadlineSeconds"), most=limits.MOST_RUN_SECONDS)
        else 0,
        has_begun=any(status.get(name) for name in ("nodes", "compressedNodes", "offloadNodeStatusVersion")),
    )
    return found, is_suspended and not awaits


def _course(metadata: Object, status: Object, annotations: Object) -> Course:
    finalizers = metadata.get("finalizers")
    return Course(
        created=untrusted.time(metadata.get("creationTimestamp")),
        started=untrusted.time(status.get("startedAt")),
        finished=untrusted.time(status.get("finishedAt")),
        message=untrusted.string(status.get("message"), most=_LONGEST_MESSAGE),
        stopped_because=untrusted.string(annotations.get(keys.STOPPED_BECAUSE), most=_LONGEST_WHY),
        finalizers=tuple(filter(None, map(_text, finalizers))) if isinstance(finalizers, list) else (),
    )


def _texts(annotations: Object, given: Pairs, profilings: str, report: tuple[str | None, int | None]) -> Texts:
    named = annotations.get(keys.APPLICATION)
    return Texts(
        given,
        profilings,
        check_text=untrusted.string(annotations[keys.NODE_CHECK], most=LONGEST_CHECKS + 1)
        if keys.NODE_CHECK in annotations
        else None,
        description=untrusted.string(annotations.get(keys.DESCRIPTION), most=LONGEST_DESCRIPTION),
        application=untrusted.string(named) if names.is_application(named) else "",
        report=report[0],
        report_at=report[1],
    )


def with_tree(found: JobRecord, nodes: Sequence[Node], *, is_offloaded: bool) -> JobRecord:
    """The record of a Workflow with Argo's nodes, of which there may be thousands."""
    tree = read_tree(nodes, is_offloaded=is_offloaded, rules=found.rules if found.spec.has_rules else None)
    return replace(found, argo=replace(found.argo, tree=tree))


def _notes(annotations: Object, *, submitted_seconds: float) -> Notes:
    pool = annotations.get(keys.POOL)
    return Notes(
        allocation=Allocation.parse(annotations.get(keys.ALLOCATION)),
        decision=parameters.decision_of(annotations.get(keys.DECISION)),
        health=HealthState.parse(annotations.get(keys.HEALTH)),
        excluded=Exclusions.parse(annotations.get(keys.EXCLUDED)),
        restarts_before=untrusted.whole(annotations.get(keys.RESTARTS_BEFORE)) or 0,
        rounds_before=untrusted.whole(annotations.get(keys.ROUNDS_BEFORE)) or 0,
        history_before=parameters.history_of(annotations.get(keys.HISTORY_BEFORE)),
        run_time=RunTime.parse(annotations[keys.RUN_TIME], of=submitted_seconds)
        if keys.RUN_TIME in annotations
        else _NEVER_RAN,
        pool=names.pool_number(pool) if isinstance(pool, str) and len(pool) <= keys.LABEL_LIMIT else names.UNKNOWN_POOL,
    )


def _requests(annotations: Object) -> Pairs:
    given = [name for name in REQUESTS if name in annotations]
    found = ((name, untrusted.string(annotations[name], most=_LONGEST_REQUESTS)) for name in given)
    return tuple((name, text) for name, text in found if text)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
