"""What each viewer sees: a pure function of the cluster state, permissions and query."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from diflow.common import keys
from diflow.common.durations import span
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob
from diflow.record.status.followed import Failure
from diflow.server.page import CacheSnapshot, Freshness, Permissions
from diflow.server.page.board import (
    COLOURS,
    JOBS_A_PAGE,
    NODES_A_PAGE,
    RECORDED_SHOWN,
    Board,
    Query,
    board,
)
from diflow.server.page.facts import MOST_RECORDED, JobFacts, trim_record
from diflow.server.page.render import content
from diflow.server.page.texts import argo_link, ranged, rate
from tests.server.page_scene import GPU, NOW, MadeJob, changed, cluster_state, foreign_pod, made_node, said, scene, when

EVERYTHING = Permissions(None, nodes=True)


def shown(given: CacheSnapshot, sight: Permissions = EVERYTHING, **query: str) -> Board:
    return board(given, sight, Query.parse(query))


def names(found: Board) -> list[str]:
    return [line.facts.name for line in found.jobs]


def html(
    given: CacheSnapshot, sight: Permissions = EVERYTHING, *, freshness: Freshness | None = None, **query: str
) -> str:
    return str(content(shown(given, sight, **query), freshness or Freshness(), now=NOW))


class _Reader(HTMLParser):
    """The elements and the text of a page, and whether each element is closed again."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.attributes: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in ("input", "meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_jobs_that_hold_nodes_come_first_then_those_that_wait_then_the_ended_ones() -> None:
    assert names(shown(scene())) == [
        "speech-asr", "cartpole", "diffusion", "vision-resnet", "language-13b", "sweep-lr-3", "finetune-7b",
        "paused-run", "broken-import", "nightly-eval",
    ]  # fmt: skip


def test_the_queue_has_the_urgent_first_then_the_older_with_their_reasons() -> None:
    queue = [(q.job.facts.name, q.job.facts.queue, q.place, q.job.said) for q in shown(scene()).queue]
    assert [(name, queue, place) for name, queue, place, _ in queue] == [
        ("finetune-7b", "production", 1), ("paused-run", "default", 1), ("sweep-lr-3", "research", 1),
    ]  # fmt: skip
    assert "start together" in queue[0][3]
    assert "diflow resume" in queue[1][3]


def test_a_waiting_job_of_which_nothing_was_decided_says_so() -> None:
    found = shown(cluster_state([MadeJob("a", {"w": 1}, placed=False).pod("w", 0, made=3)]))
    assert "checks whether one runs" in found.queue[0].job.said


def test_a_viewer_sees_only_the_namespaces_that_they_may_list() -> None:
    found = shown(scene(), Permissions(frozenset({"rl"})))
    assert set(names(found)) == {"cartpole", "nightly-eval"}
    assert found.namespaces == ("rl",)
    assert found.totals.waiting == 0
    assert found.nodes == ()
    page = html(scene(), Permissions(frozenset({"rl"})), job="vision/vision-resnet")
    assert "There is no job" in page
    for word in ("language", "diffusion", "finetune", "gpu-1", "research", "maria"):
        assert word not in page


def test_on_a_node_the_jobs_that_a_viewer_may_not_see_are_an_amount_without_a_name() -> None:
    found = shown(scene(), Permissions(frozenset({"rl"}), nodes=True))
    node = next(node for node in found.nodes if node.facts.name == "gpu-3")
    assert [(h.key, h.replicas) for h in node.holders] == [("rl/cartpole", 3), ("", 5)]
    assert node.used[GPU] == 4
    assert "language" not in html(scene(), Permissions(frozenset({"rl"}), nodes=True))


def test_what_is_held_of_a_node_counts_other_pods_too() -> None:
    job = MadeJob("a", {"w": 2}, cpu="3", gpus=1)
    job.pod("w", 0, made=9, ready=9, node="n").pod("w", 1, made=9, ready=9, node="n")
    found = shown(cluster_state([job], [made_node("n")], pods=[foreign_pod("x", "n", cpu="2")]))
    assert (found.nodes[0].used["cpu"], found.nodes[0].used[GPU]) == (8000, 2)
    assert found.totals.allocatable[GPU] == 8


