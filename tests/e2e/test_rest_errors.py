"""The REST API's errors from a server on a real cluster: the tables of `tests/server/api`.

The jobs are Workflows that nothing but Argo looks after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from diflow.workflows import render
from tests.builders import job, task, template
from tests.clusters import TestCluster, wait_until
from tests.contrib.di_orchestrator import oldjobs
from tests.contrib.di_orchestrator.test_routes import ERRORS
from tests.e2e.live import Live
from tests.e2e.test_v1alpha1 import Rest, running, server
from tests.server.api.test_replicas import BODIES, PATHS
from tests.server.place import mixed

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("node")]

Json = dict[str, Any]
_PATIENT = "trap 'exit 143' TERM; while true; do sleep 0.3; done"


class Caller:
    """A user with rights on the Workflows of the namespace, which the tables call `default`."""

    def __init__(self, live: Live, port: int) -> None:
        self._live, self._url = live, f"http://127.0.0.1:{port}"
        self._head = Rest(live, port, "old").head

    def here(self, text: str) -> str:
        return text.replace("default", self._live.namespace)

    def refusal(self, method: str, path: str, body: Any, code: int) -> str:
        """The message of a refusal with this status, whose envelope is as it has to be."""
        content = body if isinstance(body, bytes) else self.here(json.dumps(body)).encode()
        answer = requests.request(
            method, self._url + self.here(path), headers=self._head, data=None if body is None else content, timeout=30
        )
        found = answer.json()
        assert (answer.status_code, found["success"], found["code"], found["data"]) == (code, False, 1, None), found
        return str(found["message"])


@pytest.fixture(scope="module")
def caller(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A server, and the jobs that the tables name."""
    with argo40.namespace("errors") as namespace:
        live = Live(argo40, namespace)
        patient: Json = {"coordinator": {"template": template(_PATIENT)}}
        made = [
            oldjobs.workflow("old", **patient),
            oldjobs.workflow("plain", aggregator=False, **patient),
            oldjobs.workflow("over"),
            render(job(task("learner", _PATIENT), name="new")),
            render(mixed(scheduling="gang")),
        ]
        for one in made:
            one["metadata"]["namespace"] = namespace
        live.create(*made)
        wait_until("the coordinators run", lambda: all(running(live, name, "coordinator") for name in ("old", "plain")))
        live.ends("over", "Succeeded")
        with server(live, tmp_path_factory.mktemp("errors") / "server.log") as port:
            yield Caller(live, port)


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row[4][:60])
def test_v1alpha1(caller: Caller, row: tuple[str, str, Any, int, str]) -> None:
    method, path, body, code, text = row
    assert caller.refusal(method, path, body, code) == caller.here(text)


@pytest.mark.parametrize(("method", "body", "code", "words"), BODIES)
def test_bodies_of_v2alpha1(caller: Caller, method: str, body: Any, code: int, words: str) -> None:
    assert words in caller.refusal(method, "/v2alpha1/job/default.mixed/replicas", body, code)


@pytest.mark.parametrize(("path", "code", "words"), PATHS)
def test_paths_of_v2alpha1(caller: Caller, path: str, code: int, words: str) -> None:
    assert caller.here(words) in caller.refusal("POST", path, {"replicas": 1}, code)


def test_methods_and_sizes_of_v2alpha1(caller: Caller) -> None:
    path = "/v2alpha1/job/default.mixed/replicas"
    caller.refusal("PUT", path, {"replicas": 1}, 405)
    caller.refusal("POST", path, b" " * 70_000, 413)
