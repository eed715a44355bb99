"""What is said of a job that is not preemptible and loses some of its replicas with a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow.allocator.settings import AllocatorSettings
from tests.allocator.lab import Lab, job, lab, task

pytestmark = pytest.mark.usefixtures("from_memory_as_afresh")


@pytest.fixture
def at() -> Iterator[Lab]:
    """A job that has grown to 6 replicas, of which 4 are on the node `b`, which is drained."""
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0)) as made:
        made.cluster.node("a", cpu=2)
        made.cluster.node("b", cpu=4)
        made.cluster.submit(job("job", task(replicas=2, cpu="1")))
        made.begin()
        made.until(lambda: len(made.cluster.running("job")) == 2, "it runs")
        made.cluster.scale("job", worker=6)
        made.until(lambda: len(made.cluster.running("job")) == 6, "it has grown")
        assert made.decision("job")["why"].startswith("grows to 6 replicas")
        made.cluster.cordon("b")
        for pod in made.cluster.of("job").values():
            if pod["spec"].get("nodeName") == "b":
                made.cluster.evict(pod["metadata"]["name"])
        yield made


def test_the_reason_is_that_of_now(at: Lab) -> None:
    at.rest(seconds=70)
    assert len(at.cluster.running("job")) == 2
    why = "no node has room for 4 of its 6 replicas, which lost their nodes"
    assert (at.decision("job")["action"], at.decision("job")["why"]) == ("wait", why)
    assert [text for reason, text in at.events("job") if reason == "Waiting"] == [why]


def test_a_place_that_expires_names_the_node(at: Lab) -> None:
    at.until(lambda: "given back" in at.decision("job")["why"], "it has expired", seconds=400)
    assert at.decision("job")["why"] == "its place was given back: node b is cordoned"


@pytest.mark.parametrize("later", [70, 400], ids=["before it expires", "after that"])
def test_with_its_nodes_again_it_waits_for_nothing(at: Lab, later: int) -> None:
    for _ in range(later):
        at.step()
    at.cluster.cordon("b", on=False)
    at.until(lambda: len(at.cluster.running("job")) == 6, "it has all again", seconds=400)
    at.rest(seconds=70)
    assert at.decision("job")["action"] in ("keep", "resize")