def test_only_what_no_pod_at_all_holds_is_called_free() -> None:
    job = MadeJob("a", {"w": 1}, cpu="3").pod("w", 0, made=9, ready=9, node="n")
    nodes = [made_node("n", gpus=0)]
    assert "61 not held by jobs<" in html(cluster_state([job], nodes))
    nodes.append(made_node("cordoned", gpus=0, closed=True))
    assert "61 not held by jobs on open nodes" in html(cluster_state([job], nodes))
    assert "59 free on open nodes" in html(cluster_state([job], nodes, pods=[foreign_pod("x", "n", cpu="2")]))


def test_nodes_that_are_not_ready_come_first_and_their_room_is_not_counted() -> None:
    found = shown(cluster_state([], [made_node("gpu-10"), made_node("gpu-2"), made_node("gpu-3", down=5)]))
    assert [node.facts.name for node in found.nodes] == ["gpu-3", "gpu-2", "gpu-10"]
    assert (found.totals.allocatable[GPU], found.totals.nodes, found.totals.nodes_ready) == (16, 3, 2)


def test_jobs_are_found_by_name_namespace_queue_and_phase() -> None:
    given = scene()
    assert names(shown(given, q="RESNET")) == ["vision-resnet"]
    assert names(shown(given, q="nlp/")) == ["language-13b", "finetune-7b"]
    assert names(shown(given, namespace="rl")) == ["cartpole", "nightly-eval"]
    assert names(shown(given, phase="Failed")) == ["broken-import"]
    assert len(names(shown(given, phase="active"))) == 8
    assert names(shown(given, queue="production", phase="Pending")) == ["finetune-7b"]
    assert names(shown(given, q="nowhere")) == []
    assert len(names(shown(given, phase="<b>", page="x"))) == 10, "what cannot be is left out"


