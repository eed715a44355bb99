"""Every field case against `fair`, and against `fit` and `fair+goodput` where it applies to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from diflow.allocator.model.plan import Plan, carry_out, changes, evictions, keep_plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.policies.base import Policy, load_policy
from diflow.allocator.policies.settings import PolicySettings
from tests.policies.field.cases import CASES
from tests.policies.field.page import page
from tests.policies.field.rows import Answer, Case, Count, End, Ends, NotAsked, Other
from tests.policies.halfway import carry_out_first_step


def held(snapshot: Snapshot, plan: Plan) -> Counter[str]:
    """Replicas by job, by `job.role` and by `@queue`."""
    out: Counter[str] = Counter()
    for role, count in zip(plan.role.tolist(), plan.count.tolist(), strict=True):
        job = int(snapshot.role_job[role])
        name = snapshot.job_names[job]
        for key in (name, f"{name}.{snapshot.role_names[role]}", f"@{snapshot.job_queue_name[job]}"):
            out[key] += count
    return out


def moved(snapshot: Snapshot, plan: Plan) -> int:
    """Replicas that leave their node."""
    before = Counter(
        dict(zip(zip(snapshot.held_role, snapshot.held_node, strict=True), snapshot.held_count, strict=True))
    )
    after = Counter(dict(zip(zip(plan.role, plan.node, strict=True), plan.count, strict=True)))
    return int((before - after).total())


def nodes_of(snapshot: Snapshot, plan: Plan, job: str) -> set[str]:
    mine = snapshot.role_job[plan.role] == snapshot.job_names.index(job)
    return {snapshot.node_names[node] for node in plan.node[mine].tolist()}


def is_met(end: End, snapshot: Snapshot, plan: Plan) -> bool:
    got = held(snapshot, plan)
    counts = all(_is(count, got[name]) for name, count in end.holds.items())
    return counts and all(nodes_of(snapshot, plan, job) <= nodes for job, nodes in end.on.items())


def _is(count: Count, got: int) -> bool:
    return got == count if isinstance(count, int) else got in count


def told(ends: Iterable[End]) -> str:
    return " or ".join(f"{dict(end.holds)}{f' on {dict(end.on)}' if end.on else ''}" for end in ends)


def named(cases: Iterable[Case]) -> list[object]:
    return [pytest.param(case, id=case.name.replace(" ", "-")) for case in cases]


def decided(case: Case, policy: Policy, ends: Ends) -> tuple[Snapshot, Plan]:
    """The policy's plan for the case, which must be valid and have one of these outcomes."""
    snapshot = case.snapshot()
    plan = policy.optimize(snapshot)
    assert faults(snapshot, plan) == []
    got = {name: count for name, count in sorted(held(snapshot, plan).items()) if "." not in name}
    assert any(is_met(end, snapshot, plan) for end in ends), f"expected {told(ends)}, got {got} ({case.source})"
    return snapshot, plan


def fair(case: Case) -> Policy:
    return load_policy("fair", PolicySettings(**case.settings))


@pytest.mark.parametrize("case", named(CASES))
def test_fair_decides_as_the_case_demands(case: Case) -> None:
    snapshot, plan = decided(case, fair(case), case.fair)
    allowed = [case.evicted(end) for end in case.fair if is_met(end, snapshot, plan)]
    assert moved(snapshot, plan) in allowed, "who stays on the whole does not change places"


@pytest.mark.parametrize("case", named(CASES))
def test_fair_reaches_a_fixed_point_in_one_cycle(case: Case) -> None:
    policy, snapshot = fair(case), case.snapshot()
    plan = policy.optimize(snapshot)
    after = carry_out(snapshot, plan)
    again = policy.optimize(after)
    assert changes(again) == 0, f"a second cycle changes {told([End(held(after, again))])}"
    # While the pods of victims are terminating, no others are evicted for the same request.
    middle = carry_out_first_step(snapshot, plan)
    assert evictions(middle, policy.optimize(middle)) == 0


def asked(name: str) -> list[object]:
    return named(case for case in CASES if not isinstance(_answer(case, name), NotAsked))


def _answer(case: Case, name: str) -> Answer:
    return case.fit if name == "fit" else case.together


@pytest.mark.parametrize("case", asked("fit"))
def test_fit_decides_as_the_case_demands(case: Case) -> None:
    decided(case, load_policy("fit"), case.fit.ends if isinstance(case.fit, Other) else case.fair)


@pytest.mark.parametrize("case", asked("fair+goodput"))
def test_fair_with_goodput_decides_as_the_case_demands(case: Case) -> None:
    ends = case.together.ends if isinstance(case.together, Other) else case.fair
    decided(case, load_policy("fair+goodput"), ends)


def test_the_table_is_sound() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 80
    for case in CASES:
        assert faults(case.snapshot(), keep_plan(case.snapshot(), "keep")) == [], case.name
        assert case.agrees or case.differs, f"{case.name}: a difference needs its reason"
        assert not case.differs or not case.agrees or case.evicts_fewer, f"{case.name}: there is no difference"
        for other in (case.fit, case.together):
            assert not isinstance(other, Other | NotAsked) or other.why, case.name


def test_the_page_is_what_the_table_says() -> None:
    told = (Path(__file__).parents[3] / "docs" / "field-cases.md").read_text(encoding="utf-8")
    assert told == page(), "run: python -m tests.policies.field.page > docs/field-cases.md"
