"""Silence, hangs and slow ranks: by cases, and on simulated jobs that pause, save and evaluate."""

from __future__ import annotations

import numpy as np
import pytest

from diflow.allocator.health import judging
from diflow.allocator.health.judging import Floats
from diflow.common.deadlines import Deadlines

REPORT_SECONDS, WINDOW = 60, 30
HOURS = 10
DEADLINES = Deadlines()
NEVER = np.nan


def history(seed: int, noise: float, slowed: float = 1.0, hours: int = HOURS, pauses: bool = True) -> Floats:
    """Steps of 8 ranks at each report; steps of one second. All ranks save for ten minutes each hour; rank 0 evaluates
    for two minutes each 20 minutes."""
    chance = np.random.default_rng(seed)
    minutes = np.arange(hours * 60)
    speed = np.ones(8)
    speed[3] /= slowed
    done = REPORT_SECONDS * speed * (1 + noise * chance.standard_normal((len(minutes), 8)) / np.sqrt(REPORT_SECONDS))
    if pauses:
        done[(minutes + chance.integers(60)) % 60 < 10] = 0
        done[(minutes + chance.integers(20)) % 20 < 2, 0] = 0
    steps: Floats = np.floor(np.cumsum(done, axis=0))
    return steps


def windows(steps: Floats) -> tuple[Floats, Floats]:
    """Samples of the last half hour, at each quarter of an hour."""
    ends = range(WINDOW, len(steps), 15)
    seen = np.stack([steps[end - WINDOW : end] for end in ends])
    times = np.broadcast_to(np.arange(WINDOW)[None, :, None] * float(REPORT_SECONDS), seen.shape)
    return times, seen


def longest_rest(steps: Floats) -> float:
    """Seconds, with a whole interval of reports before and behind the rest."""
    risen = np.diff(steps, axis=0) > 0
    rests = [np.diff(np.flatnonzero(np.concatenate(([True], rank, [True])))).max() for rank in risen.T]
    return float(max(rests) * REPORT_SECONDS)


def false_alarms(jobs: int) -> int:
    found = 0
    began = np.zeros(8)
    for seed in range(jobs):
        steps = history(seed, noise=0.2)
        found += int(judging.slow(judging.rates(*windows(steps))).sum())
        found += int(judging.stalled(began, began, longest_rest(steps), DEADLINES).sum())
    return found


def test_noisy_jobs_that_save_and_evaluate_raise_no_alarm() -> None:
    assert false_alarms(jobs=50) == 0


@pytest.mark.slow
def test_no_alarm_in_10000_hours() -> None:
    assert false_alarms(jobs=1000) == 0


def test_a_rank_three_times_slower_is_found_in_each_of_1000_seeds_and_no_other_is() -> None:
    for seed in range(1000):
        steps = history(seed, noise=0.1, slowed=3.0, hours=1, pauses=False)[:WINDOW]
        times = np.broadcast_to(np.arange(WINDOW)[:, None] * float(REPORT_SECONDS), steps.shape)
        assert np.flatnonzero(judging.slow(judging.rates(times, steps))).tolist() == [3]


def test_a_hang_is_found_once_its_deadline_has_passed_and_not_before() -> None:
    began, advanced = np.zeros(2), np.array([5000.0, 5800.0])
    assert not judging.stalled(began, advanced, 5900, DEADLINES).any()
    assert judging.stalled(began, advanced, 5901, DEADLINES).tolist() == [True, False]


def test_before_the_first_step_a_longer_deadline_holds_and_an_earlier_pod_does_not_count() -> None:
    began, advanced = np.array([1000.0, 1000.0, NEVER]), np.array([NEVER, 900.0, NEVER])
    assert not judging.stalled(began, advanced, 8200, DEADLINES).any()
    assert judging.stalled(began, advanced, 8201, DEADLINES).tolist() == [True, True, False]


def test_silence_runs_from_the_last_sign_of_life_of_the_present_pod_and_counts_while_somebody_listens() -> None:
    began, heard = np.array([0.0, 0.0, NEVER, 600.0]), np.array([500.0, NEVER, NEVER, 500.0])
    assert not judging.silent(began, heard, 1100, DEADLINES).any()
    assert judging.silent(began, heard, 1101, DEADLINES).tolist() == [True, False, False, False]
    assert not judging.silent(began, heard, 1101, DEADLINES, since=502).any()


def test_a_time_in_which_no_server_listened_is_no_stall() -> None:
    began, moved = np.zeros(2), np.array([100.0, NEVER])
    assert judging.stalled(began, moved, 9000, DEADLINES).all()
    assert judging.stalled(began, moved, 9000, DEADLINES, since=8000).tolist() == [True, False]
    assert not judging.stalled(began, moved, 9000, DEADLINES, since=8100).any()


def test_in_a_collective_the_silent_rank_is_named_then_the_one_behind_then_all() -> None:
    everyone, nobody = np.ones(4, bool), np.zeros(4, bool)
    one = np.array([False, False, True, False])
    same = np.full(4, 70.0)
    assert judging.culprits(everyone, one, same).tolist() == one.tolist()
    assert judging.culprits(everyone, nobody, same - one).tolist() == one.tolist()
    assert judging.culprits(everyone, nobody, np.where(one, NEVER, 70.0)).tolist() == one.tolist()
    assert judging.culprits(everyone, nobody, same).all()
    assert judging.culprits(everyone, everyone, np.full(4, NEVER)).all()
    assert not judging.culprits(nobody, one, same).any()


def test_each_rank_is_compared_with_the_median_of_the_others() -> None:
    assert judging.slowness(np.array([1.0, 2.0, 4.0])).tolist() == [3.0, 1.25, 0.375]
    assert judging.slowness(np.array([0.0, 2.0, 4.0]))[0] == np.inf
    assert np.isnan(judging.slowness(np.array([1.0, 2.0]))).all()
    assert np.isnan(judging.slowness(np.zeros(3))).all()
    assert judging.slowness(np.array([1.0, NEVER, 2.0, 4.0]))[0] == 3.0


def test_few_samples_are_not_judged() -> None:
    times = np.arange(10.0)[:, None].repeat(3, axis=1)
    steps = times.copy()
    steps[: 10 - judging.MIN_SAMPLES + 1, 1] = NEVER
    assert np.isnan(judging.rates(times, steps)).tolist() == [False, True, False]


A, B, C = ("x", "a"), ("x", "b"), ("y", "c")


def test_a_node_is_slow_when_several_jobs_say_so() -> None:
    slow = {A: ["n1", "n2", "n2"], B: ["n1"]}
    assert judging.slow_nodes(slow, slow) == {"n1": (A, B)}
    assert judging.slow_nodes({A: ["n1"], C: ["n1"]}, {A: ["n1"], C: ["n1"]}) == {"n1": (A, C)}


def test_one_namespace_does_not_suffice_where_another_one_finds_the_node_fast() -> None:
    slow = {A: ["n1", "n2"], B: ["n1", "n2"]}
    assert judging.slow_nodes(slow, {**slow, C: ["n1"]}) == {"n2": (A, B)}
    assert judging.slow_nodes({**slow, C: ["n1"]}, {**slow, C: ["n1"]}) == {"n1": (A, B, C), "n2": (A, B)}
