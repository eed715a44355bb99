"""Facts 2 and 4: the names of a group's members, and groups that are empty. Their leaves wait and need no pods."""

from __future__ import annotations

from collections.abc import Iterator

from diflow.conformance import reading, shapes
from diflow.conformance.finding import FactFailedError
from diflow.conformance.lab import Lab, Run
from diflow.conformance.outcome import Outcome

_START = ["group(0:a)", "group(1:b)", "group(2:c)"]
# Longer than it takes until a patch that Argo overlooked is pointed out to it.
_WATCHED_SECONDS = 20.0


def names(lab: Lab) -> Iterator[Outcome]:
    """Fact 2: append, drop from the tail, then reorder."""
    with lab.run(shapes.named_group(lab.name("names"))) as run:
        _expect(run, _START, "the group's first three members")
        run.set(members='["a","b","c","d"]')
        _expect(run, [*_START, "group(3:d)"], "a fourth member after an append")
        nudges = len(run.nudges)
        # The name of a dropped member stays in the tree; what matters is that nothing new appears.
        run.set(members='["a","b","c"]')
        after_drop = _watch(lab, run, until=5)
        if after_drop != [*_START, "group(3:d)"]:
            raise FactFailedError(f"dropping the tail changed the members to {after_drop}")
        run.set(members='["b","a","c"]')
        renamed = _watch(lab, run, until=6)
    new = sorted(set(renamed) - {*_START, "group(3:d)"})
    words = f"a reorder starts members anew: {', '.join(new)}" if new else "a reorder renames nobody"
    yield Outcome(
        2,
        f"an append and a drop from the tail leave the others alone; {words}",
        {
            "reorder_renames": new == ["group(0:b)", "group(1:a)"],
            "new_after_reorder": ", ".join(new),
            "nudges": nudges,
        },
    )


def empty(lab: Lab) -> Iterator[Outcome]:
    """Fact 4: a group that starts at 0 or falls to 0."""
    with lab.run(shapes.counted_groups(lab.name("empty"))) as run:
        run.until_node("the group of two", lambda wf: len(reading.members(wf, "shrinks")) == 2 or None)
        run.until_node("the empty group", lambda wf: reading.node(wf, "empty"))
        began_as = str((reading.node(run.workflow(), "empty") or {}).get("phase"))
        run.set(empty="2")
        grew = bool(reading.members(_wait(lab, run, lambda wf: bool(reading.members(wf, "empty"))), "empty"))
        run.set(shrinks="0")
        workflow = _wait(lab, run, lambda wf: reading.phase(wf) != "Running")
        fell_to = f"{reading.phase(workflow)}: {(workflow['status'].get('message') or 'no message')}"
        fell_to = fell_to.replace(run.name, "<job>")
    yield Outcome(
        4,
        f"a group that starts at 0 is {began_as} and {'grows' if grew else 'never grows'}; when one falls to 0 the "
        f"Workflow is {fell_to}",
        {"starts_empty_phase": began_as, "starts_empty_is_final": not grew, "falls_to_zero": fell_to},
    )


def _expect(run: Run, wanted: list[str], what: str) -> None:
    run.until_node(what, lambda wf: reading.members(wf, "group") == wanted or None)


def _watch(lab: Lab, run: Run, *, until: int) -> list[str]:
    """The members after Argo had time to change them, or as soon as there are `until` of them."""
    return reading.members(_wait(lab, run, lambda wf: len(reading.members(wf, "group")) >= until), "group")


def _wait(lab: Lab, run: Run, done: reading.Test) -> reading.Json:
    """The Workflow once `done` holds, or as it is after the time that Argo needs to look at it again."""
    end = lab.clock() + _WATCHED_SECONDS

    def look() -> reading.Json | None:
        over = lab.clock() >= end
        workflow = run.workflow()
        return workflow if over or done(workflow) else None

    return run.until("Argo at work", look)
