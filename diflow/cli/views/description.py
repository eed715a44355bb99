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
from diflow.common.durations import age
from diflow.common.tables import table
from diflow.common.words import shortened
from diflow.jobs.events import event_time, is_allocators
from diflow.record.nodecheck import Record
from diflow.record.stage import Stage
from diflow.record.status.followed import failures
from diflow.record.status.observe import observe
from diflow.record.status.status import derive

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
    held = _held(job)
    if held:  # earlier decisions do not explain its present state
        job = _undecided(job)
    seen = observe(job.workflow, job.pods)
    message = f"held: {held}" if held else job.status.message
    # The cluster keeps events for an hour, also those of a deleted job of the same name.
    events = [event for event in events if _is_since(job.created, event)]
    allocators = [event for event in allocators if _is_since(job.created, event)] if allocators else allocators
    sections = [
        _facts(job, seen, message=message, now=now),
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


def _undecided(job: Job) -> Job:
    """The job without the allocator's decision."""
    metadata = job.workflow["metadata"]
    kept = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != keys.DECISION}
    workflow = {**job.workflow, "metadata": {**metadata, "annotations": kept}}
    return replace(job, workflow=workflow, status=derive(workflow, job.pods))


def _once(text: str, message: str) -> str:
    """The text, or a reference to the job's message if that has it: it may have several lines on a terminal."""
    return _SEE if len(text) >= _LONG and _line(text) in _line(message) else text


def _line(text: str) -> str:
    return " ".join(printable(text).split())


def _facts(job: Job, seen: Observation, *, message: str, now: datetime) -> str:
    status = job.status
    spec = job.dijob.get("spec") or {}
    labels = job.workflow["metadata"].get("labels") or {}
    took = age(status.start_time, now=now, until=status.completion_timestamp)
    facts = [
        ("Job", job.name),
        ("Namespace", job.namespace),
        ("Phase", coloured_phase(status.phase)),
        ("Message", printable(message)),
        ("Succeeded", f"{replicas.succeeded(replicas.rows(seen, now=now))} of {status.replicas}")
        if status.ended
        else ("Ready", f"{status.ready_replicas} of {status.replicas}"),
        ("Restarts", f"{status.restarts} (backoffLimit {spec.get('backoffLimit', 3)})"),
        ("Reschedules", str(status.reschedules)),
        ("Priority", labels.get(keys.PRIORITY, "-")),
        ("Preemptible", labels.get(keys.PREEMPTIBLE, "-")),
        ("Scheduling", labels.get(keys.SCHEDULING, "-")),
        *_topology(spec.get("topology")),
        *_node_check(job, spec.get("nodeCheck")),
        *_left_out(job, message=message, now=now),
        ("Submitted", moment(job.created)),
        ("Ended", moment(status.completion_timestamp))
        if status.ended
        else ("Pending for" if status.phase == "Pending" else "Running for", took),
    ]
    if status.ended:
        facts.append(("Took", took))
    decision = seen.decision
    if decision and (seen.gated or seen.stopped):
        when = f" ({age(decision.time, now=now)} ago)" if decision.time else ""
        facts.append(("Allocator", printable(f"{_once(decision.why, message)}{when}")))
    facts += _health(seen, now=now)
    width = max(len(name) for name, _ in facts) + 2
    return "\n".join(f"{name + ':':<{width}}{value}" for name, value in facts)


def _health(seen: Observation, *, now: datetime) -> list[tuple[str, str]]:
    """What the job's `health` found, and why replicas were restarted the last time."""
    found, out = seen.health, []
    if found is None:
        return []
    if seen.unhealthy:
        when = f" (since {age(found.time, now=now)})" if found.time else ""
        out.append(("Health", printable(f"{seen.unhealthy}{when}")))
    if found.restarts and found.last != seen.unhealthy:
        when = f" ({age(found.last_time, now=now)} ago)" if found.last_time else ""
        out.append(("Last restart", printable(f"{found.last}{when}")))
    return out


def _topology(given: object) -> list[tuple[str, str]]:
    """The level that the job requires; nothing if it requires none. Its owner may have edited the manifest."""
    required = given.get("required") if isinstance(given, dict) else None
    return [("Topology", printable(f"all of it in one {required}"))] if isinstance(required, str) else []


def _node_check(job: Job, given: object) -> list[tuple[str, str]]:
    """What the node check of the current round has found; nothing of a job without one."""
    if given is None or given is False:
        return []
    record, current = Record.parse(job.record.texts.check_text), job.record.live.current
    count = len(record.entries) if record.round == current else 0
    parts = [f"{count} of {job.status.replicas} replicas in round {current}"]
    has_command = isinstance(given, dict) and bool(given.get("command"))
    output = _output_of_check(job) if has_command else []
    if not count and has_command:
        words = ["by a command of the job", *(output or ["it has reported no figures"])]
        return [("Node check", printable("; ".join(words)))]
    if not count and not job.status.ended and any(_is_checked(pod) for pod in job.pods):
        parts.append("no result has reached the server yet (`diflow doctor` checks whether it runs)")
    failed = [f"rank {rank}: {entry.failed}" for rank, entry in record.entries.items() if entry.failed]
    parts += [*failed[:_MOST_FAILED_CHECKS], *output]
    return [("Node check", printable("; ".join(parts)))]


def _output_of_check(job: Job) -> list[str]:
    """Where the last node check failed whose pod still exists, and how to see its output; nothing if there is none.

    `diflow logs` shows the newest pods of the replicas, but a gang whose check has failed is started again.
    """
    failed = [(code, pod) for pod in job.pods if (code := _failed_check(pod))]
    if not failed:
        return []
    code, pod = max(failed, key=lambda one: str(one[1]["metadata"].get("creationTimestamp") or ""))
    node = (pod.get("spec") or {}).get("nodeName") or "?"
    show = f"kubectl logs -n {job.namespace} {pod['metadata']['name']} -c {keys.CHECK_CONTAINER}"
    return [f"it failed last on node {node} (exit code {code}): `{show}` shows its output"]


def _failed_check(pod: dict[str, Any]) -> int:
    """The exit code of a pod's node check, 0 if it has not failed, or was ended with its pod."""
    status = pod.get("status") or {}
    if status.get("reason"):
        return 0
    for one in status.get("initContainerStatuses") or []:
        if one.get("name") == keys.CHECK_CONTAINER:
            code = ((one.get("state") or {}).get("terminated") or {}).get("exitCode")
            return code if isinstance(code, int) else 0
    return 0


def _is_checked(pod: dict[str, Any]) -> bool:
    """Whether the node check of a pod runs, or has run."""
    return any(
        one.get("name") == keys.CHECK_CONTAINER and (one.get("state") or {}).keys() & {"running", "terminated"}
        for one in (pod.get("status") or {}).get("initContainerStatuses") or []
    )


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
