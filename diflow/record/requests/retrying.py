"""What a job forgets when it is retried: why it was stopped, what counted before, and the places of its admission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diflow.common import keys
from diflow.record import nodecheck, untrusted
from diflow.record.exclusions import Exclusions
from diflow.record.parameters import without_places


def forgetting(workflow: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch by which a job counts its restarts, those by its health too, its moves because of the node check
    and its run time from the beginning, and by which new pods have gates: others may have the places of its admission
    by now. {} if there is nothing to forget."""
    given = untrusted.sub(workflow, "metadata", "annotations")
    change: dict[str, Any] = {
        name: None for name in (keys.DECISION, keys.RESTARTS_BEFORE, keys.HEALTH, keys.RUN_TIME) if name in given
    }
    if (before := given.get(keys.EXCLUDED)) is not None:
        after = nodecheck.without_moves(Exclusions.parse(before)).to_json()
        change |= {keys.EXCLUDED: after} if after != before else {}
    parameters = without_places(workflow)
    return {
        **({"metadata": {"annotations": change}} if change else {}),
        **({"spec": {"arguments": {"parameters": parameters}}} if parameters else {}),
    }
