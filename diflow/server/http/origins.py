"""How many connections one address, or one network, may have open at a time."""

from __future__ import annotations

import ipaddress
from typing import Final

# A network (in most clusters the pods of one node) may have this many times the connections of one address.
_NETWORK_SHARE: Final = 2


class Origins:
    """Counts connections by address and by network; `most` are allowed for one address (0: no limit)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[str, int] = {}

    def refusal(self, address: str) -> str:
        """Why this address may not open a further connection, or ""."""
        if not self._most:
            return ""
        if self._counts.get(address, 0) >= self._most:
            return f"more than {self._most} connections from one address"
        network, most = _network(address), _NETWORK_SHARE * self._most
        if self._counts.get(network, 0) >= most:
            return f"more than {most} connections from the network {network}"
        return ""

    def add(self, address: str) -> None:
        for origin in (address, _network(address)):
            self._counts[origin] = self._counts.get(origin, 0) + 1

    def remove(self, address: str) -> None:
        for origin in (address, _network(address)):
            count = self._counts.get(origin, 0) - 1
            if count > 0:
                self._counts[origin] = count
            else:
                self._counts.pop(origin, None)


def plain_address(peer: object) -> str:
    """The peer's address, as plain IPv4 on a dual-stack socket; "" if there is none."""
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) and peer else ""


def _network(address: str) -> str:
    """The network of an address: /24 of IPv4, /64 of IPv6."""
    if ":" not in address:
        return f"{address.rpartition('.')[0]}.0/24"
    try:
        bits = int(ipaddress.IPv6Address(address)) >> 64
    except ValueError:
        return address
    return f"{ipaddress.IPv6Address(bits << 64)}/64"
