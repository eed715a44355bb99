"""How a job looks in a notebook."""

from __future__ import annotations

from diflow import DIJob
from tests.builders import job, task


def test_a_job_is_a_small_table() -> None:
    shown = job(task("learner"), task("collector", replicas=3), name="cartpole")._repr_html_()
    assert "<b>DIJob cartpole</b>" in shown
    assert shown.count("<tr>") == 3
    assert ">3<" in shown
    assert "normal priority · not preemptible · backoffLimit 3" in shown


def test_what_a_user_wrote_is_text_and_never_markup() -> None:
    shown = job(task(command="echo '<script>alert(1)</script>' & \"x\""))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_colours_are_those_of_the_page() -> None:
    shown = job()._repr_html_()
    assert "color:inherit" in shown
    assert "#" not in shown
    assert "background:none" in shown


def test_terms_that_are_not_the_usual_ones_are_told() -> None:
    made = job(preemptible=True, queue="vision", scheduling="gang", priority="high", namespace="lab")
    shown = made._repr_html_()
    for text in ("high priority", "preemptible", "queue vision", "scheduling gang", "</b> in lab"):
        assert text in shown


def test_bounds_of_a_task_and_long_commands_are_short() -> None:
    base = task("collector", "x" * 500, replicas=2)
    elastic = base.model_copy(update={"min_replicas": 1, "max_replicas": 8})
    shown = DIJob(name="job", tasks=(elastic,), preemptible=True)._repr_html_()
    assert "2 (1-8)" in shown
    assert "…" in shown
    assert len(shown) < 1500
