"""The templates: everything is escaped, and a missing name is an error."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from diflow.server.page import CacheSnapshot, Freshness, Permissions, render
from diflow.server.page.board import Query, board
from tests.server.page_scene import NOW, changed, said, scene

FOLDER = Path(render.__file__).parent
ATTACK = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>{{ 7 * 7 }}{% raw %}&amp;"


def test_a_job_that_is_named_with_markup_is_escaped_wherever_it_is_shown() -> None:
    given = scene()
    jobs = [said(job, message=job.message, why=job.why, name=ATTACK, task=ATTACK) for job in given.jobs]
    state = CacheSnapshot(jobs, [changed(pod, waiting=pod.waiting, task=ATTACK) for pod in given.pods], given.nodes)
    found = board(state, Permissions(None, nodes=True), Query.parse({"job": f"vision/{ATTACK}"}))
    assert found.opened is not None
    page = str(render.content(found, Freshness(), now=NOW, argo_url="https://argo.example"))
    escaped = str(Markup.escape(ATTACK))
    # Its row, its panel, the pictures' texts, the nodes with their bars, and the queue.
    for place in ('class="job">', "</span>", 'aria-label="Replicas of ', "<title>Replicas of ", "<title>vision/"):
        assert place + escaped in page
    for place in (ATTACK, "<script", "<img"):
        assert place not in page.replace(escaped, "")


@pytest.mark.parametrize("given", [ATTACK, "a\x00b\u202ec\ud800d"])
def test_names_and_messages_in_whole_documents_are_escaped(given: str) -> None:
    shown = str(Markup.escape(re.sub("[\x00\u202e\ud800]", "�", given)))
    pages = [
        render.page(Markup("<p>1</p>"), tag=given, nonce="n", name=given, is_old=False, every_seconds=1.0),
        render.sign_in(nonce="n", problem=given),
        render.message(given, given, nonce="n"),
    ]
    for page in pages:
        page.encode()
        assert shown in page
        assert given not in page
        assert page.startswith("<!doctype html>")
        assert page.count("<script") == ("Signed in as" in page)


def test_replicas_that_stand_still_are_named_in_the_list_and_in_the_panel_of_their_job() -> None:
    given = scene()
    found = f"no step for 15m: {ATTACK}"
    jobs = [replace(job, unhealthy=found) if not job.has_ended and not job.is_queued else job for job in given.jobs]
    running = next(job for job in jobs if job.unhealthy)
    shown = board(replace(given, jobs=jobs), Permissions(None, nodes=True), Query.parse({"job": running.key}))
    page = str(render.content(shown, Freshness(), now=NOW))
    escaped = str(Markup.escape(found))
    assert f"<b>Health: </b>{escaped}" in page
    assert f"; {escaped}</span>" in page
    assert ATTACK not in page.replace(escaped, "")


def test_a_name_that_is_undefined_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="heading"):
        render._render("message.html", title="", nonce="", words="")


def test_no_template_switches_escaping_off() -> None:
    templates = sorted((FOLDER / "templates").glob("*.html"))
    assert len(templates) > 5
    for path in templates:
        assert not re.search(r"\|\s*safe|autoescape|Markup", path.read_text(encoding="utf-8")), path.name
    marked = {
        path.name for path in FOLDER.glob("*.py") if re.search(r"Markup\((?!\))", path.read_text(encoding="utf-8"))
    }
    assert marked == {"drawing.py", "render.py"}
