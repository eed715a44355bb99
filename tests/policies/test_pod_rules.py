"""Rules about other pods: every policy obeys them, also one that does not know them, and what they cost is bounded."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import ADMIT, Plan, keep_plan, make_plan
from diflow.allocator.model.reasons import RulesLeaveTooFew
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import against_rules, faults
from diflow.allocator.model.views import DomainRule, JobView, NodeView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.units import in_units
from diflow.allocator.policies.waiting import first_reasons
from diflow.allocator.run import journal

POLICIES = ("fit", "fair", "goodput", "fair+goodput")
HOST, ZONE = "kubernetes.io/hostname", "zone"
GPU = "nvidia.com/gpu"


def node(n: int, *, zones: int = 3, gpu: int = 8) -> NodeView:
    return NodeView(f"n{n:02}", {GPU: gpu, "pods": 110}, labels={HOST: f"n{n:02}", ZONE: f"z{n % zones}"})


def rule(kind: str, key: str, *roles: tuple[str, str], **more: object) -> DomainRule:
    found = frozenset(roles)
    return DomainRule(kind, key, f"{kind} by {key}", found, found, **more)  # type: ignore[arg-type]


def gang(name: str, low: int, high: int | None = None, **more: object) -> JobView:
    role = RoleView("w", {GPU: 1}, low, high or low, high or low)
    return JobView(name, (role,), preemptible=high is not None, **more)  # type: ignore[arg-type]


def random_cluster(seed: int) -> Snapshot:
    """Up to a dozen nodes and jobs, some of which have rules, and hold something."""
    chance = random.Random(seed)
    nodes = [node(n, zones=chance.randint(1, 4), gpu=chance.choice([1, 2, 4, 8])) for n in range(chance.randint(2, 12))]
    jobs, rules = [], []
    for j in range(chance.randint(1, 10)):
        low = chance.randint(1, 5)
        high = low + chance.randint(0, 4) if chance.random() < 0.5 else None
        jobs.append(gang(f"ns{j % 2}/j{j}", low, high, created_seconds=float(j), priority=chance.choice([0, 0, 10])))
    for _ in range(chance.randint(1, 6)):
        mine = [(job.name, "w") for job in jobs if chance.random() < 0.4]
        kind, key = chance.choice(["apart", "near", "spread"]), chance.choice([HOST, ZONE])
        base = {chance.choice(nodes).name: 1} if chance.random() < 0.3 else {}
        rules.append(rule(kind, key, *mine, base=base, most=chance.choice([1, 1, 2])))
    return build(nodes, jobs, rules=rules)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(60))
def test_no_plan_is_against_a_rule(policy: str, seed: int) -> None:
    snapshot = random_cluster(seed)
    plan = in_units(load_policy(policy, PolicySettings()).optimize, snapshot)
    assert faults(snapshot, plan) == []
    assert against_rules(snapshot, plan) == {}


class Heedless:
    """A policy of another package: it fills the first node with each job that waits."""

    @staticmethod
    def optimize(s: Snapshot) -> Plan:
        free = s.free_after_termination().copy()
        roles, nodes, counts = s.held_role.tolist(), s.held_node.tolist(), s.held_count.tolist()
        for g in range(s.roles):
            able = np.flatnonzero((free >= s.role_request[g] * s.role_min[g]).all(axis=1) & s.eligible(g))
            if s.job_queue[s.role_job[g]] >= 0 and g not in s.held_role and len(able):
                roles, nodes, counts = [*roles, g], [*nodes, int(able[0])], [*counts, int(s.role_min[g])]
                free[able[0]] -= s.role_request[g] * s.role_min[g]
        made = [np.array(part, dtype=np.int64) for part in (roles, nodes, counts)]
        return make_plan(s, "heedless", *made, reasons=first_reasons(s))


def test_a_policy_that_knows_no_rules_obeys_them_and_others_lose_nothing() -> None:
    jobs = [gang("ns/apart", 3), gang("ns/never", 9), gang("ns/plain", 4)]
    rules = [rule("apart", HOST, ("ns/apart", "w")), rule("apart", HOST, ("ns/never", "w"))]
    snapshot = build([node(n, gpu=16) for n in range(4)], jobs, rules=rules)
    plan = in_units(Heedless.optimize, snapshot)
    assert faults(snapshot, plan) == []
    started = {snapshot.job_names[j] for j in np.flatnonzero(plan.action == ADMIT)}
    assert started == {"ns/apart", "ns/plain"}
    assert plan.reasons[snapshot.job_names.index("ns/never")] == RulesLeaveTooFew(
        9, 4, "apart by kubernetes.io/hostname"
    )


def test_a_plan_against_a_rule_is_a_fault() -> None:
    snapshot = build([node(0), node(1)], [gang("ns/a", 2)], rules=[rule("apart", HOST, ("ns/a", "w"))])
    wrong = Heedless.optimize(snapshot)
    assert faults(snapshot, wrong) == ["job ns/a: new pods against apart by kubernetes.io/hostname"]
    assert faults(snapshot, keep_plan(snapshot, "x")) == []


def test_the_fewest_pods_are_in_a_domain_without_room_too() -> None:
    """As kube-scheduler counts: a zone whose nodes are full keeps the others from taking more."""
    nodes = [node(0, zones=2), replace(node(1, zones=2), foreign={GPU: 8})]
    snapshot = build(nodes, [gang("ns/a", 1, 4)], rules=[rule("spread", ZONE, ("ns/a", "w"))])
    assert Ledger(snapshot).most(0, 0) == 1


def test_two_tasks_that_have_to_be_together_are_in_a_domain_that_holds_both() -> None:
    roles = (RoleView("a", {GPU: 1}, 4), RoleView("b", {GPU: 1}, 6))
    nodes = [node(0, gpu=8), node(1, gpu=12)]
    snapshot = build(nodes, [JobView("ns/j", roles)], rules=[rule("near", HOST, ("ns/j", "a"), ("ns/j", "b"))])
    plan = in_units(load_policy("fit").optimize, snapshot)
    assert set(plan.node.tolist()) == {1}
    assert int(plan.count.sum()) == 10


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_for_64_gpus_takes_a_tenth_of_a_second(policy: str) -> None:
    names = [f"ns/j{j}" for j in range(16)]
    jobs = [gang(name, 2, 8, created_seconds=float(j)) for j, name in enumerate(names)]
    rules = [rule("spread" if j % 2 else "apart", ZONE if j % 2 else HOST, (name, "w")) for j, name in enumerate(names)]
    snapshot = build([node(n) for n in range(8)], jobs, rules=rules)
    optimize = load_policy(policy).optimize
    in_units(optimize, snapshot)
    began = time.process_time()
    in_units(optimize, build([node(n) for n in range(8)], jobs, rules=rules))
    assert time.process_time() - began < 0.5  # 0.1 s on a machine that does nothing else


def test_a_journal_keeps_the_rules(tmp_path: Path) -> None:
    snapshot = random_cluster(3)
    plan = in_units(load_policy("fit").optimize, snapshot)
    journal.Journal(tmp_path / "journal")(snapshot, plan)
    (entry,) = journal.read(tmp_path / "journal")
    assert len(entry.snapshot.rules.all) == len(snapshot.rules.all) > 0
    assert list(journal.differences(entry, load_policy("fit"))) == []


def test_placing_by_rules_is_work_of_the_jobs_namespace() -> None:
    """A search that its namespace has no operations left for is given up, and others are placed."""
    hard = [gang(f"hostile/j{j}", 400, created_seconds=float(j)) for j in range(40)]
    rules = [rule("spread", ZONE, (job.name, "w")) for job in hard]
    nodes = [node(n, gpu=400) for n in range(40)]
    snapshot = build(nodes, [*hard, gang("honest/j", 2, created_seconds=99.0)], rules=rules)
    plan = in_units(load_policy("fit").optimize, snapshot)
    assert faults(snapshot, plan) == []
    assert plan.action[snapshot.job_names.index("honest/j")] == ADMIT
    assert snapshot.work.of_owner[int(snapshot.owners[snapshot.job_names.index("hostile/j0")])] > 100_000
