"""What an admitted job needs whose pods Argo has not created yet."""

from __future__ import annotations

from diflow.allocator.watch.needs import not_created
from tests.allocator.values import CPU, NOW, changed, job, pod, read, role, tree

ADMITTED = read(role(replicas=4), nodes={"w": ("a", "b", "b", "b")}, places_until=NOW + 60)


def test_pods_that_do_not_exist_yet_need_the_capacity_of_their_places() -> None:
    assert not_created(job(ADMITTED), NOW) == {"a": CPU, "b": {name: 3 * amount for name, amount in CPU.items()}}
    seen = changed(ADMITTED, tree=tree(w_2="Succeeded"))
    assert not_created(job(seen, pod("w-0", on="a")), NOW) == {"b": {name: 2 * amount for name, amount in CPU.items()}}


def test_after_its_time_and_when_it_is_being_stopped_argo_creates_no_more() -> None:
    assert not_created(job(ADMITTED), NOW + 60) == {}
    assert not_created(job(changed(ADMITTED, is_stopping=True)), NOW) == {}
