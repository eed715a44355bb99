"""The phases of a job so far, derived from the timestamps of Argo and Kubernetes.

It replays the events of each replica (its pod was created, bound to a node, ready, ended) and derives the job's phase
after each of them.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from diflow.record.status.observe import Attempt, Observation

Phase = Literal["Pending", "Starting", "Running", "Restarting", "Rescheduling", "Succeeded", "Failed", "Unknown"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


def history(seen: Observation) -> list[tuple[Phase, str]]:
    """The phases of a job so far, each with the time at which it began, without the final one."""
    replay = _Replay(seen)
    steps: list[tuple[Phase, str]] = [("Pending", seen.job.course.created)]
    events = _events(seen)
    for i, (time, what, attempt) in enumerate(events):
        replay.apply(what, attempt)
        if i + 1 < len(events) and events[i + 1][0] == time:
            continue  # events within the same second count as one step
        phase = replay.phase()
        if phase == "Running" and steps[-1][0] == "Pending":
            steps.append(("Starting", time))  # it was over within a second
        if phase != steps[-1][0]:
            steps.append((phase, time))
    replay.wanted = set(seen.wanted)
    phase = replay.phase(now=True)
    if phase != steps[-1][0]:
        steps.append((phase, events[-1][0] if events else seen.job.course.created))
    # As within one Workflow: a job of which no pod was ever bound starts for the first time.
    has_begun = any(name != "Pending" for name, _, _ in seen.job.notes.history_before.phases)
    return _on_its_way(steps) if has_begun else steps


def _on_its_way(steps: list[tuple[Phase, str]]) -> list[tuple[Phase, str]]:
    """For a job that continues in another Workflow: its start there is a reschedule."""
    out: list[tuple[Phase, str]] = []
    begun = False
    for phase, time in steps:
        begun = begun or phase not in ("Pending", "Starting")
        named = phase if begun else "Rescheduling"
        if not out or out[-1][0] != named:
            out.append((named, time))
    return out


def _events(seen: Observation) -> list[tuple[str, str, Attempt]]:
    events: list[tuple[str, tuple[int, int, int, int, int], int, str, Attempt]] = []
    for attempt in seen.attempts:
        # A time that is missing or earlier than the one before it (clock skew) is replaced by that one.
        time = attempt.created
        events.append((time, attempt.order, 0, "created", attempt))
        for step, (at, what) in enumerate(
            ((attempt.placed, "placed"), (attempt.ready, "ready"), (attempt.finished, "finished")), start=1
        ):
            if at:
                time = max(time, at)
                events.append((time, attempt.order, step, what, attempt))
    events.sort(key=lambda event: event[:3])
    return [(time, what, attempt) for time, _, _, what, attempt in events]


class _Replay:
    """Follows the replicas of a job from event to event."""

    def __init__(self, seen: Observation) -> None:
        self.seen, self.job = seen, seen.job
        first = seen.live.rounds[0]
        existing = {(a.task, a.index) for a in seen.attempts if a.round == first}
        now = seen.wanted if seen.live.current == first else frozenset[tuple[str, int]]()
        # The replicas of the first round; one that was dropped before it was created is left out.
        self.wanted: set[tuple[str, int]] = {
            (task.name, index)
            for task in seen.job.spec.tasks
            for index in range(task.replicas)
            if (task.name, index) in existing or (task.name, index) in now
        }
        self.where = (-1, 0)
        self.stage: dict[tuple[str, int], str] = {}
        self.attempt: dict[tuple[str, int], Attempt] = {}
        self.cause: dict[tuple[str, int], Phase] = {}
        self.placed = False
        self.has_moved = False
        self.all_were_ready = False
        self.present: Phase = "Pending"
        # For each attempt followed by another one of the same replica in the same round: the cause.
        self.retried: dict[int, Phase] = {}
        before: dict[tuple[str, str, int], Attempt] = {}
        for attempt in seen.attempts:
            key = (attempt.round, attempt.task, attempt.index)
            if key in before:
                old = before[key]
                self.retried[id(old)] = _cause(old, attempt)
            before[key] = attempt

    def apply(self, what: str, attempt: Attempt) -> None:
        where = (attempt.round_index, attempt.restart)
        if where < self.where:
            return  # a pod of an earlier round
        if where > self.where:
            self._enter(where, attempt)
        key = (attempt.task, attempt.index)
        before = self.attempt.get(key)
        if before is not None and attempt.order < before.order:
            return
        self.attempt[key] = attempt
        self.wanted.add(key)
        if what == "created":
            self.stage[key] = what
            if before is not None and attempt.order > before.order:
                self.cause[key] = _cause(before, attempt)
            elif (self.all_were_ready or self.has_moved) and key not in self.cause:
                self.cause[key] = "Rescheduling"
        elif what == "placed":
            self.placed = True
            self.stage[key] = what
        elif what == "ready":
            self.placed = True
            self.stage[key] = what
            self.cause.pop(key, None)
        else:
            self._finish(key, attempt)

    def _enter(self, where: tuple[int, int], attempt: Attempt) -> None:
        """Begin a new round, or restart the same round."""
        if self.where[0] >= 0:
            is_new = where[0] > self.where[0]
            if is_new:
                self.wanted = set(self.seen.wanted) if attempt.round == self.seen.live.current else set()
                # A job of which no pod was ever bound starts for the first time, in any round.
                self.has_moved = self.placed
            cause: Phase = "Rescheduling" if is_new else "Restarting"
            self.cause = dict.fromkeys(self.wanted, cause) if self.has_moved or not is_new else {}
        self.where = where
        self.stage = {}
        self.attempt = {}
        self.all_were_ready = False

    def _finish(self, key: tuple[str, int], attempt: Attempt) -> None:
        if attempt.phase == "Succeeded":
            self.stage[key] = "succeeded"
            self.cause.pop(key, None)
            return
        if self.seen.was_released(attempt):
            self.wanted.discard(key)
            self.stage.pop(key, None)
            return
        self.stage[key] = "failed"
        cause = self.retried.get(id(attempt))
        if cause is not None:
            self.cause[key] = cause
        elif attempt.round != self.seen.live.current:  # its round was over: no other attempt followed it there
            self.cause = {**self.cause, key: "Rescheduling"} if self.placed else {}
        elif not self.job.is_closing and attempt.was_taken_away:
            self.cause[key] = "Rescheduling"
        elif not self.job.is_closing and attempt.tries < self.job.spec.backoff_limit and not attempt.ends_the_job:
            self.cause[key] = "Restarting"
        else:
            # It is not retried: the job is about to end, and keeps its phase until then.
            self.cause.pop(key, None)

    def phase(self, *, now: bool = False) -> Phase:
        """The job's phase for the present state of its replicas."""
        missing = [key for key in self.wanted if self.stage.get(key) not in ("ready", "succeeded", "failed")]
        failed = [key for key in self.wanted if self.stage.get(key) == "failed"]
        moving = len(self.seen.live.rounds) > 1 and now and self.placed and self._between_rounds()
        causes = {self.cause[key] for key in (*missing, *failed) if key in self.cause}
        if moving:
            self.present = "Rescheduling"
        elif "Restarting" in causes:
            self.present = "Restarting"
        elif "Rescheduling" in causes:
            self.present = "Rescheduling"
        elif missing:
            unready = [key for key in missing if key not in self.stage]
            if now and self.all_were_ready and unready:
                self.present = "Rescheduling"
            elif not self.placed:
                self.present = "Pending"
            else:
                self.present = "Starting"
        elif not failed and self.wanted:
            self.present = "Running"
        if self.present == "Running":
            self.all_were_ready = True
            if now and not self.job.is_closing and any(self.attempt[key].is_lost for key in self.wanted):
                self.present = "Rescheduling"
        return self.present

    def _between_rounds(self) -> bool:
        """The newest round has no pod yet."""
        return bool(self.attempt) and all(a.round != self.seen.live.current for a in self.attempt.values())


def _cause(old: Attempt, new: Attempt) -> Phase:
    """Why a replica went from one attempt to the next: a failure that counts, or a reschedule."""
    counts = new.restart > old.restart or (new.incarnation == old.incarnation and new.counted > old.counted)
    return "Restarting" if counts else "Rescheduling"
