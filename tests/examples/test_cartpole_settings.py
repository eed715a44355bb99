"""What a process of the CartPole example reads from its environment."""

from pathlib import Path

import pytest

from cartpole import settings
from cartpole.faults import SettingError
from cartpole.settings import Address

POD = {
    "DI_NODES": "cartpole-learner-0.di-cartpole.ns.svc.cluster.local,cartpole-collector-0.di-cartpole,"
    "cartpole-collector-1.di-cartpole,cartpole-evaluator-0.di-cartpole",
    "DI_LEARNER_NODES": "cartpole-learner-0.di-cartpole.ns.svc.cluster.local",
    "DI_COLLECTOR_NODES": "cartpole-collector-0.di-cartpole,cartpole-collector-1.di-cartpole",
    "DI_RANK": "2",
    "DI_JOB_ID": "ns/cartpole",
}


def test_a_pod_finds_the_learner_and_its_own_place() -> None:
    own = settings.read(POD)
    assert own.learner == Address("cartpole-learner-0.di-cartpole.ns.svc.cluster.local", 22270)
    assert (own.rank, own.name) == (2, "cartpole-collector-1.di-cartpole")
    assert own.expected == frozenset(POD["DI_NODES"].split(",")[1:])
    assert len(own.collectors) == 2
    assert own.target == 475
    assert own.seed is None


def test_the_nodes_of_now_are_read_from_the_file_that_diflow_writes(tmp_path: Path) -> None:
    assert settings.read(POD).present() is None
    own = settings.read(POD | {"DI_NODES_FILE": str(tmp_path / "nodes")})
    assert own.present() is None
    (tmp_path / "nodes").write_text("")
    assert own.present() is None, "empty for a moment when the pod is young"
    (tmp_path / "nodes").write_text("a,b\n")
    assert own.present() == frozenset({"a", "b"})


def test_each_job_has_a_folder_of_its_own_on_the_volume() -> None:
    assert settings.read(POD).folder == Path("/data/ns.cartpole")
    assert settings.read(POD | {"CARTPOLE_DIR": "/mnt"}).folder == Path("/mnt/ns.cartpole")
    assert settings.read({"DI_NODES": "a", "CARTPOLE_DIR": "/mnt"}).folder == Path("/mnt")


def test_the_learner_is_the_first_node_when_no_other_is_named() -> None:
    assert settings.read({"DI_NODES": "127.0.0.1:4000,127.0.0.1:4001"}).learner == Address("127.0.0.1", 4000)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "neither DI_LEARNER_NODES nor DI_NODES is set"),
        ({"DI_NODES": "a:b"}, "`a:b` in DI_NODES is not a host"),
        ({"DI_NODES": "a:0"}, "is not a host"),
        ({"DI_NODES": "a:65536"}, "is not a host"),
        ({"DI_NODES": "a", "DI_RANK": "one"}, "DI_RANK is `one`"),
        ({"DI_NODES": "a", "DI_RANK": "-1"}, "DI_RANK is -1"),
        ({"DI_NODES": "a", "CARTPOLE_TARGET": "501"}, "CARTPOLE_TARGET is `501`"),
        ({"DI_NODES": "a", "CARTPOLE_TARGET": "much"}, "CARTPOLE_TARGET is `much`"),
        ({"DI_NODES": "a", "CARTPOLE_LEARNING_RATE": "nan"}, "CARTPOLE_LEARNING_RATE is `nan`"),
        ({"DI_NODES": "a", "CARTPOLE_SEED": "x"}, "CARTPOLE_SEED is `x`"),
        ({"DI_NODES": "a", "DI_JOB_ID": "../../etc"}, "DI_JOB_ID is"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        settings.read(environ)
