"""The attacks of `make demo-hostile` on a simulated cluster: others are placed as soon as without them."""

from __future__ import annotations

import pytest

from demo_hostile import Row, attacks_table
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from hostile.attacks import ATTACKS
from hostile.tenant import Attack, Tenant
from tests.allocator.lab import Lab, job, lab, task

POLICIES = ("fit", "fair", "goodput", "fair+goodput")


def seconds_until_placed(at: Lab, name: str) -> float:
    began = at.time.now()
    at.cluster.submit(job(name, task(replicas=2)))
    at.until(lambda: len(at.cluster.running(name)) == 2, f"{name} runs", seconds=30)
    return at.time.now() - began


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "attack", [a for a in ATTACKS if not (a.goes_on or a.policies or a.is_real)], ids=lambda attack: attack.do.__name__
)
def test_beside_an_attack_a_job_of_another_namespace_is_placed_as_soon_as_before(attack: Attack, policy: str) -> None:
    chosen = load_policy(policy, PolicySettings(least_seconds_between_resizes=5.0))
    with lab(policy=chosen) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.node("b", cpu=8)
        before = seconds_until_placed(at, "before")
        tenant = Tenant(at.api.cluster(), "mallory", task().template, ("a", "b"))
        attack.do(tenant)
        at.step()
        assert seconds_until_placed(at, "honest") <= before + 1
        assert at.cluster.problems == []


def test_the_table_says_who_was_late_and_who_was_told_what() -> None:
    rows = [
        Row("a", "a circle", 1.75, 1.0, memory="server 140 of 512 MiB", told="Refused: x"),
        Row("b", "digits", 2.5, 1.0),
        Row("c", "c", None, 1.0),
        Row("d", "d", 1.0, 1.0, harmed="2 pods of a fixed job lost"),
        Row("e", "e", 1.0, 1.0, restarts=3),
    ]
    assert [row.is_good for row in rows] == [True, False, False, False, False]
    lines = attacks_table(rows).splitlines()
    assert "1.8 s  " in lines[1]
    assert "140 of 512 MiB" in lines[1]
    assert lines[1].endswith("Refused: x")
    assert "2.5 s LATE" in lines[2]
    assert "NOT PLACED" in lines[3]
    assert "2 PODS OF A FIXED JOB LOST" in lines[4]
