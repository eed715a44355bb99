"""How long kube-scheduler has for the pods that the allocator has let go."""

from __future__ import annotations

from dataclasses import replace

from diflow.allocator.watch.cluster_state import ClusterState, assemble
from diflow.allocator.watch.unbound_pods import UnboundPods
from diflow.record.allocation import Allocation
from tests.allocator.values import node, pod, read, role


def state_of(*, is_refused: bool = True, pinned: str = "a") -> ClusterState:
    placed = read(role(replicas=1), nodes={"w": ("a",)})
    return assemble([placed], [node("a")], [replace(pod("w-0", pinned=pinned), is_refused=is_refused)])


def test_a_pod_that_was_refused_has_less_time_than_one_that_was_not_tried() -> None:
    late: dict[bool, list[float]] = {True: [], False: []}
    for is_refused in late:
        unbound, state = UnboundPods(60.0), state_of(is_refused=is_refused)
        late[is_refused] = [now for now in (0.0, 61.0, 599.0, 601.0) if unbound.overdue(state, now=now)]
    assert late == {True: [61.0, 599.0, 601.0], False: [601.0]}


def test_a_pod_that_is_made_again_gets_no_more_time() -> None:
    unbound, state = UnboundPods(60.0), state_of()
    unbound.overdue(state, now=0.0)
    (first,) = state.pods
    again = replace(first, identity=replace(first.identity, uid="another"))
    assert list(unbound.overdue(replace(state, pods=(again,)), now=61.0)) == ["another"]


def test_a_pod_without_a_node_of_the_allocators_is_waited_for_as_well() -> None:
    placed = read(role(replicas=1), nodes={"w": ("a",)})
    at = placed.notes.allocation
    assert isinstance(at, Allocation)
    free = replace(placed, notes=replace(placed.notes, allocation=replace(at, unpinned=True)))
    state = assemble([free], [node("a")], [replace(pod("w-0", gated=False), is_refused=True)])
    unbound = UnboundPods(60.0)
    unbound.overdue(state, now=0.0)
    assert len(unbound.overdue(state, now=61.0)) == 1
    assert state.pods[0].where == "a"
