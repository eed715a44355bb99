"""What follows from the failures of a job with a failure policy: another node, more memory, or the end of the job.

Pure, and derived each time from Argo's nodes and the Workflow: a process that is killed between a failure and the write
that follows from it leaves the work to the next one. Each consequence is one write, after which the same failure has no
further one:

    more memory   the parameter `memory` is above what the failed attempt had
    elsewhere     the record of left-out nodes names the attempt
    both          the job is in a later round, if it is preemptible
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from diflow.common import keys
from diflow.common.words import counted, quantity
from diflow.dijob import memory
from diflow.record import nodecheck
from diflow.record.argo.tree import Ending
from diflow.record.exclusions import MOST_EXCLUDED, Exclusions
from diflow.record.job import JobRecord, Role

SOURCE: Final = "failure"
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Consequence:
    """What follows from the failures that nothing has followed from yet.

    `stop`: why the job ends, or "". Else `memory` and `excluded` are the new values, None if they stay; `moved` the
    replicas (task, index) that get another node, and `why` the text for people.
    """

    stop: str = ""
    memory: Mapping[str, int] | None = None
    excluded: Exclusions | None = None
    moved: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    why: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.stop or self.why)


def consequence(
    read: JobRecord,
    *,
    running: Mapping[str, tuple[int, ...]],
    now: float,
    most_memory: int | None,
    is_final: bool,
) -> Consequence:
    """What follows now. `running`: by member, the place in the order of attempts of the pods that were admitted;
    `most_memory`: the MiB that no replica of the cluster may exceed, None without a limit. `is_final`: no other replica
    may be the reason for a failure that ends the job."""
    endings = list(unanswered(read, read.argo.tree.endings, running))
    for ending in endings if is_final else ():
        if ending.verdict.action == "FailJob":
            return Consequence(stop=f"{failed(ending)}, which ends the job ({ending.verdict.rule})")
    draft = _Draft(read.notes.excluded)
    for ending in endings:
        stop = ""
        if ending.verdict.action == "MoreMemory":
            stop = _more_memory(read, ending, draft, most_memory)
        elif ending.verdict.action == "Elsewhere" and ending.host and not has_moved(read, ending, now):
            stop = _elsewhere(read, ending, draft, now)
        if stop:
            return Consequence(stop=stop)
    if not draft.texts:
        return Consequence()
    more = f"; and {len(draft.texts) - _NAMED} more" if len(draft.texts) > _NAMED else ""
    return Consequence(
        memory={**read.live.memory, **draft.memory} if draft.memory else None,
        excluded=draft.excluded if draft.excluded != read.notes.excluded else None,
        moved=frozenset(draft.moved),
        why="; ".join(draft.texts[:_NAMED]) + more,
        reason=draft.reason,
    )


@dataclass(slots=True)
class _Draft:
    """The consequence while the failures are looked at, one after the other. `memory`: the new values, by task;
    `reason`: that of the first failure."""

    excluded: Exclusions
    memory: dict[str, int] = field(default_factory=dict)
    moved: set[tuple[str, int]] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    reason: str = ""

    def add(self, text: str, reason: str) -> None:
        self.texts.append(text)
        self.reason = self.reason or reason


def unanswered(read: JobRecord, endings: Iterable[Ending], running: Mapping[str, tuple[int, ...]]) -> Iterator[Ending]:
    """Of these failures those of replicas of the current round that still should run, and do not run again already.
    `running`: as in `consequence`."""
    for ending in endings:
        if ending.round != read.live.current or ending.member in read.live.released:
            continue
        if ending.member != read.live.key(ending.task, ending.index) or read.argo.tree.finished(ending.member):
            continue
        if not running.get(ending.member, ()) > ending.order:
            yield ending


def has_moved(read: JobRecord, ending: Ending, now: float) -> bool:
    """Whether the replica has lost its place on the node of the failure. The record does not name all attempts, if many
    replicas failed on one node."""
    if read.notes.excluded.knows(ending.attempt):
        return True
    at = read.current_allocation
    has_place = at is not None and at.node(ending.task, ending.index) == ending.host
    return ending.host in read.notes.excluded.at(now) and not has_place


def _elsewhere(read: JobRecord, ending: Ending, draft: _Draft, now: float) -> str:
    """Leave out the node of a failure. Returns why the job ends instead, or ""."""
    attempts = [ending.attempt]
    if is_of_node_check(ending):
        moves = nodecheck.moves(read.notes.excluded)
        if read.spec.node_check is None or moves >= read.spec.node_check.max_moves:
            return f"{failed(ending)}: its gang was placed again as often as it may"
        attempts.append(nodecheck.move(moves + 1))
    if draft.excluded.is_full(now) and ending.host not in draft.excluded.at(now):
        many = counted(MOST_EXCLUDED, "node")
        return f"{failed(ending)}, after {many} were left out for this job: the nodes are not the reason"
    end = ending.message.partition(": ")[2] or ending.message
    code = f"node check, {end}" if is_of_node_check(ending) else end
    draft.excluded = draft.excluded.without(
        ending.host, reason=f"{ending.replica}: {code}", source=SOURCE, now=now, attempts=attempts
    )
    draft.moved.add((ending.task, ending.index))
    draft.add(f"{failed(ending)}: {ending.host} is left out for this job", "NodeLeftOut")
    return ""


def _more_memory(read: JobRecord, ending: Ending, draft: _Draft, most_memory: int | None) -> str:
    """Raise the memory of the next replicas of a task, one of which ran out of it. Returns why the job ends instead,
    or ""."""
    role = next((role for role in read.needs.roles if role.name == ending.task), None)
    has = read.live.memory.get(ending.task, 0)
    if role is None or not has:
        return ""
    had = ending.memory or has
    most = min((bound for bound in (role.max_memory, most_memory) if bound is not None), default=None)
    now = draft.memory.get(ending.task, has)
    new = memory.after_out_of_memory(had, highest=now, asked=role.asked_memory, most=most)
    if max(now, new) <= had:
        return f"{ending.replica} ran out of memory with {_mib(had)}, {_bound(role, had, most_memory)}"
    if new > now:
        draft.memory[ending.task] = new
    # Below `now` it gets what another replica got before: a preemptible job restarts for it, as for each failure.
    if new > now or read.terms.is_preemptible:
        text = f"{ending.replica} ran out of memory with {_mib(had)}: it starts again with {_mib(max(now, new))}"
        draft.add(text, "OutOfMemory")
    return ""


def _bound(role: Role, had: int, most_memory: int | None) -> str:
    if role.max_memory is not None and had >= role.max_memory:
        return "the most that it may have (maxMemory)"
    if most_memory is not None and had >= most_memory:
        return "the most that any replica may have in this cluster (DIFLOW_ALLOCATOR_MAX_MEMORY)"
    return f"and memory is not raised beyond {_mib(memory.DOUBLED_UP_TO_MIB)}"


def _mib(amount: int) -> str:
    return quantity("memory", amount)


def failed(ending: Ending) -> str:
    """That a replica has failed, and how, for people."""
    said = ending.message.removeprefix("main: ") or ending.verdict.reason or "Error"
    return f"{ending.replica} failed ({said[:100]})"


def is_of_node_check(ending: Ending) -> bool:
    """It is the failure of a node check of the user's own."""
    return ending.message.startswith(f"{keys.CHECK_CONTAINER}: ")


def is_explained(read: JobRecord) -> bool:
    """Whether a replica of the current round failed for a reason that does not count, in its latest restart: others
    that failed in it have probably lost their peer."""
    latest = read.argo.tree.restart_of.get(read.live.current, 0)
    return any(
        ending.round == read.live.current
        and ending.order[0] == latest
        and ending.host
        and not ending.verdict.is_counted
        for ending in read.argo.tree.endings
    )


def verdict(read: JobRecord) -> str:
    """Which replica of the round has failed so that it counts, in its present restart, for people; "" if none has."""
    return next(map(failed, read.counted_failures), "")
