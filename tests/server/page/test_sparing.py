"""What the page shows of a namespace's Workflows takes a share of the processor, and becomes right afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from diflow.common.clock import Clock
from diflow.kube.kinds import WORKFLOW
from diflow.kube.reflector import Key
from diflow.record.job import JobRecord, record_of
from diflow.server.page.cache import PageCache
from diflow.server.page.facts import JobFacts
from diflow.server.page.sparing import BURST_SECONDS, SHARE, Sparing
from tests.kube.fakeapi import serving
from tests.record.seen import SeenJob
from tests.server.page_scene import trim_workflow
from tests.server.place import Place, asynchronous, mixed

HEAVY = 0.3


@dataclass
class Machine:
    """A machine on which reading a Workflow takes as long as its uid says."""

    now: float = 0.0
    used: float = 0.0
    derived: list[str] = field(default_factory=list)
    take: Callable[[Any], float] = lambda obj: HEAVY if obj["metadata"]["name"] != "light" else 0.001

    def derive(self, obj: Any, *_: JobRecord) -> JobFacts | None:
        self.used += self.take(obj)
        self.derived.append(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")
        return obj["metadata"]["resourceVersion"]  # type: ignore[no-any-return]  # it is only handed through

    def sparing(self) -> Sparing:
        return Sparing(self.derive, clock=Clock(monotonic=lambda: self.now), processor=lambda: self.used)


def workflow(version: int, *, name: str = "large", namespace: str = "evil", uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": str(version)}}


def look(sparing: Sparing, obj: Any) -> JobFacts | None:
    read = record_of(obj)
    return sparing(obj, read, read)


def test_a_workflow_that_changes_all_the_time_takes_no_more_than_the_share_of_its_namespace() -> None:
    machine = Machine()
    sparing = machine.sparing()
    for version in range(1000):
        machine.now += 0.1
        look(sparing, workflow(version))
    assert machine.used <= BURST_SECONDS + SHARE * machine.now + HEAVY


def test_another_namespace_and_light_workflows_do_not_notice() -> None:
    machine = Machine()
    sparing = machine.sparing()
    for version in range(50):
        look(sparing, workflow(version))
    assert str(look(sparing, workflow(51))) != "51", "the share is used"
    assert str(look(sparing, workflow(7, namespace="other"))) == "7"
    assert str(look(sparing, workflow(8, name="light"))) == "8"
    assert str(look(sparing, workflow(9, name="light"))) == "9"
    assert str(look(sparing, workflow(52, uid="another"))) == "52", (
        "the facts of another object of the name are not its own"
    )


def test_what_is_out_of_date_is_looked_at_again_when_the_share_allows_it() -> None:
    machine = Machine()
    sparing = machine.sparing()
    for version in range(50):
        look(sparing, workflow(version))
    assert sparing.late() == [], "not yet"
    machine.now += 60
    assert sparing.late() == [("evil", "large")]
    assert str(look(sparing, workflow(49))) == "49"
    assert sparing.late() == []


def test_one_that_is_gone_is_forgotten() -> None:
    machine = Machine()
    sparing = machine.sparing()
    for version in range(50):
        look(sparing, workflow(version))
    sparing.forget(("evil", "large"))
    machine.now += 60
    assert sparing.late() == []


def test_it_derives_what_is_derived_without_it() -> None:
    made = SeenJob(worker=2).all_ready().workflow()
    assert look(Sparing(), made) == trim_workflow(made)
    assert look(Sparing(), workflow(1)) is None, "it is none of diflow's"


class Late(Sparing):
    """What is shown of two Workflows is out of date, and one of them is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[str] = []
        self.gone: list[Key] = []

    def __call__(self, obj: Any, read: JobRecord, kept: JobRecord) -> JobFacts | None:
        self.looks.append(read.name)
        facts = super().__call__(obj, read, kept)
        return facts and replace(facts, message=str(len(self.looks)))

    def late(self) -> list[Key]:
        return [("default", "first-job"), ("default", "gone")]

    def forget(self, key: Key) -> None:
        self.gone.append(key)


@asynchronous
async def test_the_page_reads_again_what_is_late_and_forgets_what_is_gone() -> None:
    sparing = Late()
    with serving() as api:
        place = Place(api, beside=lambda obj, *read: (isinstance(read[0], JobRecord) and sparing(obj, *read)) or None)
        page = PageCache(place.cluster, sparing=sparing)
        place.running(mixed("first-job"))
        async with place.asked():
            before = place.cache.workflows.get("default", "first-job")
            page.look_again(place.cache)
            after = place.cache.workflows.get("default", "first-job")
    assert before is not None
    assert after is not None
    assert int(after["beside"].message) > int(before["beside"].message), "though nothing has changed"
    assert after["read"].identity.version == before["read"].identity.version
    assert sparing.gone == [("default", "gone")]
    assert any(r.path.endswith(f"/{WORKFLOW.plural}/gone") for r in api.requests)
