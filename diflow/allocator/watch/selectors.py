"""Selectors of the objects that the allocator reads."""

from __future__ import annotations

from typing import Final

from diflow.common import keys

MANAGED: Final = f"{keys.MANAGED},{keys.SCHEDULING}=gang"
"""Label selector: the Workflows under the allocator."""
LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector: pods that have ended hold no resources, so the server need not send them."""
