"""Pools of nodes and their speeds: read from the settings, used in plans, and published in the Lease."""

from __future__ import annotations

import pytest

from diflow.allocator.gpu_pools import MOST_POOLS, Pools, parse_pools
from diflow.allocator.policies.base import load_policy
from diflow.allocator.settings import AllocatorSettings, allocator_settings
from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.kube.kinds import NODE
from diflow.record.allocation import Allocation
from tests.allocator.fakeargo import FakeCluster
from tests.allocator.lab import Lab, job, lab, task

_LABEL = "example.com/gpu"


def test_speeds_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allocator_settings().pools == Pools(label="nvidia.com/gpu.product", speed={})
    monkeypatch.setenv("DIFLOW_ALLOCATOR_POOL_LABEL", _LABEL)
    monkeypatch.setenv("DIFLOW_ALLOCATOR_POOL_SPEED", '{"A100": 2, "T4": 0.5}')
    assert allocator_settings().pools == Pools(label=_LABEL, speed={"A100": 2.0, "T4": 0.5})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A100=2", r"DIFLOW_ALLOCATOR_POOL_SPEED: must be JSON: "),
        ("[2]", r"DIFLOW_ALLOCATOR_POOL_SPEED: must be an object of JSON, not \[2\]"),
        ('{"A100": 0}', r"DIFLOW_ALLOCATOR_POOL_SPEED\[A100\]: .* more than 0, not 0"),
        ('{"A100": 2, "T4": "slow"}', r"DIFLOW_ALLOCATOR_POOL_SPEED\[T4\]: must be a number, not 'slow'"),
        ('{"A100": NaN}', r"DIFLOW_ALLOCATOR_POOL_SPEED\[A100\]: .* finite"),
        ('{"A100": 1e999}', r"DIFLOW_ALLOCATOR_POOL_SPEED\[A100\]: .* finite"),
        (f'{{"{"x" * 64}": 1}}', r"DIFLOW_ALLOCATOR_POOL_SPEED\[x+\]: .* at most 63"),
        ("{" + ",".join(f'"p{i}": 1' for i in range(MOST_POOLS + 1)) + "}", r"DIFLOW_ALLOCATOR_POOL_SPEED: .* 256"),
    ],
)
def test_an_invalid_speed_is_named(monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    monkeypatch.setenv("DIFLOW_ALLOCATOR_POOL_SPEED", text)
    with pytest.raises(InvalidError, match=told):
        allocator_settings()


def test_pools_are_parsed_and_invalid_ones_are_rejected() -> None:
    pools = Pools(label=_LABEL, speed={f"p{i}": 0.1 + i / 3 for i in range(MOST_POOLS)})
    assert parse_pools(pools.to_json()) == pools
    assert len(pools.to_json()) < 64 * 1024, "it fits in a Lease"
    for text in ("", "fast", "[]", '{"speed": {"A100": -1}}', '{"label": ""}'):
        assert parse_pools(text) is None


def _node(cluster: FakeCluster, name: str, pool: str) -> None:
    cluster.node(name, cpu="4", gpu="4")
    made = cluster.api.objects[NODE.path(None)][name]
    labels = {**made["metadata"]["labels"], _LABEL: pool}
    cluster.api.add(NODE, {**made, "metadata": {**made["metadata"], "labels": labels}})


@pytest.mark.parametrize(("fast", "expected"), [("old", "one"), ("new", "two")])
def test_the_daemon_gives_a_new_job_the_faster_pool(fast: str, expected: str) -> None:
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, pool_label=_LABEL, pool_speed={fast: 3.0})
    with lab(policy=load_policy("goodput"), settings=settings) as found:
        _node(found.cluster, "one", "old")
        _node(found.cluster, "two", "new")
        found.cluster.submit(job("job", task(replicas=2, min_replicas=2), preemptible=True))
        found.until(lambda: len(found.cluster.running("job")) == 2, "it runs")
        assert found.allocation("job") == {"worker": [expected, expected]}
        assert found.daemon is not None
        assert found.daemon.allocator.last is not None
        s = found.daemon.allocator.last[0].snapshot
        assert dict(zip(s.pool_names, s.pool_speed.tolist(), strict=True)) == {"new": 1.0, "old": 1.0, fast: 3.0}


def _annotation(found: Lab) -> str | None:
    said: str | None = found.cluster.workflow("job")["metadata"]["annotations"].get(keys.POOL)
    return said


def test_a_job_says_in_which_pool_its_nodes_are_if_there_are_several() -> None:
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, pool_label=_LABEL, pool_speed={"new": 3.0})
    for pools, expected in ((("old", "new"), "new"), (("new", "new"), None)):
        with lab(
            policy=load_policy("goodput"), settings=settings.model_copy(update={"pool_speed": {"new": 3.0}})
        ) as found:
            for name, pool in zip(("one", "two"), pools, strict=True):
                _node(found.cluster, name, pool)
            found.cluster.submit(job("job", task(replicas=2, min_replicas=2), preemptible=True))
            found.until(lambda: len(found.cluster.running("job")) == 2, "it runs")
            assert _annotation(found) == expected


def test_a_job_moves_to_a_faster_pool_in_a_new_round_and_says_so() -> None:
    """The fast nodes come later; what the job has reported is worth the restart."""
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, pool_label=_LABEL, pool_speed={"fast": 50.0})
    with lab(policy=load_policy("goodput"), settings=settings) as found:
        _node(found.cluster, "one", "slow")
        _node(found.cluster, "other", "none")
        found.cluster.cordon("other")
        found.cluster.submit(job("job", task(replicas=2, min_replicas=2), preemptible=True))
        found.until(lambda: len(found.cluster.running("job")) == 2, "it runs")
        assert _annotation(found) == "slow"
        before = found.cluster.workflow("job")
        _node(found.cluster, "two", "fast")
        found.until(lambda: _annotation(found) == "fast", "it moves")
        found.until(lambda: len(found.cluster.running("job")) == 2, "it runs again")
        assert found.allocation("job") == {"worker": ["two", "two"]}
        assert Allocation.parse(before["metadata"]["annotations"][keys.ALLOCATION]).round == "1"  # type: ignore[union-attr]
        assert Allocation.parse(found.cluster.workflow("job")["metadata"]["annotations"][keys.ALLOCATION]).round == "2"  # type: ignore[union-attr]
