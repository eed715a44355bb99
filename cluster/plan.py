"""The plan of one cluster, made when it is created; everything else follows from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path

from cluster.network import Addresses
from cluster.paths import ClusterPaths

NODE_IMAGE_PAUSE = "docker.io/diflow/pause:1"
ARGO_SERVER_NODE_PORT = 32746


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan, written to state.json and read by the supervisor."""

    name: str
    root: str
    block: str
    argo: str
    # Program name → path of the binary.
    programs: dict[str, str]
    # Of the control plane. Clusters that were made before there was a choice have none in their file.
    kubernetes: str = "1.34.4"

    @property
    def paths(self) -> ClusterPaths:
        return ClusterPaths(Path(self.root))

    @property
    def addresses(self) -> Addresses:
        return Addresses(IPv4Network(self.block))

    @property
    def node(self) -> str:
        """The node's name."""
        return f"{self.name}-node"

    @property
    def second_node(self) -> str:
        """The name of the second node, which a cluster has on request."""
        return f"{self.node}-2"

    @property
    def api_url(self) -> str:
        return f"https://{self.addresses.node_ip}:6443"

    @property
    def argo_url(self) -> str:
        """The URL of Argo's server from the host."""
        return f"http://{self.addresses.node_ip}:{ARGO_SERVER_NODE_PORT}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        return Plan(**json.loads(text))
