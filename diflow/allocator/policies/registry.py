"""The policies by name: the allocator's own, and those that are added to them. It imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BUILT_IN: Final = {
    "fit": "diflow.allocator.policies.fit.policy:FitPolicy",
    "fair": "diflow.allocator.policies.fair.policy:FairPolicy",
    "goodput": "diflow.allocator.policies.goodput.fair_goodput:GoodputByNamespaces",
    "fair+goodput": "diflow.allocator.policies.goodput.fair_goodput:FairGoodputPolicy",
}
_added: Final = dict[str, str]()


def add(name: str, made_by: str) -> None:
    """Add a policy. `made_by`: "module:callable" of what takes PolicySettings and returns it."""
    _added[name] = made_by


def registered() -> Mapping[str, str]:
    """What makes each policy, as "module:callable", by its name."""
    return {**_added, **_BUILT_IN}
