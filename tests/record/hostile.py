"""Workflows as an attacker may edit them: real ones, with arbitrary values at arbitrary places."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from diflow.workflows import render
from tests.allocator.lab import job, task

Json = dict[str, Any]

DIGITS = ["²", "٣", "1_0", " 1", "+1", "9" * 4400, "-1", "0x1", "1e30", "999999999999999999", ""]
TEXTS = st.sampled_from(
    [
        *DIGITS,
        "[",
        "{",
        "[" * 5000,
        "null",
        "true",
        '"',
        "1",
        "2",
        "worker",
        "yesterday",
        "1970-01-01T00:00:00Z",
        "\ud800",
    ]
) | st.text(max_size=8)
NUMBERS = st.sampled_from([0, -1, 1, 2, 1e30, 10**30, 2**63, 10**4000, float("inf"), float("nan"), True, 0.5])
VALUES: Any = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXTS | st.sampled_from(["1", "worker", "min", "max"]), inner, max_size=3)
    ),
    max_leaves=8,
)
PARAMETERS = ["rounds", "current", "granted", "released", "incarnations", "replicas", "profilings", "places"]
ANNOTATIONS = [
    f"diflow/{name}"
    for name in (
        "dijob", "allocation", "decision", "bounds", "requests", "epoch", "restarts-before", "rounds-before",
        "history-before", "submitted", "continues", "continues-uid", "continued-in", "held",
    )
]  # fmt: skip
LABELS = ["diflow/priority", "diflow/preemptible", "diflow/queue", "diflow/scheduling", "diflow/job", "diflow/part"]
PATHS = [
    ("spec",), ("spec", "arguments"), ("spec", "arguments", "parameters"), ("spec", "suspend"), ("spec", "shutdown"),
    ("status",), ("status", "phase"), ("status", "nodes"), ("status", "compressedNodes"), ("status", "message"),
    ("status", "startedAt"), ("status", "finishedAt"), ("metadata", "creationTimestamp"),
    ("metadata", "ownerReferences"),
]  # fmt: skip
NODE_FIELDS = [
    "id", "name", "type", "phase", "message", "startedAt", "finishedAt", "hostNodeName", "outputs", "children",
]  # fmt: skip


def text_of(value: Any) -> str:
    """A value as text: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def workflow(name: str = "one") -> Json:
    """A preemptible job of two replicas, one of which runs."""
    body = render(job(name, task(replicas=2), preemptible=True))
    body["metadata"] |= {
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "5",
        "creationTimestamp": "2026-01-02T03:04:05Z",
    }
    nodes = {
        f"{name}.round(0:1)": {"type": "Retry", "phase": "Running"},
        f"{name}.round(0:1)(0).worker(0:0).worker(0)": {"type": "Pod", "phase": "Running", "hostNodeName": "a"},
        f"{name}.round(0:1)(0).worker(1:1).worker(0)": {"type": "Pod", "phase": "Pending"},
    }
    started = {"startedAt": "2026-01-02T03:04:06Z", "finishedAt": None}
    body["status"] = {
        "phase": "Running",
        "startedAt": "2026-01-02T03:04:05Z",
        "nodes": {f"id-{key}": {"id": f"id-{key}", "name": key, **started, **node} for key, node in nodes.items()},
    }
    return body


@st.composite
def workflows(draw: st.DrawFn, name: str = "one") -> Json:
    """A Workflow with a few values edited."""
    body = copy.deepcopy(workflow(name))
    parameters = body["spec"]["arguments"]["parameters"]
    edits = draw(st.dictionaries(st.sampled_from(PARAMETERS), VALUES, max_size=2))
    as_text = draw(st.booleans())
    for item in parameters:
        if item["name"] in edits:
            value = edits[item["name"]]
            item["value"] = text_of(value) if as_text else value
    body["metadata"]["annotations"] |= {
        key: text_of(value)
        for key, value in draw(st.dictionaries(st.sampled_from(ANNOTATIONS), VALUES, max_size=3)).items()
    }
    body["metadata"]["labels"] |= draw(st.dictionaries(st.sampled_from(LABELS), TEXTS, max_size=2))
    for node in body["status"]["nodes"].values():
        node.update(draw(st.dictionaries(st.sampled_from(NODE_FIELDS), VALUES, max_size=2)))
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=1)):
        at = body
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = draw(VALUES)
    return body
