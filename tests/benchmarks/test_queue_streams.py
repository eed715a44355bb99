"""Streams of jobs in queues: the rules of playing, on small hand-made streams, and the aims of `fair`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.queue_streams.kube_batch import KubeBatchPolicy
from benchmarks.queue_streams.runs import IDLE_SECONDS, Plans, StreamResult, largest_packing, run_stream
from benchmarks.queue_streams.streams import (
    FULL,
    GPU,
    REQUEST,
    Kind,
    Offers,
    Stream,
    StreamJob,
    gpu_node,
    parts,
    random_stream,
)
from benchmarks.streams import LOADS, ROWS
from diflow.allocator.model.plan import Plan, carry_out, make_plan
from diflow.allocator.model.profile import Prior, Profile
from diflow.allocator.model.reasons import KEPT
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import QueueView
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.policy import FairPolicy
from diflow.common.errors import InvalidError


class Scripted:
    """Gives each job the GPUs that `says` returns for this time, on the first nodes that have them free."""

    name = "scripted"

    def __init__(self, says: Callable[[float], Mapping[str, int]]) -> None:
        self._says = says

    def optimize(self, snapshot: Snapshot) -> Plan:
        free = snapshot.node_allocatable[:, snapshot.resources.index(GPU)].tolist()
        triples = []
        for job, count in self._says(snapshot.now_seconds).items():
            left = count if job in snapshot.job_names else 0
            for node, has in enumerate(free):
                taken = min(has, left)
                free[node] -= taken
                left -= taken
                if taken:
                    triples.append((snapshot.job_names.index(job), node, taken))
        table = np.array(sorted(triples), dtype=np.int64).reshape(-1, 3).T
        return make_plan(snapshot, self.name, *table, reasons=[KEPT] * snapshot.jobs)


def job(name: str, gpus: int, *, at: float = 0.0, work: float = 600.0, queue: str = "a", least: int = 0) -> StreamJob:
    return StreamJob(name, queue, at, least or gpus, gpus, work)


def stream(*jobs: StreamJob, gpus: int = 8, nodes: int = 1, cycles: int = 40, cap: int | None = None) -> Stream:
    queues = (QueueView("a", cap={} if cap is None else {GPU: cap}), QueueView("b"))
    return Stream(tuple(gpu_node(f"n{i}", gpus) for i in range(nodes)), queues, jobs, cycles=cycles)


def by_name(played: StreamResult) -> dict[str, tuple[float, float]]:
    """When each job started and ended."""
    return {o.job.name: (o.started_seconds, o.ended_seconds) for o in played.outcomes}


# -- the player --


def test_a_job_starts_at_the_first_cycle_after_it_came_and_ends_when_its_work_is_done() -> None:
    played = run_stream(stream(job("x", 2, at=61.0, work=150.0)), KubeBatchPolicy())
    assert by_name(played) == {"x": (120.0, 270.0)}
    assert played.mean_wait_seconds == 59.0
    assert played.outcomes[0].done_seconds == pytest.approx(150.0)


def test_what_a_job_held_is_free_at_the_cycle_after_its_end() -> None:
    played = run_stream(stream(job("x", 8, work=150.0), job("y", 8, at=1.0)), KubeBatchPolicy())
    assert by_name(played) == {"x": (0.0, 150.0), "y": (180.0, 780.0)}


def test_a_stopped_job_goes_on_with_what_it_has_done_and_loses_a_restart() -> None:
    says = Scripted(lambda now: {"x": 4} if not 300 <= now < 480 else {})
    played = run_stream(stream(job("x", 4, work=600.0)), says)
    (outcome,) = played.outcomes
    # 300 s of work, 180 s without a pod, 30 s of restart, 300 s of work.
    assert outcome.ended_seconds == 300 + 180 + 30 + 300
    assert (outcome.stops, outcome.restarts, outcome.started_seconds) == (1, 1, 0.0)
    assert played.most_stops == 1


def test_a_job_that_is_moved_counts_as_stopped_and_one_that_shrinks_does_not() -> None:
    moved = Scripted(lambda now: {"w": 8 if now < 120 else 0, "x": 4})
    played = run_stream(stream(job("w", 8), job("x", 4), nodes=2), moved)
    assert {o.job.name: (o.stops, o.restarts) for o in played.outcomes} == {"w": (1, 0), "x": (1, 1)}
    shrunk = Scripted(lambda now: {"x": 4 if now < 120 else 2})
    played = run_stream(stream(job("x", 4, least=1)), shrunk)
    assert [(o.stops, o.restarts) for o in played.outcomes] == [(0, 1)]


def test_with_half_its_gpus_a_job_takes_twice_as_long() -> None:
    played = run_stream(stream(job("x", 4, work=300.0, least=2)), Scripted(lambda _: {"x": 2}))
    assert by_name(played) == {"x": (0.0, 600.0)}


def test_a_restart_longer_than_a_cycle_is_stood_still_to_its_end() -> None:
    says = Scripted(lambda now: {"x": 4} if now != 60 else {})
    slow = replace(stream(job("x", 4, work=120.0)), restart_seconds=100.0)
    assert by_name(run_stream(slow, says)) == {"x": (0.0, 60 + 60 + 100 + 60)}


@pytest.mark.parametrize("policy", [FairPolicy(), KubeBatchPolicy()], ids=lambda policy: policy.name)
def test_snapshots_say_of_each_job_what_carry_out_says(policy: Plans) -> None:
    """Elastic jobs and priorities: jobs are stopped, shrunk and grown all the time."""
    last: list[Snapshot] = []
    compared = set[str]()

    def check(snapshot: Snapshot, plan: Plan) -> None:
        if last:
            then = {name: j for j, name in enumerate(last[0].job_names)}
            for j, name in enumerate(snapshot.job_names):
                if name in then:
                    assert _says(snapshot, j) == _says(last[0], then[name])
                    compared.add("restarted" if snapshot.job_restarts[j] else "there")
        last[:] = [carry_out(snapshot, plan)]

    kind = Kind(load=FULL, cycles=80, elastic=1.0, priorities=(0, 1))
    run_stream(random_stream(3, kind), policy, on_plan=check)
    assert compared == {"restarted", "there"}


def _says(snapshot: Snapshot, j: int) -> tuple[object, ...]:
    mine = snapshot.role_job[snapshot.held_role] == j
    return (
        float(snapshot.job_started_seconds[j]),
        float(snapshot.job_changed_seconds[j]),
        int(snapshot.job_restarts[j]),
        snapshot.held_node[mine].tolist(),
        snapshot.held_count[mine].tolist(),
    )


@pytest.mark.parametrize("policy", [FairPolicy(), KubeBatchPolicy()], ids=lambda policy: policy.name)
def test_work_is_neither_lost_nor_made(policy: Plans) -> None:
    held = list[float]()
    kind = Kind(load=FULL, cycles=80, priorities=(0, 1))
    played = run_stream(
        random_stream(4, kind), policy, on_plan=lambda _, plan: held.append(60.0 * int(plan.count.sum()))
    )
    for o in played.outcomes:
        if o.ended_seconds >= 0:
            assert o.done_seconds == pytest.approx(o.job.work_seconds)
            # For a job of fixed size, work and restarts add up to the time that it had its pods.
            least = o.started_seconds + o.job.work_seconds
            assert o.ended_seconds >= least - 1e-6
            assert o.restarts or o.ended_seconds == pytest.approx(least)
    done = sum(o.done_seconds * o.job.most for o in played.outcomes)
    stood = sum(o.restarts * 30.0 * o.job.most for o in played.outcomes)
    left = sum(o.ended_seconds >= 0 for o in played.outcomes) * 60.0 * 16
    assert done <= sum(held) <= done + stood + left


def test_all_that_is_deserved_is_met_while_there_is_room_for_all() -> None:
    jobs = [job(f"x{i}", 2, at=300.0 * i, queue="ab"[i % 2]) for i in range(6)]
    for policy in (FairPolicy(), KubeBatchPolicy()):
        played = run_stream(stream(*jobs), policy)
        assert (played.met, played.utilisation, played.mean_wait_seconds) == ((1.0, 1.0), 1.0, 0.0)


def test_what_a_queue_deserves_and_does_not_hold_is_not_met() -> None:
    """Both ask for 8 of 8 GPUs and deserve 4: one holds all of them, which counts as 4."""
    jobs = [job("x", 8, work=1e6, least=1), job("y", 8, queue="b", work=1e6, least=1)]
    assert run_stream(stream(*jobs), Scripted(lambda _: {"x": 8})).met == (1.0, 0.0)
    assert run_stream(stream(*jobs), Scripted(lambda _: {"x": 7, "y": 1})).met == (1.0, 0.25)


def test_room_into_which_no_gang_fits_is_held_against_nobody() -> None:
    jobs = [job("x", 5, work=1e6), job("y", 5, work=1e6)]
    assert run_stream(stream(*jobs), Scripted(lambda _: {"x": 5})).utilisation == 1.0
    # With a gang of 3 beside them 8 are possible.
    more = [*jobs, job("z", 3, work=1e6)]
    assert run_stream(stream(*more), Scripted(lambda _: {"x": 5})).utilisation == 5 / 8


def test_the_largest_packing_is_that_of_all_choices() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        capacity = int(rng.integers(1, 20))
        caps = [None if rng.random() < 0.5 else int(rng.integers(0, 12)) for _ in range(2)]
        limits = [capacity if cap is None else cap for cap in caps]
        stays = [int(rng.integers(0, 1 + min(limit, capacity // 2))) for limit in limits]
        gangs = [
            [(low, low + int(rng.integers(0, 3))) for low in rng.integers(1, 8, rng.integers(0, 4)).tolist()]
            for _ in range(2)
        ]
        choices = [itertools.product(*[(0, *range(low, high + 1)) for low, high in own]) for own in gangs]
        sums = [
            {base + sum(picked) for picked in own if base + sum(picked) <= limit}
            for own, base, limit in zip(choices, stays, limits, strict=True)
        ]
        best = max(a + b for a in sums[0] for b in sums[1] if a + b <= capacity)
        assert largest_packing(capacity, stays, gangs, caps) == best


def test_an_eviction_counts_when_nobody_came_or_ended_since_the_last_cycle() -> None:
    says = Scripted(lambda now: {"x": 4} if now < 300 else {})
    assert run_stream(stream(job("x", 4, work=1e6)), says).quiet_evictions == 1
    assert run_stream(stream(job("x", 4, work=1e6), job("y", 1, at=250.0)), says).quiet_evictions == 0
    ending = Scripted(lambda now: {"x": 4, "y": 1} if now < 300 else {})
    assert run_stream(stream(job("x", 4, work=1e6), job("y", 1, work=290.0)), ending).quiet_evictions == 0


def test_room_that_a_waiting_job_could_use_counts_when_it_is_idle_for_too_long() -> None:
    nothing = Scripted(lambda _: {})
    cycles = int(IDLE_SECONDS // 60) + 11
    played = run_stream(stream(job("x", 4), cycles=cycles), nothing)
    assert (played.idle_cycles, played.late_idle_cycles) == (cycles, 10)
    # For whichever waiting jobs: one that fits starts, and another one is created.
    changing = Scripted(lambda now: {"x": 4} if now >= 600 else {})
    played = run_stream(stream(job("x", 4, work=1e6), job("y", 4, at=30.0), cycles=cycles), changing)
    assert played.late_idle_cycles == 10
    assert run_stream(stream(job("x", 4), cycles=cycles, cap=3), nothing).idle_cycles == 0
    assert run_stream(stream(job("x", 9), cycles=cycles), nothing).idle_cycles == 0


def test_the_longest_wait_is_that_of_a_job_that_fits_and_a_stop_begins_another_one() -> None:
    says = Scripted(lambda now: {"x": 4} if not 120 <= now < 720 else {})
    assert run_stream(stream(job("x", 4), job("y", 9)), says).longest_wait_seconds == 600.0
    assert run_stream(stream(job("x", 4, queue="b"), job("y", 4), cap=3), says).longest_wait_seconds == 600.0
    assert run_stream(stream(job("x", 4), job("y", 4, at=10.0), cycles=40), says).longest_wait_seconds == 2390.0


def test_a_wait_is_open_while_the_gang_fits_beside_what_others_are_entitled_to() -> None:
    fixed = replace(job("x", 6, work=1200.0), preemptible=False)
    played = run_stream(stream(fixed, job("y", 4), job("z", 2)), Scripted(lambda _: {"x": 6}))
    # y could start when x has ended, z beside it.
    by_job = {o.job.name: (o.longest_wait_seconds, o.longest_open_wait_seconds) for o in played.outcomes}
    assert by_job == {"x": (0.0, 0.0), "y": (2400.0, 1200.0), "z": (2400.0, 2400.0)}
    assert played.longest_open_wait_seconds == 2400.0
    # Of 8 GPUs each queue deserves 4: what b holds beyond that counts for y, and not for w, which is of b itself.
    large = job("x", 8, queue="b", work=1200.0)
    played = run_stream(stream(large, job("y", 4), job("w", 4, queue="b")), Scripted(lambda _: {"x": 8}))
    by_job = {o.job.name: (o.longest_wait_seconds, o.longest_open_wait_seconds) for o in played.outcomes}
    assert by_job == {"x": (0.0, 0.0), "y": (2400.0, 2400.0), "w": (2400.0, 1200.0)}
    played = run_stream(stream(large, job("y", 5)), Scripted(lambda _: {"x": 8}))
    assert {o.job.name: o.longest_open_wait_seconds for o in played.outcomes} == {"x": 0.0, "y": 1200.0}


def test_a_bad_plan_and_an_unknown_queue_are_refused() -> None:
    with pytest.raises(InvalidError, match=r"policy scripted returned a bad plan at 0 s: job x: its gang"):
        run_stream(stream(job("x", 4)), Scripted(lambda _: {"x": 3}))
    with pytest.raises(InvalidError, match="job x: the stream has no queue 'c'"):
        run_stream(stream(job("x", 4, queue="c")), KubeBatchPolicy())


# -- random streams --


def test_the_same_seed_gives_the_same_stream_and_the_same_figures() -> None:
    first, second, other = (random_stream(seed, Kind(load=FULL, cycles=60)) for seed in (1, 1, 2))
    assert first == second
    assert first != other
    assert run_stream(first, FairPolicy()) == run_stream(second, FairPolicy())


def test_another_load_begins_with_the_same_jobs() -> None:
    calm, busy = (random_stream(5, Kind(load=load)) for load in (0.6, 1.2))
    assert calm.nodes == busy.nodes
    for queue in ("q0", "q1", "q2"):
        slow, fast = ([j for j in s.jobs if j.queue == queue] for s in (calm, busy))
        assert len(slow) < len(fast)
        # The last job adjusts the load.
        for a, b in zip(slow[:-1], fast, strict=False):
            assert (a.name, a.most, a.work_seconds, a.preemptible) == (b.name, b.most, b.work_seconds, b.preemptible)
            assert a.created_seconds > b.created_seconds


@pytest.mark.parametrize("offers", ["shares", "even"])
@pytest.mark.parametrize("load", LOADS)
def test_each_stream_offers_the_load_and_each_of_its_queues_its_part(load: float, offers: Offers) -> None:
    kind = Kind(load=load, offers=offers)
    for seed in range(20):
        one = random_stream(seed, kind)
        assert 3 <= len(one.nodes) <= 6
        there = len(one.nodes) * kind.node_gpus * kind.cycles * kind.period_seconds
        offered = dict.fromkeys(("q0", "q1", "q2"), 0.0)
        for j in one.jobs:
            offered[j.queue] += j.most * j.work_seconds / there
            assert 0 < j.created_seconds < kind.cycles * kind.period_seconds
        assert list(offered.values()) == pytest.approx([load * part for part in parts((1, 2, 5), offers)])


def test_at_full_load_each_queue_offers_more_than_its_weights_part() -> None:
    assert all(FULL * part > weight / 8 for part, weight in zip(parts((1, 2, 5), "shares"), (1, 2, 5), strict=True))
    assert sum(parts((1, 2, 5), "shares")) == pytest.approx(1.0)
    assert parts((1, 2, 5), "even") == (1 / 3, 1 / 3, 1 / 3)


def test_most_gangs_are_small_one_job_in_five_may_not_be_stopped_and_jobs_come_evenly() -> None:
    jobs = [j for seed in range(60) for j in random_stream(seed).jobs]
    sizes = np.array([j.most for j in jobs])
    assert (sizes.min(), sizes.max()) == (1, 16)
    assert np.mean(sizes <= 2) > 0.5
    assert np.mean([j.preemptible for j in jobs]) == pytest.approx(0.8, abs=0.02)
    assert np.mean([j.created_seconds for j in jobs]) == pytest.approx(9000, rel=0.03)
    assert np.mean([j.work_seconds for j in jobs]) == pytest.approx(1800, rel=0.1)


@pytest.mark.slow
def test_nothing_but_gpus_is_ever_asked_for_beyond_what_there_is() -> None:
    asked = dict.fromkeys(REQUEST, 0.0)

    def look(snapshot: Snapshot, plan: Plan) -> None:
        del plan
        part = (snapshot.role_request * snapshot.role_desired[:, None]).sum(axis=0) / snapshot.node_allocatable.sum(
            axis=0
        )
        for name, value in zip(snapshot.resources, part.tolist(), strict=True):
            asked[name] = max(asked[name], value)

    for seed in range(4):
        run_stream(random_stream(seed, Kind(load=FULL)), KubeBatchPolicy(), on_plan=look)
    assert asked[GPU] > 2
    assert all(most < 1 for name, most in asked.items() if name != GPU)


def test_elastic_jobs_and_priorities_change_nothing_else() -> None:
    plain, rich = (random_stream(6, kind) for kind in (Kind(), Kind(elastic=1.0, priorities=(0, 1))))
    assert [(j.created_seconds, j.most, j.work_seconds) for j in plain.jobs] == [
        (j.created_seconds, j.most, j.work_seconds) for j in rich.jobs
    ]
    assert all(j.least == (max(1, j.most // 4) if j.preemptible else j.most) for j in rich.jobs)
    assert {j.priority for j in rich.jobs} == {0, 1}
    assert {j.priority for j in plain.jobs} == {0}


# -- the aims of `fair` --

SEEDS: tuple[tuple[int, Offers], ...] = ((0, "shares"), (1, "even"), (2, "shares"), (3, "even"))


@pytest.fixture(scope="module")
def played_by_fair() -> Callable[[float], tuple[StreamResult, ...]]:
    """The streams of a load, played once for all tests: of a fixture, they run in one process."""

    @cache
    def played(load: float) -> tuple[StreamResult, ...]:
        return tuple(
            run_stream(random_stream(seed, Kind(load=load, offers=offers)), FairPolicy()) for seed, offers in SEEDS
        )

    return played


@pytest.mark.slow
@pytest.mark.parametrize(
    "load", [*LOADS, None], ids=lambda load: "all loads together" if load is None else f"load {load}"
)
def test_fair_reaches_the_aims_on_a_few_streams(
    played_by_fair: Callable[[float], tuple[StreamResult, ...]], load: float | None
) -> None:
    """`make bench-policies` shows the figures over 200 streams. Aims for their mean are for the mean of these here."""
    played = [one for each in (LOADS if load is None else (load,)) for one in played_by_fair(each)]
    missed = [
        f"{row.name}: {[round(row.of(one), 3) for one in played]}, the aim is {row.aim}"
        for row in ROWS
        if row.aim is not None
        and (row.aim.together if load is None else load in row.aim.loads and not row.aim.together)
        and row.aim.is_missed([row.of(one) for one in played])
    ]
    assert missed == []


def _known() -> Profile:
    """What the memory says of each job: it scales without loss to 16 replicas."""
    rows = [
        (nodes, replicas, batch, 0.01 + 0.002 * batch, 0.01 + 0.002 * batch + 1e-4, 0.0)
        for nodes, replicas in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 16))
        for batch in (16.0, 64.0, 256.0)
    ]
    prior = Prior(
        version=1,
        observations=np.array(rows),
        works=np.geomspace(1e4, 1e6, 16),
        initial_batch=16,
        min_batch=16,
        max_batch=1024,
        min_local_batch=16,
        max_local_batch=16,
    )
    return Profile(prior=prior)


def _plans(name: str, known: Profile | None) -> tuple[list[bytes], StreamResult]:
    plans: list[bytes] = []
    played = run_stream(
        random_stream(3, Kind(load=1.5, elastic=0.5, cycles=60)),
        load_policy(name),
        known=known,
        on_plan=lambda snapshot, plan: plans.append(plan.to_bytes(snapshot)),
    )
    return plans, played


def test_under_fair_a_memory_changes_no_plan() -> None:
    assert _plans("fair", _known())[0] == _plans("fair", None)[0]


@pytest.mark.slow
def test_under_fair_goodput_a_memory_changes_sizes_and_takes_no_share_from_a_queue() -> None:
    with_memory, known = _plans("fair+goodput", _known())
    without, unknown = _plans("fair+goodput", None)
    assert with_memory != without, "it is used"
    for queue, (met, before) in enumerate(zip(known.met, unknown.met, strict=True)):
        assert met >= before - 0.02, f"queue {queue}"
    assert known.busy >= unknown.busy - 0.02
