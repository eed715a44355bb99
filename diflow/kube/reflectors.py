"""Several reflectors as one: started and stopped together, and healthy only if each of them is.

It does not know the kinds that they cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diflow.kube.reflector import Reflector


class Reflectors:
    """A group of reflectors, in order."""

    def __init__(self, members: Sequence[Reflector]) -> None:
        self.members = tuple(members)

    def start(self) -> None:
        """Start to list and watch, in threads."""
        for reflector in self.members:
            reflector.start()

    def stop(self) -> None:
        """Stop the threads. The caches stay readable, and become stale."""
        for reflector in self.members:
            reflector.stop()

    def reopen(self) -> None:
        """Continue all watches on new connections; `trouble` is "" again when the server has accepted them."""
        for reflector in self.members:
            reflector.reopen()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until all have listed. False if one took longer than `timeout` seconds."""
        return all(reflector.wait_synced(timeout) for reflector in self.members)

    @property
    def age_seconds(self) -> float:
        """The age of the oldest."""
        return max(reflector.age_seconds for reflector in self.members)

    def late(self) -> float:
        """For how many seconds a change has waited that is read late, of all the longest; 0 if none is."""
        return max((seconds for reflector in self.members for seconds in reflector.late().values()), default=0.0)

    def trouble(self, stale_seconds: float) -> str:
        """Why the caches must not be used now; "" if all are healthy. `stale_seconds`: how old they may be."""
        return next((said for reflector in self.members if (said := _trouble(reflector, stale_seconds))), "")


def _trouble(reflector: Reflector, stale_seconds: float) -> str:
    if not reflector.synced:
        return reflector.trouble or f"not all {reflector.kind.plural} have been listed yet"
    age = reflector.age_seconds
    if age <= stale_seconds:
        return ""
    if math.isfinite(age) and reflector.is_behind:
        return f"what the API server has sent of {reflector.kind.plural} was not read to its end for {age:.0f} s"
    said = f"for {age:.0f} s" if math.isfinite(age) else "yet"
    return f"the API server has said nothing of {reflector.kind.plural} {said}: {reflector.trouble or 'a silent watch'}"
