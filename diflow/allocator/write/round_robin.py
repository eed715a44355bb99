"""The order in which work of several tenants is done, if only a part of it can be done at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def in_turns(items: Iterable[Item], owner: Callable[[Item], Hashable]) -> list[Item]:
    """One of each owner, then the second of each, and so on."""
    seen: Counter[Hashable] = Counter()
    order = []
    for one in items:
        order.append((seen[owner(one)], one))
        seen[owner(one)] += 1
    order.sort(key=lambda entry: entry[0])
    return [one for _, one in order]
