"""`make demo-queues` on a simulated cluster: the moments, what is asked at each, the table and the picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from diflow.allocator.inspect import observer
from diflow.allocator.inspect.explain import explanation
from diflow.allocator.inspect.rows import job_rows, queue_rows
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.watch.queues import read_file
from diflow.common.clock import Clock
from diflow.kube.kinds import CONFIG_MAP
from elastic.film import Film, Frame, Seen
from shares import cast, checks
from shares.cast import GPU, GPUS, MOMENTS, NODES, PARTS, Moment, held, present
from shares.picture import draw, longest
from shares.telling import Retries, Row, moments_table, retries_table
from tests.allocator.lab import Lab, lab, task

DAN = MOMENTS[3]
AT_DAN = {"ann-gang-1": 4, "bob-train": 8, "cleo-gang": 4, "dan-train": 8}
WAITS = """demo-queues/cleo-late waits for 2 replicas; priority normal, queue cleo, preemptible
decided 3s ago: it waits: queue 'cleo' is capped at 4 gpu and has 0 gpu of that left; the gang needs 2 gpu
the allocator runs (x, policy fair)
now, policy fair would decide: \
it waits: queue 'cleo' is capped at 4 gpu and has 0 gpu of that left; the gang needs 2 gpu
"""
SERVED = """demo-queues/ann-gang-2 waits for 4 replicas; priority normal, queue ann, preemptible
decided 3s ago: it waits: queue 'ann' holds 4 of the 4 gpu that it deserves, and the gang needs 4 gpu more
the allocator runs (x, policy fair)
now, policy fair would decide: \
it waits: queue 'ann' holds 4 of the 4 gpu that it deserves, and the gang needs 4 gpu more
"""
RUNS = """demo-queues/dan-train has 8 of 2-12 replicas; priority normal, queue dan, preemptible
decided 3s ago: it starts: it gets 8 of the 12 replicas it asks for
the allocator runs (x, policy fair)
now, policy fair would decide: it keeps what it holds: no change is worth its cost
"""


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab(policy=load_policy("fair", PolicySettings())) as made:
        queues = {"metadata": {"name": "diflow-queues"}, "data": {"queues.yaml": cast.queues()}}
        made.api.add(CONFIG_MAP, queues, namespace="diflow-system")
        for name in NODES:
            made.cluster.node(name, cpu=32, gpu=GPUS)
        yield made
        assert made.cluster.problems == []


def runs(at: Lab) -> dict[str, int]:
    return {name: len(at.cluster.running(name)) for name in PARTS}


def play(at: Lab, moment: Moment) -> None:
    template = task().template
    template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", GPU: "1"}, "limits": {GPU: "1"}}
    for part in moment.comes:
        at.cluster.submit(part.job(template=template).model_copy(update={"namespace": "default", "scheduling": "gang"}))
    for name in moment.ends:
        for pod in at.cluster.of(name).values():
            at.cluster.finish(pod["metadata"]["name"])


@pytest.mark.slow
def test_at_each_moment_every_queue_has_what_it_deserves_in_time_and_the_commands_say_so(
    at: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "look", partial(observer.look, clock=Clock(wall=at.cluster.wall)))
    gave = set()
    for moment in MOMENTS:
        before = runs(at)
        play(at, moment)
        at.until(lambda moment=moment: cast.is_reached(moment, runs(at)), moment.title, seconds=30)  # type: ignore[misc]
        at.rest(seconds=3)
        after = runs(at)
        assert held(after) == moment.deserved
        seen = observer.look(at.api.cluster())
        data = {
            "queues": [{"name": row.name, **_row(row)} for row in queue_rows(seen)],
            "waiting": [{"name": row.name} for row in job_rows(seen) if row.is_queued],
        }
        assert checks.queues_told(data, moment, after) == []
        for part in present(moment):
            told = "\n".join(explanation(at.api.cluster(), part.name, policy="fair"))
            assert checks.job_explained(told.replace("default/", "demo-queues/"), part, moment, after) == []
        row = Row(moment, 0.0, 1.0, before, after, {})
        gave |= {"shrank"} if row.shrank() else set()
        gave |= {"stopped"} if row.stopped() else set()
        for name, was, now in row.changes():
            if now < was:
                messages = [text.replace("default/", "demo-queues/") for _, text in at.events(name)]
                assert checks.taken_for(messages, moment), messages
    assert gave == {"shrank", "stopped"}
    assert {name: at.cluster.restarts(name) for name in PARTS} == dict.fromkeys(PARTS, 0)


def _row(row: object) -> dict[str, object]:
    return {name: getattr(row, name) for name in ("deserved", "allocated", "running", "waiting")}


def test_the_queues_are_two_teams_of_two_users_with_a_guarantee_and_a_cap() -> None:
    queues = {queue.name: queue for queue in read_file(cast.queues()).queues}
    assert {name: queue.parent for name, queue in queues.items()} == {
        "vision": None, "ann": "vision", "bob": "vision", "speech": None, "cleo": "speech", "dan": "speech",
    }  # fmt: skip
    assert (queues["bob"].guarantee, queues["cleo"].cap) == ({GPU: 8}, {GPU: 4})
    assert yaml.safe_load(cast.queues())["queues"][0] == {"name": "vision"}


def test_what_users_deserve_fits_the_cluster_and_what_their_jobs_ask_for() -> None:
    for moment in MOMENTS:
        asked = {user: sum(p.high for p in present(moment) if p.user == user) for user in moment.deserved}
        assert all(moment.deserved[user] <= asked[user] for user in asked)
        assert sum(moment.deserved.values()) == min(sum(asked.values()), len(NODES) * GPUS)


def test_a_true_explanation_is_left_alone() -> None:
    assert checks.job_explained(WAITS, PARTS["cleo-late"], DAN, AT_DAN) == []
    assert checks.job_explained(SERVED, PARTS["ann-gang-2"], DAN, AT_DAN) == []
    assert checks.job_explained(RUNS, PARTS["dan-train"], DAN, AT_DAN) == []


@pytest.mark.parametrize(
    ("job", "was", "said", "wrong"),
    [
        ("dan-train", "has 8 of", "has 7 of", "it says"),
        ("dan-train", "2-12", "2-10", "it says"),
        ("dan-train", "queue dan", "queue ann", "it says"),
        ("dan-train", "gets 8 of the 12", "gets 2 of the 12", "it gets 2 of the 12"),
        ("dan-train", "starts: it gets 8 of the 12 replicas it asks for", "8 → 6; 6 are left to it", "6 are left"),
        ("dan-train", "it keeps what it holds", "it grows to 9 replicas", "at rest"),
        ("dan-train", "policy fair", "policy fit", "policy fit"),
        ("dan-train", "ago: it starts", "ago: it waits", "the last decision"),
        ("dan-train", "demo-queues/", "", "it says"),
        ("dan-train", "has", "had", "cannot be read"),
        ("dan-train", "now, policy", "then, policy", "would be decided now"),
        ("cleo-late", "waits for 2", "has 2 of 2", "it says"),
        ("cleo-late", "it waits: queue 'cleo' is capped", "it waits: it is capped", "is not named"),
        ("cleo-late", "at 4 gpu", "at 5 gpu", "with a cap of 4"),
        ("cleo-late", "has 0 gpu", "has 1 gpu", "with a cap of 4"),
        ("cleo-late", "the gang needs 2", "the gang needs 3", "it is 2"),
        ("cleo-late", "the gang needs 2", "and 1 fits now", "0 GPUs are free"),
        ("cleo-late", "the gang needs 2", "kept for 'demo-queues/ann-sweep'", "nobody who waits"),
        ("ann-gang-2", "holds 4", "holds 8", "it is 4 of 4"),
        ("ann-gang-2", "of the 4", "of the 6", "it is 4 of 4"),
        (
            "ann-gang-2",
            "waits: queue 'ann' holds 4 of the 4 gpu that it deserves",
            "waits for capacity",
            "is not named",
        ),
        ("ann-gang-2", "holds 4 of", "is capped at 4 gpu and has 0 of that left; of", "no cap is in its way"),
    ],
)
def test_each_thing_that_is_not_so_is_named(job: str, was: str, said: str, wrong: str) -> None:
    text = {"dan-train": RUNS, "cleo-late": WAITS, "ann-gang-2": SERVED}[job]
    assert was in text
    running = {**dict.fromkeys(PARTS, 0), **AT_DAN}
    found = checks.job_explained(text.replace(was, said), PARTS[job], DAN, running)
    assert any(wrong in one for one in found), found


def test_queues_that_are_shown_wrongly_are_named() -> None:
    rows = [
        {"name": user, "deserved": {GPU: deserved}, "allocated": {GPU: deserved}, "running": 1, "waiting": 0}
        for user, deserved in DAN.deserved.items()
    ]
    rows[0]["waiting"], rows[2]["waiting"] = 3, 1
    waiting = [{"name": name} for name in ("ann-sweep", "ann-gang-2", "ann-gang-3", "cleo-late")]
    data = {"queues": rows, "waiting": waiting}
    assert checks.queues_told(data, DAN, AT_DAN) == []
    assert checks.queues_told({**data, "waiting": waiting[1:]}, DAN, AT_DAN)
    assert checks.queues_told({**data, "queues": rows[:-1]}, DAN, AT_DAN) == ["queue does not show dan"]
    rows[1]["deserved"] = {GPU: 6}
    assert checks.queues_told(data, DAN, AT_DAN) == ["queue says of bob: deserves 6, and it is 8"]


def rows_for_table() -> list[Row]:
    first = Row(MOMENTS[0], 2.0, 3.25, {}, {"ann-sweep": 12}, {"ann-sweep": "starts"})
    late = Row(MOMENTS[1], 9.0, 31.0, {"ann-sweep": 12, "ann-gang-1": 4}, {"ann-sweep": 4, "bob-train": 8}, {})
    never = Row(MOMENTS[2], 20.0, None, {}, {}, {}, ("queue does not show dan",))
    return [first, late, never]


def test_the_table_says_who_gave_what_and_what_was_late_or_wrong() -> None:
    rows = rows_for_table()
    assert [row.is_good for row in rows] == [True, False, False]
    assert not replace(rows[0], wrong=("x",)).is_good
    text = moments_table(rows)
    assert re.search(r"ann comes +3\.2 s +12/24", text)
    assert re.search(r"bob comes +31\.0 s LATE +4/16 +8/8 .* ann-sweep 12→4 +ann-gang-1 \(4\) +bob-train \(8\)", text)
    assert "cleo comes   NEVER" in text
    assert "  explain ann-sweep: starts" in text
    assert "  WRONG: queue does not show dan" in text


def test_a_retry_that_was_used_or_changed_is_named() -> None:
    good = Retries("a", used=0, limit=1, submitted=1, rounds=3)
    assert retries_table([good]) == "no retry used by any of 1 jobs in 3 rounds; each backoffLimit unchanged"
    for bad in (replace(good, used=1), replace(good, limit=2)):
        assert not bad.is_good
        assert retries_table([good, bad]).startswith(f"a used {bad.used} of {bad.limit} retries")


def test_a_job_is_named_where_its_area_is_the_same_for_longest() -> None:
    assert longest([(0, 0), (0, 0), (0, 0), (0, 4), (0, 4), (2, 4), (2, 4), (2, 4), (2, 3)]) == (5, 7)
    assert longest([(1, 0), (1, 0)]) == (0, 0)
    assert longest([]) == (0, 0)


def test_a_picture_is_drawn_of_any_film_even_of_an_empty_one(tmp_path: Path) -> None:
    pods = tuple(Seen(f"{i}", "ann-sweep", NODES[0], runs=True) for i in range(4))
    film = Film(tuple(PARTS), NODES, GPUS, [Frame(at, pods, frozenset(NODES)) for at in (1.0, 5.0, 40.0)])
    draw(film, rows_for_table(), tmp_path / "some.png")
    draw(Film(tuple(PARTS), NODES, GPUS), [], tmp_path / "empty.png")
    assert [(tmp_path / f"{name}.png").read_bytes()[:4] for name in ("some", "empty")] == [b"\x89PNG"] * 2
