"""The nodes of Argo's tree, typed and bounded.

`status` of a Workflow is writable by its owner like all the rest, packed or not: a few kilobytes may unpack to
gigabytes, and any field may be of any type.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from diflow.state import nodenames, untrusted
from diflow.state.nodenames import NodeName

Object = Mapping[str, Any]

# Argo packs up to 1 MiB, which is some 14,700 nodes of 530 bytes and 25 values each (docs/decisions/0006).
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_VALUES: Final = 800_000
_MOST_NODES: Final = 25_000
"""Of one Workflow. Packed they take 50 bytes each or more, and Argo packs up to 1 MiB. Others may be shorter: several
hundred thousand take seconds to read, and tens of megabytes of whoever keeps what they say."""
_PIECE: Final = 1 << 20
_LONGEST_NAME: Final = 1024
_LONGEST_MESSAGE: Final = 4096
_PHASES: Final = frozenset({"Pending", "Running", "Succeeded", "Skipped", "Failed", "Error", "Omitted"})

FULFILLED: Final = frozenset({"Succeeded", "Failed", "Error", "Skipped", "Omitted"})
_NODE_ID: Final = "workflows.argoproj.io/node-id"
_NODE_NAME: Final = "workflows.argoproj.io/node-name"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `place` is its place in the tree of rounds, None for one outside of it. Times are RFC 3339 or ""."""

    id: str
    name: str
    place: NodeName | None
    type: str
    phase: str
    message: str
    started: str
    finished: str
    host: str
    exit_code: int | None

    @property
    def is_fulfilled(self) -> bool:
        """Argo takes it for ended."""
        return self.phase in FULFILLED

    @property
    def had_host(self) -> bool:
        """Its pod got a machine: Argo names it, or the pod has run."""
        return bool(self.host) or self.exit_code is not None or self.phase in ("Running", "Succeeded")


def nodes(workflow: Object, pods: Sequence[Object] = ()) -> tuple[tuple[Node, ...], bool]:
    """The Workflow's nodes, unpacked where Argo packed them.

    The second value says that Argo keeps the nodes of this Workflow in its database: then they are put together from
    the pods, as far as those go.
    """
    name = untrusted.string(untrusted.sub(workflow, "metadata").get("name"))
    found, offloaded = raw(workflow, pods)
    return tuple(_node(name, key, node) for key, node in found.items() if isinstance(node, Mapping)), offloaded


def raw(workflow: Object, pods: Sequence[Object] = ()) -> tuple[Mapping[str, Any], bool]:
    """The nodes as they stand in the Workflow, by their id, for those who write them back."""
    status = untrusted.sub(workflow, "status")
    plain = status.get("nodes")
    if plain:
        return _bounded(plain), False
    packed = status.get("compressedNodes")
    if packed:
        return _bounded(_unpacked(packed)), False
    if status.get("offloadNodeStatusVersion"):
        return dict(_of_pods(pods)), True
    return {}, False


def is_overfull(workflow: Object) -> bool:
    """Its nodes are more than any job has or cannot be unpacked, as far as that is known without parsing them.

    They count as no nodes at all."""
    status = untrusted.sub(workflow, "status")
    plain, packed = status.get("nodes"), status.get("compressedNodes")
    if plain:
        return isinstance(plain, Mapping) and len(plain) > _MOST_NODES
    return bool(packed) and _text_of(packed) is None


def _bounded(nodes: Any) -> Mapping[str, Any]:
    return nodes if isinstance(nodes, Mapping) and len(nodes) <= _MOST_NODES else {}


def _node(workflow: str, key: str, node: Object) -> Node:
    name = untrusted.string(node.get("name"), most=_LONGEST_NAME)
    phase = node.get("phase")
    code = untrusted.sub(node, "outputs").get("exitCode")
    return Node(
        id=untrusted.string(node.get("id")) or str(key),
        name=name,
        place=nodenames.parse(workflow, name),
        type=untrusted.string(node.get("type"), most=40),
        phase=phase if isinstance(phase, str) and phase in _PHASES else "Pending",
        message=untrusted.string(node.get("message"), most=_LONGEST_MESSAGE),
        started=untrusted.time(node.get("startedAt")),
        finished=untrusted.time(node.get("finishedAt")),
        host=untrusted.string(node.get("hostNodeName"), most=253),
        exit_code=exit_code(code),
    )


def exit_code(code: Any) -> int | None:
    """An exit code, which Argo writes as text and Kubernetes as a number; None for what is none."""
    if untrusted.is_count(code, least=0, most=2**31 - 1):
        return int(code)
    return untrusted.whole(code)


def _unpacked(packed: Any) -> Mapping[str, Any]:
    """The nodes in `compressedNodes`; none where somebody wrote something else there, however small it was packed."""
    unzipped = _text_of(packed)
    try:
        found = json.loads(unzipped) if unzipped is not None else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text_of(packed: Any) -> bytes | None:
    """What was packed; None if it cannot be unpacked, or becomes too large or has too many values."""
    if not isinstance(packed, str):
        return None
    try:
        data = base64.b64decode(packed)
        unzip = zlib.decompressobj(wbits=31)
        out = bytearray()
        values = 0
        while data and not unzip.eof:
            part = unzip.decompress(data, _PIECE)
            data = unzip.unconsumed_tail
            out += part
            values += part.count(b",") + part.count(b"{") + part.count(b"[")
            if len(out) > _MOST_BYTES or values > _MOST_VALUES:
                return None
    except (ValueError, zlib.error):
        return None
    return bytes(out) if unzip.eof else None


def _of_pods(pods: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    for pod in pods:
        annotations = untrusted.sub(pod, "metadata", "annotations")
        node_id = untrusted.string(annotations.get(_NODE_ID))
        yield (
            node_id,
            {
                "id": node_id,
                "name": annotations.get(_NODE_NAME),
                "type": "Pod",
                "phase": "Pending",
                "startedAt": untrusted.sub(pod, "metadata").get("creationTimestamp"),
                "message": untrusted.sub(pod, "status").get("message"),
            },
        )