@pytest.mark.slow
def test_a_thousand_jobs_on_two_hundred_nodes_are_shown_in_pages() -> None:
    given = _large()
    found = shown(given)
    assert (len(found.jobs), found.jobs_found, found.jobs_pages) == (JOBS_A_PAGE, 1000, 1000 // JOBS_A_PAGE)
    assert (len(found.nodes), found.nodes_pages) == (NODES_A_PAGE, -(-200 // NODES_A_PAGE))
    assert found.totals.phases == {"Running": 600, "Pending": 100, "Succeeded": 300}
    pages = [names(shown(given, page=str(i + 1))) for i in range(found.jobs_pages)]
    assert len({name for page in pages for name in page}) == 1000
    assert names(shown(given, page="9999")) == pages[-1]
    page = html(given)
    assert len(page.encode()) < 300_000
    assert "page 1 of 40" in page


@cache
def _large() -> CacheSnapshot:
    jobs = []
    for i in range(1000):
        job = MadeJob(f"job-{i:04}", {"w": 2}, submitted=1000 - i / 10, namespace=f"team-{i % 20}", placed=i < 900)
        if i >= 900:
            job.decision = ("wait", "no capacity", 3)
        if i < 300:
            job.ended = ("Succeeded", 5)
        for index in range(2):
            done = 5 if i < 300 else None
            placed = 9 if i < 900 else None
            job.pod("w", index, made=9, ready=placed, ended=done, node=f"n-{i % 200}" if i < 900 else "")
        jobs.append(job)
    return cluster_state(jobs, [made_node(f"n-{i}") for i in range(200)])


def test_jobs_on_nodes_have_colours_that_stay_and_as_few_twice_as_may_be() -> None:
    jobs = [MadeJob(f"job-{i}", {"w": 1}, submitted=100 - i).pod("w", 0, made=9, ready=9, node="n") for i in range(12)]
    few = {line.facts.name: line.colour for line in shown(cluster_state(jobs[:COLOURS])).jobs}
    assert sorted(few.values()) == list(range(COLOURS))
    more = {line.facts.name: line.colour for line in shown(cluster_state(jobs)).jobs}
    assert {name: more[name] for name in few} == few, "a new job takes no colour away"
    assert max(list(more.values()).count(colour) for colour in more.values()) == 2


def test_of_a_job_that_went_on_in_another_workflow_the_last_one_is_shown() -> None:
    first = MadeJob("long", {"w": 1}, submitted=90, ended=("Succeeded", 20))
    first.annotations = {keys.CONTINUED_IN: "long-s2"}
    second = MadeJob("long-s2", {"w": 1}, submitted=20)
    second.annotations = {keys.CONTINUES: "long", keys.CONTINUES_UID: first.uid}
    second.pod("w", 0, made=19, ready=19, node="n")
    found = shown(cluster_state([first, second]))
    assert [(line.facts.record.identity.name, line.facts.phase) for line in found.jobs] == [("long-s2", "Running")]


def test_an_opened_job_has_the_failures_in_its_earlier_workflows_as_well() -> None:
    first = MadeJob("long", {"w": 1}, submitted=90, ended=("Succeeded", 20))
    first.annotations = {keys.CONTINUED_IN: "long-s2"}
    second = MadeJob("long-s2", {"w": 1}, submitted=20)
    second.annotations = {keys.CONTINUES: "long", keys.CONTINUES_UID: first.uid}
    stranger = MadeJob("other", {"w": 1}, submitted=90)
    stranger.annotations = {keys.CONTINUED_IN: "long-s2"}
    failed = [Failure(f"w-{i}", when(i), "n", "unknown", "", "none", "again") for i in range(9)]
    of = {"long-s2": (failed[0],), "long": tuple(failed[1:]), "other": (replace(failed[0], replica="not its"),)}
    parts = cluster_state([first, second, stranger])
    jobs = [replace(one, failures=of[one.record.identity.name]) for one in parts.jobs]
    (line,) = [one for one in shown(replace(parts, jobs=jobs)).jobs if one.facts.record.identity.name == "long-s2"]
    opened = shown(replace(parts, jobs=jobs), job=line.facts.key).opened
    assert opened is not None
    assert [one.replica for one in opened.line.facts.failures] == [f"w-{i}" for i in range(8)]


def test_pods_of_an_earlier_workflow_of_the_same_name_are_not_taken_for_the_jobs() -> None:
    job = MadeJob("a", {"w": 1}).pod("w", 0, made=9, ready=9, node="n")
    job.pods[0]["metadata"]["ownerReferences"][0]["uid"] = "another"
    found = shown(cluster_state([job], [made_node("n")]))
    assert found.jobs[0].nodes == ()
    assert [(h.key, h.replicas) for h in found.nodes[0].holders] == [("", 1)]


def test_an_opened_job_has_its_replicas_where_they_are_and_what_keeps_them() -> None:
    found = shown(scene(), job="audio/speech-asr")
    assert found.opened is not None
    assert [(p.record.task, p.record.index, p.record.where, p.record.is_ready) for p in found.opened.replicas] == [
        ("worker", 0, "gpu-4", True), ("worker", 1, "gpu-4", False),
    ]  # fmt: skip
    page = html(scene(), job="audio/speech-asr")
    assert "ImagePullBackOff" in page
    assert "argo get -n audio speech-asr" in page
    linked = content(found, Freshness(), now=NOW, argo_url="https://argo.example/")
    assert 'href="https://argo.example/workflows/audio/speech-asr"' in linked


def test_an_opened_job_tells_of_each_failure_the_reason_the_rule_and_what_followed() -> None:
    page = html(scene(), job="vision/diffusion")
    table = page.split("Failures of its replicas")[1].split("</table>")[0]
    for words in ("worker-2", "gpu-4", "none: all other failures", "started again (1 of 3)", "started again (2 of 3)"):
        assert words in table
    assert "Failures of its replicas" not in html(scene(), job="audio/speech-asr")


def test_an_address_of_the_argo_ui_that_is_no_web_address_is_no_link() -> None:
    assert argo_link("javascript:alert(1)//", "a", "b") == ""
    assert argo_link("https://argo.example", "a/b", 'c"d') == "https://argo.example/workflows/a%2Fb/c%22d"


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'onmouseover='alert(1)",
    "</style></title></textarea><svg onload=alert(1)>",
    "a\x00b\u202ec\ud800d",
    "&lt;b&gt;",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_people_write_stays_text(text: str) -> None:
    given = scene()
    plain = _Reader(html(given, job="vision/vision-resnet"))
    jobs = [
        said(
            job, name=text + str(i), message=text, why=text, task=text,
            namespace=text, queue=text, priority=text, round=text,
        )
        for i, job in enumerate(given.jobs)
    ]  # fmt: skip
    hostile = CacheSnapshot(
        jobs,
        [changed(pod, namespace=text, waiting=text, task=text) for pod in given.pods],
        [replace(node, name=text + node.name) for node in given.nodes],
        all_pods=True,
    )
    page = html(hostile, job=f"{text}/{text}0", q="", namespace="", queue="")
    page.encode()
    found = _Reader(page)
    assert not {"script", "img", "style"} & set(found.elements)
    assert set(found.attributes) <= set(plain.attributes) | {"selected"}
    assert found.open == []
    expected = re.sub("[\x00\u202e\ud800]", "�", text)
    assert any(expected in words for words in found.words)


def test_what_is_asked_for_is_escaped_and_kept_in_every_link() -> None:
    page = html(scene(), q='x"><b', job='"><i')
    assert 'value="x&#34;&gt;&lt;b"' in page
    assert "There is no job <b>&#34;&gt;&lt;i</b>" in page
    assert '"><b' not in page
    assert "<i" not in page.replace("<input", "")
    found = shown(_large(), q="job-0", page="2")
    assert found.query.link(page=3) == "?q=job-0&page=3"
    assert Query().link() == "./"


def test_a_stale_cache_says_so_and_one_that_was_never_read_too() -> None:
    stale = html(scene(), freshness=Freshness(age_seconds=140, is_stale=True))
    assert "Out of date: this was so 2m20s ago" in stale
    assert "2026-11-21 11:57:40 UTC" in stale
    assert "has not been read yet" in html(CacheSnapshot(), freshness=Freshness(is_synced=False, is_stale=True))
    assert "Out of date" not in html(scene())


def test_a_viewer_who_may_see_nothing_is_told_what_is_missing() -> None:
    page = html(scene(), Permissions(frozenset()))
    assert "You may see no jobs" in page
    assert "workflows.argoproj.io" in page
    assert "vision" not in page


def test_an_empty_cluster_says_how_to_begin() -> None:
    page = html(CacheSnapshot())
    assert "diflow submit" in page
    assert "There are no nodes" in page


def test_times_and_speeds_are_short() -> None:
    assert [span(s) for s in (-5, 0, 59, 61, 3600, 12_000, 90_000, 9e6)] == [
        "0s", "0s", "59s", "1m1s", "1h", "3h20m", "1d1h", "104d",
    ]  # fmt: skip
    assert [rate(v) for v in (None, 0.5, 431.0, 12_600, 2.5e6, 1e300)] == [
        "–", "0.5/s", "431/s", "12.6k/s", "2.5M/s", "> 1000G/s",
    ]  # fmt: skip


def test_each_picture_says_in_words_what_it_shows() -> None:
    page = html(scene(), job="vision/vision-resnet")
    pictures = re.findall(r"<svg([^>]*)>(.{0,200})", page)
    assert len(pictures) > 20
    for attributes, inside in pictures:
        assert 'aria-hidden="true"' in attributes or ('role="img"' in attributes and inside.startswith("<title>"))
    assert "6 replicas run, 6 granted, 2–8 asked for; peak 8" in page
    assert "GPU: 6 of 8 held" in page


def test_what_is_asked_for_of_a_preemptible_job_is_its_range_and_not_the_number_it_began_with() -> None:
    job = MadeJob("a", {"learner": 1, "w": (1, 1, 6)}, preemptible=True, granted={"learner": 1, "w": 6}, submitted=50)
    job.pod("learner", 0, made=9, ready=9, node="gpu-1")
    for i in range(6):
        job.pod("w", i, made=9, ready=9, node="gpu-1")
    found = shown(cluster_state([job], [made_node("gpu-1")]))
    [line] = found.jobs
    assert (line.facts.ready, line.facts.granted, line.facts.high, ranged(line.facts)) == (7, 7, 7, "2–7")
    assert found.totals.desired == 7
    words = " ".join(" ".join(_Reader(content(found, Freshness(), now=NOW)).words).split())
    assert "6 / 6 / 1–6" in words
    assert "1 / 1 / 1" in words
    assert "7 asked for at most" in words


def recorded(*jobs: EndedJob, namespace: str = "vision") -> tuple[JobFacts, ...]:
    """The jobs of a record, as the server keeps them."""
    return trim_record({"metadata": {"namespace": namespace}, "data": {"jobs": ended.text(jobs)}})


def gone(name: str = "gone", **changed: Any) -> EndedJob:
    """A job whose Workflow was deleted."""
    made = EndedJob(
        name, "Failed", when(300), "u", when(500), when(490), "research", message="worker-0 failed", namespace="vision"
    )
    return replace(made, **changed)


def test_a_job_whose_workflow_was_deleted_is_shown_with_how_it_ended() -> None:
    given = replace(scene(), ended={"vision": recorded(gone())})
    assert names(shown(given))[-3:] == ["broken-import", "gone", "nightly-eval"], "the last one to end first"
    assert names(shown(given, phase="Failed")) == ["broken-import", "gone"]
    assert names(shown(given, q="gon", queue="research")) == ["gone"]
    page = html(given, q="gone")
    for word in ("worker-0 failed", "deleted", "ended 5h ago"):
        assert word in page
    (line,) = shown(given, q="gone").jobs
    opened = html(given, job=line.facts.reference)
    assert "its Workflow was deleted" in opened
    assert "argo get" not in opened
    assert shown(given).totals.active == shown(scene()).totals.active


def test_a_job_whose_workflow_still_exists_is_shown_once() -> None:
    past = EndedJob("nightly-eval", "Succeeded", uid="u", namespace="rl", ended=when(310), submitted=when(400))
    runs = EndedJob("cartpole", "Failed", uid="u", namespace="rl", ended=when(46), submitted=when(47))
    before = replace(past, submitted=when(900), ended=when(800))
    given = replace(scene(), ended={"rl": recorded(before, past, runs, namespace="rl")})
    assert names(shown(given)).count("cartpole") == 1
    assert names(shown(given)).count("nightly-eval") == 2
    now, earlier = shown(given, q="nightly").jobs
    assert (now.facts.is_deleted, earlier.facts.is_deleted) == (False, True)
    for line, reference in ((now, "rl/nightly-eval"), (earlier, earlier.facts.reference)):
        opened = shown(given, job=reference).opened
        assert opened is not None
        assert opened.line == line


def test_records_are_seen_by_who_may_list_the_namespace_alone() -> None:
    given = replace(scene(), ended={"vision": recorded(gone())})
    assert "gone" not in names(shown(given, Permissions(frozenset({"rl"}))))
    assert "gone" in names(shown(given, Permissions(frozenset({"vision"}))))


def test_a_namespace_with_very_many_ended_jobs_hides_those_of_no_other() -> None:
    flood = recorded(*(gone(f"spam-{i:04}", submitted=when(299 - i / 10)) for i in range(3000)), namespace="flood")
    assert len(flood) == MOST_RECORDED, "the memory of the server is bounded"
    spaces = {f"team-{i}": recorded(gone(f"own-{i}"), namespace=f"team-{i}") for i in range(99)}
    found = shown(replace(cluster_state([]), ended={"flood": flood, **spaces}))
    assert found.jobs_found == RECORDED_SHOWN // 100 + 99
    assert (len(found.jobs), found.jobs_pages) == (JOBS_A_PAGE, -(-found.jobs_found // JOBS_A_PAGE))


def test_hostile_text_of_a_record_is_text_on_the_page() -> None:
    bad = "<script>alert(1)</script>\"'&\x00\x1b\u202e"
    line = {"name": bad, "uid": bad, "phase": "Failed", "ended": when(5), "queue": bad, "message": bad}
    data = {"jobs": f"{json.dumps(line)}\n" + "[" * 5000}
    facts = trim_record({"metadata": {"namespace": "vision"}, "data": data})
    page = html(replace(cluster_state([]), ended={"vision": facts}), job=facts[0].reference)
    assert "script" not in _Reader(page).elements
    assert "alert(1)" in page
    assert not set(page) & {"\x00", "\x1b", "\u202e"}
    assert trim_record({"metadata": {}, "data": {"jobs": 7}}) == trim_record({"metadata": {}}) == ()
