"""Chooses unused addresses, and connects a cluster's network namespace to the host.

Each cluster gets a /16 that overlaps no route, interface or other cluster, in three parts: the link between host and
node, the pods, and the Services. One host route leads the whole /16 to the cluster.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.errors import ClusterError

IPv4Network = ipaddress.IPv4Network

# The upper part of 10/8 is rarely used, and container engines use 172.17/16 upwards.
_CANDIDATES = tuple(IPv4Network(f"10.{second}.0.0/16") for second in range(201, 255))


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one cluster, all inside `block`."""

    block: IPv4Network

    @property
    def host_ip(self) -> str:
        return str(self.block.network_address + 1)

    @property
    def node_ip(self) -> str:
        return str(self.block.network_address + 2)

    @property
    def link(self) -> IPv4Network:
        """The link between host and node."""
        return next(self.block.subnets(new_prefix=24))

    @property
    def fake_pods(self) -> IPv4Network:
        """The addresses of fake pods."""
        return list(self.block.subnets(new_prefix=18))[2]

    @property
    def pods(self) -> IPv4Network:
        return list(self.block.subnets(new_prefix=18))[1]

    @property
    def services(self) -> IPv4Network:
        return list(self.block.subnets(new_prefix=18))[3]

    @property
    def api_service_ip(self) -> str:
        """The first Service address, which Kubernetes assigns to the API server."""
        return str(self.services.network_address + 1)


def choose(name: str, used: Iterable[IPv4Network]) -> Addresses:
    """A block that overlaps nothing in `used`; the search starts at a hash of the name, so blocks tend to be stable."""
    taken = list(used)
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % len(_CANDIDATES)
    for candidate in _CANDIDATES[start:] + _CANDIDATES[:start]:
        if not any(candidate.overlaps(network) for network in taken):
            return Addresses(candidate)
    raise ClusterError(
        "no free /16 between 10.201.0.0 and 10.254.0.0: take a cluster down (python3 -m cluster status lists them)"
    )


def host_networks() -> list[IPv4Network]:
    """All IPv4 networks of the host's routes and addresses, without default routes."""
    found = []
    for route in json.loads(_ip("-j", "-4", "route", "show", "table", "all") or "[]"):
        destination = route.get("dst", "default")
        if destination != "default":
            found.append(IPv4Network(destination, strict=False))
    for interface in json.loads(_ip("-j", "-4", "address") or "[]"):
        for address in interface.get("addr_info", []):
            found.append(IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False))
    return [network for network in found if network.prefixlen > 0]


def link_name(name: str) -> str:
    """The name of the host's end of the link; interface names have at most 15 characters."""
    return "df" + hashlib.sha256(name.encode()).hexdigest()[:10]


def join(name: str, addresses: Addresses, init_pid: int) -> None:
    """Creates the link from the host into the network namespace of `init_pid`, and the host's route."""
    host_end = link_name(name)
    unjoin(name)
    _ip("link", "add", host_end, "type", "veth", "peer", "name", "node0", "netns", str(init_pid))
    _ip("address", "add", f"{addresses.host_ip}/{addresses.link.prefixlen}", "dev", host_end)
    _ip("link", "set", host_end, "up")
    _ip("route", "add", str(addresses.block), "via", addresses.node_ip, "dev", host_end)


def unjoin(name: str) -> None:
    """Removes the link, and with it the route, if it exists."""
    subprocess.run(["ip", "link", "delete", link_name(name)], capture_output=True, check=False)


def setup_inside(addresses: Addresses) -> None:
    """Configures the node's end; called inside the namespace once the link exists."""
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{addresses.node_ip}/{addresses.link.prefixlen}", "dev", "node0")
    _ip("link", "set", "node0", "up")
    # Programs on the node need a route to Services, before kube-proxy rewrites the destination.
    _ip("route", "add", str(addresses.services), "via", addresses.host_ip)


def interface_exists(interface: str) -> bool:
    """Whether this network namespace has an interface of that name."""
    return subprocess.run(["ip", "link", "show", interface], capture_output=True, check=False).returncode == 0


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout
