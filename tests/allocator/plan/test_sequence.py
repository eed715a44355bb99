"""Only the writes of a plan wait that need capacity of a refused one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.plan import ADMIT, KEEP, Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.sequence import Holdings, write_in_order
from diflow.allocator.policies.fair.policy import FairPolicy
from diflow.allocator.watch.records import planning_record_of
from diflow.allocator.write.patches import Write, rebased
from diflow.common import keys
from diflow.kube.kinds import WORKFLOW
from diflow.record.live import Live
from tests.allocator import values
from tests.allocator.lab import Lab, job, lab, task
from tests.policies.generators import snapshots

Pick = Callable[[Write], bool]


def moves(snapshot: Snapshot, plan: Plan) -> tuple[list[Write], list[Write]]:
    """(writes that free capacity, writes that use it) of all jobs that the plan changes."""
    free: list[Write] = []
    use: list[Write] = []
    for j in range(snapshot.jobs):
        if plan.action[j] == KEEP:
            continue
        write = Write(WORKFLOW, values.read().identity, snapshot.job_names[j], {})
        (use if plan.action[j] == ADMIT else free).append(write)
    return free, use


class Clerk:
    """Applies writes but those in `refuses`, and checks what the jobs hold after each step."""

    def __init__(self, snapshot: Snapshot, plan: Plan, refuses: Pick) -> None:
        self.snapshot, self.plan, self.refuses = snapshot, plan, refuses
        self.rows = {name: row for row, name in enumerate(snapshot.job_names)}
        self.made: list[str] = []
        self.before = np.minimum(snapshot.free_after_termination(), 0)

    def __call__(self, writes: Sequence[Write]) -> Sequence[Write]:
        refused = [write for write in writes if self.refuses(write)]
        self.made += [write.job for write in writes if write not in refused]
        if any(self.refuses(write) for write in writes):
            self.check()
        return refused

    def free(self) -> IntArray:
        """The free capacity after these writes."""
        s, plan = self.snapshot, self.plan
        made = np.zeros(s.jobs, dtype=np.bool_)
        made[[self.rows[name] for name in self.made]] = True
        old, new = ~made[s.role_job[s.held_role]], made[s.role_job[plan.role]]
        return (
            s.capacity()
            - s.usage(s.held_role[old], s.held_node[old], s.held_count[old])
            - s.usage(plan.role[new], plan.node[new], plan.count[new])
        )

    def check(self) -> None:
        """No node is more overcommitted than before."""
        assert (self.free() >= self.before).all()


def planned(seed: int, count: int) -> list[tuple[Snapshot, Plan]]:
    policy = FairPolicy()
    return [(s, policy.optimize(s)) for s in snapshots(seed, count, jobs=8, nodes=4, profiled=False)]


def test_when_nothing_is_refused_all_is_written() -> None:
    for snapshot, plan in planned(1, 150):
        free, use = moves(snapshot, plan)
        clerk = Clerk(snapshot, plan, lambda _: False)
        done = write_in_order(free, use, Holdings(snapshot, plan, clerk.rows), clerk)
        assert sorted(clerk.made) == sorted(write.job for write in [*free, *use])
        assert (done.refused, done.waiting, done.tried) == ((), (), len(free) + len(use))


@pytest.mark.slow
def test_whatever_is_refused_no_node_is_overcommitted_and_no_write_waits_needlessly() -> None:
    waited = went_on = 0
    for seed, (snapshot, plan) in enumerate(planned(2, 400)):
        free, use = moves(snapshot, plan)
        chance = random.Random(seed)
        bad = {id(write) for write in free if chance.random() < 0.5}
        clerk = Clerk(snapshot, plan, lambda write, bad=bad: id(write) in bad)  # type: ignore[misc]
        done = write_in_order(free, use, Holdings(snapshot, plan, clerk.rows), clerk)
        assert {id(write) for write in done.refused} <= bad
        assert done.tried + len(done.waiting) == len(free) + len(use)
        if not done.refused:
            assert done.waiting == ()
            continue
        clerk.check()
        waited, went_on = waited + len(done.waiting), went_on + len(clerk.made)
        for write in done.waiting:
            clerk.made.append(write.job)
            short = clerk.free()
            clerk.made.pop()
            assert (short < np.minimum(clerk.free(), 0)).any(), f"{write.job} fits, and waits"
    assert waited
    assert went_on


# --- the same over a cluster ------------------------------------------------------------------------------------------


def at_every_patch_of(at: Lab, name: str) -> list[bool]:
    """Change this Workflow before each patch of it, until the item of the returned list is True."""
    over = [False]
    assert at.daemon is not None

    def touch(method: str, path: str) -> None:
        if not over[0] and method == "PATCH" and path.endswith(f"/workflows/{name}"):
            at.cluster.annotate(name, strange=str(random.random()))

    at.daemon.line.before = touch
    return over


def of_strange(at: Lab) -> list[int]:
    """The responses to the patches of that job's Workflow."""
    assert at.daemon is not None
    return [code for _, path, code in at.daemon.line.writes() if path.endswith("/workflows/strange")]


def displaced(at: Lab) -> None:
    """A job that has lost its nodes and does not fit now: each plan makes it wait."""
    at.cluster.node("big", cpu=8)
    at.cluster.node("small", cpu=3)
    at.cluster.submit(job("strange", task(replicas=5, min_replicas=5, max_replicas=5), preemptible=True))
    at.until(lambda: len(at.cluster.running("strange")) == 5, "it runs")
    at.rest(seconds=6)


def cycles_until_three_are_placed(*, strange: bool) -> tuple[int, int]:
    """(seconds, cycles)."""
    with lab() as at:
        displaced(at)
        if strange:
            at_every_patch_of(at, "strange")
        assert at.daemon is not None
        at.cluster.remove_node("big")
        tried = len(of_strange(at))
        at.until(lambda: len(of_strange(at)) > tried, "it is put off", seconds=130)
        for name in ("one", "two", "three"):
            at.cluster.submit(job(name))
        seen, began = len(at.daemon.cycles), at.time.now()
        at.until(lambda: all(at.cluster.running(name) for name in ("one", "two", "three")), "all three run")
        return round(at.time.now() - began), len(at.daemon.cycles) - seen


def test_beside_a_workflow_that_somebody_changes_all_the_time_others_are_placed_as_soon_as_without() -> None:
    calm, strange = cycles_until_three_are_placed(strange=False), cycles_until_three_are_placed(strange=True)
    assert strange[0] <= calm[0]
    assert strange[1] <= calm[1] + 4, "it is tried four times before it is left alone"


def test_a_job_that_is_changed_all_the_time_is_left_alone_for_longer_and_longer_and_is_told_so() -> None:
    with lab() as at:
        displaced(at)
        over = at_every_patch_of(at, "strange")
        at.cluster.remove_node("big")
        tried = len(of_strange(at))
        at.until(lambda: len(of_strange(at)) > tried, "it is put off", seconds=130)
        for _ in range(210):
            at.step()
        assert len(of_strange(at)) - tried < 60, "1,688 before"
        assert at.daemon is not None
        assert "changed by others all the time" in at.daemon.allocator.executor.refusals()["default/strange"]
        assert [text for reason, text in at.events("strange") if "all the time" in text and reason == "Refused"]
        over[0] = True
        at.until(lambda: at.decision("strange").get("action") == "wait", "it is decided on again", seconds=130)


