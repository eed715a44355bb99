"""What follows from the failures of a job with a failure policy: another node, more memory, or the end of the job.

Pure, and derived each time from Argo's nodes and the Workflow: a process that is killed between a failure and the write
that follows from it leaves the work to the next one. Each consequence is one write, after which the same failure has no
further one:

    more memory   the parameter `memory` is above what the failed attempt had
    elsewhere     the record of left-out nodes names the attempt
    both          the job is in a later round, if it is preemptible
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from diflow import keys
from diflow.allocator.engine.records import JobRead, Role
from diflow.figures import counted, quantity
from diflow.state import memory, nodecheck
from diflow.state.exclusions import MOST_EXCLUDED, Exclusions
from diflow.state.tree import Ending

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
    read: JobRead,
    *,
    running: Mapping[str, tuple[int, ...]],
    now: float,
    most_memory: int | None = None,
    is_final: bool = True,
) -> Consequence:
    """What follows now. `running`: by member, the place in the order of attempts of the pods that were admitted;
    `most_memory`: the MiB that no replica of the cluster may exceed, None without a limit. `is_final`: no other replica
    may be the reason for a failure that ends the job."""
    endings = list(_open(read, running))
    for ending in endings if is_final else ():
        if ending.verdict.action == "FailJob":
            return Consequence(stop=f"{_failed(ending)}, which ends the job ({ending.verdict.rule})")
    raised: dict[str, int] = {}
    excluded, moved, said = read.excluded, set[tuple[str, int]](), list[str]()
    reason = ""
    for ending in endings:
        if ending.verdict.action == "MoreMemory":
            stop, text = _more_memory(read, ending, raised, most_memory)
            if stop:
                return Consequence(stop=stop)
            if text:
                said.append(text)
                reason = reason or "OutOfMemory"
        elif ending.verdict.action == "Elsewhere" and ending.host and not _has_moved(read, ending, now):
            numbers: list[str] = []
            if is_of_node_check(ending):
                if read.node_check is None or nodecheck.moves(read.excluded) >= read.node_check.max_moves:
                    return Consequence(stop=f"{_failed(ending)}: its gang was placed again as often as it may")
                numbers = [nodecheck.move(nodecheck.moves(read.excluded) + 1)]
            if excluded.is_full(now) and ending.host not in excluded.at(now):
                many = counted(MOST_EXCLUDED, "node")
                return Consequence(
                    stop=f"{_failed(ending)}, after {many} were left out for this job: the nodes are not the reason"
                )
            end = ending.message.partition(": ")[2] or ending.message
            code = f"node check, {end}" if is_of_node_check(ending) else end
            excluded = excluded.without(
                ending.host,
                reason=f"{ending.replica}: {code}",
                source=SOURCE,
                now=now,
                attempts=[ending.attempt, *numbers],
            )
            moved.add((ending.task, ending.index))
            said.append(f"{_failed(ending)}: {ending.host} is left out for this job")
            reason = reason or "NodeLeftOut"
    if not said:
        return Consequence()
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return Consequence(
        memory={**read.memory, **raised} if raised else None,
        excluded=excluded if excluded != read.excluded else None,
        moved=frozenset(moved),
        why="; ".join(said[:_NAMED]) + more,
        reason=reason,
    )


def _open(read: JobRead, running: Mapping[str, tuple[int, ...]]) -> Iterator[Ending]:
    """The failures of replicas of the current round that still should run, and do not run again already."""
    for ending in read.tree.endings:
        if ending.round != read.current or ending.member in read.released:
            continue
        if ending.member != read.member(ending.task, ending.index) or read.tree.finished(ending.member):
            continue
        if not running.get(ending.member, ()) > ending.order:
            yield ending


def _has_moved(read: JobRead, ending: Ending, now: float) -> bool:
    """Whether the replica has lost its place on the node of the failure. The record does not name all attempts, if many
    replicas failed on one node."""
    if read.excluded.knows(ending.attempt):
        return True
    at = read.allocation
    has_place = at is not None and at.round == read.current and at.node(ending.task, ending.index) == ending.host
    return ending.host in read.excluded.at(now) and not has_place


def _more_memory(read: JobRead, ending: Ending, raised: dict[str, int], most_memory: int | None) -> tuple[str, str]:
    """(why the job ends, what follows for people) from a replica that ran out of memory; adds to `raised`."""
    role = next((role for role in read.roles if role.name == ending.task), None)
    has = read.memory.get(ending.task, 0)
    if role is None or not has:
        return "", ""
    had = ending.memory or has
    most = min((bound for bound in (role.max_memory, most_memory) if bound is not None), default=None)
    now = raised.get(ending.task, has)
    new = memory.after_out_of_memory(had, highest=now, asked=role.asked_memory, most=most)
    if max(now, new) <= had:
        return f"{ending.replica} ran out of memory with {_mib(had)}, {_bound(role, had, most_memory)}", ""
    if new <= now:
        # It gets what another replica got before. A preemptible job restarts for it, as it does for each failure.
        return "", f"{_out_of(ending, had)} {_mib(now)}" if read.is_preemptible else ""
    raised[ending.task] = new
    return "", f"{_out_of(ending, had)} {_mib(new)}"


def _out_of(ending: Ending, had: int) -> str:
    return f"{ending.replica} ran out of memory with {_mib(had)}: it starts again with"


def _bound(role: Role, had: int, most_memory: int | None) -> str:
    if role.max_memory is not None and had >= role.max_memory:
        return "the most that it may have (maxMemory)"
    if most_memory is not None and had >= most_memory:
        return "the most that any replica may have in this cluster (DIFLOW_ALLOCATOR_MAX_MEMORY)"
    return f"and memory is not raised beyond {_mib(memory.DOUBLED_UP_TO_MIB)}"


def _mib(amount: int) -> str:
    return quantity("memory", amount)


def _failed(ending: Ending) -> str:
    said = ending.message.removeprefix("main: ") or ending.verdict.reason or "Error"
    return f"{ending.replica} failed ({said[:100]})"


def is_of_node_check(ending: Ending) -> bool:
    """It is the failure of a node check of the user's own."""
    return ending.message.startswith(f"{keys.CHECK_CONTAINER}: ")


def is_explained(read: JobRead) -> bool:
    """Whether a replica of the current round failed for a reason that does not count, in its latest restart: others
    that failed in it have probably lost their peer."""
    latest = read.tree.restart_of.get(read.current, 0)
    return any(
        ending.round == read.current and ending.order[0] == latest and ending.host and not ending.verdict.is_counted
        for ending in read.tree.endings
    )


def first_failure(read: JobRead) -> str:
    """When the first replica of the round failed so that it counts, in its present restart (RFC 3339); else ""."""
    return min((ending.finished for ending in _counted(read) if ending.finished), default="")


def verdict(read: JobRead) -> str:
    """Which replica of the round has failed so, for people; "" if none has."""
    return next((_failed(ending) for ending in _counted(read)), "")


def _counted(read: JobRead) -> Iterator[Ending]:
    latest = read.tree.restart_of.get(read.current, 0)
    for ending in read.tree.endings:
        if ending.round == read.current and ending.order[0] == latest and ending.verdict.is_counted:
            yield ending
