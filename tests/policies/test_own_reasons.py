"""A policy of another package gives reasons of its own: they are said, validated and recorded like diflow's."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import ClassVar

import numpy as np
import pytest

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.reasons import Look, Reason
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.policies import base
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.reasons import plan_text, reason_texts
from diflow.allocator.run import journal


@dataclass(frozen=True, slots=True)
class TooDear(Reason):
    """The price of electricity, and the most that the job pays."""

    price: float
    most: float

    def text(self) -> str:
        return f"waits for the night: a kilowatt hour costs {self.price:.2f}, and it pays {self.most:.2f}"

    def in_full(self, look: Look) -> str:
        return f"{self.text()} for {look.gang()}"

    def remedy(self) -> str:
        return "would start when the sun shines"


class Silent(Reason):
    """A reason that somebody has not finished."""

    def remedy(self) -> str:
        raise OSError


class PricePolicy(FitPolicy):
    """`fit`, and what does not fit is too dear."""

    name = "price"
    reason: ClassVar[Reason] = TooDear(0.4, 0.25)

    def optimize(self, snapshot: Snapshot) -> Plan:
        plan = super().optimize(snapshot)
        waits = ~snapshot.jobs_of(plan.role)
        reasons = (self.reason if w else known for w, known in zip(waits.tolist(), plan.reasons, strict=True))
        return replace(plan, policy=self.name, reasons=tuple(reasons))


class SilentPolicy(PricePolicy):
    reason = Silent()


def snapshot() -> Snapshot:
    jobs = [JobView("a", (RoleView("w", {"cpu": 1000}, 2),)), JobView("b", (RoleView("w", {"cpu": 1000}, 2),))]
    return build([NodeView("n", {"cpu": 2000})], jobs, now_seconds=9.0)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint(name, f"tests.policies.test_own_reasons:{made}", base.GROUP)
        for name, made in (("price", "PricePolicy"), ("silent", "SilentPolicy"))
    ]
    monkeypatch.setattr(base, "entry_points", lambda group: entries if group == base.GROUP else [])


def test_a_reason_of_another_package_is_said_in_its_own_words() -> None:
    s, plan = snapshot(), base.load_policy("price", PolicySettings()).optimize(snapshot())
    assert faults(s, plan) == []
    words = "waits for the night: a kilowatt hour costs 0.40, and it pays 0.25 for 2 replicas (2 × w)"
    assert reason_texts.text(s, plan, 1) == f"b: wait: {words}"
    assert reason_texts.details(s, plan, 1)[0] == f"it {words}"
    assert "would start when the sun shines" in reason_texts.details(s, plan, 1)
    assert plan_text.as_data(s, plan, excluded={})["jobs"]["b"]["why"] == f"wait: {words}"


def test_a_reason_of_another_package_has_its_word_and_facts_in_the_journal() -> None:
    s, plan = snapshot(), base.load_policy("price", PolicySettings()).optimize(snapshot())
    decided = json.loads(journal.line(s, plan))["decided"]["b"]
    assert (decided["why"], decided["facts"]) == ("too_dear", {"price": 0.4, "most": 0.25})
    strange = replace(plan, reasons=(plan.reasons[0], replace(TooDear(0.4, 0.25), price=np.float64(0.123))))
    assert json.loads(strange.to_bytes(s))["jobs"]["b"]["facts"]["price"] == 0.123


def test_a_decision_is_not_lost_for_a_reason_without_a_text() -> None:
    s, plan = snapshot(), base.load_policy("silent", PolicySettings()).optimize(snapshot())
    assert faults(s, plan) == []
    assert reason_texts.text(s, plan, 1) == (
        "b: wait: is told 'silent', and that reason has no text (NotImplementedError)"
    )
    assert reason_texts.details(s, plan, 1)[0].startswith("it is told 'silent'")
    assert "is told 'silent', and that reason has no text (OSError)" in reason_texts.details(s, plan, 1)
    assert json.loads(plan.to_bytes(s))["jobs"]["b"]["why"] == "silent"
