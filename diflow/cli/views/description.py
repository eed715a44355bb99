"""The text of `diflow describe`: all about one job."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from diflow.cli.console import colours, paint, phase_colour
from diflow.cli.output import clock, coloured_phase, moment, printable
from diflow.cli.views import replicas
from diflow.common import keys
from diflow.common.durations import age, span
from diflow.common.tables import table
from diflow.common.words import named, shortened
from diflow.jobs.events import event_time, is_allocators
from diflow.record.job import JobRecord
from diflow.record.nodecheck import Record
from diflow.record.parameters import Decision
from diflow.record.pod import check_run_of
from diflow.record.stage import Stage
from diflow.record.status.followed import failures
from diflow.record.status.observe import observe, observe_state
from diflow.record.status.row import JobRow
from diflow.record.status.status import derive_seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diflow.jobs.lookup import Job
    from diflow.record.status.followed import Failure
    from diflow.record.status.observe import Observation

_MOST_EVENTS = 15
_MOST_OF_ALLOCATOR = 10
_MOST_FAILURES = 15
_MOST_WORKFLOWS = 5
"""Earlier ones of the job, which are read for their failures: each may have a megabyte."""
_LONGEST = 120
_LONG = 40
"""Characters of a text that is shown once: a shorter one is easier to read than a reference to it."""
_SEE = "see Message"
_MOST_FAILED_CHECKS = 3
_MOST_RUN_TIMES = 5
_LONGEST_REPORTED = 1000
_HELD = (Stage.WAITING, Stage.ADMITTED, Stage.SUSPENDED)
"""Stages of a job that the allocator may find to be held, by what only it reads."""
# Events have the clock of the machine that wrote them.
_CLOCKS_DIFFER = timedelta(seconds=2)


def description(
    job: Job,
    events: Sequence[dict[str, Any]],
    allocators: Sequence[dict[str, Any]] | None,
    *,
    now: datetime,
    earlier: Iterable[dict[str, Any]] = (),
) -> str:
    """The job in sections: its status, phases, replicas and reports, and the events of the allocator and the cluster.

    `allocators` are the allocator's events, None if the user may not list events. `earlier`: the Workflows in which the
    job was before, the latest first; those are read that have the last failures.
    """
    held, record = _held(job), job.record
    if held:  # earlier decisions do not explain its present state
        record = replace(record, notes=replace(record.notes, decision=Decision()))
    seen = observe_state(record, job.workflow, job.pods)
    if held:
        job = replace(job, status=derive_seen(seen))
    message = f"held: {held}" if held else job.status.message
    # The cluster keeps events for an hour, also those of a deleted job of the same name.
    events = [event for event in events if _is_since(job.created, event)]
    allocators = [event for event in allocators if _is_since(job.created, event)] if allocators else allocators
    sections = [
        _facts(job, seen, JobRow.of(record, seen.stage, message, seen.count(seen.latest())), now=now),
        _phases(job, message=message),
        _replicas(seen, message=message, now=now),
    ]
    failed, unread = _all_failures(seen, earlier)
    if failed or unread:
        sections.append(_failures(failed, unread, now=now))
    if job.status.profilings:
        lines = [printable(f"  {key}: {_reported(value)}") for key, value in job.status.profilings.items()]
        sections.append("\n".join([_title("Profilings"), *lines]))
    if allocators or job.record.terms.is_gang:
        sections.append(_allocator(allocators, message=message, now=now))
    sections.append(_events([event for event in events if not is_allocators(event)], now=now))
    return "\n\n".join(sections)


def _reported(value: object) -> str:
    """A value of a report as JSON, as the reference of the API has it; text without its quotes."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    return shortened(text, _LONGEST_REPORTED)


def _is_since(submitted: str, event: dict[str, Any]) -> bool:
    last = event_time(event)
    if not last or not submitted:
        return True
    return datetime.fromisoformat(submitted) - datetime.fromisoformat(last) <= _CLOCKS_DIFFER


def _held(job: Job) -> str:
    """Why the allocator does not act on the job, or ""."""
    if job.status.stage not in _HELD or not job.record.terms.is_gang:
        return ""
    from diflow.allocator.watch.records import planning_record_of  # noqa: PLC0415 (of one command)

    return planning_record_of(job.workflow).problem


def _once(text: str, message: str) -> str:
    """The text, or a reference to the job's message if that has it: it may have several lines on a terminal."""
    return _SEE if len(text) >= _LONG and _line(text) in _line(message) else text


def _line(text: str) -> str:
    return " ".join(printable(text).split())


