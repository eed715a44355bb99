"""What admission makes of the pods of jobs, asked by dry runs before the jobs get places.

One dry run tells of all tasks of a namespace whose pods admission cannot tell apart (`Role.kind`). Until the first one
is answered its jobs wait, and no others: threads of their own ask, one question of a namespace at a time, and the
namespace pays. Refused pods are asked about again, after longer and longer pauses, and nothing of this is counted as a
failure. What cannot be asked, for lack of the right or because the API server does not answer, is taken as the
templates have it.

All that is known here may be lost at any time: it is asked again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from diflow.common.clock import Clock
from diflow.common.durations import backoff
from diflow.common.errors import DiflowError, NotFoundError, UnauthorizedError
from diflow.jobs.checks.admission import UNKNOWN, Answer, ask, is_unanswered, refusal
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.kube.sparing import Shares
from diflow.record.job import JobRecord, Role
from diflow.record.pod import shared

_Kind = tuple[str, bytes]
"""(namespace, the kind of a task)."""

_THREADS: Final = 8
_MOST_SLOW: Final = 4
"""Threads that wait for namespaces whose last question took long: as for a webhook that does not answer."""
_SLOW_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 12.0
"""How long a question may take: the API server waits 10 s for a webhook that says nothing else."""
_AGAIN_SECONDS: Final = (5.0, 300.0)
"""Between two questions about pods that are refused."""
_FRESH_SECONDS: Final = (60.0, 600.0)
"""Between two questions about pods of waiting jobs that are admitted: webhooks, LimitRanges and classes may change."""
_NO_RIGHT_SECONDS: Final = 300.0
_MOST_TRIES: Final = 3
"""Questions without any answer, after which the pods are taken as their template has them."""
_UNASKED_SECONDS: Final = 60.0
"""For so long a job waits for its first answer."""
_LOOK_SECONDS: Final = 5.0
MOST_KINDS: Final = 256
"""Of one namespace. Further ones are taken as their templates have them."""


def _log() -> Any:
    import structlog  # noqa: PLC0415 (slow to import, and the commands that plan log nothing)

    return structlog.get_logger("diflow.allocator")


@dataclass(frozen=True, slots=True)
class _Question:
    """A Workflow and its task, of which a pod is tried. `memory`: in MiB, of a task that may get more."""

    workflow: str
    task: str
    memory: int
    awaits: bool
    """The job waits for its first places."""


@dataclass(slots=True)
class _Known:
    """`answer`: None while there is none. `since`: when the question came up; `due`: when it is asked (again)."""

    since: float
    due: float
    answer: Answer | None = None
    tries: int = 0


@dataclass(slots=True)
class _Made:
    """A record as it was read, what is to be asked of it, and the record with what is known by the `version` of its
    namespace."""

    read: JobRecord
    questions: tuple[tuple[_Kind, _Question], ...]
    result: JobRecord
    version: int = -1


class DryRuns:
    """`applied` adds to records what is known. It does nothing until `start`, or until `is_on` is set.

    `on_news` is called with a reason to plan.
    """

    def __init__(self, cluster: Cluster, *, shares: Shares, on_news: Callable[[str], object], clock: Clock) -> None:
        self._cluster = cluster.without_retries(read_seconds=_ANSWER_SECONDS)
        self._shares, self._on_news, self._clock = shares, on_news, clock
        self.is_on = False
        self.version = 0
        """Another one with each change of what `applied` returns for unchanged records."""
        self._changed = threading.Condition()
        self._questions: dict[_Kind, _Question] = {}
        self._known: dict[_Kind, _Known] = {}
        self._made: dict[str, _Made] = {}
        self._versions: dict[str, int] = {}
        self._busy: dict[str, bool] = {}  # the namespaces of which something is asked now, and whether they are slow
        self._slow: set[str] = set()
        self._served: dict[str, float] = {}
        self._off_until = -math.inf

    def start(self, over: threading.Event) -> None:
        """Ask in threads until `over` is set."""
        self.is_on = True
        self.version += 1
        for i in range(_THREADS):
            threading.Thread(target=self._run, args=(over,), name=f"dry-runs-{i}", daemon=True).start()

    def applied(self, reads: Mapping[str, JobRecord]) -> Mapping[str, JobRecord]:
        """The records with what admission makes of their pods: the same objects while nothing has changed."""
        if not self.is_on:
            return reads
        with self._changed:
            questions: dict[_Kind, _Question] = {}
            made: dict[str, _Made] = {}
            for key, read in reads.items():
                if not read.needs.roles:
                    continue
                known = self._made.get(key)
                if known is None or known.read is not read:
                    known = _Made(read, tuple(_questions(read)), read)
                made[key] = known
                for kind, question in known.questions:
                    found = questions.get(kind)
                    if found is None or (question.awaits and not found.awaits):
                        questions[kind] = question
            self._note(questions)
            self._made = made
            return {**reads, **{key: self._brought_up(one) for key, one in made.items()}}

    def ask_again(self, namespace: str) -> None:
        """Ask about the refused pods of a namespace now: a quota of it has more room."""
        with self._changed:
            now = self._clock.monotonic()
            for kind, known in self._known.items():
                if kind[0] == namespace and known.answer is not None and known.answer.refusal and known.due < math.inf:
                    known.due, known.tries = now, 0
            self._changed.notify_all()

    def ask_due(self) -> None:
        """Ask all that is due, in this thread."""
        while (found := self._take()) is not None:
            self._ask(*found)

    # --- what is known ------------------------------------------------------------------------------------------------

    def _note(self, questions: dict[_Kind, _Question]) -> None:
        """Remember which questions there are."""
        now, counts = self._clock.monotonic(), dict[str, int]()
        before, self._questions = self._known, questions
        self._known = {}
        is_new = False
        for kind in questions:
            counts[kind[0]] = counts.get(kind[0], 0) + 1
            known = before.get(kind)
            if known is None:
                known = _Known(now, now)
                is_new = True
                if counts[kind[0]] > MOST_KINDS:
                    known.answer, known.due = UNKNOWN, math.inf
            self._known[kind] = known
        if is_new:
            self._changed.notify_all()

    def _brought_up(self, made: _Made) -> JobRecord:
        """The record with what is known now."""
        version = self._versions.get(made.read.identity.namespace, 0)
        if made.version != version:
            found = self._with(made.read)
            # A record that says the same is the same object: its job counts as unchanged.
            if found.needs != made.result.needs:
                made.result = found
            made.version = version
        return made.result

    def _with(self, read: JobRecord) -> JobRecord:
        """The record with what is known of its tasks."""
        known = {role.name: self._known.get((read.identity.namespace, role.kind)) for role in read.needs.roles}
        answers = {name: one.answer for name, one in known.items() if one is not None}
        is_unasked = _awaits(read) and None in answers.values() and self._clock.monotonic() >= self._off_until
        return _with(read, answers, is_unasked=is_unasked)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _run(self, over: threading.Event) -> None:
        while not over.is_set():
            try:
                found = self._take()
                if found is not None:
                    self._ask(*found)
                    continue
            except Exception:  # a thread that ends would leave jobs waiting
                _log().exception("a dry run failed")
            with self._changed:
                self._changed.wait(_LOOK_SECONDS if self._next() is None else 0.05)

    def _take(self) -> tuple[_Kind, _Question] | None:
        """The next question that is due, None if there is none."""
        with self._changed:
            self._give_up()
            kind = self._next()
            if kind is None:
                return None
            space = kind[0]
            self._known[kind].due = math.inf
            self._busy[space] = space in self._slow
            self._served[space] = self._clock.monotonic()
            return kind, self._questions[kind]

    def _next(self) -> _Kind | None:
        """The question that is due of the namespace that was served least lately: first those about which nothing is
        known, and which a job waits for."""
        now = self._clock.monotonic()
        if now < self._off_until:
            return None
        is_full = sum(self._busy.values()) >= _MOST_SLOW
        best: tuple[tuple[bool, bool, float, float], _Kind] | None = None
        for kind, known in self._known.items():
            space = kind[0]
            if known.due > now or space in self._busy or (is_full and space in self._slow):
                continue
            awaits = self._questions[kind].awaits
            if known.answer is not None and not awaits:
                continue  # it is asked again when a job waits
            rank = known.answer is not None, not awaits, self._served.get(space, -math.inf), known.due
            if (best is None or rank < best[0]) and self._shares.may(space):
                best = rank, kind
        return best[1] if best is not None else None

    def _give_up(self) -> None:
        """Take pods as their templates have them of which nothing could be asked for long."""
        now = self._clock.monotonic()
        for kind, known in self._known.items():
            if known.answer is None and now - known.since >= _UNASKED_SECONDS and kind[0] not in self._busy:
                known.answer, known.due = UNKNOWN, now + _FRESH_SECONDS[0]
                if now >= self._off_until:
                    self._tell(kind, "admission was not asked in time")

    def _ask(self, kind: _Kind, question: _Question) -> None:
        space, began = kind[0], self._clock.monotonic()
        error: Exception | None = None
        answer: Answer | None = None
        try:
            with self._shares.paid_by(space):
                workflow = self._cluster.get(WORKFLOW, question.workflow, namespace=space)
                answer = ask(self._cluster, workflow, question.task, memory=question.memory)
        except Exception as failed:  # of one job: the others are asked about
            error = failed
        finally:
            with self._changed:
                del self._busy[space]
                took = self._clock.monotonic() - began
                (self._slow.add if took >= _SLOW_SECONDS else self._slow.discard)(space)
                self._answered(kind, question, answer, error)
                self._changed.notify_all()

    def _answered(self, kind: _Kind, question: _Question, answer: Answer | None, error: Exception | None) -> None:
        """Note an answer, or why there is none."""
        now, known = self._clock.monotonic(), self._known.get(kind)
        if isinstance(error, UnauthorizedError):
            _log().warning("what admission adds to pods is not known", why=str(error))
            self._off_until = now + _NO_RIGHT_SECONDS
            for space in {space for space, _ in self._known}:
                self._versions[space] = self._versions.get(space, 0) + 1
            self.version += 1
            self._on_news("admission cannot be asked")
        if known is None:  # no job asks for it any more
            return
        before = known.answer
        if isinstance(error, UnauthorizedError):
            known.due = self._off_until
        elif answer is None and isinstance(error, DiflowError) and is_unanswered(error):
            answer = Answer(refusal=refusal(error.answer))
        elif answer is None:
            known.tries += 1
            known.due = now + backoff((1.0, _AGAIN_SECONDS[1]), known.tries - 1)
            if known.tries >= _MOST_TRIES or not isinstance(error, DiflowError) or isinstance(error, NotFoundError):
                _log().warning("a dry run has no answer", workflow=f"{kind[0]}/{question.workflow}", why=str(error))
                known.answer = known.answer or UNKNOWN
        if answer is not None:
            is_again = before is not None and bool(before.refusal) == bool(answer.refusal)
            known.tries = known.tries + 1 if is_again else 0
            known.answer = answer
            known.due = now + backoff(_AGAIN_SECONDS if answer.refusal else _FRESH_SECONDS, known.tries)
        if known.answer != before:
            self._tell(kind, f"what admission makes of {kind[0]}/{question.workflow} is known")

    def _tell(self, kind: _Kind, reason: str) -> None:
        self._versions[kind[0]] = self._versions.get(kind[0], 0) + 1
        self.version += 1
        self._on_news(reason)


def _awaits(read: JobRecord) -> bool:
    """Whether the job waits for places."""
    return read.placed is None and not (
        read.has_ended or read.is_stopping or read.problem or read.chain.continued_in or read.wishes.is_suspended
    )


def _questions(read: JobRecord) -> Iterator[tuple[_Kind, _Question]]:
    if not read.terms.is_gang or read.has_ended or read.is_stopping or read.problem or read.chain.continued_in:
        return
    for role in read.needs.roles:
        memory = read.live.memory.get(role.name, role.asked_memory)
        question = _Question(read.identity.name, role.name, memory, _awaits(read))
        yield (read.identity.namespace, role.kind), question


def asked(cluster: Cluster, workflow: Mapping[str, Any], read: JobRecord) -> JobRecord:
    """The record of this Workflow with what admission makes of its pods, asked now with the rights of the caller. What
    cannot be asked is taken as the templates have it."""
    if not _awaits(read):
        return read
    answers: dict[str, Answer] = {}
    for role in read.needs.roles:
        memory = read.live.memory.get(role.name, role.asked_memory)
        try:
            answers[role.name] = ask(cluster, workflow, role.name, memory=memory)
        except DiflowError as error:
            if not is_unanswered(error):
                return read
            answers[role.name] = Answer(refusal=refusal(error.answer))
    return _with(read, answers)


def _with(read: JobRecord, answers: Mapping[str, Answer | None], *, is_unasked: bool = False) -> JobRecord:
    """The record with what is known of its tasks."""
    given = [answer for answer in answers.values() if answer is not None and answer is not UNKNOWN]
    if not given and not is_unasked:
        return read
    needs = replace(
        read.needs,
        roles=tuple(_added(role, answers.get(role.name) or UNKNOWN) for role in read.needs.roles),
        refusal=next((answer.refusal for answer in given if answer.refusal), ""),
        is_unasked=is_unasked,
        gates=tuple(dict.fromkeys(gate for answer in given for gate in answer.gates)),
    )
    return replace(read, needs=needs) if needs != read.needs else read


def _added(role: Role, answer: Answer) -> Role:
    """The task with what admission makes of its pods."""
    if answer is UNKNOWN or answer.refusal:
        return role
    request = role.request
    if answer.more:
        sums = {name: request.get(name, 0) + answer.more.get(name, 0) for name in {**request, **answer.more}}
        request = shared({name: amount for name, amount in sums.items() if amount > 0})
    rules = role.rules
    if answer.rules is not None:
        found = answer.rules
        rules = replace(rules, apart=found.apart, near=found.near, spread=found.spread, beyond=found.beyond)
    return replace(
        role,
        request=request,
        where=role.where if answer.where is None else answer.where,
        host_ports=role.host_ports if answer.ports is None else answer.ports,
        rules=rules,
        limits=shared(answer.limits),
    )
