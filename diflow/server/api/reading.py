"""What the cache keeps of a Workflow and of a pod, instead of the whole object.

Users can edit these objects, so no content raises here. Thousands of pods need a few megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from diflow.common import keys
from diflow.dijob.stored import NOTHING, StoredJob
from diflow.record import modules, untrusted
from diflow.record.argo.nodes import owner_of
from diflow.record.job import JobRecord, Notes, Texts, record_of

_HIGHEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class ServedPod:
    """A pod that has not ended. `owner` is the uid of its Workflow, `address` "" while it has none, `index` -1 if it is
    not known.
    """

    namespace: str
    name: str
    uid: str
    job: str
    workflow: str
    owner: str
    round: str
    task: str
    index: int
    address: str
    port: int
    node: str
    created: str
    is_ending: bool
    on_host_network: bool


def served_record_of(obj: Mapping[str, Any]) -> JobRecord:
    """The record of a job's Workflow with its modules, and without what the server does not need."""
    found = record_of(obj)
    known = modules.read(obj)
    spec = found.spec
    return replace(
        found,
        submitted=StoredJob("", None, None, spec.without_templates) if spec.tasks else NOTHING,
        wishes=replace(found.wishes, desired={}, requests=()),
        notes=Notes(excluded=found.notes.excluded, pool=found.notes.pool),
        argo=found.argo if known is None else replace(found.argo, modules=known),
        texts=Texts(
            check_text=found.texts.check_text if spec.node_check is not None else "",
            report=found.texts.report,
            report_at=found.texts.report_at,
        ),
    )


def read_pod(obj: Mapping[str, Any]) -> ServedPod:
    """What to keep of a job's pod."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return ServedPod(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        job=labels.get(keys.JOB) or "",
        workflow=labels.get(keys.ARGO_WORKFLOW) or "",
        owner=owner_of(obj),
        round=labels.get(keys.ROUND) or "",
        task=labels.get(keys.TASK_NAME) or "",
        index=index if (index := untrusted.whole(annotations.get(keys.TASK_RANK))) is not None else -1,
        address=str(status.get("podIP") or ""),
        port=_port(spec),
        node=str(spec.get("nodeName") or ""),
        created=str(metadata.get("creationTimestamp") or ""),
        is_ending=bool(metadata.get("deletionTimestamp")),
        on_host_network=bool(spec.get("hostNetwork")),
    )


def address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port(spec: Mapping[str, Any]) -> int:
    for container in spec.get("containers") or []:
        for port in container.get("ports") or []:
            number = port.get("containerPort")
            if port.get("name") == keys.PORT_NAME and type(number) is int and 1 <= number <= _HIGHEST_PORT:
                return number
    return keys.PORT
