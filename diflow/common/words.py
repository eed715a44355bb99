"""Formats numbers for users: with nouns, `1 replica` and `4 replicas`, and with units; and shortens lists and texts."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

_MIB: Final = frozenset({"memory", "ephemeral-storage"})
DEFAULT_QUEUE: Final = "default"
"""The queue of a job that names none."""
_LONGEST_NAME: Final = 64
STARTS: Final = "starts: "
"""The beginning of the reason of a decision that admits a job."""


def counted(number: float | str, noun: str, *, plural: str = "") -> str:
    """The number (or a text such as `1 to 4`) with its noun; `plural` if that is not the noun with an s."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {noun if shown == '1' else plural or f'{noun}s'}"


def named(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def meant(name: str, known: Sequence[str]) -> str:
    """The known name that was probably meant; "" if none is close."""
    close = get_close_matches(name, known, n=1, cutoff=0.75) if len(name) <= _LONGEST_NAME else []
    return close[0] if close else ""


def shortened(text: str, most: int, *, end: str = "…") -> str:
    """The text with at most so many characters."""
    return text if len(text) <= most else f"{text[: most - len(end)]}{end}"


def quantity(resource: str, amount: float) -> str:
    """An amount of a resource, given in millicores, MiB or devices: such as `1.5` cores, `20Gi`, `512Mi`, `4`."""
    if resource == "cpu":
        return f"{amount / 1000:.3g}" if amount < 1e6 else f"{amount / 1000:.0f}"
    if resource in _MIB:
        for unit, size in (("Ti", 1024.0 * 1024), ("Gi", 1024.0)):
            if amount >= size:
                return f"{amount / size:.3g}{unit}" if amount < 1000 * size else f"{amount / size:.0f}{unit}"
        return f"{amount:.0f}Mi"
    return f"{amount:.0f}" if 1e4 <= amount < 1e12 else f"{amount:.4g}"
