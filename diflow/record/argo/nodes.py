"""The nodes of Argo's tree, typed and bounded.

The owner of a Workflow can write its `status`, too, compressed or not: a few kilobytes may decompress to gigabytes, and
any field may have any type.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from diflow.common import keys
from diflow.record import untrusted
from diflow.record.argo import node_names
from diflow.record.argo.node_names import NodeName

Object = Mapping[str, Any]

# Argo compresses up to 1 MiB, which is about 14,700 nodes of 530 bytes and 25 values each (docs/decisions/0006).
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_VALUES: Final = 800_000
_MOST_NODES: Final = 25_000
"""Of one Workflow. Compressed nodes take at least 50 bytes each, and Argo compresses up to 1 MiB. Forged nodes may be
smaller: several hundred thousand of them would take seconds to read and tens of megabytes to keep."""
_PIECE: Final = 1 << 20
_LONGEST_NAME: Final = 1024
_LONGEST_MESSAGE: Final = 4096
_PHASES: Final = frozenset({"Pending", "Running", "Succeeded", "Skipped", "Failed", "Error", "Omitted"})

FULFILLED: Final = frozenset({"Succeeded", "Failed", "Error", "Skipped", "Omitted"})


class Node(Struct, frozen=True):
    """One node. `place` is its position in the tree of rounds, None if it is outside. Times are RFC 3339 or "".
    `memory`: the MiB of its main container, 0 if Argo records none (`workflows.expressions.memory`).

    Each change of a Workflow makes all its nodes again, thousands of them: a Struct is made several times faster than a
    dataclass.
    """

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
    memory: int = 0

    @property
    def is_fulfilled(self) -> bool:
        """Argo considers it ended."""
        return self.phase in FULFILLED

    @property
    def had_host(self) -> bool:
        """Its pod was bound to a Kubernetes node: Argo names that node, or the pod has run."""
        return bool(self.host) or self.exit_code is not None or self.phase in ("Running", "Succeeded")


def nodes(workflow: Object, pods: Sequence[Object] = ()) -> tuple[tuple[Node, ...], bool]:
    """The Workflow's nodes, decompressed if needed.

    The second value says that Argo keeps the nodes of this Workflow in its database (node status offloading): then they
    are reconstructed from the pods given.
    """
    name = untrusted.string(untrusted.sub(workflow, "metadata").get("name"))
    found, offloaded = raw(workflow, pods)
    return tuple(
        _node(name, key, node) for key, node in found.items() if type(node) is dict or isinstance(node, Mapping)
    ), offloaded


def raw(workflow: Object, pods: Sequence[Object] = ()) -> tuple[Mapping[str, Any], bool]:
    """The nodes as they are in the Workflow, by id, for code that writes them back."""
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


def is_packed(workflow: Object) -> bool:
    """Whether Argo keeps the Workflow's nodes compressed."""
    status = untrusted.sub(workflow, "status")
    return bool(status.get("compressedNodes")) and not status.get("nodes")


def packed(nodes: Object) -> dict[str, Any]:
    """The field of a Workflow's status that has these nodes, compressed as Argo compresses them."""
    text = json.dumps(nodes, ensure_ascii=False, separators=(",", ":"))
    small = gzip.compress(text.encode("utf-8", "surrogatepass"), compresslevel=6, mtime=0)
    return {"compressedNodes": base64.b64encode(small).decode("ascii")}


def is_overfull(workflow: Object) -> bool:
    """Whether the nodes are more than any job has or cannot be decompressed, as far as is known without parsing them.

    Such nodes are ignored."""
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
        place=node_names.parse(workflow, name),
        type=untrusted.string(node.get("type"), most=40),
        phase=phase if isinstance(phase, str) and phase in _PHASES else "Pending",
        message=untrusted.string(node.get("message"), most=_LONGEST_MESSAGE),
        started=untrusted.time(node.get("startedAt")),
        finished=untrusted.time(node.get("finishedAt")),
        host=untrusted.string(node.get("hostNodeName"), most=253),
        exit_code=exit_code(code),
        memory=_memory(node),
    )


def _memory(node: Object) -> int:
    given = untrusted.sub(node, "inputs").get("parameters")
    # The last of a few: the other inputs of pods are not looked at.
    last = untrusted.sub(given[-1]) if isinstance(given, list) and given else {}
    if last.get("name") != keys.PARAM_MEMORY:
        return 0
    return untrusted.whole(last.get("value"), digits=15) or 0


def exit_code(code: Any) -> int | None:
    """An exit code, which Argo writes as text and Kubernetes as a number; None if invalid."""
    if untrusted.is_count(code, least=0, most=2**31 - 1):
        return int(code)
    return untrusted.whole(code)


def _unpacked(packed: Any) -> Mapping[str, Any]:
    """The nodes in `compressedNodes`; none if its content is invalid or too large when decompressed."""
    unzipped = _text_of(packed)
    try:
        found = json.loads(unzipped) if unzipped is not None else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text_of(packed: Any) -> bytes | None:
    """The decompressed text; None if it is invalid, too large or has too many values."""
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


def owner_of(pod: Mapping[str, Any]) -> str:
    """The uid of the Workflow that owns this pod; "" without one."""
    owners = untrusted.mappings(untrusted.sub(pod, "metadata").get("ownerReferences"))
    return next((untrusted.string(owner.get("uid")) for owner in owners if owner.get("kind") == "Workflow"), "")


def workflow_of(pod: Object) -> str:
    """The name of the Workflow that a pod is labelled with; "" without one."""
    return untrusted.string(untrusted.sub(pod, "metadata", "labels").get(keys.ARGO_WORKFLOW))


def node_id_of(pod: Object) -> str:
    """The id of the node in Argo's tree that a pod belongs to; "" if it has none."""
    return untrusted.string(untrusted.sub(pod, "metadata", "annotations").get(keys.ARGO_NODE_ID))


def node_name_of(pod: Object) -> str:
    """The name of that node; "" if it has none."""
    name = untrusted.sub(pod, "metadata", "annotations").get(keys.ARGO_NODE_NAME)
    return untrusted.string(name, most=_LONGEST_NAME)


def _of_pods(pods: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    for pod in pods:
        annotations = untrusted.sub(pod, "metadata", "annotations")
        node_id = node_id_of(pod)
        yield (
            node_id,
            {
                "id": node_id,
                "name": annotations.get(keys.ARGO_NODE_NAME),
                "type": "Pod",
                "phase": "Pending",
                "startedAt": untrusted.sub(pod, "metadata").get("creationTimestamp"),
                "message": untrusted.sub(pod, "status").get("message"),
            },
        )