def _facts(job: Job, seen: Observation, row: JobRow, *, now: datetime) -> str:
    status, spec, message = job.status, row.record.spec, row.message
    took = age(status.start_time, now=now, until=status.completion_timestamp)
    facts = [
        ("Job", job.name),
        ("Namespace", job.namespace),
        ("Phase", coloured_phase(status.phase)),
        ("Message", printable(message)),
        ("Succeeded", f"{replicas.succeeded(replicas.rows(seen, now=now))} of {status.replicas}")
        if status.ended
        else ("Ready", f"{status.ready_replicas} of {status.replicas}"),
        ("Restarts", f"{status.restarts} (backoffLimit {spec.backoff_limit})"),
        ("Reschedules", str(status.reschedules)),
        ("Priority", printable(row.priority)),
        ("Preemptible", "true" if row.is_preemptible else "false"),
        # Nobody has decided it yet of a job without a Workflow.
        ("Scheduling", "gang" if row.record.terms.is_gang else "none" if status.stage else "-"),
        *([("Topology", f"all of it in one {spec.topology.required}")] if spec.topology else []),
        *_node_check(job),
        *_left_out(job, message=message, now=now),
        ("Submitted", moment(job.created)),
        ("Ended", moment(status.completion_timestamp))
        if status.ended
        else ("Pending for" if status.phase == "Pending" else "Running for", took),
    ]
    if status.ended:
        facts.append(("Took", took))
    facts += _run_times(row.record, now=now)
    decision = seen.job.notes.decision
    if decision and (seen.gated or seen.stopped):
        when = f" ({age(decision.time, now=now)} ago)" if decision.time else ""
        facts.append(("Allocator", printable(f"{_once(decision.why, message)}{when}")))
    facts += _health(seen, now=now)
    width = max(len(name) for name, _ in facts) + 2
    return "\n".join(f"{name + ':':<{width}}{value}" for name, value in facts)


def _run_times(job: JobRecord, *, now: datetime) -> list[tuple[str, str]]:
    """How long the job and its tasks have run, of what they may. Of a job that Argo alone runs, only the limit."""
    limits, ran = job.spec.run_times, job.notes.run_time
    if not limits:
        return []
    counted = [f"{span(ran.seconds(name, now=now.timestamp()))} of " if job.terms.is_gang else "" for name in limits]
    each = [
        f"{f'{name}: ' if name else ''}{done}{span(most)}"
        for done, (name, most) in zip(counted, limits.items(), strict=True)
    ]
    return [("Run time", f"{'' if job.terms.is_gang else 'at most '}{named(each, _MOST_RUN_TIMES)}")]


def _health(seen: Observation, *, now: datetime) -> list[tuple[str, str]]:
    """What the job's `health` found, and why replicas were restarted the last time."""
    found, out = seen.job.notes.health, []
    if found is None:
        return []
    if seen.unhealthy:
        when = f" (since {age(found.time, now=now)})" if found.time else ""
        out.append(("Health", printable(f"{seen.unhealthy}{when}")))
    if found.restarts and found.last != seen.unhealthy:
        when = f" ({age(found.last_time, now=now)} ago)" if found.last_time else ""
        out.append(("Last restart", printable(f"{found.last}{when}")))
    return out


def _node_check(job: Job) -> list[tuple[str, str]]:
    """What the node check of the current round has found; nothing of a job without one."""
    check = job.record.spec.node_check
    if check is None:
        return []
    record, current = Record.parse(job.record.texts.check_text), job.record.live.current
    count = len(record.entries) if record.round == current else 0
    parts = [f"{count} of {job.status.replicas} replicas in round {current}"]
    output = _output_of_check(job) if check.command else []
    if not count and check.command:
        words = ["by a command of the job", *(output or ["it has reported no figures"])]
        return [("Node check", printable("; ".join(words)))]
    if not count and not job.status.ended and any(check_run_of(pod).has_begun for pod in job.pods):
        parts.append("no result has reached the server yet (`diflow doctor` checks whether it runs)")
    failed = [f"rank {rank}: {entry.failed}" for rank, entry in record.entries.items() if entry.failed]
    parts += [*failed[:_MOST_FAILED_CHECKS], *output]
    return [("Node check", printable("; ".join(parts)))]


def _output_of_check(job: Job) -> list[str]:
    """Where the last node check failed whose pod still exists, and how to see its output; nothing if there is none.

    `diflow logs` shows the newest pods of the replicas, but a gang whose check has failed is started again.
    """
    failed = [run for pod in job.pods if (run := check_run_of(pod)).exit_code]
    if not failed:
        return []
    last = max(failed, key=lambda run: run.created)
    show = f"kubectl logs -n {job.namespace} {last.pod} -c {keys.CHECK_CONTAINER}"
    return [f"it failed last on node {last.node or '?'} (exit code {last.exit_code}): `{show}` shows its output"]


def _left_out(job: Job, *, message: str, now: datetime) -> list[tuple[str, str]]:
    """The nodes that are left out for the job; nothing if there are none, or if its message names them."""
    text = job.record.notes.excluded.text(now.timestamp()) if not job.status.ended else ""
    which = text.partition(": ")[2]  # the time that is left is that of now, and in the message that of the decision
    return [("Nodes", printable(text))] if text and _line(which) not in _line(message) else []


def _phases(job: Job, *, message: str) -> str:
    rows = [
        (f"  {clock(c.last_transition_time)}", coloured_phase(c.type), printable(_once(c.message, message)))
        for c in job.status.conditions
    ]
    return "\n".join([_title("Phases"), table(("  SINCE", "PHASE", "MESSAGE"), rows)])


