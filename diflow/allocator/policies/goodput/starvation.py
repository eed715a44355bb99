"""The jobs that have waited too long for their first start: one of them at a time is placed before all others."""

from __future__ import annotations

from diflow.allocator.model.arrays import BoolArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.gangs import View
from diflow.allocator.policies.goodput.quota import Quota
from diflow.allocator.policies.waiting import Feasibility, minimum_gang, start_order


def overdue(snapshot: Snapshot, view: View, limit_seconds: float) -> tuple[BoolArray, BoolArray]:
    """(jobs that have waited for their first start at least so long (J); jobs that started after such a wait, less than
    `limit_seconds` ago (J))."""
    s = snapshot
    waits = ~view.running & (s.job_started_seconds < 0) & (s.now_seconds - s.job_created_seconds >= limit_seconds)
    lately = view.running & (s.job_started_seconds - s.job_created_seconds >= limit_seconds)
    lately &= s.now_seconds - s.job_started_seconds < limit_seconds
    return waits & view.free_to_move, lately & view.free_to_move


def longest_waiting(snapshot: Snapshot, waits: BoolArray, quota: Quota) -> int:
    """The first of these jobs (J) that could start on an empty cluster and that no cap and no quota stops; -1: none."""
    if not waits.any():
        return -1
    order, feasible, ledger = start_order(snapshot), Feasibility(snapshot), Ledger(snapshot)
    for j in order[waits[order]].tolist():
        gang = minimum_gang(ledger, j)
        below_caps = all(ledger.queue_headroom(j, r) >= n for r, n in gang.items())
        if below_caps and feasible.reason(j) is None and quota.admits(ledger, j, gang):
            return int(j)
    return -1
