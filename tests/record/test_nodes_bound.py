"""A Workflow's status may have more nodes than any job: reading them is fast, and keeps none of them."""

from __future__ import annotations

import base64
import gzip
import json

import pytest

from diflow.allocator.watch import records
from diflow.record.argo import node_names
from diflow.record.argo.nodes import nodes
from tests.record.hostile import Json, workflow


def packed(body: Json, many: Json) -> None:
    body["status"] = {"compressedNodes": base64.b64encode(gzip.compress(json.dumps(many).encode())).decode()}


def plain(body: Json, many: Json) -> None:
    body["status"] = {"nodes": many}


@pytest.mark.parametrize("put", [packed, plain])
def test_more_nodes_than_argo_can_pack_are_none(put: object) -> None:
    body = workflow()
    assert callable(put)
    put(body, {f"{i}": {"name": f"one.round(0:1)(0).worker({i}:{i})"} for i in range(25_001)})
    assert nodes(body) == ((), False)
    assert records.planning_record_of(body).argo.tree.members == {}


def test_as_many_nodes_as_argo_can_pack_are_read() -> None:
    body = workflow()
    packed(body, {f"{i}": {"name": f"one.round(0:1)(0).worker({i}:{i})"} for i in range(25_000)})
    assert len(records.planning_record_of(body).argo.tree.members) == 25_000


def test_names_of_nodes_that_a_workflow_had_before_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    body = workflow()
    plain(body, {f"{i}": {"name": f"one.round(0:1)(0).worker({i}:{i})"} for i in range(1000)})
    before = nodes(body)
    monkeypatch.setattr(node_names, "_parsed", lambda _: pytest.fail("parsed again"))
    monkeypatch.setattr(node_names, "_NAME", None)
    assert nodes(body) == before
