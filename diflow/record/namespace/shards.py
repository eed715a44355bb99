"""The ledger of a job's data shards as it is stored: a text in a ConfigMap, which the job's Workflow owns.

Users can edit it. What the text means is in `diflow.shards.ledger`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from diflow.record import untrusted
from diflow.record.identity import Identity

PREFIX: Final = "diflow-shards-"
"""Of the name of the ConfigMap, before that of the job."""
KEY: Final = "ledger"
"""The key of the ConfigMap's data with the text."""


def name_of(job: str) -> str:
    """The name of the ConfigMap with the ledger of this job."""
    return PREFIX + job


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """The text of a ledger, and the version of its ConfigMap ("": there is none). `owners`: the uids of the job's
    Workflows that own it."""

    version: str = ""
    text: str = ""
    owners: frozenset[str] = frozenset()

    @classmethod
    def read(cls, config_map: Mapping[str, Any], workflows: Collection[str]) -> Self:
        """That of the job that has Workflows with these uids. The ledger of a former job of this name will be deleted
        with that job, and its text counts for nothing."""
        references = untrusted.mappings(untrusted.sub(config_map, "metadata").get("ownerReferences"))
        owners = frozenset(untrusted.string(one.get("uid")) for one in references) & frozenset(workflows)
        text = untrusted.string(untrusted.sub(config_map, "data").get(KEY)) if owners else ""
        return cls(Identity.of(config_map).version, text, owners)
