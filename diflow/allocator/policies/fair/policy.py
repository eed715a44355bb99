"""`fair`: queues with weights, guarantees and caps; gangs, DRF, priorities; backfill, preempt and reclaim.

The semantics are kube-batch's, without its faults; docs/policies.md says where they differ by choice.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.plan import Plan, carry_out, changes, evictions
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.cycle import GENTLE, Cycle
from diflow.allocator.policies.fair.losses import Given, with_final_reasons
from diflow.allocator.policies.fair.prepared import prepared
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fixed_point import followed
from diflow.allocator.policies.limits import as_within_maximums, within_maximums
from diflow.allocator.policies.settings import PolicySettings


class FairPolicy:
    """Fair shares between queues, and inside them between jobs."""

    name = "fair"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        """Start the new job within its queue's share, or in idle capacity; no other job changes."""
        snapshot.work.begin()
        used = self._prepared(snapshot)
        only = np.zeros(used.jobs, dtype=np.bool_)
        only[job] = True
        return Cycle(State(used, self._settings, only)).run(GENTLE, self.name)

    def optimize(self, snapshot: Snapshot) -> Plan:
        snapshot.work.begin()
        return within_maximums(snapshot, self.name, self._within)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """Met guarantees, then met shares, with higher priorities before lower ones (lexicographic)."""
        snapshot, plan, _ = as_within_maximums(snapshot, plan)
        return State(self._prepared(snapshot), self._settings).measure.of_plan(plan).number()

    def _within(self, snapshot: Snapshot, restarts: BoolArray | None) -> Plan:
        """The plan for a snapshot whose jobs have given up what is above their maximum."""
        del restarts  # a restart costs nothing here
        return self._optimize(self._prepared(snapshot))

    def _optimize(self, snapshot: Snapshot) -> Plan:
        plan, is_certain = self._decided(snapshot)
        if is_certain or not changes(self._decided(carry_out(snapshot, plan))[0]):
            return plan
        # The next cycle would change more, because it measures from the state after this one.
        return self._gentle(snapshot)

    def _decided(self, snapshot: Snapshot) -> tuple[Plan, bool]:
        """The plan, and whether it is known to be a fixed point."""
        state = State(snapshot, self._settings)
        plan = self._followed(state)
        if evictions(snapshot, plan) == 0:
            return plan, True
        measure, held = state.measure, snapshot.held_by_role()
        kept = measure.of(held)
        if not measure.of_plan(plan).is_below(kept):
            return plan, True
        # An exchange is checked for the queues and resources it concerns. With replicas of several sizes or priorities
        # all exchanges together may still lower the measure: then each one is checked against the whole.
        plan = self._followed(State(snapshot, self._settings, measured_from=held), careful=True)
        if not measure.of_plan(plan).is_below(kept):
            return plan, not changes(plan)
        return self._gentle(snapshot), True

    def _gentle(self, snapshot: Snapshot) -> Plan:
        """The plan without preemption."""
        return Cycle(State(snapshot, self._settings)).run(GENTLE, self.name)

    def _followed(self, state: State, *, careful: bool = False) -> Plan:
        """The plan of a cycle, iterated to a fixed point, with reasons for the whole."""
        given: list[Given] = []

        def plan(state: State) -> Plan:
            cycle = Cycle(state, careful=careful)
            found = cycle.run(self._settings.steps, self.name)
            if changes(found):
                given.extend(cycle.transactions.given)
            return found

        def look(snapshot: Snapshot) -> Plan:
            return plan(State(snapshot, self._settings, measured_from=state.measured_from))

        return with_final_reasons(state.snapshot, followed(state.snapshot, plan(state), look), given, state.shares)

    def _prepared(self, snapshot: Snapshot) -> Snapshot:
        return prepared(snapshot, ageing_seconds=self._settings.ageing_seconds)


def deserved_table(snapshot: Snapshot) -> tuple[FloatArray, IntArray]:
    """(deserved, allocated), each Q×R, for `diflow queue`."""
    state = State(snapshot, PolicySettings())
    return state.shares.deserved, state.ledger.queue_used


__all__ = ["FairPolicy", "deserved_table"]
