"""Facts 2 and 4: the names of a group's members, and empty groups. Their leaves wait, without pods."""

from __future__ import annotations

from collections.abc import Iterator

from diflow.labs.conformance import reading, shapes
from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.lab import Lab, Run
from diflow.labs.conformance.outcome import Outcome

_START = ["group(0:a)", "group(1:b)", "group(2:c)"]


def names(lab: Lab) -> Iterator[Outcome]:
    """Fact 2: append, drop from the tail, then reorder."""
    with lab.run(shapes.named_group(lab.name("names"))) as run:
        _expect(run, _START, "the group's first three members")
        run.set(members='["a","b","c","d"]')
        _expect(run, [*_START, "group(3:d)"], "a fourth member after an append")
        nudges = len(run.nudges)
        # A dropped member stays in the tree; there must be no new one.
        after_drop = reading.members(run.set_and_see(members='["a","b","c"]'), "group")
        if after_drop != [*_START, "group(3:d)"]:
            raise FactFailedError(f"dropping the tail changed the members to {after_drop}")
        renamed = reading.members(run.set_and_see(members='["b","a","c"]'), "group")
    new = sorted(set(renamed) - {*_START, "group(3:d)"})
    words = f"a reorder restarts members: {', '.join(new)}" if new else "a reorder renames no member"
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
        began_as = reading.phase_of(run.workflow(), "empty")
        grew = bool(reading.members(run.set_and_see(empty="2"), "empty"))
        workflow = run.set_and_see(shrinks="0")
        if reading.phase(workflow) == "Running":
            workflow = run.set_and_see()
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
