"""DI-engine's own clients, unchanged, against the server: `OperatorServer` and `CommCoordinator`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from diflow.contrib.di_orchestrator import modules
from diflow.kube.kinds import NODE
from diflow.server.settings import ServerSettings
from tests.contrib.di_orchestrator.test_routes import WHO, hosts, submitted
from tests.kube.fakeapi import serving
from tests.server import dingine
from tests.server.api.test_client_contract import served
from tests.server.place import Place, asynchronous

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dingine")]

Json = dict[str, Any]


@pytest.fixture(autouse=True, scope="module")
def _client() -> None:
    """The environment of the client, before the time of a test begins."""
    dingine.prepared()


async def calling(place: Place, url: str, name: str, *calls: tuple[str, Json]) -> list[Any]:
    """What the client returns for these calls."""
    address = url.removeprefix("http://")
    said = await asyncio.to_thread(dingine.call, address, name, *(json.dumps(one) for one in calls))
    place.settle()
    return [json.loads(line) for line in said]


@asynchronous
async def test_every_call_of_the_operator_server() -> None:
    with serving() as api:
        place = Place(api, settings=ServerSettings(unproven_pods=True))
        submitted(place)
        place.api.add(NODE, {"metadata": {"name": "n"}, "status": {"allocatable": {modules.GPU: "8"}}})
        place.pod("old", "coordinator", 0, ip="127.0.0.1")
        request = {
            "collectors": {"replicas": 2, "cpus": "0.5", "memory": "200Mi"},
            "learners": {"replicas": 1, "gpus": "2", "cpus": "0.5", "memory": "200Mi"},
        }
        async with served(place) as url:
            who = "old-coordinator"
            (made, found) = await calling(place, url, who, ("post_replicas", {"data": request}), ("get_replicas", {}))
            assert made[:3] == [True, 0, "successfully create replicas"]
            place.settle()
            assert [len(hosts(made[3][key])) for key in ("collectors", "learners")] == [2, 1]
            (found,) = await calling(place, url, who, ("get_replicas", {}))
            assert found == [True, 0, "successfully get replicas", made[3]]
            # As `CommCoordinator` names a replica that it has lost: what stands before the last dot of its host.
            lost = made[3]["collectors"][0].split(":")[0].rpartition(".")[0]
            (again,) = await calling(place, url, who, ("post_replicas_failed", {"collectors": [lost]}))
            assert again[:3] == [True, 0, "successfully recreate replicas"]
            assert hosts(again[3]["collectors"]) != hosts(made[3]["collectors"])[:1]
            (found,) = await calling(place, url, who, ("get_replicas", {}))
            assert made[3]["collectors"][0] not in found[3]["collectors"]
            assert len(found[3]["collectors"]) == 2
            (gone,) = await calling(place, url, who, ("delete_replicas", {"n_collectors": 9, "n_learners": 1}))
            assert gone[:3] == [True, 0, "successfully delete replicas"]
            assert sorted(gone[3]["collectors"]) == sorted(found[3]["collectors"])
            (left, named) = await calling(place, url, who, ("get_replicas", {}), ("get_replicas", {"name": who}))
            assert left[3] == named[3] == {**WHO, "collectors": [], "learners": []}
            (unknown,) = await calling(place, url, "nobody-coordinator", ("get_replicas", {}))
            assert unknown == {"error": "RequestException"}


@asynchronous
async def test_a_coordinator_starts_its_pipeline_and_replaces_a_collector_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBERNETES_POD_NAMESPACE", "default")
    monkeypatch.setenv("KUBERNETES_POD_NAME", "old-coordinator")
    with serving() as api:
        place = Place(api, settings=ServerSettings(unproven_pods=True))
        submitted(place)
        place.pod("old", "coordinator", 0, ip="127.0.0.1")
        async with served(place) as url:
            said = await asyncio.to_thread(dingine.coordinate, url.removeprefix("http://"))
        first, later = (json.loads(line) for line in said)
        assert [len(hosts(some)) for some in first] == [2, 2]
        assert first[1] == later[1], "the learners are still there"
        assert len(set(first[0]) & set(later[0])) == 1, "one collector was replaced"
