"""Fixtures: a small cluster with an allocator, and a check that values kept between cycles equal recomputed ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan import planner
from diflow.allocator.plan.holding import Standings
from diflow.allocator.plan.inputs import Picture, picture
from diflow.allocator.watch import cluster_state
from diflow.allocator.watch.cluster_view import ClusterView
from diflow.allocator.watch.free_capacity import FreeCapacity
from tests.allocator.lab import Lab, lab


@pytest.fixture
def at() -> Iterator[Lab]:
    """Two nodes of four CPUs each, and an allocator that leads."""
    with lab() as made:
        made.cluster.node("a", cpu=4)
        made.cluster.node("b", cpu=4)
        yield made
        assert made.cluster.problems == []


@pytest.fixture
def from_memory_as_afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare each cluster state, free capacity and picture that reuses parts of the last one with a recomputed one."""
    of_caches, of_pods = cluster_state.Caches.state, ClusterView.capacity
    states = 0
    wrong: list[str] = []

    def compared_state(caches: cluster_state.Caches) -> cluster_state.ClusterState:
        nonlocal states
        made = of_caches(caches)
        nodes, _, workflows, pods = ([item["read"] for item in (items or {}).values()] for items in caches._kept)
        given = (workflows, nodes, pods, made.queues, made.queue_trouble)
        afresh = cluster_state.assemble(*given, rules=made.rules, most_nodes=caches._settings.most_nodes)
        states += 1
        if made != afresh:
            wrong.append(f"{made} is {afresh}")
        return made

    def compared_capacity(view: ClusterView, there: cluster_state.ClusterState) -> FreeCapacity:
        made = of_pods(view, there)
        if made.free != FreeCapacity.of(there.nodes, there.pods).free:
            wrong.append(f"{made.free} is free of {there}")
        return made

    def compared_picture(*given: Any, kept: Standings, **options: Any) -> Picture:
        made, afresh = picture(*given, kept=kept, **options), picture(*given, **options)
        for some, other in zip(made.standings, afresh.standings, strict=True):
            if (some.job, some.places, some.done) != (other.job, other.places, other.done):
                wrong.append(f"{some} is {other}")
        wrong.extend(_differences(made.snapshot, afresh.snapshot))
        return made

    monkeypatch.setattr(cluster_state.Caches, "state", compared_state)
    monkeypatch.setattr(ClusterView, "capacity", compared_capacity)
    monkeypatch.setattr(planner, "picture", compared_picture)
    yield
    assert not wrong
    assert states


def _differences(some: Snapshot, other: Snapshot) -> Iterator[str]:
    for name in (field.name for field in fields(Snapshot) if field.repr):
        one, two = getattr(some, name), getattr(other, name)
        if not (np.array_equal(one, two) if isinstance(one, np.ndarray) else one == two):
            yield f"{name}: {one} is {two}"
