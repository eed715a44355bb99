"""What jobs inherit from the earlier jobs of their application, and what of it is believed."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest

import diflow.labs.baselines  # noqa: F401 (adds its policies)
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.profile import Prior, Profile
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.goodput import memory
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.table import Tables
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.remember.priors import prior_of
from diflow.allocator.run import journal
from diflow.record.namespace.applications import Application, Batches, Lesson, learned
from tests.policies import laws as judged
from tests.policies.generators import snapshots
from tests.policies.profiles import reported

BATCHES = Batches(initial=32, least=32, most=4096, local_least=4, local_most=256)
POLICIES = ("goodput", "fair+goodput", "fit", "fair", "optimus")


def rows(*shapes: tuple[int, int], sync: float = 0.01, slow: float = 1.0) -> list[tuple[float, ...]]:
    """Times of an application that scales well if `sync` is small."""
    out: list[tuple[float, ...]] = []
    for nodes, replicas in shapes:
        for batch in (16, 64, 256):
            own = slow * (0.01 + 0.002 * batch)
            out.append((nodes, replicas, batch, own, own + (0.0 if replicas == 1 else slow * sync * (1 + nodes))))
    return out


SHAPES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))


def record(
    *shapes: tuple[int, int], sync: float = 0.01, work: float = 50_000.0, miss: float | None = None
) -> Application:
    lesson = Lesson(
        shapes=rows(*(shapes or SHAPES), sync=sync),
        noise={0: math.log(50.0), 9: math.log(500.0)},
        work=work,
        restart_seconds=90.0,
        batches=BATCHES,
        miss=miss,
    )
    return learned(Application("app"), lesson, now_seconds=1.0)


def prior(*shapes: tuple[int, int], **given: float | None) -> Prior:
    return prior_of(record(*shapes, **given))  # type: ignore[arg-type]


def own(*shapes: tuple[int, int], inherits: Prior | None = None, slow: float = 1.0, sync: float = 0.01) -> Profile:
    table = np.array([(*row, 0.0) for row in rows(*shapes, sync=sync, slow=slow)])
    return replace(reported(table), prior=inherits)


def cluster(
    *profiles: Profile | None, nodes: int = 4, placed: int = 0, now: float = 0.0, service: float = 0.0
) -> Snapshot:
    """Jobs of 1 to 16 GPUs on nodes of 4. `placed`: replicas of each on a node of its own."""
    jobs = [
        JobView(
            f"job-{i}",
            (RoleView("w", {"gpu": 1}, 1, 16, 1),),
            profile=profile,
            placed={"w": {f"n{i}": placed}} if placed else {},
            started_seconds=0.0 if placed else None,
            changed_seconds=0.0 if placed else None,
            service_seconds=service,
        )
        for i, profile in enumerate(profiles)
    ]
    return build([NodeView(f"n{i}", {"gpu": 4}) for i in range(nodes)], jobs, now_seconds=now)


def replicas(snapshot: Snapshot, plan: Plan) -> list[int]:
    held = np.bincount(snapshot.role_job[plan.role], weights=plan.count, minlength=snapshot.jobs)
    return [int(count) for count in held]


def start(profile: Profile | None, name: str = "goodput") -> int:
    snapshot = cluster(profile)
    return replicas(snapshot, load_policy(name).optimize(snapshot))[0]


@pytest.mark.parametrize("name", ["goodput", "fair+goodput"])
def test_a_newcomer_starts_on_as_many_replicas_as_its_application_uses_well(name: str) -> None:
    assert start(None, name) == PolicySettings().largest_start
    assert start(Profile(prior=prior()), name) == 16
    assert start(Profile(prior=prior(sync=20.0)), name) == 1


def test_a_newcomer_grows_past_what_has_been_seen_by_the_usual_factor_alone() -> None:
    assert start(Profile(prior=prior((1, 1), (1, 2)))) == 2 * PolicySettings().largest_growth


def test_a_memory_that_was_wrong_about_later_jobs_is_not_used() -> None:
    assert start(Profile(prior=prior(miss=0.1))) == 16
    assert start(Profile(prior=prior(miss=1.0))) == PolicySettings().largest_start


def test_absolute_times_are_not_believed() -> None:
    """A job whose steps take five times as long as those of the jobs before scales as they did."""
    model = fit_all([prior().observations])[0]
    more = memory.inherited(own((1, 1), slow=5.0).observations, prior(), model)
    assert more is not None
    assert {int(row[1]) for row in more} == {2, 4, 8, 16}
    mine = next(row for row in more if (row[1], row[2]) == (4, 64))
    assert mine[4] == pytest.approx(5.0 * (0.01 + 0.128 + 0.02), rel=0.02)
    snapshot = cluster(own((1, 1), slow=5.0, inherits=prior()), placed=1, now=600.0, service=600.0)
    assert replicas(snapshot, load_policy("goodput").optimize(snapshot)) == [16]


def test_a_memory_that_does_not_fit_is_dropped_and_the_job_treated_as_the_first() -> None:
    """On four replicas the job spends far more time on synchronisation than the memory says."""
    seen = own((1, 1), (1, 4), sync=2.0)
    model = fit_all([prior().observations])[0]
    assert memory.inherited(seen.observations, prior(), model) is None
    with_memory, without = (
        Case(cluster(replace(seen, prior=given), placed=4), PolicySettings(), Tables()).table
        for given in (prior(), None)
    )
    assert np.array_equal(with_memory.goodput, without.goodput)
    assert np.array_equal(with_memory.replicas, without.replicas)


def test_a_memory_that_discourages_is_not_believed_before_the_job_has_tried() -> None:
    model = fit_all([prior(sync=20.0).observations])[0]
    assert memory.inherited(own((1, 1)).observations, prior(sync=20.0), model) is None
    tried = own((1, 1), (1, 2), sync=20.0).observations
    assert memory.inherited(tried, prior(sync=20.0), model) is not None


def test_the_restart_cost_of_the_application_replaces_the_setting() -> None:
    cheap, dear = (
        Case(cluster(own((1, 1), (1, 2), inherits=given), placed=1), PolicySettings(restart_seconds=30.0), Tables())
        for given in (None, prior())
    )
    assert np.isnan(cheap.table.restart_seconds).all()
    assert dear.table.restart_seconds.tolist() == [90.0]
    ahead = np.minimum(dear.values.left[0] / dear.values.speed[0], PolicySettings().horizon_seconds - 90.0)
    assert dear.values.penalty[0].tolist() == pytest.approx((ahead / (ahead + 90.0)).tolist())


@pytest.mark.parametrize(("restart", "works"), [(30.0, 570.0), (250.0, 350.0), (900.0, 60.0)])
def test_a_restart_is_a_part_of_the_time_in_which_it_must_pay_off(restart: float, works: float) -> None:
    """The job was changed 600 s ago, so its next change is expected in 600 s: it restarts first, and then works."""
    profile = replace(own((1, 1), (1, 2)), fraction_done=1e-6, work_done=1e6)
    snapshot = cluster(profile, placed=1, now=600.0)
    case = Case(snapshot, PolicySettings(restart_seconds=restart), Tables())
    usable = case.values.speed[0] > 0
    assert usable.sum() > 1
    assert case.values.penalty[0, usable].tolist() == pytest.approx([works / (works + restart)] * usable.sum())


def test_a_job_does_not_grow_again_before_it_has_worked_for_as_long_as_its_restart_takes() -> None:
    profile = replace(own((1, 1), (1, 2)), fraction_done=1e-6, work_done=1e6)
    found = [
        replicas(snapshot, load_policy("goodput", PolicySettings(restart_seconds=600.0)).optimize(snapshot))[0]
        for snapshot in (cluster(profile, nodes=1, placed=2, now=now) for now in (300.0, 1000.0, 7200.0))
    ]
    assert found == [2, 2, 4]


def left(profile: Profile, *, now: float = 0.0, service: float = 0.0) -> float:
    snapshot = cluster(profile, placed=1, now=now, service=service)
    case = Case(snapshot, PolicySettings(), Tables())
    return float(case.table.left_seconds[0] * case.table.goodput[0, 0])


def test_work_left_without_progress_is_the_mean_residual_life_of_the_jobs_before() -> None:
    fresh, later, last = (left(own((1, 1), inherits=prior()), now=now, service=now) for now in (0.0, 1000.0, 1e7))
    assert fresh == pytest.approx(50_000 * (0.25 * 0.8 + 0.5 + 0.25 * 1.25))
    assert fresh > later > last
    assert last == pytest.approx(5_000.0), "a tenth of the longest: it must end some time"


def test_work_left_by_the_age_is_a_mean_over_longer_jobs_and_may_grow() -> None:
    mixed = np.array([100.0, 100.0, 100.0, 10_000.0])
    assert memory.work_ahead(mixed, 0.0) == pytest.approx(2575 * 1.0125, rel=1e-3)
    assert memory.work_ahead(mixed, 200.0) > 2 * memory.work_ahead(mixed, 0.0), "it is no short job"
    assert math.isnan(memory.work_ahead(np.zeros(0), 5.0))


def test_progress_without_a_count_of_work_is_a_part_of_what_the_jobs_before_did() -> None:
    assert left(replace(own((1, 1), inherits=prior()), fraction_done=0.75)) == pytest.approx(12_500.0)
    assert math.isnan(left(replace(own((1, 1)), fraction_done=0.75)))
    told = replace(own((1, 1), inherits=prior()), fraction_done=0.5, work_done=9.0)
    assert left(told) == pytest.approx(9.0), "what the job says itself counts"


def test_progress_alone_says_what_is_left_by_what_was_done() -> None:
    """A fraction is all that a job of a cluster can report."""
    half, most = (
        left(replace(own((1, 1)), fraction_done=fraction), now=1000.0, service=1000.0) for fraction in (0.5, 0.8)
    )
    assert half == pytest.approx(4 * most)
    rate = Case(cluster(own((1, 1)), placed=1), PolicySettings(), Tables()).table.goodput[0, 0]
    assert half == pytest.approx(1000.0 * rate)
    busy = left(replace(own((1, 1), (1, 4)), fraction_done=0.5), now=1000.0, service=1000.0)
    assert busy > 2 * half, "nobody counted its replicas: they are those of its newest observation"
    for odd in (0.0, -1.0, 2.0, math.nan, math.inf):
        assert math.isnan(left(replace(own((1, 1)), fraction_done=odd), now=1000.0, service=1000.0))


def test_gradient_noise_is_that_of_the_nearest_part_of_the_progress() -> None:
    known = prior()
    assert memory.noise_at(known, None) == pytest.approx(50.0)
    assert memory.noise_at(known, 0.3) == pytest.approx(50.0)
    assert memory.noise_at(known, 1.0) == pytest.approx(500.0)
    assert memory.noise_at(Prior(), 0.5) == math.inf


HOSTILE = [
    Prior(),
    Prior(observations=np.array([[1, 1, 1e9, 1e-7, 1e-6, 0.0]])),
    Prior(observations=np.array([[1, 1, 1e-300, 9e5, 9e5, 0.0], [1, 1_000_000, 1e9, 1e-7, 1e-6, 0.0]])),
    Prior(
        works=np.array([1e-300, 1e15]), restart_seconds=86_400.0, observations=prior().observations, initial_batch=10**9
    ),
    Prior(noise=np.full(10, 1e300), observations=prior().observations, max_batch=0, min_local_batch=10**9),
    Prior(observations=prior().observations, restart_seconds=1e-300, misses=0.0, max_batch=10**9),
]


def remembered(snapshot: Snapshot, rng: np.random.Generator) -> Snapshot:
    """The snapshot with priors: fitting, foreign and hostile ones."""
    kinds = [prior(), prior(sync=5.0), prior((1, 1)), *HOSTILE]
    profiles = []
    for version, profile in enumerate(snapshot.job_profile):
        found = kinds[int(rng.integers(len(kinds)))]
        given = replace(found, version=version % 7 * 100 + kinds.index(found)) if rng.random() < 0.8 else None
        profiles.append(profile if given is None else replace(profile or Profile(), prior=given))
    return replace(snapshot, job_profile=tuple(profiles))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_the_laws_hold_with_priors_of_every_kind(name: str) -> None:
    policy, rng = load_policy(name), np.random.default_rng(5)
    for at, plain in enumerate(snapshots(77, 60)):
        snapshot = remembered(plain, rng)
        plan = policy.optimize(snapshot)
        assert judged.sound(snapshot, plan) == []
        if name == "optimus":
            continue
        assert judged.nobody_waits_for_nothing(snapshot, plan) == [], at
        assert judged.no_worse_than_keeping(policy, snapshot, plan) == [], at
        assert judged.settles(policy, snapshot, plan) == [], at
        assert plan.to_bytes(snapshot) == load_policy(name).optimize(snapshot).to_bytes(snapshot), "no hidden state"


@pytest.mark.parametrize("name", ["fit", "fair"])
def test_fit_and_fair_serve_the_same_jobs_with_and_without_memory(name: str) -> None:
    rng = np.random.default_rng(6)
    for plain in snapshots(78, 60):
        with_memory = load_policy(name).optimize(remembered(plain, rng)).to_bytes(plain)
        assert with_memory == load_policy(name).optimize(plain).to_bytes(plain)


def test_a_journal_keeps_priors_and_is_as_before_without_them() -> None:
    policy, rng = load_policy("goodput"), np.random.default_rng(7)
    for plain in snapshots(79, 20):
        assert '"prior"' not in journal.line(plain, policy.optimize(plain))
        snapshot = remembered(plain, rng)
        plan = policy.optimize(snapshot)
        line = journal.line(snapshot, plan)
        again = journal._snapshot(json.loads(line)["snapshot"])
        assert policy.optimize(again).to_bytes(again) == plan.to_bytes(snapshot)


def test_no_record_of_another_namespace_has_the_version_of_a_record() -> None:
    """Models are kept by version, for all namespaces. A user can make a record that has the CRC of another one."""
    one, other = Application("app-75be4d1e"), Application("app-4baa5d72")
    assert zlib.crc32(repr((one, 0)).encode()) == zlib.crc32(repr((other, 0)).encode())
    assert prior_of(one).version != prior_of(other).version
    assert prior_of(one).version == prior_of(replace(one)).version