def test_a_job_that_needs_capacity_of_an_unwritable_job_waits_and_gets_it_afterwards() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(job("strange", task(replicas=4, min_replicas=1, max_replicas=4), preemptible=True))
        at.until(lambda: len(at.cluster.running("strange")) == 4, "it has all")
        at.rest(seconds=6)
        over = at_every_patch_of(at, "strange")
        at.cluster.submit(job("urgent", task(replicas=2), priority="high"))
        for _ in range(30):
            at.step()
            assert at.allocation("urgent") == {}, "its capacity is not free"
        at.cluster.node("b", cpu=1)
        at.cluster.submit(job("small"))
        at.until(lambda: at.cluster.running("small") == {"worker-0": "b"}, "it needs nothing of the others", seconds=5)
        over[0] = True
        at.until(lambda: len(at.cluster.running("urgent")) == 2, "it gets the capacity", seconds=130)
        assert at.cluster.problems == []


# --- a write is made for the Workflow as it is now --------------------------------------------------------------------


def before_the_first_write(at: Lab, change: Callable[[], object]) -> list[str]:
    """Call this between reading the Workflow `one` and the first write to it. Returns a list that then contains that
    write's path."""
    assert at.daemon is not None
    done: list[str] = []

    def before(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/workflows/one") and not done:
            done.append(path)
            change()

    at.daemon.line.before = before
    return done


def test_a_decision_is_not_lost_to_a_change_that_has_nothing_to_do_with_it() -> None:
    """Between the read and the write, a user annotates the Workflow, or a report arrives."""
    with lab() as at:
        at.cluster.node("a", cpu=4)
        done = before_the_first_write(at, lambda: at.cluster.edit("one", profilings='{"speed":3}'))
        at.cluster.submit(job("one", task(replicas=2)))
        at.until(lambda: len(at.cluster.running("one")) == 2, "it runs", seconds=4)
        assert done
        assert at.cluster.parameters("one")["profilings"] == '{"speed":3}', "and what came between is still there"


def test_a_decision_is_made_again_when_its_user_asks_for_something_else_meanwhile() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=4)
        assert at.daemon is not None
        before_the_first_write(at, lambda: at.cluster.scale("one", worker=3))
        at.cluster.submit(job("one", task(replicas=2)))
        at.until(lambda: len(at.cluster.running("one")) == 3, "as many as are asked for now run")
        assert at.daemon.line.writes()[0][2] == 409


@pytest.mark.parametrize(
    "change",
    [
        {"live": Live(("1", "2"), granted={"1": {"w": 2}})},
        {"live": Live(granted={"1": {"w": 9}})},
        {"is_stopping": True},
        {"is_suspended": True},
        {"roles": (values.role(replicas=3),)},
        {"problem": "it cannot be understood"},
        {"tree": values.tree(w_0="Succeeded")},
        {"identity": replace(values.read().identity, uid="another")},
    ],
)
def test_a_write_is_not_made_for_a_workflow_that_says_something_else(change: dict[str, Any]) -> None:
    read = values.read(nodes={"w": ("a", "a")})
    write = Write(WORKFLOW, read.identity, read.key, {"metadata": {"annotations": {"x": "y"}}})
    assert rebased(write, read, values.changed(read, **change)) is None


def test_a_write_keeps_what_others_have_written_into_parameters_that_it_does_not_change() -> None:
    with lab(begin=False) as at:
        at.cluster.node("a")
        at.cluster.submit(job("one"))
        read = planning_record_of(at.cluster.workflow("one"))
        parameters = [{"name": n, "value": '["1","2"]' if n == "rounds" else v} for n, v in read.texts.parameters]
        write = Write(WORKFLOW, read.identity, read.key, {"spec": {"arguments": {"parameters": parameters}}})
        at.cluster.edit("one", profilings="{}", **{keys.PARAM_REPLICAS: at.cluster.parameters("one")["replicas"]})
        at.cluster.edit("one", profilings='{"speed":1}')
        now = planning_record_of(at.cluster.workflow("one"))
        again = rebased(write, read, now)
        assert again is not None
        assert again.target.version == now.identity.version
        said = {p["name"]: p["value"] for p in again.body["spec"]["arguments"]["parameters"]}
        assert said == {**dict(now.texts.parameters), "rounds": json.dumps(["1", "2"], separators=(",", ":"))}