def _replicas(seen: Observation, *, message: str, now: datetime) -> str:
    lines = []
    first: dict[str, str] = {}
    for row in replicas.rows(seen, now=now):
        said = _once(row.message, message)
        if len(said) >= _LONG and first.setdefault(said, row.name) != row.name:
            said = f"as {first[said]}"
        state = paint(row.state, phase_colour(row.phase), on=colours(sys.stdout))
        lines.append(
            (
                f"  {row.name}",
                str(row.rank),
                state,
                str(row.restarts),
                str(row.reschedules),
                row.node,
                row.age,
                said,
            )
        )
    head = (f"  {replicas.HEAD[0]}", *replicas.HEAD[1:])
    return "\n".join([_title("Replicas"), table(head, lines)])


def _all_failures(seen: Observation, earlier: Iterable[dict[str, Any]]) -> tuple[list[Failure], str]:
    """The last failures, and the name of the latest Workflow that was not read for them ("": all were)."""
    failed = failures(seen)
    for number, workflow in enumerate(earlier):
        if len(failed) >= _MOST_FAILURES or number == _MOST_WORKFLOWS:
            return failed, str(workflow["metadata"].get("name") or "")
        failed = [*failures(observe(workflow)), *failed]
    return failed, ""


def _failures(failed: Sequence[Failure], unread: str, *, now: datetime) -> str:
    rows = [
        (
            f"  {age(one.ended, now=now)}",
            one.replica,
            printable(one.node) or "-",
            printable(one.reason),
            printable(one.rule),
            printable(one.followed),
        )
        for one in failed[-_MOST_FAILURES:]
    ]
    head = ("  AGE", "REPLICA", "NODE", "REASON", "RULE", "WHAT FOLLOWED")
    lines = [_title("Failures"), *([table(head, rows)] if rows else [])]
    if more := len(failed) - len(rows):
        lines.insert(1, f"  {more} earlier")
    if unread:
        lines.insert(1, f"  those of the Workflow {unread} and of earlier ones are not shown")
    return "\n".join(lines)


def _allocator(events: Sequence[dict[str, Any]] | None, *, message: str, now: datetime) -> str:
    if events is None:
        return f"{_title('Allocator')}\n  what it said is in the events, which you may not read (list events)"
    if not events:
        return f"{_title('Allocator')}\n  said nothing (the cluster forgets events after an hour)"
    rows = [
        (f"  {age(event_time(event), now=now)}", _reason(event), f"{_text(event, message)}{_times(count)}")
        for event, count in _folded(events)[-_MOST_OF_ALLOCATOR:]
    ]
    return "\n".join([_title("Allocator"), table(("  AGE", "REASON", "MESSAGE"), rows)])


def _reason(event: dict[str, Any]) -> str:
    return paint(
        printable(str(event.get("reason") or "")), "yellow", on=colours(sys.stdout) and event.get("type") == "Warning"
    )


def _folded(events: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """The events in their order, each with how often it happened: of those that say the same, the last one."""
    found: dict[tuple[Any, ...], tuple[dict[str, Any], int]] = {}
    for event in events:
        key = (event.get("type"), event.get("reason"), event_object(event), str(event.get("message") or ""))
        _, before = found.pop(key, (event, 0))
        found[key] = event, before + 1
    return list(found.values())


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _text(event: dict[str, Any], message: str = "") -> str:
    text = _once(" ".join(str(event.get("message") or "").split()), message)
    return shortened(printable(text), _LONGEST, end="...")


def _events(events: Sequence[dict[str, Any]], *, now: datetime) -> str:
    events = [event for event in events if _is_telling(event)]
    if not events:
        return f"{_title('Events')}\n  none (the cluster forgets them after an hour)"
    rows = []
    for event, count in _folded(events)[-_MOST_EVENTS:]:
        kind = printable(str(event.get("type") or ""))
        rows.append(
            (
                f"  {age(event_time(event), now=now)}",
                paint(kind, "yellow", on=colours(sys.stdout) and kind == "Warning"),
                printable(str(event.get("reason") or "")),
                event_object(event),
                f"{_text(event)}{_times(count)}",
            )
        )
    return "\n".join([_title("Events"), table(("  AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"), rows)])


def _is_telling(event: dict[str, Any]) -> bool:
    """Whether it adds to the table of replicas: no events of Argo's nodes, and only failures of steps."""
    about = event_object(event)
    step = f"-{keys.TEMPLATE_GIVE_UP}-" in about
    if str(event.get("reason") or "").startswith("WorkflowNode"):
        return False
    return event.get("type") == "Warning" or not step


def event_object(event: dict[str, Any]) -> str:
    """The object of an event, as kind/name."""
    about = event.get("involvedObject") or {}
    return printable(f"{str(about.get('kind') or '').lower()}/{about.get('name') or ''}")


def _title(text: str) -> str:
    return paint(text, "bold", on=colours(sys.stdout))
