"""Kubernetes timestamps, lengths of time as kubectl shows them, and back-offs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_STEPS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age(since: str, *, now: datetime, until: str = "") -> str:
    """The age of a time, as `span`; "-" if there is none."""
    if not since:
        return "-"
    end = datetime.fromisoformat(until) if until else now
    return span((end - datetime.fromisoformat(since)).total_seconds())


def timestamp(seconds: float) -> str:
    """A Unix time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def backoff(bounds: tuple[float, float], failures: int, error: Exception | None = None) -> float:
    """Seconds until the next try after so many failures before this one: from the first bound, doubled each time, to
    the second one; at least what the server asked for with this error."""
    low, high = bounds
    asked: float = getattr(error, "retry_after_seconds", None) or 0.0
    return min(high, max(low * 2.0 ** min(failures, 16), asked))


def span(seconds: float) -> str:
    """A length of time in kubectl's format: 45s, 12m, 3h20m, 5d."""
    total = max(0, int(seconds))
    for i, (size, unit) in enumerate(_STEPS):
        if total >= size or unit == "s":
            count, rest = divmod(total, size)
            small = _STEPS[i + 1] if i + 1 < len(_STEPS) else None
            if small and count < 10 and rest >= small[0]:
                return f"{count}{unit}{rest // small[0]}{small[1]}"
            return f"{count}{unit}"
    return "0s"
