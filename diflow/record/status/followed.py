"""What followed from each failure of a job's replicas, as its Workflow shows it: for `diflow describe` and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diflow.common import keys
from diflow.common.words import quantity
from diflow.record.argo.failures import STOPPED, UNKNOWN, ended_container
from diflow.record.status.observe import Attempt, Observation


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that failed. `reason`: why, in a few words; `said`: what Kubernetes said; `rule`: the rule that
    decided; `followed`: what was done. `ended` is RFC 3339 or ""."""

    replica: str
    ended: str
    node: str
    reason: str
    said: str
    rule: str
    followed: str


def failures(seen: Observation) -> list[Failure]:
    """The failed attempts in the order in which they ended, without those that diflow stopped on purpose.

    Of a Workflow in which the job is no more, what followed from the last ones is in the next Workflow.
    """
    after: dict[tuple[str, int], Attempt] = {}
    out: list[Failure] = []
    for attempt in reversed(seen.attempts):
        key = (attempt.task, attempt.index)
        follower = after.get(key)
        if not _never_ran(attempt):  # the allocator ends a pod that was made with the memory of before
            after[key] = attempt
        verdict = attempt.verdict
        if verdict is None or attempt.phase != "Failed" or _was_stopped(attempt, follower):
            continue
        out.append(
            Failure(
                replica=attempt.replica,
                ended=attempt.finished,
                node=attempt.host,
                reason=_reason(attempt),
                said=attempt.message,
                rule=verdict.rule,
                followed=_followed(seen, attempt, follower),
            )
        )
    out.sort(key=lambda failure: failure.ended)
    return out


def _was_stopped(attempt: Attempt, follower: Attempt | None) -> bool:
    """The allocator ended it, for another round, a restart of all or a resize. Its user's own deadline counts."""
    if attempt.was_stopped or _never_ran(attempt):
        return True
    has_counted = (
        follower is not None
        and (follower.round, follower.restart) == (attempt.round, attempt.restart)
        and follower.counted > attempt.counted
    )
    return attempt.verdict is not None and attempt.verdict.reason == STOPPED and not has_counted


def _never_ran(attempt: Attempt) -> bool:
    return attempt.phase == "Failed" and not attempt.host and attempt.exit_code is None


def _reason(attempt: Attempt) -> str:
    reason = attempt.verdict.reason if attempt.verdict is not None else ""
    code = f"exit code {attempt.exit_code}" if attempt.exit_code else ""
    container, number = ended_container(attempt.message)  # without a name it is the work's
    if container == keys.CHECK_CONTAINER:
        reason, code = "node check", f"exit code {number}"
    elif container and not code:  # Argo records the exit code of the work alone
        code = f"exit code {number} of {container}"
    # If the exit code has no known meaning, only the code is shown.
    parts = [part for part in ("" if code and reason == UNKNOWN else reason, code) if part] or [UNKNOWN]
    if attempt.memory and attempt.verdict is not None and attempt.verdict.action == "MoreMemory":
        parts.append(f"with {quantity('memory', attempt.memory)}")
    return ", ".join(parts)


def _followed(seen: Observation, attempt: Attempt, follower: Attempt | None) -> str:
    if follower is None:
        return _nothing(seen, attempt)
    with_what = "".join(_news(attempt, follower))
    if follower.round != attempt.round:
        # The allocator may have counted it when it replaced the round.
        may_count = seen.job.notes.restarts_before > 0 and attempt.verdict is not None and attempt.verdict.is_counted
        return f"all replicas were started again{with_what}{'' if may_count else ', not counted'}"
    if follower.restart > attempt.restart:
        return f"all replicas were started again ({follower.restart} of {seen.job.spec.backoff_limit})"
    if follower.incarnation > attempt.incarnation:
        return "released, and added again"
    if follower.counted > attempt.counted:
        return f"started again{with_what} ({follower.counted} of {seen.job.spec.backoff_limit})"
    return f"started again{with_what}, not counted"


def _news(attempt: Attempt, follower: Attempt) -> Iterator[str]:
    if follower.host and follower.host != attempt.host:
        yield f" on {follower.host}"
    if follower.memory > attempt.memory > 0:
        yield f" with {quantity('memory', follower.memory)}"


def _nothing(seen: Observation, attempt: Attempt) -> str:
    if seen.job.chain.continued_in and attempt.round == seen.live.rounds[-1] and attempt.verdict is not None:
        return f"all replicas were started again{'' if attempt.verdict.is_counted else ', not counted'}"
    if seen.job.is_closing:
        return "the job ended"
    if seen.was_released(attempt) or attempt.round != seen.live.current:
        return "not replaced"
    return "waits to be started again"
