"""What the signs of life of all replicas mean together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from diflow.allocator.health.judging import Floats
from diflow.allocator.health.verdict import LEAST_SAMPLES, SLOW_SAMPLES, Samples, Signs, Verdict, judge
from diflow.common.deadlines import Deadlines

NEVER = np.nan
SOON = LEAST_SAMPLES + SLOW_SAMPLES
"""Minutes after which a slow rank is known."""


def said(*parts: object) -> tuple[object, ...]:
    """Several values to be compared together."""
    return parts


def floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def signs(
    at: float, heard: Sequence[float], moved: Sequence[float], steps: Sequence[float], *, since: float = 0.0
) -> Signs:
    return Signs(at, since, floats(heard), floats(moved), floats(steps), np.full(len(heard), NEVER))


def verdict(given: Signs, *, tasks: Sequence[int], began: Sequence[float] | None = None) -> Verdict:
    return judge(given, floats(began if began is not None else [0.0] * sum(tasks)), tasks, Deadlines())


def measured(
    minutes: int,
    step_of: Callable[[int, int], float],
    *,
    tasks: Sequence[int],
    work: Sequence[float] | None = None,
    began: Callable[[int], Sequence[float]] | None = None,
    was_slow: frozenset[int] = frozenset(),
) -> Verdict:
    """The verdict after so many samples; `step_of` has the step of a rank in a minute."""
    ranks, found = sum(tasks), Samples(tasks)
    out = Verdict()
    for minute in range(1, minutes + 1):
        now = 60.0 * minute
        steps = floats([step_of(rank, minute) for rank in range(ranks)])
        seconds = np.full(ranks, NEVER) if work is None else floats(work)
        given = Signs(now, 0.0, np.full(ranks, now), np.full(ranks, now), steps, seconds)
        starts = floats(began(minute)) if began is not None else np.zeros(ranks)
        found.add(given, starts)
        out = judge(given, starts, tasks, Deadlines(), samples=found, was_slow=was_slow)
    return out


def test_where_several_ranks_report_all_have_to_and_where_one_does_it_speaks_for_its_task() -> None:
    one = signs(9000, [9000, NEVER, NEVER], [9000, NEVER, NEVER], [70, 0, 0])
    assert verdict(one, tasks=[3]) == Verdict(is_proven=True)
    two = signs(9000, [9000, 9000, NEVER], [9000, 9000, NEVER], [70, 70, 0])
    assert verdict(two, tasks=[3]).stalled == {2}
    other_task = signs(9000, [9000, 9000, NEVER], [9000, 9000, NEVER], [70, 70, 0])
    assert verdict(other_task, tasks=[2, 1]).stalled == frozenset(), "nobody of that task reports"
    nobody = signs(9000, [NEVER] * 3, [NEVER] * 3, [NEVER] * 3)
    found = verdict(nobody, tasks=[3])
    assert said(found.stalled, found.is_before_first, found.behind) == said({0, 1, 2}, True, frozenset())


def test_those_that_wait_for_a_silent_rank_are_restarted_with_it_and_other_tasks_are_not() -> None:
    given = signs(2000, [1350, 1995, 1995, 1995], [1350, 1352, 1352, 1990], [70, 70, 70, 9])
    found = verdict(given, tasks=[3, 1])
    assert said(found.silent, found.stalled) == said({0}, frozenset())
    assert found.restart == {0, 1, 2}
    assert found.behind == {0}


def test_a_rank_that_advances_is_not_restarted_with_one_that_is_silent() -> None:
    found = verdict(signs(2000, [1350, 1995], [1350, 1990], [70, 99]), tasks=[2])
    assert said(found.restart, found.behind) == said({0}, frozenset())


def test_the_ranks_that_never_report_are_restarted_with_the_one_that_speaks_for_them() -> None:
    found = verdict(signs(2000, [1999, NEVER, NEVER], [1000, NEVER, NEVER], [70, 0, 0]), tasks=[2, 1])
    assert said(found.stalled, found.restart, found.behind) == said({0}, {0, 1}, frozenset())


def test_what_an_earlier_pod_reported_is_not_the_present_ones() -> None:
    given = signs(2000, [1000, 1990], [1000, 1990], [70, 80])
    assert verdict(given, tasks=[2], began=[1001, 0]).hanging == frozenset()
    assert not verdict(given, tasks=[2], began=[1001, 0]).is_proven
    assert verdict(given, tasks=[2], began=[999, 0]).stalled == {0}
    assert verdict(given, tasks=[2], began=[NEVER, 0]).hanging == frozenset(), "it is being ended"


def test_a_slow_rank_is_known_after_half_an_hour_and_not_before() -> None:
    def steps(rank: int, minute: int) -> float:
        return minute * 60 / (3 if rank == 2 else 1)

    assert measured(SOON - 2, steps, tasks=[4]).slow == {}
    assert measured(SOON, steps, tasks=[4]).slow == {2: pytest.approx(3.0)}


def test_each_rank_is_compared_with_its_own_task() -> None:
    def steps(rank: int, minute: int) -> float:
        return minute * (1000 if rank < 3 else 1)

    assert measured(SOON, steps, tasks=[3, 3]).slow == {}


def test_of_ranks_that_make_each_step_together_the_one_with_the_longest_work_is_slow() -> None:
    work = [0.1, 0.1, 0.1, 0.35, 0.1, 0.1, 0.1, 0.1]
    assert measured(SOON, lambda _, minute: 60 * minute, tasks=[8], work=work).slow == {3: pytest.approx(3.5)}
    assert measured(SOON, lambda _, minute: 60 * minute, tasks=[8]).slow == {}


def test_a_counter_that_jumps_makes_no_rank_slow() -> None:
    def jumps(rank: int, minute: int) -> float:
        return 60 * minute + (5000 if rank == 1 or minute < 10 else 0)  # the others go back to a checkpoint

    assert measured(SOON, jumps, tasks=[4]).slow == {}


def test_a_rank_that_pauses_by_turns_is_not_slow() -> None:
    def steps(rank: int, minute: int) -> float:
        return 60.0 * (minute - minute // 4 if rank == 0 else minute)

    assert measured(40, steps, tasks=[8]).slow == {}


def test_one_that_was_slow_stays_so_until_it_is_clearly_faster() -> None:
    def steps(rank: int, minute: int) -> float:
        return minute * 60 / (1.8 if rank == 2 else 1)

    assert measured(SOON, steps, tasks=[4]).slow == {}
    assert measured(SOON, steps, tasks=[4], was_slow=frozenset({2})).slow == {2: pytest.approx(1.8)}


def test_a_rank_with_a_new_pod_is_measured_again() -> None:
    def steps(rank: int, minute: int) -> float:
        return minute * 60 / (3 if rank == 2 else 1)

    def began(minute: int) -> list[float]:
        return [0.0, 0.0, 0.0 if minute < SOON else 60.0 * SOON - 1, 0.0]

    assert measured(SOON + 5, steps, tasks=[4], began=began).slow == {}
    assert measured(2 * SOON + 5, steps, tasks=[4], began=began).slow == {2: pytest.approx(3.0)}


def test_a_rank_that_stands_is_not_called_slow_as_well() -> None:
    found = Samples([4])
    began = np.zeros(4)
    last = Verdict()
    for minute in range(1, 60):
        now = 60.0 * minute
        moved = np.array([now, now, min(now, 1200.0), now])
        given = Signs(now, 0.0, np.full(4, now), moved, moved, np.full(4, NEVER))
        found.add(given, began)
        last = judge(given, began, [4], Deadlines(), samples=found)
    assert said(last.stalled, last.slow) == said({2}, {})
