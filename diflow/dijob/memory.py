"""How much memory a replica gets after it ran out of it. Amounts are in MiB.

The parameter `memory` of a Workflow has the memory of the main container by task. The pods' patch reads it, so that the
next attempt has it. The formula is that of DLRover's job master.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diflow.common import quantities

DOUBLED_UP_TO_MIB: Final = 64 * 1024
"""Memory is doubled up to this amount."""
MOST_STEP_MIB: Final = 8 * 1024
"""The most that is added at once."""
MOST_MIB: Final = quantities.MOST


def after_out_of_memory(current: int, *, highest: int, asked: int, most: int | None = None) -> int:
    """The memory of the next attempt of a replica that ran out of `current`; `current` if it may have no more.

    `highest`: the most that a replica of the task has; `asked`: what its user asked for; `most`: the maximum, None
    without one.
    """
    wanted = max(highest, min(2 * current, DOUBLED_UP_TO_MIB), asked)
    more = current + min(max(wanted - current, 0), MOST_STEP_MIB)
    return max(current, more if most is None else min(more, most))


def of_container(resources: Any) -> tuple[int, int]:
    """(the memory of a container of which more can be given, how much less of it is requested); (0, 0) if its resources
    name no memory. A limit without a request is the request, and without a limit the request is what counts."""
    given = resources if isinstance(resources, Mapping) else {}
    limit, request = (quantities.read(given.get(kind)).get("memory", 0) for kind in ("limits", "requests"))
    if not limit:
        return request, 0
    return limit, max(0, limit - request) if request else 0


def with_memory(resources: Mapping[str, Any], mib: int) -> dict[str, Any]:
    """The resources of a container with this memory instead of that in `of_container`."""
    _, less = of_container(resources)
    out = dict(resources)
    for kind in ("limits", "requests"):
        given = out.get(kind)
        if isinstance(given, Mapping) and "memory" in given:
            out[kind] = {**given, "memory": f"{mib - (less if kind == 'requests' else 0)}Mi"}
    return out
